"""What is known of GPU errors over restarts of the agent: one small JSON file in the state directory.

Counts and the place up to which they were counted are written together, so that nothing is counted twice or forgotten
when the agent is killed. Counts go on over reboots; what holds until a reset ends with the boot.
"""

import contextlib
import time
from pathlib import Path

import msgspec
import structlog

from nodewarden.sources.xid_merge import Reported

log = structlog.get_logger("nodewarden.sources")

FILE_NAME = "xids.json"


class OpenIncident(msgspec.Struct, kw_only=True):
    """As `model.xids.Incident`, without what the table says."""

    count: int
    first_s: float
    last_s: float
    text: str = ""
    pid: int | None = None
    process: str = ""


class GpuMemory(msgspec.Struct, kw_only=True):
    """One GPU. last_wall_s: Unix time of the newest event; energy_epoch: when it rises, the GPU was reset."""

    total: int = 0
    by_code: dict[str, int] = {}
    by_source: dict[str, int] = {}
    last_wall_s: float | None = None
    bus_id: str = ""
    energy_epoch: float | None = None
    incidents: dict[int, OpenIncident] = {}


class SwitchMemory(msgspec.Struct, kw_only=True):
    """One NVSwitch."""

    by_code: dict[str, int] = {}
    last_code: int = 0
    last_s: float = 0.0
    last_text: str = ""


class Waiting(msgspec.Struct, kw_only=True):
    """Reports that may still find their counterpart."""

    uuid: str
    code: int
    reported: list[Reported]


class Memory(msgspec.Struct, kw_only=True):
    """The whole file. epoch, after, kernel_after: see `wire.Events`; times of another `boot` mean nothing."""

    boot: str = ""
    epoch: str = ""
    after: int = 0
    kernel_after: int = -1
    gpus: dict[str, GpuMemory] = {}
    switches: dict[str, SwitchMemory] = {}
    waiting: list[Waiting] = []


def load_memory(folder: Path, boot: str) -> Memory:
    """What was written last; a damaged file is moved aside and begun anew."""
    path = folder / FILE_NAME
    try:
        memory = msgspec.json.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory(boot=boot)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        aside = path.with_name(f"{FILE_NAME}.damaged-{time.time_ns()}")
        with contextlib.suppress(OSError):
            path.rename(aside)
        log.warning("xid_memory_damaged", path=str(path), moved_to=str(aside), reason=str(error))
        return Memory(boot=boot)
    if memory.boot != boot:
        memory.boot, memory.epoch, memory.after, memory.kernel_after = boot, "", 0, -1
        memory.waiting = []
        memory.switches = {bus_id: SwitchMemory(by_code=switch.by_code) for bus_id, switch in memory.switches.items()}
        for gpu in memory.gpus.values():
            gpu.incidents = {}
            gpu.energy_epoch = None
    return memory


def encoded(memory: Memory) -> bytes:
    """What the file should have."""
    return msgspec.json.encode(memory)


def save_memory(folder: Path, content: bytes) -> None:
    """Replace the file. Raises OSError."""
    path = folder / FILE_NAME
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)
