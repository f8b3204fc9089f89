"""hwmon chips and NVMe drives: what a recorded host says, and everything that a chip can say instead of a number."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.devices.sysfs import MAX_COUNT, Sysfs, natural
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.host import hwmon
from nodewarden.sources.host.hwmon import Hwmon
from support.host_tree import HostTree
from support.recordings import recorded_host


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


class Reader:
    def __init__(self, root: Path) -> None:
        self.files = Sysfs(root)
        self.hwmon = Hwmon(self.files)

    def read(self, now_s: float = 100.0):
        self.files.begin()
        return self.hwmon.read(now_s)

    def values(self, now_s: float = 100.0) -> dict[tuple[str, str], object]:
        sensors, _ = self.read(now_s)
        return {(s.chip, s.name): s.value.value if isinstance(s.value, Reading) else s.value for s in sensors}


def test_the_recorded_host_has_two_processors_and_one_drive() -> None:
    reader = Reader(recorded_host())
    sensors, drives = reader.read()
    values = {(s.chip, s.name): s.value.value for s in sensors if isinstance(s.value, Reading)}
    assert len(sensors) == len(values) == 10
    assert {chip for chip, _ in values} == {"coretemp.0", "coretemp.1"}
    assert values["coretemp.0", "Physical id 0"] == 55.0
    assert values["coretemp.1", "Core 3"] == 50.0
    assert {(s.max_c, s.critical_c) for s in sensors} == {(84.0, 100.0)}
    (drive,) = drives
    assert (drive.name, drive.composite_c, drive.alarm) == ("nvme0", Reading(43.85, 100.0), False)
    assert (drive.warning_c, drive.critical_c) == (84.85, 94.85)
    assert {name: value.value for name, value in drive.sensors.items()} == {
        "Sensor 1": 43.85,
        "Sensor 2": 45.85,
        "Sensor 8": 43.85,
    }


def test_a_chip_is_known_by_driver_and_device_whatever_its_number(tree: HostTree) -> None:
    tree.chip(7, "/sys/devices/platform/coretemp.1", "coretemp", temp1_input=50000)
    tree.chip(2, "/sys/devices/pci0000:c0/0000:c1:00.0", "mlx5", temp1_input=60000, temp1_label="asic")
    tree.fill("/sys/devices/virtual/hwmon/hwmon3", name="acpitz", temp1_input=40000)
    tree.link("/sys/class/hwmon/hwmon3", "/sys/devices/virtual/hwmon/hwmon3")
    assert Reader(tree.root).values() == {
        ("mlx5-0000:c1:00.0", "asic"): 60.0,
        ("acpitz", "temp1"): 40.0,
        ("coretemp.1", "temp1"): 50.0,
    }


def test_two_chips_or_channels_of_one_name_stay_two(tree: HostTree) -> None:
    device = "/sys/devices/platform/nct6775.656"
    tree.chip(0, device, "nct6775", temp1_input=40000, temp1_label="AUX", temp2_input=41000, temp2_label="AUX")
    tree.chip(1, device, "nct6775", temp1_input=42000)
    assert Reader(tree.root).values() == {
        ("nct6775.656", "AUX"): 40.0,
        ("nct6775.656", "AUX (temp2)"): 41.0,
        ("nct6775.656#2", "temp1"): 42.0,
    }


@pytest.mark.parametrize("raw", [127000, 128000, 255000, 655350, 0, -5000, -128000, 65261850, 2**63 - 14, 2**64 - 1])
def test_a_temperature_that_is_a_marker_is_dropped_and_counted(tree: HostTree, raw: int) -> None:  # F10, F20
    tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp1_input=raw, temp2_input=41000)
    reader = Reader(tree.root)
    values = reader.values()
    assert values["coretemp.0", "temp1"] == Failed("implausible", 100.0)
    assert values["coretemp.0", "temp2"] == 41.0
    assert reader.files.rejected == {"temperature": 1}


def test_a_threshold_that_is_a_marker_is_no_threshold(tree: HostTree) -> None:  # F20
    limits = {"temp1_max": 65261850, "temp1_crit": 127000, "temp2_max": 0, "temp2_crit": -273150}
    tree.chip(0, "/sys/devices/platform/x.0", "x", temp1_input=40000, temp2_input=40000, **limits)
    sensors, _ = Reader(tree.root).read()
    assert [(s.max_c, s.critical_c) for s in sensors] == [(None, None)] * 2


def test_a_fan_that_never_turned_is_none_and_one_that_stops_reads_0(tree: HostTree) -> None:
    folder = tree.chip(0, "/sys/devices/platform/nct.0", "nct", fan1_input=8000, fan2_input=0, fan3_input=65535)
    reader = Reader(tree.root)
    assert reader.values() == {
        ("nct.0", "fan1"): 8000,
        ("nct.0", "fan2"): Absent("never_turned"),
        ("nct.0", "fan3"): Failed("implausible", 100.0),
    }
    tree.write(f"{folder}/fan1_input", 0)
    assert reader.values()["nct.0", "fan1"] == 0


def test_power_is_in_watts_as_a_mean_where_there_is_one_and_a_meter_cannot_say_0(tree: HostTree) -> None:
    tree.chip(0, "/sys/devices/LNXSYSTM:00/ACPI000D:00", "power_meter", power1_average=6890000000, power1_input=1)
    tree.chip(1, "/sys/devices/i2c-3/3-0058", "pmbus", power1_input=0, power1_label="pin")
    reader = Reader(tree.root)
    assert reader.values() == {("power_meter-ACPI000D:00", "power1"): 6890.0, ("pmbus-3-0058", "pin"): 0.0}
    tree.write("/sys/class/hwmon/hwmon0/power1_average", 0)
    assert isinstance(reader.values()["power_meter-ACPI000D:00", "power1"], Failed)


def test_a_channel_that_fails_costs_itself(tree: HostTree) -> None:
    folder = tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp1_input=50000, temp3_input=51000)
    tree.path(f"{folder}/temp2_input").mkdir()  # EISDIR: an I/O error by another name
    tree.path(f"{folder}/temp4_input").symlink_to("temp4_input")  # a loop
    values = Reader(tree.root).values()
    assert values["coretemp.0", "temp1"] == 50.0
    assert values["coretemp.0", "temp3"] == 51.0
    assert values["coretemp.0", "temp2"] == Failed("io_error", 100.0)
    assert values["coretemp.0", "temp4"] == Failed("io_error", 100.0)


def test_a_failure_keeps_its_beginning_until_it_is_over(tree: HostTree) -> None:
    folder = tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp1_input=127000)
    reader = Reader(tree.root)
    assert reader.values(10.0) == reader.values(20.0) == {("coretemp.0", "temp1"): Failed("implausible", 10.0)}
    tree.write(f"{folder}/temp1_input", 41000)
    assert reader.values(30.0) == {("coretemp.0", "temp1"): 41.0}
    tree.write(f"{folder}/temp1_input", 127000)
    assert reader.values(40.0) == {("coretemp.0", "temp1"): Failed("implausible", 40.0)}


def test_a_chip_that_comes_goes_or_is_numbered_anew_is_followed_at_once(tree: HostTree) -> None:
    tree.drive(1, 3)
    reader = Reader(tree.root)
    assert [drive.name for drive in reader.read(1.0)[1]] == ["nvme1"]
    tree.remove("/sys/class/hwmon/hwmon3")
    tree.link("/sys/class/hwmon/hwmon9", "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme1/hwmon3")
    tree.drive(0, 4, temp1_input=60850)
    drives = reader.read(2.0)[1]
    assert [(drive.name, drive.composite_c.value) for drive in drives] == [("nvme0", 60.85), ("nvme1", 43.85)]


def test_a_chip_that_vanishes_in_the_middle_is_absent(tree: HostTree) -> None:
    folder = tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp1_input=50000)
    reader = Reader(tree.root)
    reader.read(1.0)
    tree.remove(folder)  # the link in /sys/class is still there
    assert reader.values(2.0) == {("coretemp.0", "temp1"): Absent("not_supported")}


def test_a_drive_without_sensors_is_named_and_has_no_temperature(tree: HostTree) -> None:
    device = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0"
    tree.fill(device, model="X", state="dead")
    tree.link("/sys/class/nvme/nvme0", device)
    tree.write("/sys/class/nvme/nvme-subsys0/model", "X")
    (drive,) = Reader(tree.root).read()[1]
    assert (drive.name, drive.state, drive.composite_c, drive.alarm) == ("nvme0", "dead", Absent("not_supported"), None)


def test_a_host_without_hwmon_has_no_sensors_and_no_trouble(tmp_path: Path) -> None:  # F71
    reader = Reader(tmp_path / "nothing")
    assert reader.read() == ((), ())
    assert (reader.files.rejected, reader.files.troubles) == ({}, {})


def test_sensors_and_drives_have_a_bound_and_what_is_left_out_is_counted(tree: HostTree) -> None:
    for n in range(3):
        many = {f"temp{i}_input": 40000 for i in range(300)}
        tree.chip(n, f"/sys/devices/platform/big.{n}", "big", **many)
    reader = Reader(tree.root)
    sensors, _ = reader.read()
    assert len(sensors) == hwmon.MAX_SENSORS
    assert reader.hwmon.dropped == 900 - hwmon.MAX_SENSORS


@given(raw=st.binary(max_size=64))
def test_whatever_a_file_holds_it_is_a_plausible_number_or_a_reason(tmp_path_factory, raw: bytes) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    junk = {"temp1_input": raw, "temp1_label": raw, "temp1_crit": raw, "fan1_input": raw, "power1_input": raw}
    tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", **junk)
    tree.drive(1, 1, temp1_input=raw, temp1_alarm=raw)
    sensors, drives = Reader(tree.root).read()
    assert len(sensors) == 3
    for sensor in sensors:
        assert sensor.name.isprintable()
        assert 0 < len(sensor.name) <= hwmon.MAX_NAME
        if isinstance(sensor.value, Reading):
            assert 0 <= sensor.value.value <= hwmon.MAX_W
    assert not isinstance(drives[0].composite_c, Reading) or 1 <= drives[0].composite_c.value <= 125


@given(number=st.integers(-(2**70), 2**70))
def test_a_count_that_no_counter_reaches_is_no_count(tmp_path_factory, number: int) -> None:  # F10
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.write("/counter", number)
    files = Sysfs(tree.root)
    files.begin()
    read = files.number("/counter", "counter", 1.0)
    assert isinstance(read, Reading) == (0 <= number <= MAX_COUNT)


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = ["hwmon10", "hwmon9", "hwmon", "0000:c1:00.0", "", "cpu007", "cpu8"]
    assert sorted(names, key=natural) == ["", "0000:c1:00.0", "cpu007", "cpu8", "hwmon", "hwmon9", "hwmon10"]


def test_what_may_not_be_read_says_so(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the kernel's answer is put in its place."""
    files = Sysfs(tree.root)
    files.begin()

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    assert files.number("/sys/class/powercap/intel-rapl:0/energy_uj", "energy", 1.0) == Absent("no_permission")
