"""The door to SNMP against agents that are slow, silent, wrong, old or hostile; everything over real UDP."""

import asyncio
import contextlib
import gc
import logging
import re
import sys
import time
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodewarden.devices import pysnmp_engine
from nodewarden.devices.resolve import look_up
from nodewarden.devices.snmp import Community, SnmpDevice, SnmpEngine
from nodewarden.errors import DeviceError, DeviceTimeoutError
from nodewarden.sim.snmp_agent import (
    COUNTER32,
    COUNTER64,
    GAUGE32,
    GET,
    GET_BULK,
    GET_NEXT,
    INTEGER,
    NULL,
    OBJECT_ID,
    OCTETS,
    Typed,
)
from nodewarden.sources.pdu.discovery import discover
from support.ports import free_udp_port
from support.snmp_agents import Agent, load_recording

from .conftest import recording

SECRET = "k3epThis-0ut-of-everything"
COLUMN = "1.3.6.1.4.1.99.1"
DESCR = "1.3.6.1.2.1.1.1.0"
MISSING = "1.3.6.1.4.1.99.77.0"


def agent(rows: int = 30) -> Agent:
    objects: dict[Any, Any] = {(1, 3, 6, 1, 2, 1, 1, 1, 0): Typed((OCTETS, b"test"))}
    for column in (1, 2, 3):
        for row in range(1, rows + 1):
            objects[1, 3, 6, 1, 4, 1, 99, column, row] = Typed((INTEGER, column * 1000 + row))
    objects[1, 3, 6, 1, 4, 1, 100, 1, 0] = Typed((INTEGER, 1))
    return Agent(objects, community=SECRET)


def ask(engine: SnmpEngine, port: int, *, version: Any = "2c", timeout_s: float = 10.0) -> SnmpDevice:
    return engine.device("127.0.0.1", port, Community(SECRET, version), timeout_s=timeout_s)


@pytest.mark.parametrize("version", ["2c", "1"])
async def test_objects_come_as_plain_python_and_missing_ones_as_none(version: Any, snmp: SnmpEngine) -> None:
    with agent() as peer:
        peer.set("1.3.6.1.4.1.99.9.1", COUNTER64 if version == "2c" else INTEGER, 2**31 - 2)
        peer.objects[1, 3, 6, 1, 4, 1, 99, 9, 2] = Typed((OBJECT_ID, (1, 3, 6, 1)))
        peer.objects[1, 3, 6, 1, 4, 1, 99, 9, 3] = Typed((NULL, None))
        peer.objects[1, 3, 6, 1, 4, 1, 99, 9, 4] = Typed((INTEGER, -946))
        oids = [DESCR, *(f"1.3.6.1.4.1.99.9.{n}" for n in (1, 2, 3, 4)), MISSING]
        values = await ask(snmp, peer.port, version=version).get(oids)
    assert values == dict(zip(oids, [b"test", 2**31 - 2, "1.3.6.1", None, -946, None], strict=True))


async def test_one_number_outside_its_type_does_not_cost_the_other_objects(snmp: SnmpEngine) -> None:
    oids = [f"1.3.6.1.4.1.99.9.{n}" for n in range(1, 6)]
    with agent() as peer:
        for oid, tag, value in zip(
            oids, (INTEGER, GAUGE32, COUNTER32, COUNTER64, GAUGE32), (2**32 - 1, -1, -(2**31), -1, 7), strict=True
        ):
            peer.set(oid, tag, value)
        values = await ask(snmp, peer.port).get(oids)
    assert list(values.values()) == [2**32 - 1, 2**32 - 1, 2**31, 2**64 - 1, 7]


@pytest.mark.parametrize("index", [None, 0, 99])
async def test_version_1_finds_what_is_missing_whatever_index_the_error_carries(
    index: int | None, snmp: SnmpEngine
) -> None:
    oids = [DESCR, MISSING, f"{COLUMN}.1", f"{COLUMN}.999", f"{COLUMN}.2"]
    with agent() as peer:
        peer.wrong_index = index
        values = await ask(snmp, peer.port, version="1").get(oids)
    assert [values[oid] for oid in oids] == [b"test", None, 1001, None, 1002]


async def test_a_get_that_is_too_big_is_split(snmp: SnmpEngine) -> None:
    oids = [f"{COLUMN}.{row}" for row in range(1, 13)]
    with agent() as peer:
        peer.too_big_from = 5
        values = await ask(snmp, peer.port).get(oids)
        assert [count for _, count in peer.asked] == [12, 6, 3, 3, 6, 3, 3]
    assert list(values.values()) == list(range(1001, 1013))


@pytest.mark.parametrize("version", ["2c", "1"])
async def test_columns_are_walked_side_by_side_and_a_missing_one_is_empty(version: Any, snmp: SnmpEngine) -> None:
    with agent() as peer:
        columns = [f"1.3.6.1.4.1.99.{n}" for n in (1, 2, 3, 50)]
        found = await ask(snmp, peer.port, version=version).walk(columns, deadline_s=10)
        kinds = {kind for kind, _ in peer.asked}
    assert [len(found[column]) for column in columns] == [30, 30, 30, 0]
    assert found[columns[1]]["7"] == 2007
    assert list(found[columns[0]]) == [str(row) for row in range(1, 31)]
    assert kinds == ({GET_BULK} if version == "2c" else {GET_NEXT})


@pytest.mark.parametrize("largest", [1, 2, 5, 17])
async def test_answers_that_are_cut_short_are_gone_on_from(largest: int, snmp: SnmpEngine) -> None:
    with agent() as peer:
        peer.largest = largest
        found = await ask(snmp, peer.port).walk([COLUMN, "1.3.6.1.4.1.99.2"], deadline_s=10)
    assert [len(rows) for rows in found.values()] == [30, 30]


@pytest.mark.parametrize("too_big_from", [40, 5, 2])
async def test_an_agent_that_says_too_big_is_asked_for_half_and_remembered(too_big_from: int, snmp: SnmpEngine) -> None:
    with agent() as peer:
        peer.too_big_from = too_big_from
        device = ask(snmp, peer.port)
        assert len((await device.walk([COLUMN], deadline_s=10))[COLUMN]) == 30
        refused = len(peer.asked)
        assert len((await device.walk([COLUMN], deadline_s=10))[COLUMN]) == 30
        assert len(peer.asked) - refused <= refused, "what it stands is not found out again"


async def test_a_walk_that_goes_round_in_circles_is_a_bad_answer(snmp: SnmpEngine) -> None:
    class Circle(Agent):
        def respond(self, *_: Any) -> Any:
            return 0, 0, [((1, 3, 6, 1, 4, 1, 99, 1, 5), Typed((INTEGER, 1)))]

    with Circle({}, community=SECRET) as peer, pytest.raises(DeviceError, match="does not move on") as raised:
        await ask(snmp, peer.port).walk([COLUMN], deadline_s=5)
    assert raised.value.reason == "bad_answer"


async def test_an_answer_for_other_objects_is_a_bad_answer(snmp: SnmpEngine) -> None:
    class Other(Agent):
        def respond(self, *_: Any) -> Any:
            return 0, 0, [((1, 3, 6, 1, 9), Typed((INTEGER, 1)))]

    with Other({}, community=SECRET) as peer, pytest.raises(DeviceError, match="other objects"):
        await ask(snmp, peer.port).get([DESCR])


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Intervals of a task that wants to run every 10 ms: what the loop was blocked for shows as a long one."""
    intervals: list[float] = []

    async def tick() -> None:
        before_s = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now_s = time.monotonic()
            intervals.append(now_s - before_s)
            before_s = now_s

    task = asyncio.create_task(tick())
    yield intervals
    task.cancel()


async def test_a_silent_device_costs_its_deadline_and_nothing_else(snmp: SnmpEngine) -> None:
    with agent() as peer:
        peer.silent = True
        device = ask(snmp, peer.port, timeout_s=0.4)
        async with ticking() as intervals:
            began_s = time.monotonic()
            with pytest.raises(DeviceTimeoutError, match=f"127.0.0.1:{peer.port} within 0.4 s") as raised:
                await device.get([DESCR])
            took_s = time.monotonic() - began_s
    assert raised.value.reason == "timeout"
    assert 0.4 <= took_s < 4
    assert len(intervals) >= 10, "the loop went on turning"


async def test_a_walk_ends_at_its_deadline_however_much_is_left(snmp: SnmpEngine) -> None:
    with agent(500) as peer:
        peer.largest, peer.delay_s = 1, 0.1
        began_s = time.monotonic()
        with pytest.raises(DeviceTimeoutError):
            await ask(snmp, peer.port).walk([COLUMN], deadline_s=0.5)
        assert 0.5 <= time.monotonic() - began_s < 4


async def test_one_request_at_a_time_and_waiting_counts(snmp: SnmpEngine) -> None:
    with agent() as peer:
        peer.silent = True
        device = ask(snmp, peer.port, timeout_s=0.8)
        began_s = time.monotonic()
        results = await asyncio.gather(*(device.get([DESCR]) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, DeviceTimeoutError) for result in results)
        assert time.monotonic() - began_s < 5 * 0.8, "five requests do not wait one after the other"
        assert len(peer.asked) == 1


async def test_a_slow_device_works_and_its_neighbour_keeps_its_pace(snmp: SnmpEngine) -> None:
    """F36."""
    with agent() as slow, agent() as quick, agent() as dead:
        slow.delay_s, dead.silent = 0.9, True
        first = asyncio.create_task(ask(snmp, slow.port).get([DESCR]))
        second = asyncio.create_task(ask(snmp, dead.port, timeout_s=1.5).get([DESCR]))
        device = ask(snmp, quick.port)
        answered = 0
        while not first.done():
            await device.get([DESCR])
            answered += 1
        assert (await first)[DESCR] == b"test"
        assert answered >= 3
        with pytest.raises(DeviceTimeoutError):
            await second


async def test_a_device_that_became_slow_is_said_to_be_slow(snmp: SnmpEngine) -> None:
    with agent() as peer:
        device = ask(snmp, peer.port)
        peer.delay_s = 0.6
        await device.get([DESCR])
        peer.delay_s, device.timeout_s = 2.0, 0.5
        with pytest.raises(DeviceTimeoutError, match=r"its last answer took \d\.\d s"):
            await device.get([DESCR])


async def test_an_answer_that_comes_after_the_repetition_still_counts(snmp: SnmpEngine) -> None:
    with agent() as peer:
        device = ask(snmp, peer.port, timeout_s=4.0)
        await device.get([DESCR])
        peer.delay_s = 2.4  # later than the repetition, earlier than the deadline
        assert (await device.get([DESCR]))[DESCR] == b"test"


GARBAGE: dict[str, Any] = {
    "text": lambda _: [b"garbage"],
    "empty": lambda _: [b""],
    "cut": lambda reply: [reply[:-5]],
    "cut after the community": lambda reply: [reply[:45]],
    "ones": lambda _: [b"\xff" * 1400],
    "endless length": lambda _: [b"0\x84\xff\xff\xff\xff"],
    "deeply nested": lambda _: [b"0\x80" * 5000],
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_is_an_error_of_that_device_and_shows_no_secret(
    kind: str, snmp: SnmpEngine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    with agent() as peer, agent() as good:
        peer.garbage = GARBAGE[kind]
        with pytest.raises(DeviceError) as raised:
            await ask(snmp, peer.port, timeout_s=0.3).get([DESCR])
        assert (await ask(snmp, good.port).get([DESCR]))[DESCR] == b"test"
    assert raised.value.reason == "bad_answer"
    assert_no_secret(str(raised.value), repr(raised.value), caplog.text, *capfd.readouterr())


def assert_no_secret(*texts: str) -> None:
    """Neither the community nor any six characters of it (F75)."""
    pieces = {SECRET[n : n + 6] for n in range(len(SECRET) - 5)}
    together = "\n".join(texts)
    hexadecimal = SECRET.encode().hex()
    assert not [piece for piece in pieces if piece in together]
    assert hexadecimal[:12] not in re.sub(r"[^0-9a-f]", "", together.lower())


async def test_errors_and_reprs_hold_no_community(
    snmp: SnmpEngine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    credentials = Community(SECRET)
    with Agent({}, community="another") as peer:
        device = snmp.device("127.0.0.1", peer.port, credentials, timeout_s=0.2)
        with pytest.raises(DeviceTimeoutError, match="community") as raised:
            await device.get([DESCR])
    closed = snmp.device("127.0.0.1", free_udp_port(), credentials, timeout_s=0.2)
    with pytest.raises(DeviceTimeoutError) as unheard:
        await closed.get([DESCR])
    nowhere = snmp.device("no..name", 161, credentials)
    with pytest.raises(DeviceError) as unknown:
        await nowhere.get([DESCR])
    assert unknown.value.reason == "unreachable"
    errors = [repr(error.value) for error in (raised, unheard, unknown)]
    assert_no_secret(repr(credentials), str(credentials), repr(device), *errors, caplog.text, *capfd.readouterr())


async def test_an_agent_that_refuses_access_is_an_error_of_the_credentials(snmp: SnmpEngine) -> None:
    class Refusing(Agent):
        def respond(self, *_: Any) -> Any:
            return 16, 1, [((1, 3), Typed((NULL, None)))]

    with Refusing({}, community=SECRET) as peer, pytest.raises(DeviceError) as raised:
        await ask(snmp, peer.port).get([DESCR])
    assert raised.value.reason == "auth"


async def test_nothing_is_ever_written() -> None:
    assert set(pysnmp_engine.Engine(asyncio.get_running_loop())._generators) == {"get", "next", "bulk"}
    with Agent(load_recording(recording("apc_three_phase_metered")), community=SECRET) as peer:
        engine = SnmpEngine()
        for version in ("1", "2c"):
            await discover("127.0.0.1", peer.port, version=version, community=SECRET, engine=engine)  # type: ignore[arg-type]
        await engine.close()
    assert {kind for kind, _ in peer.asked} <= {GET, GET_NEXT, GET_BULK}
    assert max(count for kind, count in peer.asked if kind == GET) <= 12


_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_hook)


async def test_no_file_is_read_after_the_warm_up(snmp: SnmpEngine) -> None:
    """F38."""
    global _opened  # noqa: PLW0603 - an audit hook cannot be taken away again
    with agent() as peer:
        device = ask(snmp, peer.port)
        _opened = []
        try:
            await device.get([DESCR, MISSING])
            await device.walk([COLUMN, "1.3.6.1.4.1.12345.6.7"], deadline_s=5)
            opened = list(_opened)
        finally:
            _opened = None
    assert opened == []


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_lost_requests_leave_nothing_behind(snmp: SnmpEngine) -> None:
    """F39."""
    with agent() as peer, agent() as good:
        silent = [ask(snmp, peer.port, timeout_s=0.02) for _ in range(40)]
        device = ask(snmp, good.port)
        peer.silent = True
        await device.get([DESCR])
        files, tasks = open_files(), len(asyncio.all_tasks())
        for _ in range(3):
            results = await asyncio.gather(*(one.get([DESCR]) for one in silent), return_exceptions=True)
            assert all(isinstance(result, DeviceTimeoutError) for result in results)
            assert (await device.get([DESCR]))[DESCR] == b"test"
        cancelled = asyncio.create_task(ask(snmp, peer.port, timeout_s=5).get([DESCR]))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gc.collect()
        assert (open_files(), len(asyncio.all_tasks())) == (files, tasks)


@pytest.mark.parametrize("closes", [True, False])
def test_a_second_event_loop_gets_a_working_engine_and_the_first_ones_sockets_are_closed(closes: bool) -> None:
    """F39."""
    engine = SnmpEngine()
    before = open_files()

    async def once(port: int, *, close: bool) -> None:
        assert (await ask(engine, port).get([DESCR]))[DESCR] == b"test"
        if close:
            await engine.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of a loop that ended without closing the engine
        with agent() as peer:
            asyncio.run(once(peer.port, close=closes))
            asyncio.run(once(peer.port, close=True))
        gc.collect()
    assert open_files() <= before


async def test_names_are_looked_up_without_the_loop_and_addresses_are_taken_as_they_are() -> None:
    assert (await look_up("localhost", 161))[1][:2] == ("127.0.0.1", 161)
    assert (await look_up("192.0.2.7", 161))[1] == ("192.0.2.7", 161)
    assert (await look_up("2001:db8::7", 161))[1] == ("2001:db8::7", 161, 0, 0)
    with pytest.raises(OSError, match="not a host name"):
        await look_up("no..name", 161)


async def test_a_get_of_more_than_twelve_objects_and_an_empty_community_are_mistakes_of_the_caller(
    snmp: SnmpEngine,
) -> None:
    with pytest.raises(ValueError, match="13 objects, allowed: 1 to 12"):
        await ask(snmp, 161).get([f"{COLUMN}.{n}" for n in range(13)])
    with pytest.raises(ValueError, match="community is empty"):
        Community("")
