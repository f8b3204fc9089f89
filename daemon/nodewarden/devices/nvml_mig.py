"""MIG instances of one GPU. They come and go under us.

Their uuid is their identity; an instance id is used again at once by another (F09).
"""

from collections.abc import Iterator
from typing import Any, Final

from nodewarden.devices.nvml_sweep import Sweep
from nodewarden.errors import DeviceError, DeviceLostError

_QUANTITIES: Final = ("mig_info", "mig_memory_used_bytes", "mig_memory_total_bytes")


def read_mig(sweep: Sweep, memory_v2: int) -> None:
    """Every instance that answers; one that goes while it is read costs only itself."""
    current = sweep.more.get("mig_mode", {}).get(("current",))
    if current != 1.0:
        reason = sweep.more.get("mig_mode", {}).get((), "off")
        sweep.lacks(_QUANTITIES, DeviceError("MIG is not on", reason if isinstance(reason, str) else "off"))
        return
    count = sweep.ask(_QUANTITIES, lambda: int(sweep.call("nvmlDeviceGetMaxMigDeviceCount")))
    found = 0
    for instance in _instances(sweep, count or 0):
        found += _read(sweep, instance, memory_v2)
    if count is not None and not found:
        sweep.lacks(_QUANTITIES, DeviceError("there is no instance", "off"))


def _instances(sweep: Sweep, count: int) -> Iterator[Any]:
    for place in range(count):
        try:
            yield sweep.call("nvmlDeviceGetMigDeviceHandleByIndex", place)
        except DeviceLostError:
            raise
        except DeviceError:
            continue  # no instance at this place


def _read(sweep: Sweep, instance: Any, memory_v2: int) -> int:
    """1 when the instance could be named."""

    def ask(name: str, *args: Any) -> Any:
        return sweep.nvml.call(name, instance, *args)

    def told(name: str) -> str:
        try:
            return str(ask(name))
        except DeviceLostError:
            raise
        except DeviceError:
            return ""

    uuid = told("nvmlDeviceGetUUID")
    if not uuid:
        return 0
    ids = (told("nvmlDeviceGetGpuInstanceId"), told("nvmlDeviceGetComputeInstanceId"))
    profile = told("nvmlDeviceGetName").rpartition("MIG ")[2]
    sweep.last = "nvmlDeviceGetMigDeviceHandleByIndex"
    sweep.give("mig_info", 1.0, uuid, *ids, profile)
    try:
        memory = ask("nvmlDeviceGetMemoryInfo", memory_v2)
    except DeviceLostError:
        raise
    except DeviceError as error:
        for quantity in ("mig_memory_used_bytes", "mig_memory_total_bytes"):
            sweep.more.setdefault(quantity, {})[uuid,] = error.reason
    else:
        sweep.last = "nvmlDeviceGetMemoryInfo"
        sweep.give("mig_memory_used_bytes", memory.used, uuid)
        sweep.give("mig_memory_total_bytes", memory.total, uuid)
    return 1
