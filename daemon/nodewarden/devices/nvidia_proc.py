"""What shows of NVIDIA GPUs without a call into the driver: its list in /proc, and the device files we have open."""

import re
from collections.abc import Hashable
from pathlib import Path

KERNEL_DIR = Path("/proc/driver/nvidia")
OPEN_FILES = Path("/proc/self/fd")
_DEVICE_FILE = re.compile(r"nvidia(\d+)")
_ALWAYS = frozenset({"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"})


def same_bus_id(text: str) -> str:
    """One spelling for a PCI address: NVML writes eight digits of domain, the kernel four."""
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return text.strip().lower()


class KernelList:
    """The driver's own list of GPUs, one folder each, named by PCI address.

    Args:
        root: of the driver's files in /proc.
    """

    def __init__(self, root: Path = KERNEL_DIR) -> None:
        self._root = root

    def bus_ids(self) -> list[str]:
        """PCI addresses of all GPUs that the driver knows; empty where it is not loaded."""
        try:
            return sorted(same_bus_id(each.name) for each in (self._root / "gpus").iterdir())
        except OSError:
            return []

    def traces(self, bus_id: str, minor: int | None) -> Hashable:
        """Changes when the driver was loaded or the GPU bound anew, or MIG instances come or go; None = not there.

        A folder of /proc that is made again has another inode.
        """
        try:
            folder = next(
                each for each in (self._root / "gpus").iterdir() if same_bus_id(each.name) == same_bus_id(bus_id)
            )
            inode = folder.stat().st_ino
        except (OSError, StopIteration):
            return None
        instances: tuple[str, ...] = ()
        if minor is not None:
            mig = self._root / "capabilities" / f"gpu{minor}" / "mig"
            instances = tuple(sorted(str(each.relative_to(mig)) for each in mig.rglob("*")))
        return inode, instances


def open_device_files(folder: Path = OPEN_FILES) -> dict[str, int | None]:
    """NVIDIA device files that this process has open: path -> minor number; None for those that are of no one GPU."""
    found: dict[str, int | None] = {}
    for each in folder.iterdir():
        try:
            path = str(each.readlink())
        except OSError:  # closed meanwhile
            continue
        name = path.rpartition("/")[2]
        device = _DEVICE_FILE.fullmatch(name)
        if device:
            found[path] = int(device[1])
        elif name in _ALWAYS:
            found[path] = None
    return found
