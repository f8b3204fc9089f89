"""The agent's account of GPU errors: counted once, kept over restarts, few lines, over when it is over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodewarden.gpuhelper.client import HelperClient
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.model.events import Event
from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.model.xids import GpuXids
from nodewarden.sources.xid import MAX_CODES, XidSource
from nodewarden.store import SnapshotStore
from nodewarden.xid_table import load_table
from support.fake_helper import FakeHelper, HandClock, fake_helper

BUS_IDS = {f"GPU-{n}": f"00000000:{n + 1:02X}:00.0" for n in range(8)}
KERNEL_BUS_IDS = {uuid: f"0000:{n + 1:02x}:00.0" for n, uuid in enumerate(BUS_IDS)}


class Agent:
    """The source with a link of its own, as an agent has it."""

    def __init__(self, helper: FakeHelper, folder: Path, *, boot: str = "boot-a") -> None:
        self.clock = helper.clock
        self.events: list[Event] = []
        self.store = SnapshotStore(self.clock, tuple)
        for index, (uuid, bus_id) in enumerate(BUS_IDS.items()):
            self.store.gpus[uuid] = GpuSnapshot(uuid=uuid, index=index, pci_bus_id=bus_id)
        client = HelperClient(helper.path, self.clock, deadline_s=10.0)
        self.link = HelperLink(client, self.clock, self.events.append, lambda _: None)
        self.source = XidSource(
            self.link,
            self.store,
            self.clock,
            folder=folder,
            table=load_table(),
            on_event=self.events.append,
            boot=boot,
        )

    async def turn(self) -> None:
        self.link.hello_soon()
        await self.link.keep()
        await self.source.turn()

    def of(self, uuid: str) -> GpuXids:
        return self.store.xids.get(uuid, GpuXids())

    def open(self, uuid: str) -> set[int]:
        return {incident.code for incident in self.of(uuid).incidents}

    def lines(self, code: str = "gpu_xid") -> list[str]:
        return [event.text for event in self.events if event.code == code]

    def change(self, uuid: str, **changes: object) -> None:
        self.store.gpus[uuid] = GpuSnapshot(uuid=uuid, index=3, pci_bus_id=BUS_IDS[uuid], **changes)  # type: ignore[arg-type]


@pytest.fixture
async def helper() -> AsyncIterator[FakeHelper]:
    async with fake_helper(HandClock()) as made:
        yield made


@asynccontextmanager
async def agent_of(helper: FakeHelper, folder: Path, *, boot: str = "boot-a") -> AsyncIterator[Agent]:
    agent = Agent(helper, folder, boot=boot)
    try:
        yield agent
    finally:
        await agent.link.client.close()


async def test_an_xid_that_repeats_counts_twice_and_the_gpu_is_well_again_by_itself(
    helper: FakeHelper, tmp_path: Path
) -> None:
    """F12."""
    async with agent_of(helper, tmp_path) as agent:
        for count in (1, 2):
            helper.nvml("GPU-1", 31)
            await agent.turn()
            assert agent.of("GPU-1").by_code == {"31": count}
            helper.clock.ahead_s += 60
        last_s = agent.of("GPU-1").last_s
        assert agent.open("GPU-1") == {31}
        helper.clock.ahead_s += 3600
        await agent.turn()
        assert agent.open("GPU-1") == set()
        assert agent.of("GPU-1").total == 2
        assert last_s is not None
        assert agent.lines("gpu_xid_over") == ["GPU 1 (00000000:02:00.0): Xid 31 is over: quiet since"]


async def test_either_source_alone_is_enough_and_both_are_one(helper: FakeHelper, tmp_path: Path) -> None:
    """F13: the kernel's line of an Xid 62 while the driver's events are silent."""
    async with agent_of(helper, tmp_path) as agent:
        helper.kernel(KERNEL_BUS_IDS["GPU-0"], 62)
        helper.nvml("GPU-2", 48)
        helper.kernel(KERNEL_BUS_IDS["GPU-2"], 48, text="An uncorrectable error", pid=4711)
        await agent.turn()
        assert agent.of("GPU-0").by_code == {"62": 1}
        assert agent.of("GPU-0").by_source == {"kernel": 1}
        assert agent.of("GPU-2").by_code == {"48": 1}
        assert agent.of("GPU-2").by_source == {"nvml": 1, "kernel": 1}
        (incident,) = agent.of("GPU-2").incidents
        assert (incident.pid, incident.process, incident.text) == (4711, "python", "An uncorrectable error")
        line = next(line for line in agent.lines() if "Xid 48" in line)
        assert line.endswith("Xid 48 (double-bit ECC error), pid 4711 python: An uncorrectable error")


async def test_a_storm_is_counted_to_the_last_over_restarts_and_told_in_few_lines(
    helper: FakeHelper, tmp_path: Path
) -> None:
    """F14: 100,000 lines in 60 s, agent and helper restarted in the middle."""
    told = []
    bus_id = KERNEL_BUS_IDS["GPU-3"]
    for half in range(2):
        async with agent_of(helper, tmp_path) as agent:
            for _ in range(30):
                for _ in range(500):
                    helper.kernel(bus_id, 95, count=3)
                    helper.nvml("GPU-3", 95)
                helper.kernel(bus_id, 95, count=100_000 // 60 - 1500 + 1)
                await agent.turn()
                helper.clock.ahead_s += 1
            told += agent.lines()
            total = agent.of("GPU-3").total
            assert total == helper.kernel_number
            if half == 0:
                helper.new_feed()  # started again, it skips the lines that were taken
    assert total >= 100_000
    assert len(told) <= 4
    assert len(agent.of("GPU-3").incidents) == 1
    assert (tmp_path / "xids.json").stat().st_size < 100_000


async def test_an_agent_that_died_before_it_noted_what_it_took_takes_it_again(
    helper: FakeHelper, tmp_path: Path
) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.nvml("GPU-0", 31)
        await agent.turn()
        before = (tmp_path / "xids.json").read_bytes()
        helper.nvml("GPU-0", 31)
        await agent.turn()
        assert agent.of("GPU-0").total == 2
    (tmp_path / "xids.json").write_bytes(before)  # as after a kill -9 between taking and noting
    async with agent_of(helper, tmp_path) as agent:
        assert agent.of("GPU-0").total == 1
        await agent.turn()
        assert agent.of("GPU-0").total == 2


async def test_hardware_codes_outlive_a_restart_and_application_codes_end_by_themselves(
    helper: FakeHelper, tmp_path: Path
) -> None:
    """F15: on separate GPUs, ten minutes of quiet, then a restart of the agent."""
    codes = {"GPU-0": 31, "GPU-1": 13, "GPU-2": 43, "GPU-3": 45, "GPU-4": 109, "GPU-5": 48, "GPU-6": 79, "GPU-7": 119}
    async with agent_of(helper, tmp_path) as agent:
        for uuid, code in codes.items():
            helper.nvml(uuid, code)
        await agent.turn()
        severity = {uuid: agent.of(uuid).incidents[0].row.severity for uuid in codes}
        assert [severity[uuid] for uuid in codes] == ["application"] * 4 + ["warning"] + ["critical"] * 3
        helper.clock.ahead_s += 601
        await agent.turn()
    async with agent_of(helper, tmp_path) as agent:
        await agent.turn()
        assert {uuid for uuid in codes if agent.open(uuid)} == {"GPU-4", "GPU-5", "GPU-6", "GPU-7"}
        helper.clock.ahead_s += 30 * 86400
        await agent.turn()
        assert {uuid for uuid in codes if agent.open(uuid)} == {"GPU-5", "GPU-6", "GPU-7"}
        assert agent.source.clear(["GPU-5"]) == {"GPU-5": [48]}
        assert agent.open("GPU-5") == set()


async def test_a_reset_ends_what_holds_until_a_reset(helper: FakeHelper, tmp_path: Path) -> None:
    """F15: there is a way back."""
    async with agent_of(helper, tmp_path) as agent:
        agent.change("GPU-3", more={"energy_epoch": {(): Reading(1.0, 0.0)}})
        await agent.turn()
        helper.nvml("GPU-3", 95)
        helper.nvml("GPU-4", 79)
        await agent.turn()
        agent.change("GPU-4", health="lost")
        await agent.turn()
        assert (agent.open("GPU-3"), agent.open("GPU-4")) == ({95}, {79})
        agent.change("GPU-3", more={"energy_epoch": {(): Reading(2.0, 0.0)}})
        agent.change("GPU-4")
        await agent.turn()
        assert (agent.open("GPU-3"), agent.open("GPU-4")) == (set(), set())
        assert [line for line in agent.lines("gpu_xid_over") if "it was reset" in line]


async def test_a_reboot_ends_what_holds_until_a_reset_and_the_counts_go_on(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.kernel(KERNEL_BUS_IDS["GPU-0"], 79, count=3)
        await agent.turn()
    helper.new_feed()
    helper.kernel_number = 0
    async with agent_of(helper, tmp_path, boot="boot-b") as agent:
        assert agent.open("GPU-0") == set()
        helper.kernel(KERNEL_BUS_IDS["GPU-0"], 31)
        await agent.turn()
        assert agent.of("GPU-0").by_code == {"79": 3, "31": 1}


async def test_a_gpu_off_the_bus_without_any_xid_is_told_as_79(helper: FakeHelper, tmp_path: Path) -> None:
    """F04, variant C."""
    async with agent_of(helper, tmp_path) as agent:
        helper.kernel(KERNEL_BUS_IDS["GPU-4"], 79, kind="off_bus", text="GPU has fallen off the bus")
        await agent.turn()
        assert agent.of("GPU-4").by_code == {"79": 1}
        helper.kernel(KERNEL_BUS_IDS["GPU-4"], 79)
        await agent.turn()
        assert agent.of("GPU-4").total == 1


async def test_a_gpu_that_nobody_has_seen_is_named_by_its_address(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.kernel("0000:e3:00.0", 79)
        await agent.turn()
        assert agent.open("pci-0000:e3:00.0") == {79}
        assert agent.lines() == ["GPU at 0000:e3:00.0: Xid 79 (GPU has fallen off the bus)"]


async def test_an_event_of_no_known_gpu_is_nobody_elses(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.nvml("GPU-0", 31)
        helper.nvml("", 48)
        await agent.turn()
        assert agent.of("GPU-0").by_code == {"31": 1}
        assert agent.of("pci-unknown").by_code == {"48": 1}


async def test_errors_of_switches_are_counted_apart(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.kernel("0000:c1:00.0", 28006, kind="sxid", text="Non-fatal, Link 46", count=2)
        helper.kernel("0000:c1:00.0", 20034, kind="sxid", text="Fatal, Link 30 LTSSM Fault Up")
        await agent.turn()
        switch = agent.store.switches["0000:c1:00.0"]
        assert switch.by_code == {"28006": 2, "20034": 1}
        assert (switch.last_code, switch.fatal) == (20034, True)
        assert agent.store.xids == {}
        assert len(agent.lines("nvswitch_sxid")) == 2


async def test_numbers_without_end_are_counted_as_other(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        for code in range(1, 501):
            helper.kernel(KERNEL_BUS_IDS["GPU-0"], code)
        await agent.turn()
        await agent.turn()
        known = agent.of("GPU-0")
        assert len(known.by_code) == MAX_CODES + 1
        assert (known.total, sum(known.by_code.values())) == (500, 500)
        assert len(known.incidents) <= MAX_CODES
        assert len(agent.lines()) <= 20


async def test_what_lies_back_long_is_counted_but_not_open(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.nvml("GPU-0", 31)
        helper.clock.ahead_s += 7200
        await agent.turn()
        assert (agent.of("GPU-0").total, agent.open("GPU-0")) == (1, set())
        assert agent.lines() == ["GPU 0 (00000000:01:00.0): Xid 31 (GPU memory page fault): (120 min ago)"]


async def test_a_damaged_memory_is_moved_aside(helper: FakeHelper, tmp_path: Path) -> None:
    (tmp_path / "xids.json").write_bytes(b'{"gpus": [1, 2')
    async with agent_of(helper, tmp_path) as agent:
        helper.nvml("GPU-0", 31)
        await agent.turn()
        assert agent.of("GPU-0").total == 1
    assert list(tmp_path.glob("xids.json.damaged-*"))


async def test_a_state_directory_that_cannot_be_written_costs_the_memory_only(
    helper: FakeHelper, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    async with agent_of(helper, folder) as agent:
        folder.rmdir()
        helper.nvml("GPU-0", 31)
        await agent.turn()
        assert agent.of("GPU-0").total == 1


async def test_a_source_that_is_not_listened_to_is_down_and_one_that_is_not_here_is_absent(
    helper: FakeHelper, tmp_path: Path
) -> None:
    from nodewarden.gpuhelper.wire import Listening  # noqa: PLC0415

    helper.feed.kernel = Listening(reason="no_permission")
    helper.feed.driver = Listening(reason="not_supported")
    async with agent_of(helper, tmp_path) as agent:
        await agent.turn()
        sources = agent.store.snapshot().sources
        assert (sources["xid/kernel"].up, sources["xid/kernel"].reason) == (False, "no_permission")
        assert "xid/nvml" not in sources


async def test_a_helper_of_before_an_upgrade_is_asked_once_and_keeps_the_connection(
    helper: FakeHelper, tmp_path: Path
) -> None:
    helper.is_old = True
    async with agent_of(helper, tmp_path) as agent:
        for _ in range(20):
            await agent.turn()
        assert (helper.asked, agent.link.adopted) == (1, True)
        helper.is_old = False
        await agent.link.client.close()
        helper.nvml("GPU-0", 31)
        await agent.turn()
        assert agent.of("GPU-0").total == 1


async def test_a_helper_that_does_not_answer_costs_one_turn_at_a_time(helper: FakeHelper, tmp_path: Path) -> None:
    async with agent_of(helper, tmp_path) as agent:
        helper.nvml("GPU-0", 31)
        await agent.turn()
        await agent.link.client.close()
        helper.nvml("GPU-0", 31)
        await agent.source.turn()  # no connection: nothing is taken, nothing is lost
        assert agent.of("GPU-0").total == 1
        await agent.turn()
        assert agent.of("GPU-0").total == 2
