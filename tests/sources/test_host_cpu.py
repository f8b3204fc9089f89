"""Throttle counts, pressure and power of the processors."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.devices.rapl import MAX_ZONES, read_zones
from nodewarden.devices.sysfs import Sysfs
from nodewarden.gpuhelper.wire import RaplZone
from nodewarden.model.host import HostSnapshot
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.host.cpu import Throttling, read_pressure
from nodewarden.sources.host.power import PowerMeters
from nodewarden.sources.host.trend import Growth
from support.host_tree import HostTree
from support.recordings import recorded_host

TOP_UJ = 262143328850


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def throttling(root: Path):
    files = Sysfs(root)
    source = Throttling(files)

    def read(now_s: float = 100.0):
        files.begin()
        return {package.package: package for package in source.read(now_s)}

    return read


def pressure(root: Path):
    files = Sysfs(root)
    files.begin()
    return {(p.resource, p.kind): p for p in read_pressure(files, 100.0)}


# Throttling ----------------------------------------------------------------------------------------------------------


def test_the_recorded_host_counts_each_socket_once() -> None:
    packages = throttling(recorded_host())()
    assert {n: (p.core_throttles.value, p.package_throttles.value) for n, p in packages.items()} == {
        0: (10084 + 523, 34818),
        1: (9, 6),
    }


def test_two_threads_of_a_core_count_it_once(tree: HostTree) -> None:
    for cpu, core in enumerate([0, 1, 0, 1]):
        tree.cpu(cpu, 0, core, core_count=10 * (core + 1), package_count=7)
    packages = throttling(tree.root)()
    assert (packages[0].core_throttles.value, packages[0].package_throttles.value) == (30, 7)


def test_a_core_that_goes_offline_keeps_its_count_and_the_socket_goes_on(tree: HostTree) -> None:
    folders = [tree.cpu(cpu, 0, cpu, core_count=10, package_count=7) for cpu in range(3)]
    read = throttling(tree.root)
    read(0.0)
    tree.remove(f"{folders[0]}/thermal_throttle")
    during = read(10.0)[0]
    assert during.core_throttles.value == 30
    after = read(70.0)[0]  # looked for anew
    assert (after.core_throttles.value, after.package_throttles.value) == (30, 7)


def test_throttling_that_grows_is_told_for_a_minute(tree: HostTree) -> None:
    folder = tree.cpu(0, 0, 0, core_count=100, package_count=5)
    read = throttling(tree.root)
    assert read(0.0)[0].throttles_lately == Absent("first_reading")
    assert read(10.0)[0].throttles_lately.value == 0
    tree.write(f"{folder}/thermal_throttle/core_throttle_count", 160)
    assert read(20.0)[0].throttles_lately.value == 60
    assert read(75.0)[0].throttles_lately.value == 60
    assert read(85.0)[0].throttles_lately.value == 0


def test_a_processor_that_does_not_count_is_absent_and_silent(tree: HostTree) -> None:  # F71
    tree.fill("/sys/devices/system/cpu/cpu0/topology", physical_package_id=0, core_id=0)
    assert throttling(tree.root)() == {}
    assert throttling(tree.root / "nothing")() == {}


@pytest.mark.parametrize("raw", ["", "many", "-1", "1_000", "٣", 2**63 - 14, b"\xff\xfe"])
def test_a_count_that_is_none_is_not_0(tree: HostTree, raw: object) -> None:
    folder = tree.cpu(0, 0, 0, core_count=1, package_count=1)
    tree.write(f"{folder}/thermal_throttle/core_throttle_count", raw)
    package = throttling(tree.root)()[0]
    assert isinstance(package.core_throttles, Failed)
    assert package.package_throttles.value == 1


@given(st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=30))
def test_growth_is_never_negative_and_never_more_than_was_counted(values: list[int | None]) -> None:
    growth = Growth(1e9)
    told = [growth.add(Absent() if v is None else Reading(float(v), float(n))) for n, v in enumerate(values)]
    known = [v for v in values if v is not None]
    climbed = sum(max(0, b - a) for a, b in pairwise(known))
    numbers = [t.value for t in told if isinstance(t, Reading)]
    assert numbers == sorted(numbers)
    assert not numbers or numbers[-1] == climbed


# Pressure ------------------------------------------------------------------------------------------------------------


def test_pressure_is_a_share_and_the_total_is_in_seconds(tree: HostTree) -> None:
    tree.write(
        "/proc/pressure/memory",
        "some avg10=0.10 avg60=2.00 avg300=3.85 total=15\nfull avg10=0.20 avg60=100.00 avg300=4.95 total=25000000",
    )
    found = pressure(tree.root)
    assert {n: share.value for n, share in found["memory", "some"].share.items()} == {10: 0.001, 60: 0.02, 300: 0.0385}
    assert found["memory", "full"].share[60].value == 1
    assert found["memory", "full"].total_s.value == 25.0


def test_full_of_the_cpu_means_nothing_and_is_left_out(tree: HostTree) -> None:
    tree.pressure("cpu", 12.5, 0.0)
    tree.write("/proc/pressure/irq", "full avg10=0.00 avg60=0.00 avg300=0.00 total=1")
    assert set(pressure(tree.root)) == {("cpu", "some"), ("irq", "full")}


def test_a_kernel_that_does_not_count_pressure_has_none(tree: HostTree) -> None:  # F71
    assert pressure(tree.root) == {}


@given(raw=st.one_of(st.binary(max_size=200), st.from_regex(r"some avg10=\d+\.\d\d avg60=[\d.]+ avg300=.* total=\d+")))
def test_whatever_a_pressure_file_holds_a_share_is_between_0_and_1(tmp_path_factory, raw: bytes | str) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.write("/proc/pressure/io", raw)
    for found in pressure(tree.root).values():
        for share in found.share.values():
            assert not isinstance(share, Reading) or 0 <= share.value <= 1


# Power ---------------------------------------------------------------------------------------------------------------


def zones_of(root: Path) -> list[RaplZone]:
    return [RaplZone(*zone) for zone in read_zones(Sysfs(root))]


def package(energy_uj: int | None, **other) -> RaplZone:
    return RaplZone("intel-rapl:0", "package-0", energy_uj, TOP_UJ, **other)


def test_the_recorded_host_has_a_package_and_its_cores() -> None:
    zones = {zone.zone: zone for zone in zones_of(recorded_host())}
    assert set(zones) == {"intel-rapl:0", "intel-rapl:0:0"}
    assert (zones["intel-rapl:0"].name, zones["intel-rapl:0"].energy_uj) == ("package-0", 240422366267)
    assert (zones["intel-rapl:0:0"].name, zones["intel-rapl:0:0"].energy_uj) == ("core", 118821284256)
    assert zones["intel-rapl:0"].range_uj == TOP_UJ


def test_power_is_the_difference_over_the_time_and_a_wrap_is_undone() -> None:
    meters = PowerMeters()
    assert meters.take([package(TOP_UJ - 1_000_000_000)], 0.0)[0].power_w == Absent("first_reading")
    (zone,) = meters.take([package(1_500_000_000)], 10.0)
    assert zone.power_w == Reading(250.0, 10.0)
    assert zone.energy_j == Reading(2500.0, 10.0)


def test_parts_and_the_platform_are_not_counted_on_top_of_the_packages(tree: HostTree) -> None:
    names = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:1:0": "dram",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    for zone, name in names.items():
        tree.zone(zone, name, 1_000_000)
    tree.write("/sys/class/powercap/intel-rapl/enabled", 1)
    tree.write("/sys/class/powercap/dtpm:0/name", "package-0")
    meters = PowerMeters()
    meters.take(zones_of(tree.root), 0.0)
    for zone in names:
        tree.write(
            f"/sys/class/powercap/{zone}/energy_uj", 1_000_000 + (9_000 if zone.endswith("2") else 2_000) * 10**6
        )
    zones = meters.take(zones_of(tree.root), 10.0)
    assert [zone.name for zone in zones] == [
        "package-0", "package-0/core", "package-0/dram", "package-1", "package-1/dram", "psys",
    ]  # fmt: skip
    assert [(zone.kind, zone.package) for zone in zones][-3:] == [("package", 1), ("dram", 1), ("psys", None)]
    host = HostSnapshot(zones=zones)
    assert host.cpu_power_w == Reading(400.0, 10.0)
    assert host.dram_power_w == Reading(400.0, 10.0)


def test_a_processor_with_the_other_register_window_only_is_read_by_that(tree: HostTree) -> None:
    tree.zone("intel-rapl-mmio:0", "package-0", 1)
    assert [zone.zone for zone in zones_of(tree.root)] == ["intel-rapl-mmio:0"]


def test_a_counter_without_rights_says_so_and_is_not_0() -> None:
    (zone,) = PowerMeters().take([package(None, reason="no_permission")], 0.0)
    assert (zone.energy_j, zone.power_w) == (Absent("no_permission"),) * 2
    host = HostSnapshot(zones=(zone,))
    assert host.cpu_power_w == Absent("no_permission")


def test_a_virtual_machine_has_no_zones_and_no_power(tree: HostTree) -> None:  # F71
    assert zones_of(tree.root) == []
    assert HostSnapshot(zones_reason="not_supported").cpu_power_w == Absent("not_supported")


def test_after_a_gap_in_which_the_counter_may_have_wrapped_twice_the_power_is_not_known() -> None:
    meters = PowerMeters()
    meters.take([package(0)], 0.0)
    (zone,) = meters.take([package(5_000_000_000)], 900.0)
    assert zone.power_w == Absent("gap")
    assert zone.energy_j.value == 0
    (zone,) = meters.take([package(7_000_000_000)], 910.0)
    assert (zone.power_w.value, zone.energy_j.value) == (200.0, 2000.0)


def test_a_counter_that_is_reset_or_stands_still_says_nothing() -> None:
    meters = PowerMeters()
    meters.take([package(200_000_000_000)], 0.0)
    (zone,) = meters.take([package(1_000_000)], 1.0)  # a wrap would be 62 kW
    assert isinstance(zone.power_w, Failed)
    assert (zone.energy_j.value, meters.rejected) == (0, 1)
    (zone,) = meters.take([package(1_000_000)], 11.0)
    assert zone.power_w == Absent("stands_still")
    (zone,) = meters.take([package(2_001_000_000)], 21.0)
    assert (zone.power_w.value, zone.energy_j.value) == (200.0, 2000.0)


def test_the_same_reading_twice_is_one(tree: HostTree) -> None:
    meters = PowerMeters()
    meters.take([package(0)], 0.0)
    first = meters.take([package(2_000_000_000)], 10.0)
    assert meters.take([package(2_000_000_000)], 10.0) == first


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.floats(0.001, 1e6)), min_size=1, max_size=30), st.integers(0, 2**62)
)
def test_energy_never_falls_and_power_is_never_absurd(steps: list[tuple[int, float]], range_uj: int) -> None:
    meters, at_s, before_j = PowerMeters(), 0.0, 0.0
    for raw_uj, later_s in steps:
        at_s += later_s
        (zone,) = meters.take([RaplZone("intel-rapl:0", "package-0", raw_uj, range_uj)], at_s)
        assert zone.energy_j.value >= before_j
        before_j = zone.energy_j.value
        assert not isinstance(zone.power_w, Reading) or 0 < zone.power_w.value <= 20_000


@given(raw=st.binary(max_size=40))
def test_whatever_the_files_of_a_zone_hold_it_has_a_name_and_a_number_or_a_reason(tmp_path_factory, raw: bytes) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    folder = tree.zone("intel-rapl:0", "package-0", 0)
    for name in ("name", "energy_uj", "max_energy_range_uj"):
        tree.write(f"{folder}/{name}", raw)
    (zone,) = zones_of(tree.root)
    assert zone.name
    assert zone.name.isprintable()
    assert (zone.energy_uj is None) == (zone.reason is not None)


def test_zones_have_a_bound(tree: HostTree) -> None:
    for n in range(MAX_ZONES + 10):
        tree.zone(f"intel-rapl:{n}", f"package-{n}", 0)
    assert len(zones_of(tree.root)) == MAX_ZONES
