"""What the agent counts itself over the readings of a GPU: energy over driver reloads, and SM-clock seconds lost.

The energy totals are kept in a small file of the state directory, so that they go on over restarts of the agent too.
"""

import contextlib
from pathlib import Path

import msgspec
import structlog

from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import GpuSnapshot, Number

log = structlog.get_logger("nodewarden.gpu")

SLOWING = frozenset(
    {
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal",
        "hw_thermal",
        "hw_power_brake",
        "board_limit",
        "reliability",
    }
)
"""Event reasons that hold clocks down; idle, a clock that somebody asked for and a display do not count."""
MAX_GAP_S = 10.0
"""Over a longer gap between two readings nobody knows what the clock did."""
MOST_W = 5_000.0
"""No GPU uses more: a counter that moved faster was read wrongly."""
FALLS_UNTIL_BELIEVED = 2
"""A counter that fell in this many readings in a row began anew; once alone it was read wrongly."""
JUMPS_UNTIL_BELIEVED = 5
"""The same for one that rose faster than any GPU can."""
_MOST_GPUS = 64


class EnergyEpoch(msgspec.Struct):
    """Where the total of one GPU stands.

    Attributes:
        before_j: what all earlier epochs of the driver's counter add up to.
        raw_j: the driver's counter as last believed, which counts from the beginning of this epoch.
        epochs: how often it began anew.
    """

    before_j: float = 0.0
    raw_j: float = 0.0
    epochs: int = 0


class EnergyMeter:
    """The energy counter of one GPU, which never goes back: a driver reload or a reset begins a new epoch."""

    def __init__(self, epoch: EnergyEpoch | None = None) -> None:
        self.epoch = epoch or EnergyEpoch()
        self._at_s: float | None = None
        self._falls = 0
        self._jumps = 0
        self._shown_j = 0.0

    def total_j(self, raw_j: float, at_s: float) -> float | None:
        """The total with this reading of the driver's counter, None where the reading is not believed."""
        epoch, last_s = self.epoch, self._at_s
        if raw_j < epoch.raw_j:
            self._falls += 1
            if self._falls < FALLS_UNTIL_BELIEVED:
                return self._now_j()
            epoch.before_j += epoch.raw_j
            epoch.epochs += 1
        elif last_s is not None and raw_j - epoch.raw_j > MOST_W * (at_s - last_s + 1.0):
            self._jumps += 1
            if self._jumps < JUMPS_UNTIL_BELIEVED:
                return None
            epoch.before_j -= raw_j - epoch.raw_j  # it goes on from there, the jump itself is not counted
        self._falls = self._jumps = 0
        self._at_s = at_s
        epoch.raw_j = raw_j
        return self._now_j()

    def _now_j(self) -> float:
        self._shown_j = max(self._shown_j, self.epoch.before_j + self.epoch.raw_j)  # rounding takes nothing back
        return self._shown_j


class LostClock:
    """Integral of 1 - SM clock / highest SM clock over the time in which a kernel ran and a reason slowed it.

    Trapezoids between readings: the loss at a reading is 0 while the GPU is idle or nothing slows it. A gap of more
    than `MAX_GAP_S` counts nothing.
    """

    def __init__(self) -> None:
        self.lost_s = 0.0
        self._before: tuple[float, float] | None = None

    def add(self, gpu: GpuSnapshot) -> Number:
        """The seconds lost so far, or why they are not known."""
        sm, top, used, slow = gpu.sm_clock_hz, gpu.number("max_clock_hz", "sm"), gpu.utilisation, gpu.slow
        for part in (sm, top, used, slow):
            if not isinstance(part, Reading):
                self._before = None
                return part
        assert isinstance(sm, Reading)
        assert isinstance(top, Reading)
        assert isinstance(used, Reading)
        assert isinstance(slow, Reading)
        at_s = sm.taken_at_s
        slowed = used.value > 0 and not SLOWING.isdisjoint(slow.value)
        loss = max(0.0, 1.0 - sm.value / top.value) if slowed else 0.0
        before, self._before = self._before, (at_s, loss)
        if before is not None and 0.0 < at_s - before[0] <= MAX_GAP_S:
            self.lost_s += (at_s - before[0]) * (loss + before[1]) / 2
        return Reading(self.lost_s, at_s)


class GpuCounters:
    """The counters of all GPUs, and the file that keeps the energy totals. None = nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept = self._load()
        self._meters: dict[str, EnergyMeter] = {}
        self._lost: dict[str, LostClock] = {}
        self._problem = ""
        self._vanished: dict[str, int] = {}

    def cap_vanished(self, uuid: str) -> None:
        """The helper told that the driver forgot a cap."""
        self._vanished[uuid] = self._vanished.get(uuid, 0) + 1

    def vanished(self, uuid: str) -> float:
        """How often the driver forgot a cap of this GPU."""
        return float(self._vanished.get(uuid, 0))

    def count(self, gpu: GpuSnapshot) -> GpuSnapshot:
        """The snapshot, which nobody else has yet, with the counters brought to its newest readings."""
        uuid, more = gpu.uuid, gpu.more
        more["lost_sm_s"] = {(): self._lost.setdefault(uuid, LostClock()).add(gpu)}
        energy = gpu.energy_j
        if not isinstance(energy, Reading):
            more["energy_epoch"] = {(): energy}
            return gpu
        meter = self._meters.get(uuid)
        if meter is None:
            meter = self._meters[uuid] = EnergyMeter(self._kept.get(uuid))
        epochs = meter.epoch.epochs
        total_j = meter.total_j(energy.value, energy.taken_at_s)
        if meter.epoch.epochs != epochs:
            log.info("energy_counter_began_anew", uuid=uuid, epoch=meter.epoch.epochs)
        more["energy_epoch"] = {(): Reading(float(meter.epoch.epochs), energy.taken_at_s)}
        shown = Absent("not_read") if total_j is None else Reading(total_j, energy.taken_at_s)
        return msgspec.structs.replace(gpu, energy_j=shown)

    def _load(self) -> dict[str, EnergyEpoch]:
        if self._path is None:
            return {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # none yet, or damaged: the totals begin anew
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, EnergyEpoch])
        return {}

    def save(self) -> None:
        """Keep the totals; to be called off the event loop. A disk that refuses costs what was counted since."""
        if self._path is None or not self._meters:
            return
        self._kept |= {uuid: meter.epoch for uuid, meter in list(self._meters.items())}
        newest = dict(list(self._kept.items())[-_MOST_GPUS:])
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(newest))
            new.rename(self._path)
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("energy_totals_not_kept", path=str(self._path), reason=str(error))
        else:
            self._problem = ""
