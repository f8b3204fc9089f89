"""What a training process and the twin share: a mapped file with the boards' speeds one way, the job's phase back.

A real GPU runs what it is given; the twin's boards must be told what they would be running, and the job must be told
how fast they are. Standard library only, fixed little-endian layout, one writer per field.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from nodewarden.clock import boot_now_s
from nodewarden.sim.plant import Phase

MAGIC = b"NWTWIN01"
BOARDS = 8
SIZE = 4096
PHASES: tuple[Phase, ...] = ("idle", "compute", "wait", "all_reduce", "checkpoint", "pause")

# Offsets. The clock and the pace are written once by whoever creates the file.
_CLOCK = struct.Struct("<dd")  # speed, origin on CLOCK_BOOTTIME
_CLOCK_AT = 16
_BEGIN = struct.Struct("<d")  # written by the demo: clock time at which the scenario begins, 0 = not yet
_BEGIN_AT = 64
_JOB = struct.Struct("<IIq")  # written by the job: pid, phase, step
_JOB_AT = 128
_BOARD = struct.Struct("<ddddd")  # written by the twin: speed, hottest degC, lowest margin, HW slowdown seconds, off
_BOARD_AT = 512
_TWIN = struct.Struct("<ddd")  # written by the twin: scenario seconds, plug watts, clock time of the last step
_TWIN_AT = 256


class BoardTruth:
    """What the plant knows of one board since the scenario began: the truth, not the sensor's rounded reading."""

    __slots__ = ("hottest_c", "hw_slowdown_s", "lowest_margin_c", "off", "speed")

    def __init__(self, speed: float, hottest_c: float, lowest_margin_c: float, hw_slowdown_s: float, off: bool) -> None:
        self.speed = speed
        self.hottest_c = hottest_c
        self.lowest_margin_c = lowest_margin_c
        self.hw_slowdown_s = hw_slowdown_s
        self.off = off


class JobLink:
    """The mapped file. `clock_speed` and `clock_origin_s` let every process share one (scaled) clock."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        if self._map[: len(MAGIC)] != MAGIC:
            self._map.close()
            raise ValueError(f"{path} is not a file that the twin shares with a job")
        self.clock_speed, self.clock_origin_s = _CLOCK.unpack_from(self._map, _CLOCK_AT)

    @classmethod
    def create(cls, path: Path, *, speed: float = 1.0, origin_s: float = 0.0) -> Self:
        """Make the file; it must not exist."""
        image = bytearray(SIZE)
        image[: len(MAGIC)] = MAGIC
        _CLOCK.pack_into(image, _CLOCK_AT, speed, origin_s)
        for board in range(BOARDS):
            _BOARD.pack_into(image, _BOARD_AT + board * _BOARD.size, 1.0, 0.0, 99.0, 0.0, 0.0)
        with path.open("xb") as file:
            file.write(image)
        return cls(path)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Everybody

    def now_s(self) -> float:
        """Time of the shared clock, seconds."""
        real_s = boot_now_s()
        now_s: float = self.clock_origin_s + (real_s - self.clock_origin_s) * self.clock_speed
        return now_s

    def sleep_s(self, seconds: float) -> None:
        """Let `seconds` of the shared clock pass."""
        time.sleep(max(0.0, seconds) / self.clock_speed)

    def board(self, index: int) -> BoardTruth:
        """What the twin last wrote of one board."""
        speed, hottest_c, margin_c, hw_s, off = _BOARD.unpack_from(self._map, _BOARD_AT + index * _BOARD.size)
        return BoardTruth(speed, hottest_c, margin_c, hw_s, off != 0.0)

    def speeds(self) -> list[float]:
        """Speed of each board as a share of its speed at full clock."""
        return [_BOARD.unpack_from(self._map, _BOARD_AT + board * _BOARD.size)[0] for board in range(BOARDS)]

    def twin(self) -> tuple[float, float, float]:
        """Scenario seconds, watts at the plug, clock time of the twin's last step."""
        scenario_s, plug_w, at_s = _TWIN.unpack_from(self._map, _TWIN_AT)
        return scenario_s, plug_w, at_s

    def job(self) -> tuple[int, Phase, int]:
        """The job's pid (0 = none has come yet), what it does, and its step."""
        pid, phase, step = _JOB.unpack_from(self._map, _JOB_AT)
        return pid, PHASES[phase] if phase < len(PHASES) else "idle", step

    def begin_s(self) -> float | None:
        """Clock time at which the scenario begins; None = not said yet."""
        (at_s,) = _BEGIN.unpack_from(self._map, _BEGIN_AT)
        return at_s or None

    # The job

    def say(self, phase: Phase, step: int) -> None:
        """The job tells what its boards are doing now."""
        _JOB.pack_into(self._map, _JOB_AT, os.getpid(), PHASES.index(phase), step)

    # The twin

    def write_board(self, index: int, truth: BoardTruth) -> None:
        """The twin tells one board's truth."""
        _BOARD.pack_into(
            self._map,
            _BOARD_AT + index * _BOARD.size,
            truth.speed,
            truth.hottest_c,
            truth.lowest_margin_c,
            truth.hw_slowdown_s,
            float(truth.off),
        )

    def write_twin(self, scenario_s: float, plug_w: float, at_s: float) -> None:
        """The twin tells where it is."""
        _TWIN.pack_into(self._map, _TWIN_AT, scenario_s, plug_w, at_s)

    # The demo

    def begin(self, at_s: float) -> None:
        """The scenario begins at this clock time."""
        _BEGIN.pack_into(self._map, _BEGIN_AT, at_s)
