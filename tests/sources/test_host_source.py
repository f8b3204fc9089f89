"""The sweep as a whole: what hangs, fails or is not there costs itself; and what the store then says."""

import asyncio
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nodewarden.clock import BootClock
from nodewarden.errors import HelperError
from nodewarden.gpuhelper.wire import RaplReply, RaplZone
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.host import sweeper
from nodewarden.sources.host.source import HostSource
from nodewarden.store import SnapshotStore
from support.host_tree import HostTree
from support.recordings import recorded_host
from support.wait import wait_for


class FakeLink:
    """The helper's side of the wire, as far as the host needs it."""

    def __init__(self) -> None:
        self.adopted = False
        self.adoptions = 1
        self.asked = 0
        self.status = SimpleNamespace(state="missing")
        self.client = self
        self.energy_uj: int | None = 0
        self.error: HelperError | None = None

    async def rapl(self) -> RaplReply:
        self.asked += 1
        if self.error is not None:
            raise self.error
        zones = [] if self.energy_uj is None else [RaplZone("intel-rapl:0", "package-0", self.energy_uj, 2**38)]
        return RaplReply(id=1, taken_at_s=BootClock().now_s(), zones=zones)


class Host:
    def __init__(self, root: Path) -> None:
        self.tree = HostTree(root)
        self.store = SnapshotStore(BootClock(), lambda: ())
        self.link = FakeLink()
        self.source = HostSource(self.link, self.store, BootClock(), root=root, period_s=10.0)

    async def read(self):
        await self.source.read()
        return self.store.snapshot().host

    @property
    def record(self):
        return self.store.records["host"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(sweeper, "HANGS_AFTER_S", 0.2)
    made = Host(tmp_path)
    made.tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp1_input=50000, temp2_input=51000)
    made.tree.drive(1, 1)
    made.tree.cpu(0, 0, 0, 3, 4)
    made.tree.pressure("memory", 1.5)
    made.tree.port("mlx5_0")
    return made


def hang(tree: HostTree, path: str) -> Path:
    """A pipe without a writer: to open it for reading hangs."""
    tree.remove(path)
    os.mkfifo(tree.path(path))
    return tree.path(path)


def let_go(pipe: Path, text: str) -> None:
    with pipe.open("w") as writer:
        writer.write(text)


def sweeping() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "host"]


async def test_a_sweep_reads_everything_once() -> None:
    host = Host(recorded_host())
    snapshot = await host.read()
    assert [len(part) for part in (snapshot.sensors, snapshot.drives, snapshot.packages, snapshot.ports)] == [
        10,
        1,
        2,
        5,
    ]
    assert (host.record.up, host.record.rejected, snapshot.hung, snapshot.dropped) == (True, {}, (), 0)


async def test_an_empty_host_is_fine_and_says_nothing(tmp_path: Path) -> None:
    """F71: absent hardware is a state, not an error."""
    host = Host(tmp_path / "nothing")
    host.link.adopted, host.link.energy_uj = True, None
    snapshot = await host.read()
    assert (snapshot.sensors, snapshot.drives, snapshot.packages, snapshot.pressure, snapshot.ports) == ((),) * 5
    assert (snapshot.zones, snapshot.zones_reason) == ((), "not_supported")
    assert (host.record.up, host.record.errors, host.record.rejected) == (True, {}, {})


async def test_a_file_that_hangs_costs_itself_and_comes_back(host: Host) -> None:
    await host.read()
    pipe = hang(host.tree, "/sys/devices/platform/coretemp.0/hwmon/hwmon0/temp1_input")
    snapshot = await host.read()
    values = {sensor.name: sensor.value for sensor in snapshot.sensors}
    assert isinstance(values["temp1"], Failed)
    assert values["temp1"].reason == "hung"
    assert values["temp2"].value == 51.0
    assert snapshot.hung == ("/sys/class/hwmon/hwmon0/temp1_input",)
    assert (len(snapshot.drives), len(snapshot.ports), host.record.up) == (1, 1, True)
    began_s = time.monotonic()
    await host.read()
    assert time.monotonic() - began_s < 10 * 0.2  # it is not asked again meanwhile
    let_go(pipe, "1000\n")
    wait_for(lambda: not host.source._files.hung, 10, "the thread that hung")
    pipe.unlink()
    host.tree.write("/sys/devices/platform/coretemp.0/hwmon/hwmon0/temp1_input", 52000)
    snapshot = await host.read()
    assert (snapshot.sensors[0].value.value, snapshot.hung) == (52.0, ())


async def test_a_card_of_which_everything_hangs_costs_two_threads_and_itself(host: Host) -> None:
    await host.read()
    folder = "/sys/class/infiniband/mlx5_0/ports/1"
    pipes = [hang(host.tree, f"{folder}/{name}") for name in ("state", "phys_state", "rate", "link_layer")]
    for _ in range(3):
        snapshot = await host.read()
    assert len(snapshot.hung) == 2
    wait_for(lambda: len(sweeping()) == 2, 10, "two threads that hang, and no other")
    assert (len(snapshot.drives), len(snapshot.packages), host.record.up) == (1, 1, True)
    (port,) = snapshot.ports
    assert port.present
    assert isinstance(port.state, Failed)
    assert port.down_since_s is None  # nobody knows
    for pipe in pipes[:2]:
        let_go(pipe, "")
    wait_for(lambda: not sweeping(), 10, "the end of the threads that hung")


async def test_a_reader_that_was_given_up_changes_nothing_any_more(host: Host) -> None:
    await host.read()
    pipe = hang(host.tree, "/proc/pressure/memory")
    during = await host.read()
    assert during.pressure == ()
    let_go(pipe, "some avg10=99.00 avg60=99.00 avg300=99.00 total=1\n")
    wait_for(lambda: not host.source._files.hung, 10, "the thread that hung")
    assert host.store.host == during


async def test_too_much_that_hangs_is_told_and_the_last_readings_age(host: Host, monkeypatch) -> None:
    await host.read()
    before = host.store.host
    monkeypatch.setattr(sweeper, "MAX_HUNG", 1)
    pipe = hang(host.tree, "/proc/pressure/memory")
    await host.read()
    assert (host.record.up, host.record.reason) == (False, "hung")
    assert host.store.host == before
    let_go(pipe, "")
    wait_for(lambda: not host.source._files.hung, 10, "the thread that hung")
    pipe.unlink()
    await host.read()
    assert host.record.up


async def test_a_hanging_file_holds_up_no_end(host: Host) -> None:
    pipe = hang(host.tree, "/proc/pressure/memory")
    await host.read()
    wait_for(lambda: len(sweeping()) == 1, 10, "the one thread that hangs")
    assert sweeping()[0].daemon
    let_go(pipe, "")
    wait_for(lambda: not sweeping(), 10, "the end of the thread that hung")


async def test_descriptors_and_threads_stay_as_they_are(host: Host) -> None:
    """F05: nothing is left behind by a sweep, nor by a file that fails."""
    host.tree.path("/sys/devices/platform/coretemp.0/hwmon/hwmon0/temp7_input").mkdir()
    await host.read()

    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), len(sweeping())

    wait_for(lambda: not sweeping(), 10, "the end of the first sweep")
    before = held()
    for _ in range(200):
        await host.read()
    await asyncio.sleep(0)
    wait_for(lambda: held() == before, 10, "as few descriptors and threads as before")


async def test_power_needs_the_helper_and_a_second_reading(host: Host) -> None:
    snapshot = await host.read()
    assert (snapshot.zones_reason, snapshot.cpu_power_w) == ("helper_missing", Absent("helper_missing"))
    host.link.adopted = True
    assert (await host.read()).cpu_power_w == Absent("first_reading")
    began_s = BootClock().now_s()
    await BootClock().sleep_until(began_s + 0.6)  # what is measured is a difference over time
    host.link.energy_uj = 200_000_000
    power = (await host.read()).cpu_power_w
    assert isinstance(power, Reading)
    assert 0 < power.value < 200 / 0.6
    host.link.error = HelperError("busy", "timeout")
    snapshot = await host.read()
    assert (snapshot.zones_reason, snapshot.cpu_power_w) == ("helper_timeout", power)


async def test_power_of_a_helper_that_is_gone_is_not_shown_for_ever(host: Host) -> None:
    host.link.adopted = True
    await host.read()
    old = Reading(200.0, BootClock().now_s() - 31)
    zone = replace(host.store.host.zones[0], power_w=old, energy_j=old)
    host.store.host = replace(host.store.host, zones=(zone,))
    host.link.adopted = False
    assert (await host.read()).cpu_power_w == Absent("helper_missing")


async def test_a_helper_that_does_not_know_the_verb_is_asked_once_until_there_is_another(host: Host) -> None:
    host.link.adopted = True
    host.link.error = HelperError("no such verb", "bad_request")
    for _ in range(3):
        assert (await host.read()).zones_reason == "helper_too_old"
    assert host.link.asked == 1
    host.link.error, host.link.adoptions = None, 2
    assert (await host.read()).zones_reason is None


async def test_the_inlet_is_the_hottest_sensor_that_calls_itself_so(host: Host) -> None:
    assert (await host.read()).inlet_c == Absent("not_supported")
    labels = {"temp1_label": "Inlet Ambient", "temp2_label": "inlet 2", "temp3_label": "VRM"}
    values = {"temp1_input": 27000, "temp2_input": 29000, "temp3_input": 80000}
    host.tree.chip(3, "/sys/devices/platform/board.0", "board", **labels | values)
    assert (await host.read()).inlet_c.value == 29.0
