"""InfiniBand and RoCE ports: recorded ones of four drivers, states, counters, the baseline, and nonsense."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.devices.sysfs import Sysfs
from nodewarden.model.host import IbPort
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.host.hwmon import Hwmon
from nodewarden.sources.host.infiniband import MAX_ERRORS, MAX_PORTS, Infiniband
from support.host_tree import HostTree
from support.recordings import recorded_host


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def ports_of(root: Path):
    files = Sysfs(root)
    infiniband, hwmon = Infiniband(files), Hwmon(files)

    def read(now_s: float = 100.0) -> dict[str, IbPort]:
        files.begin()
        hwmon.read(now_s)
        return {port.name: port for port in infiniband.read(now_s, hwmon.module_c)}

    return read


def test_the_recorded_ports_of_four_drivers() -> None:
    ports = ports_of(recorded_host())()
    assert list(ports) == ["hfi1_0/1", "i40iw0/1", "mlx4_0/1", "mlx4_0/2", "mlx5_0/1"]
    rates = {name: port.rate_bytes_per_s.value * 8 / 1e9 for name, port in ports.items()}
    assert rates == {"hfi1_0/1": 100, "i40iw0/1": 10, "mlx4_0/1": 40, "mlx4_0/2": 40, "mlx5_0/1": 25}
    assert all(port.present and port.state.value == 4 and port.down_since_s is None for port in ports.values())
    mlx4 = ports["mlx4_0/1"]
    assert (mlx4.transmit_bytes.value, mlx4.receive_bytes.value) == (4 * 26509113295, 4 * 2221223609)
    assert (mlx4.transmit_packets.value, mlx4.errors["port_xmit_wait"].value) == (85734114, 3599)
    assert (mlx4.board, mlx4.firmware, mlx4.link_layer) == ("SM_1141000001000", "2.31.5050", "InfiniBand")
    mlx5 = ports["mlx5_0/1"]
    assert (mlx5.physical_state.value, mlx5.physical_state_name) == (4, "ACTIVE")
    assert mlx5.errors["duplicate_request"].value == 41
    assert mlx5.errors["req_cqe_error"].value == 3481
    assert not {"lifespan", "rx_read_requests", "port_xmit_data", "unicast_rcv_packets"} & set(mlx5.errors)


def test_a_port_without_counters_counts_nothing_rather_than_0() -> None:
    port = ports_of(recorded_host())()["i40iw0/1"]
    assert (port.transmit_bytes, port.receive_packets) == (Absent("not_supported"), Absent("not_supported"))
    assert (port.errors, port.errors_lately, port.flaps_lately) == (
        {},
        Absent("not_supported"),
        Absent("not_supported"),
    )


def test_a_port_that_was_active_is_down_and_one_that_never_was_is_not(tree: HostTree) -> None:
    first = tree.port("mlx5_0")
    tree.port("mlx5_1", "0000:c2:00.0", state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)")
    read = ports_of(tree.root)
    read(1.0)
    tree.fill(first, state="1: DOWN", phys_state="3: Disabled")
    ports = read(2.0)
    assert (ports["mlx5_0/1"].present, ports["mlx5_0/1"].down_since_s) == (True, 2.0)
    assert ports["mlx5_0/1"].state_name == "DOWN"
    assert (ports["mlx5_1/1"].present, ports["mlx5_1/1"].down_since_s) == (False, None)
    assert read(9.0)["mlx5_0/1"].down_since_s == 2.0
    tree.fill(first, state="4: ACTIVE", phys_state="5: LinkUp")
    assert read(10.0)["mlx5_0/1"].down_since_s is None


def test_a_card_that_is_gone_keeps_its_place_as_down(tree: HostTree) -> None:
    tree.port("mlx5_0")
    read = ports_of(tree.root)
    read(1.0)
    tree.remove("/sys/class/infiniband/mlx5_0")
    port = read(5.0)["mlx5_0/1"]
    assert (port.present, port.down_since_s, port.state) == (True, 5.0, Failed("gone", 5.0))
    tree.port("mlx5_0", "0000:c5:00.0")
    assert read(9.0)["mlx5_0/1"].down_since_s is None


@pytest.mark.parametrize(
    ("rate", "gbit"),
    [
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("400 Gb/sec (4X NDR)", 400),
        ("100 Gb/sec (2X HDR)", 100),
        ("0 Gb/sec (0X)", None),
        ("", None),
        ("fast", None),
        ("9999999999 Gb/sec", None),
    ],
)
def test_the_rate_is_the_first_number_and_that_of_all_lanes(tree: HostTree, rate: str, gbit: float | None) -> None:
    tree.port("mlx5_0", rate=rate)
    number = ports_of(tree.root)()["mlx5_0/1"].rate_bytes_per_s
    assert number == (Absent("not_supported") if gbit is None else Reading(gbit * 1e9 / 8, 100.0))


def test_errors_of_a_sound_link_that_grow_are_told_and_a_reset_is_none(tree: HostTree) -> None:
    folder = tree.port("mlx5_0")
    tree.fill(f"{folder}/counters", symbol_error=65530, port_rcv_errors=3, port_xmit_wait=5)
    read = ports_of(tree.root)
    assert read(0.0)["mlx5_0/1"].errors_lately == Absent("first_reading")
    tree.fill(f"{folder}/counters", symbol_error=65535, port_rcv_errors=10, port_xmit_wait=500_000)
    assert read(10.0)["mlx5_0/1"].errors_lately == Reading(12.0, 10.0)
    tree.fill(f"{folder}/counters", symbol_error=0, port_rcv_errors=0)
    assert read(20.0)["mlx5_0/1"].errors_lately == Reading(12.0, 20.0)
    assert read(315.0)["mlx5_0/1"].errors_lately == Reading(0, 315.0)
    assert read(900.0)["mlx5_0/1"].errors_lately == Absent("first_reading")  # nobody looked for so long


def test_a_link_that_flaps_is_counted_by_the_port_or_by_its_network_interface(tree: HostTree) -> None:
    folder = tree.port("mlx5_0")
    tree.port("mlx5_1", "0000:c2:00.0", netdev="enp194s0f0np0")
    read = ports_of(tree.root)
    roce = read(0.0)["mlx5_1/1"]
    assert (roce.link_layer, roce.netdev, roce.errors["carrier_down"].value) == ("Ethernet", "enp194s0f0np0", 1)
    tree.write(f"{folder}/counters/link_downed", 2)
    tree.write("/sys/class/net/enp194s0f0np0/carrier_down_count", 4)
    assert {name: port.flaps_lately.value for name, port in read(10.0).items()} == {"mlx5_0/1": 2, "mlx5_1/1": 3}


@pytest.mark.parametrize("label", ["Module0", "sensor64"])
def test_the_module_belongs_to_the_card_with_the_same_address(tree: HostTree, label: str) -> None:
    tree.port("mlx5_0", "0000:c1:00.0")
    tree.port("mlx5_1", "0000:c2:00.0")
    channels = {"temp1_label": "asic", "temp1_input": 71000, "temp2_label": label, "temp2_input": 52125}
    tree.chip(5, "/sys/devices/pci0000:c0/0000:c2:00.0", "mlx5", **channels)
    ports = ports_of(tree.root)()
    assert ports["mlx5_0/1"].module_c == Absent("not_supported")
    assert ports["mlx5_1/1"].module_c == Reading(52.125, 100.0)


def test_a_host_without_such_ports_has_none_and_no_trouble(tmp_path: Path) -> None:  # F71
    assert ports_of(tmp_path)() == {}


def test_ports_and_counters_have_a_bound(tree: HostTree) -> None:
    for n in range(MAX_PORTS + 5):
        folder = tree.port(f"mlx5_{n}", f"0000:{n:02x}:00.0")
    tree.fill("/sys/class/infiniband/mlx5_0/ports/1/hw_counters", **{f"made_up_{n}": n for n in range(300)})
    assert folder.endswith("/ports/1")
    ports = ports_of(tree.root)()
    assert len(ports) == MAX_PORTS
    assert len(ports["mlx5_0/1"].errors) <= 2 * MAX_ERRORS


@given(raw=st.one_of(st.binary(max_size=64), st.from_regex(r"\d+: .*"), st.integers(-(2**65), 2**65).map(str)))
def test_whatever_the_files_of_a_port_hold_it_is_known_or_missing(tmp_path_factory, raw: bytes | str) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    folder = tree.port("mlx5_0", state=raw, phys_state=raw, rate=raw, link_layer=raw)
    tree.fill(f"{folder}/counters", port_xmit_data=raw, symbol_error=raw)
    tree.fill("/sys/class/infiniband/mlx5_0", board_id=raw, fw_ver=raw)
    port = ports_of(tree.root)()["mlx5_0/1"]
    for number in (port.state, port.physical_state, port.rate_bytes_per_s, port.transmit_bytes, *port.errors.values()):
        assert not isinstance(number, Reading) or 0 <= number.value <= 2**65
    for words in (port.state_name, port.physical_state_name, port.board, port.firmware, port.link_layer):
        assert words.isprintable()
        assert len(words) <= 64
