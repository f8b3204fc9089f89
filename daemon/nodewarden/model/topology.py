"""How near the GPUs and network cards of one node are to each other. Pure: paths in, words out."""

from typing import Final, Literal

import msgspec

Nearness = Literal["PIX", "PXB", "PHB", "NODE", "SYS", "?"]

ORDER: Final[tuple[Nearness, ...]] = ("PIX", "PXB", "PHB", "NODE", "SYS", "?")
MEANING: Final = {
    "NVn": "n NVLinks, directly or through switches",
    "PIX": "one PCIe switch at most",
    "PXB": "several PCIe switches, no host bridge",
    "PHB": "the host bridge (root complex)",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
    "?": "not known here",
}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one PCI device sits.

    Attributes:
        name: as people call it: "GPU 5", "mlx5_0".
        pci_bus_id: as the kernel spells it: "0000:07:00.0".
        path: bridges from the host bridge down to the device itself; empty = not known.
        numa: its NUMA node, None = the kernel does not say.
        cpus: CPUs near it, as a list of ranges; empty = not known.
        ports: network interfaces of a network card.
    """

    name: str
    pci_bus_id: str = ""
    path: tuple[str, ...] = ()
    numa: int | None = None
    cpus: str = ""
    ports: tuple[str, ...] = ()


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU in the matrix.

    Attributes:
        to_gpus: to every GPU in order: "X" (itself), "NV18", or a `Nearness`.
        to_nics: to every network card in order.
        nearest_nics: names of the nearest ones; empty where none is known to be near.
    """

    uuid: str
    index: int | None
    place: Place
    to_gpus: tuple[str, ...] = ()
    to_nics: tuple[Nearness, ...] = ()
    nearest_nics: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The whole matrix."""

    gpus: tuple[GpuPlace, ...] = ()
    nics: tuple[Place, ...] = ()


def bus_id(text: str) -> str:
    """A PCI bus id as the kernel spells it: NVML writes the domain with eight digits and in capitals."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}" if colon and rest else text.strip().lower()


def nearness(a: Place, b: Place) -> Nearness:
    """The farthest thing between two devices.

    A switch shows as one upstream port that both share and one downstream port for each, so up to two further steps on
    either side are one switch (the words are those of `nvidia-smi topo -m`).
    """
    if not a.path or not b.path:
        return "?"
    shared = 0
    for one, other in zip(a.path, b.path, strict=False):
        if one != other:
            break
        shared += 1
    if shared == 0:
        if a.numa is None or b.numa is None:
            return "?"
        return "NODE" if a.numa == b.numa else "SYS"
    if shared == 1:
        return "PHB"
    further = len(a.path) + len(b.path) - 2 * shared
    return "PIX" if further <= 4 else "PXB"


class Links(msgspec.Struct, frozen=True):
    """The active NVLinks of one GPU: how many lead to a switch, and how many to which bus id."""

    to_switch: int = 0
    to_bus_id: dict[str, int] = {}


def matrix(gpus: list[tuple[str, int | None, Place, Links]], nics: list[Place]) -> Topology:
    """Everything with everything. `gpus` are uuid, index, place and links, in the order in which they are shown."""
    rows = []
    for uuid, index, place, links in gpus:
        to_gpus = tuple(
            "X" if uuid == other_uuid else _between(place, links, other, other_links)
            for other_uuid, _, other, other_links in gpus
        )
        to_nics = tuple(nearness(place, nic) for nic in nics)
        best = min(to_nics, key=ORDER.index, default="?")
        near = tuple(nic.name for nic, way in zip(nics, to_nics, strict=True) if way == best and best != "?")
        rows.append(GpuPlace(uuid=uuid, index=index, place=place, to_gpus=to_gpus, to_nics=to_nics, nearest_nics=near))
    return Topology(gpus=tuple(rows), nics=tuple(nics))


def _between(a: Place, a_links: Links, b: Place, b_links: Links) -> str:
    direct = a_links.to_bus_id.get(b.pci_bus_id, 0)
    count = direct or min(a_links.to_switch, b_links.to_switch)
    return f"NV{count}" if count else nearness(a, b)
