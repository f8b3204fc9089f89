"""Where GPUs and network cards sit, from sysfs and from the NVLinks' other ends. Needs no rights; reads, keeps nothing.

What the kernel does not say is "?" and never "near".
"""

from collections import Counter
from pathlib import Path

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import GpuSnapshot, NodeSnapshot
from nodewarden.model.topology import Links, Place, Topology, bus_id, matrix

SYS = Path("/sys")
MAX_NICS = 32


def topology_of(snapshot: NodeSnapshot, sys: Path = SYS) -> Topology:
    """The matrix of this node; blocking reads of sysfs below `sys`."""
    gpus = sorted(snapshot.gpus.values(), key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid))
    rows = [(gpu.uuid, gpu.index, _place(sys, gpu.name, bus_id(gpu.pci_bus_id)), _links(gpu)) for gpu in gpus]
    return matrix(rows, nics(sys))


def nics(sys: Path = SYS) -> list[Place]:
    """Network cards on PCI: InfiniBand and RoCE devices by their own names, else network interfaces; virtual ones not.

    A card is listed once: its Ethernet interface belongs to its RDMA device.
    """
    found: list[Place] = []
    seen: set[str] = set()
    for family in ("infiniband", "net"):
        for device in _children(sys / "class" / family):
            at = _pci_of(device / "device")
            if at is None or at.name in seen:
                continue
            seen.add(at.name)
            ports = tuple(port.name for port in _children(at / "net"))
            found.append(_placed(device.name, at, ports))
    return found[:MAX_NICS]


def _place(sys: Path, name: str, pci_bus_id: str) -> Place:
    at = _pci_of(sys / "bus" / "pci" / "devices" / pci_bus_id) if pci_bus_id else None
    return Place(name=name, pci_bus_id=pci_bus_id) if at is None else _placed(name, at, ())


def _placed(name: str, at: Path, ports: tuple[str, ...]) -> Place:
    parts = at.parts
    start = next(n for n, part in enumerate(parts) if part.startswith("pci"))
    numa = _text(at / "numa_node")
    return Place(
        name=name,
        pci_bus_id=at.name,
        path=parts[start:],
        numa=int(numa) if numa.isascii() and numa.isdigit() else None,  # -1 = the firmware does not say
        cpus=_text(at / "local_cpulist"),
        ports=ports,
    )


def _pci_of(link: Path) -> Path | None:
    """The device directory behind a sysfs link, if it is on PCI."""
    try:
        at = link.resolve(strict=True)
    except (OSError, RuntimeError):  # missing, or a loop of links
        return None
    return at if any(part.startswith("pci") for part in at.parts) and at.name.count(":") == 2 else None


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _links(gpu: GpuSnapshot) -> Links:
    to_switch, to_bus_id = 0, Counter[str]()
    for labels, present in gpu.series("nvlink_info").items():
        if len(labels) != 3 or not isinstance(present, Reading):
            continue
        _, kind, remote = labels
        if kind == "switch":
            to_switch += 1
        elif kind == "gpu":
            to_bus_id[bus_id(remote)] += 1
    return Links(to_switch, dict(to_bus_id))
