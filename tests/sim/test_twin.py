"""The twin as a process: the real helper and real SNMP in front of the plant, in fast time."""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodewarden.clock import ScaledClock
from nodewarden.errors import HelperGoneError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.client import HelperClient
from nodewarden.sim.job_link import JobLink
from nodewarden.sources.pdu.discovery import discover
from support.processes import Program
from support.wait import wait_for

SPEED = 20.0
CALL_S = 60.0  # clock seconds: three real ones


class Running:
    """A twin and what its starter knows of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = Program(
            [
                *(sys.executable, "-m", "nodewarden.sim.twin", "--speed", str(SPEED), "--origin-s", "0"),
                *("--runtime-dir", folder / "run", "--lock-dir", folder / "lock", "--link", folder / "link"),
            ]
        )
        self.clock = ScaledClock(SPEED, 0.0)

    def ready(self) -> dict:
        self.program.wait_for_output("\n", 20)
        return json.loads(self.program.output.splitlines()[0])


@pytest.fixture
def twin() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="nw-twin-"))
    (folder / "lock").mkdir()
    running = Running(folder)
    with running.program:
        yield running
    shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def helper_of(twin: Running) -> AsyncIterator[HelperClient]:
    client = HelperClient(twin.folder / "run" / "gpu.sock", twin.clock, deadline_s=CALL_S)
    async with asyncio.timeout(10):
        while not client.connected:
            with contextlib.suppress(HelperGoneError):  # it does not listen yet
                await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def test_the_real_helper_reads_and_caps_the_plant(twin: Running) -> None:
    uuids = twin.ready()["gpus"]
    async with helper_of(twin) as client:
        hello = await client.hello(armed=True, failsafe_w=None)
        assert [gpu.uuid for gpu in hello.gpus] == uuids
        assert all(gpu.can_write and gpu.model == "NVIDIA H100 80GB HBM3" for gpu in hello.gpus)

        replies = await client.read_fast(uuids)
        for reply in replies.values():
            assert isinstance(reply, wire.FastReply)
            assert 60 <= reply.values["junction_c"].value <= 80
            assert 5 <= reply.values["margin_c"].value <= 27
            assert 500 <= reply.values["power_w"].value <= 710
        slow = (await client.read_slow(uuids[:1]))[uuids[0]]
        assert isinstance(slow, wire.SlowReply)
        assert (slow.board.kind, slow.board.slowdown_c, slow.board.shutdown_c) == ("tlimit", -2, -8)
        assert (slow.board.min_w, slow.board.max_w) == (200, 700)
        assert len(slow.links) == 18

        set_to = await client.set_cap(
            uuids[2], 300.0, keep_w=None, protects="none", cause="manual", expires_at_s=twin.clock.now_s() + 3600
        )
        assert set_to.w == 300.0
        async with asyncio.timeout(10):
            while True:
                reply = (await client.read_fast(uuids[2:3]))[uuids[2]]
                assert isinstance(reply, wire.FastReply)
                if reply.values["power_w"].value <= 301.0:
                    break
        assert reply.values["cap_w"].value == 300.0
        outcome = (await client.restore([uuids[2]]))[0]
        assert (outcome.outcome, outcome.w) == ("restored", 700.0)


async def test_the_pdu_answers_over_snmp_with_what_the_plant_draws(twin: Running) -> None:
    ready = twin.ready()
    for _ in range(10):  # a reading that the PDU publishes in the middle of the walk spoils one of them
        found = await discover(ready["pdu_host"], ready["pdu_port"], community=ready["community"])
        mapped_w = sum(outlet["power_w"] for outlet in found["outlets"] if outlet["index"] in ready["outlets"])
        if mapped_w == pytest.approx(found["total_power_w"], abs=15):
            break
    assert 6000 <= found["total_power_w"] <= 8500
    assert mapped_w == pytest.approx(found["total_power_w"], abs=15)


def test_the_fault_comes_when_the_scenario_is_begun_and_not_before(twin: Running) -> None:
    twin.ready()
    with JobLink(twin.folder / "link") as link:
        wait_for(lambda: link.twin()[2] > 0.0, 10, "the plant to step")
        assert link.twin()[0] == pytest.approx(0.0, abs=0.2)
        link.begin(link.now_s())
        wait_for(lambda: link.twin()[0] > 110.0, 20, "110 s of the scenario")
        margins = [link.board(i).lowest_margin_c for i in range(8)]
    assert max(margins[4], margins[5]) < 2.0, "the rear boards of the failed bank"
    assert min(margins[6], margins[7]) > 8.0, "the rear boards of the other bank"


def test_sigterm_ends_it_with_status_0_and_takes_its_socket_away(twin: Running) -> None:
    twin.ready()
    wait_for((twin.folder / "run" / "gpu.sock").exists, 10, "the helper's socket")
    twin.program.process.terminate()
    assert twin.program.wait_exit(10) == 0
    assert not (twin.folder / "run" / "gpu.sock").exists()


def test_an_unknown_scenario_ends_it_with_what_is_allowed() -> None:
    command = [sys.executable, "-m", "nodewarden.sim.twin", "--scenario", "earthquake"]
    with Program([*command, "--runtime-dir", "x", "--lock-dir", "x", "--link", "x"]) as program:
        assert program.wait_exit(10) == 78
        assert "fan-bank" in program.output
