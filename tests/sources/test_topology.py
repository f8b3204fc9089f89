"""Where GPUs and network cards sit, on trees of sysfs built as real boards have them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import GpuSnapshot, NodeSnapshot
from nodewarden.model.topology import ORDER, Place, bus_id, nearness
from nodewarden.sources.topology import nics, topology_of


class Tree:
    """A sysfs under construction."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def device(self, path: str, *, numa: int = 0, cpus: str = "0-55") -> Path:
        at = self.root / "devices" / path
        at.mkdir(parents=True)
        (at / "numa_node").write_text(f"{numa}\n")
        (at / "local_cpulist").write_text(f"{cpus}\n")
        (self.root / "bus/pci/devices" / at.name).symlink_to(at)
        return at

    def rdma(self, name: str, path: str, *, port: str = "", numa: int = 0) -> None:
        at = self.device(path, numa=numa)
        (self.root / "class/infiniband" / name).mkdir(parents=True)
        (self.root / "class/infiniband" / name / "device").symlink_to(at)
        if port:
            (at / "net" / port).mkdir(parents=True)
            (self.root / "class/net" / port).mkdir(parents=True)
            (self.root / "class/net" / port / "device").symlink_to(at)


def a_gpu(index: int, bus: str, links: dict[tuple[str, ...], float] | None = None) -> GpuSnapshot:
    info = {labels: Reading(value, 1.0) for labels, value in (links or {}).items()}
    more = {"nvlink_info": info or {(): Absent("not_supported")}}
    return GpuSnapshot(uuid=f"GPU-{index}", index=index, pci_bus_id=bus, more=more)


def node(*gpus: GpuSnapshot) -> NodeSnapshot:
    return NodeSnapshot(gpus={gpu.uuid: gpu for gpu in gpus})


def two_switches(tmp_path: Path) -> Tree:
    """Two sockets; on the first a switch with two GPUs and a card, behind a second switch a third GPU."""
    tree = Tree(tmp_path)
    first = "pci0000:10/0000:10:01.0/0000:11:00.0"
    tree.device(f"{first}/0000:12:00.0/0000:13:00.0")
    tree.device(f"{first}/0000:12:01.0/0000:14:00.0")
    tree.device(f"{first}/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0")
    tree.rdma("mlx5_0", f"{first}/0000:12:03.0/0000:18:00.0", port="ib0")
    tree.device("pci0000:10/0000:10:02.0/0000:1a:00.0")
    tree.device("pci0000:20/0000:20:01.0/0000:21:00.0", numa=0)
    tree.device("pci0000:80/0000:80:01.0/0000:81:00.0", numa=1, cpus="56-111")
    tree.rdma("mlx5_1", "pci0000:80/0000:80:02.0/0000:82:00.0", numa=1)
    return tree


def test_each_word_means_what_stands_between_the_devices(tmp_path: Path) -> None:
    tree = two_switches(tmp_path)
    buses = ("13", "14", "17", "1A", "21", "81")
    found = topology_of(node(*(a_gpu(n, f"00000000:{bus}:00.0") for n, bus in enumerate(buses))), tree.root)
    assert found.gpus[0].to_gpus == ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
    assert [nic.name for nic in found.nics] == ["mlx5_0", "mlx5_1"]
    assert found.nics[0].ports == ("ib0",)
    assert found.gpus[0].to_nics == ("PIX", "SYS")
    assert [gpu.nearest_nics for gpu in found.gpus][-1] == ("mlx5_1",)
    assert (found.gpus[5].place.numa, found.gpus[5].place.cpus) == (1, "56-111")


def test_nvlinks_through_switches_lead_to_every_gpu_and_direct_ones_to_one(tmp_path: Path) -> None:
    switched = {(str(link), "switch", "0000:c4:00.0"): 1.0 for link in range(18)}
    one, two = (a_gpu(n, f"0000:1{n}:00.0", switched) for n in range(2))
    assert topology_of(node(one, two), tmp_path).gpus[0].to_gpus == ("X", "NV18")
    left = a_gpu(0, "00000000:0B:00.0", {(str(n), "gpu", "0000:0c:00.0"): 1.0 for n in range(12)})
    right = a_gpu(1, "00000000:0C:00.0", {(str(n), "gpu", "0000:0b:00.0"): 1.0 for n in range(12)})
    lone = a_gpu(2, "00000000:0D:00.0")
    rows = topology_of(node(left, right, lone), tmp_path).gpus
    assert rows[0].to_gpus == ("X", "NV12", "?")
    assert rows[2].to_gpus == ("?", "?", "X")


def test_what_the_kernel_does_not_say_is_unknown_and_no_card_is_near(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.device("pci0000:00/0000:00:01.0/0000:01:00.0", numa=-1)
    tree.rdma("mlx5_0", "pci0000:40/0000:40:01.0/0000:41:00.0", numa=-1)
    (gpu,) = topology_of(node(a_gpu(0, "0000:01:00.0")), tree.root).gpus
    assert (gpu.to_nics, gpu.nearest_nics, gpu.place.numa) == (("?",), (), None)
    assert topology_of(node(a_gpu(0, "")), tmp_path / "nothing").gpus[0].to_gpus == ("X",)


def test_virtual_interfaces_loops_and_garbage_are_no_cards(tmp_path: Path) -> None:
    net = tmp_path / "class/net"
    (net / "lo").mkdir(parents=True)
    (net / "loop").mkdir()
    (net / "loop/device").symlink_to(net / "loop/device")
    (net / "usb0").mkdir()
    (tmp_path / "devices/pci0000:00/0000:00:14.0/usb1/1-1").mkdir(parents=True)
    (net / "usb0/device").symlink_to(tmp_path / "devices/pci0000:00/0000:00:14.0/usb1/1-1")
    assert nics(tmp_path) == []


PLACES = st.builds(
    lambda path, numa: Place(name="x", path=tuple(path), numa=numa),
    st.lists(st.sampled_from("abc"), max_size=6),
    st.one_of(st.none(), st.integers(0, 1)),
)


@given(PLACES, PLACES)
def test_nearness_is_the_same_both_ways_and_always_a_word_of_the_legend(a: Place, b: Place) -> None:
    assert nearness(a, b) == nearness(b, a)
    assert nearness(a, b) in ORDER


@given(st.text(max_size=30))
def test_any_text_as_a_bus_id_is_kept_and_a_known_one_is_spelt_as_the_kernel_does(text: str) -> None:
    assert bus_id(bus_id(text)) == bus_id(text)
    assert bus_id("00000000:3B:00.0") == bus_id("0000:3b:00.0") == "0000:3b:00.0"
