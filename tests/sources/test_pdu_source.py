"""One PDU as a source: what it says, what it says when something is missing, and how it comes back."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from nodewarden.config import PduConfig, SamplingConfig, Secret, SnmpAuth
from nodewarden.devices.snmp import SnmpEngine
from nodewarden.errors import DeviceError, DeviceTimeoutError, NotSupportedError
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sim.pdu import PduValues, serve_pdu
from nodewarden.sim.snmp_agent import GET, GET_BULK, GET_NEXT, INTEGER, NULL, TIME_TICKS, Typed
from nodewarden.sources.pdu.source import PduSource
from support.snmp_agents import Agent, load_recording

from .conftest import HandClock, recording

COMMUNITY = "zq7Wt-Lm4xv9-kEe8rh2"
METERED = "1.3.6.1.4.1.318.1.1.26.9.4.3.1"
DEVICE_POWER = "1.3.6.1.4.1.318.1.1.26.4.3.1.5.1"
UP_TIME = "1.3.6.1.2.1.1.3.0"


PATIENT_S = 10.0


@contextlib.contextmanager
def impatient(source: PduSource, timeout_s: float = 0.3) -> Iterator[None]:
    """Short deadlines, where no answer is expected."""
    device = source._opened()
    device.timeout_s = timeout_s
    yield
    device.timeout_s = PATIENT_S


def config(port: int, outlets: tuple[int, ...] = (7, 8), **more: Any) -> PduConfig:
    return PduConfig(
        name="rack12-a",
        port=port,
        feed="A",
        community=Secret(COMMUNITY),
        outlets=outlets,
        limit_w=6000,
        **{"host": "127.0.0.1", "timeout_s": PATIENT_S, **more},
    )


@pytest.fixture
def peer() -> Iterator[Agent]:
    with Agent(load_recording(recording("apc_three_phase_metered")), community=COMMUNITY) as agent:
        yield agent


@pytest.fixture
def source(peer: Agent, snmp: SnmpEngine, clock: HandClock) -> PduSource:
    return PduSource(config(peer.port), snmp, clock)


async def test_a_pdu_is_given_out_in_si_units_with_the_time_of_the_reading(source: PduSource, clock: HandClock) -> None:
    pdu = await source.read()
    assert (pdu.name, pdu.feed, pdu.vendor, pdu.model, pdu.profile) == ("rack12-a", "A", "APC", "AP8681", "apc-rpdu2")
    assert (pdu.up, pdu.since_s, pdu.reason, pdu.limit_w, pdu.mapped_outlets) == (True, 1000.0, None, 6000, (7, 8))
    assert pdu.power_w == Reading(6120.0, 1000.0)
    assert pdu.energy_wh == Reading(123456700.0, 1000.0)
    assert pdu.outlets_w == Reading(255.0 + 250.0, 1000.0)
    assert [phase.id for phase in pdu.phases] == ["L1", "L2", "L3"]
    assert (len(pdu.banks), len(pdu.outlets), pdu.suspect, pdu.estimated) == (6, 24, (), ())
    assert (pdu.outlets[6].name, pdu.outlets[6].power_w, pdu.outlets[6].state) == ("node 7", 255, "on")
    assert source.warnings == ()


async def test_totals_and_phases_are_one_get_of_at_most_twelve_objects_every_period(
    source: PduSource, peer: Agent, clock: HandClock
) -> None:
    await source.read()
    peer.asked.clear()
    peer.set(DEVICE_POWER, INTEGER, 700)
    clock.time_s += 5
    pdu = await source.read()
    assert peer.asked == [(GET, 12)]
    assert pdu.power_w == Reading(7000.0, 1005.0)
    assert pdu.outlets_w == Reading(505.0, 1000.0), "not read again: the time says so"


async def test_own_outlets_are_read_every_10_s_and_others_every_minute(
    source: PduSource, peer: Agent, clock: HandClock
) -> None:
    await source.read()
    for outlet in (7, 20):
        peer.set(f"{METERED}.7.{outlet}", INTEGER, 1000)
    seen: dict[float, tuple[float | None, float | None]] = {}
    for _ in range(12):
        clock.time_s += 5
        pdu = await source.read()
        seen[clock.time_s] = (pdu.outlets[6].power_w, pdu.outlets[19].power_w)
    assert seen[1005.0] == (255, 250)
    assert seen[1010.0] == (1000, 250)
    assert seen[1055.0] == (1000, 250)
    assert seen[1060.0] == (1000, 1000)


async def test_other_outlets_can_be_left_out(peer: Agent, snmp: SnmpEngine, clock: HandClock) -> None:
    source = PduSource(config(peer.port), snmp, clock, SamplingConfig(pdu_other_outlets_s=0))
    await source.read()
    peer.set(f"{METERED}.7.20", INTEGER, 1000)
    peer.asked.clear()
    for _ in range(30):
        clock.time_s += 5
        pdu = await source.read()
    assert pdu.outlets[19].power_w == 250
    assert {kind for kind, _ in peer.asked} == {GET}
    assert max(count for _, count in peer.asked) <= 12


@pytest.mark.parametrize("marker", [-1, 2147483647, 4294967295])
async def test_the_sum_of_some_of_the_outlets_is_never_given_out(
    marker: int, source: PduSource, peer: Agent, clock: HandClock
) -> None:
    """F34."""
    await source.read()
    before = peer.objects
    peer.set(f"{METERED}.7.8", INTEGER, marker)
    clock.time_s += 10
    assert (await source.read()).outlets_w == Failed("outlet_without_reading", 1010.0)
    clock.time_s += 10
    assert (await source.read()).outlets_w == Failed("outlet_without_reading", 1010.0), "since then"
    peer.objects = before
    clock.time_s += 10
    assert (await source.read()).outlets_w == Reading(505.0, 1030.0)


async def test_a_total_that_is_gone_has_failed_and_one_that_never_was_is_absent(
    source: PduSource, peer: Agent, clock: HandClock
) -> None:
    peer.set("1.3.6.1.4.1.318.1.1.26.4.3.1.9.1", INTEGER, -1)
    assert (await source.read()).energy_wh == Absent("not_supported")
    peer.set(DEVICE_POWER, INTEGER, -1)
    clock.time_s += 5
    assert (await source.read()).power_w == Failed("no_reading", 1005.0)
    clock.time_s += 5
    assert (await source.read()).power_w == Failed("no_reading", 1005.0)
    peer.set(DEVICE_POWER, INTEGER, 600)
    clock.time_s += 5
    pdu = await source.read()
    assert (pdu.power_w, pdu.energy_wh) == (Reading(6000.0, 1015.0), Absent("not_supported"))


async def test_a_value_is_given_up_when_the_device_says_that_it_is_no_longer_good(
    snmp: SnmpEngine, clock: HandClock
) -> None:
    with Agent(load_recording(recording("raritan_three_poles")), community=COMMUNITY) as device:
        source = PduSource(config(device.port, outlets=(1, 2)), snmp, clock)
        assert (await source.read()).outlets_w == Reading(1032.0, 1000.0)
        device.set("1.3.6.1.4.1.13742.6.5.4.3.1.3.1.2.5", INTEGER, -1)  # the state; its watts then read 0
        device.set("1.3.6.1.4.1.13742.6.5.4.3.1.4.1.2.5", INTEGER, 0)
        clock.time_s += 10
        assert (await source.read()).outlets_w == Failed("outlet_without_reading", 1010.0)


async def test_an_outlet_that_shows_a_marker_at_first_is_read_once_it_has_a_value(
    peer: Agent, snmp: SnmpEngine, clock: HandClock
) -> None:
    ready = peer.objects
    peer.set(f"{METERED}.7.8", INTEGER, -1)
    peer.set(DEVICE_POWER, INTEGER, -1)
    source = PduSource(config(peer.port), snmp, clock)
    first = await source.read()
    assert (first.outlets_w, first.power_w) == (Failed("outlet_without_reading", 1000.0), Absent("not_supported"))
    peer.objects = ready
    clock.time_s += 10
    second = await source.read()
    assert second.outlets_w == Reading(505.0, 1010.0)
    clock.time_s += 5
    assert (await source.read()).power_w == Reading(6120.0, 1015.0)


async def test_a_pdu_that_meters_no_outlets_says_so_in_a_sentence(snmp: SnmpEngine, clock: HandClock) -> None:
    with Agent(load_recording(recording("apc_chained")), community=COMMUNITY) as peer:
        source = PduSource(config(peer.port), snmp, clock)
        pdu = await source.read()
    assert pdu.outlets_w == Absent("not_metered")
    (warning,) = source.warnings
    assert "does not meter single outlets" in warning
    assert "7, 8" in warning
    assert "limits.node_power_w" in warning


async def test_outlets_that_the_pdu_does_not_have_are_a_mistake_to_correct(
    peer: Agent, snmp: SnmpEngine, clock: HandClock
) -> None:
    source = PduSource(config(peer.port, outlets=(7, 25, 30)), snmp, clock)
    pdu = await source.read()
    assert pdu.outlets_w == Failed("no_such_outlet", 1000.0)
    assert source.warnings == (
        "AP8681 has no outlet 25, 30 (24 outlets): limit_w cannot be watched."
        " Correct `outlets` of this PDU in the configuration.",
    )


async def test_without_mapped_outlets_there_is_no_sum(peer: Agent, snmp: SnmpEngine, clock: HandClock) -> None:
    source = PduSource(config(peer.port, outlets=()), snmp, clock)
    assert (await source.read()).outlets_w == Absent("no_outlets_mapped")


async def test_a_computed_total_is_marked_as_estimated(snmp: SnmpEngine, clock: HandClock) -> None:
    with Agent(load_recording(recording("apc_first_generation")), community=COMMUNITY) as peer:
        pdu = await (source := PduSource(config(peer.port, outlets=()), snmp, clock)).read()
    assert (pdu.power_w, pdu.estimated) == (Reading(2288.0, 1000.0), ("total_power_w",))
    assert "configured voltage" in source.warnings[0]


async def test_a_pdu_that_is_off_at_the_start_is_picked_up_when_it_appears(
    peer: Agent, source: PduSource, clock: HandClock
) -> None:
    """F37."""
    peer.silent = True
    with impatient(source), pytest.raises(DeviceTimeoutError) as raised:
        await source.read()
    assert raised.value.reason == "timeout"
    peer.silent = False
    clock.time_s += 5
    pdu = await source.read()
    assert (pdu.up, pdu.since_s, pdu.power_w) == (True, 1005.0, Reading(6120.0, 1005.0))


async def test_a_name_that_appears_late_or_moves_to_another_address_is_followed(
    snmp: SnmpEngine, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F37."""
    addresses: list[str] = []

    def names(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "rack12-pdu.example"
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (addresses[-1], port))]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    objects = load_recording(recording("apc_three_phase_metered"))
    with Agent(objects, community=COMMUNITY) as first, Agent(objects, community=COMMUNITY) as second:
        second.close()
        second.start("127.0.0.2", first.port)
        source = PduSource(config(first.port, host="rack12-pdu.example"), snmp, clock)
        with pytest.raises(DeviceError, match="Name or service not known") as raised:
            await source.read()
        assert raised.value.reason == "unreachable"
        addresses.append("127.0.0.1")
        assert (await source.read()).up
        first.silent = True
        addresses.append("127.0.0.2")
        clock.time_s += 5
        with impatient(source), pytest.raises(DeviceTimeoutError):
            await source.read()
        clock.time_s += 5
        assert (await source.read()).up
        assert second.asked


async def test_a_pdu_that_comes_back_is_up_since_then(peer: Agent, source: PduSource, clock: HandClock) -> None:
    assert (await source.read()).since_s == 1000.0
    clock.time_s = 1005.0
    assert (await source.read()).since_s == 1000.0
    peer.silent = True
    clock.time_s = 1010.0
    with impatient(source), pytest.raises(DeviceTimeoutError):
        await source.read()
    peer.silent = False
    clock.time_s = 1015.0
    pdu = await source.read()
    assert (pdu.up, pdu.since_s, pdu.reason, pdu.power_w) == (True, 1015.0, None, Reading(6120.0, 1015.0))


async def test_a_device_that_is_away_for_a_minute_is_asked_less_often_and_found_again(
    peer: Agent, snmp: SnmpEngine, clock: HandClock
) -> None:
    """F36."""
    source = PduSource(config(peer.port), snmp, clock)
    peer.silent = True
    asked = []
    for _ in range(18):
        before = len(peer.asked)
        with impatient(source), pytest.raises(DeviceError) as raised:
            await source.read()
        assert raised.value.reason == "timeout"
        asked.append(len(peer.asked) - before)
        clock.time_s += 5
    assert asked[:12] == [1] * 12
    assert 1 <= sum(asked[12:]) <= 3, "about one in three"
    peer.silent = False
    passes = 0
    while True:
        passes += 1
        try:
            assert (await source.read()).up
        except DeviceError:
            clock.time_s += 5
            assert passes < 5
            continue
        break


async def test_a_restarted_or_replaced_device_is_looked_at_again(
    peer: Agent, source: PduSource, clock: HandClock
) -> None:
    assert (await source.read()).model == "AP8681"
    other = load_recording(recording("apc_chained"))
    peer.objects = other  # its sysUpTime is the same: what was read is gone, though
    for oid in [oid for oid in other if oid[-3:-1] == (4, 3)]:
        del peer.objects[oid]
    peer.set(UP_TIME, TIME_TICKS, 500)
    clock.time_s += 5
    pdu = await source.read()
    assert (pdu.model, len(pdu.outlets), pdu.outlets_w) == ("AP8868", 0, Absent("not_metered"))


async def test_a_device_without_anything_it_had_is_looked_at_again(
    peer: Agent, source: PduSource, clock: HandClock
) -> None:
    await source.read()
    peer.objects = load_recording(recording("not_a_pdu"))
    clock.time_s += 5
    with pytest.raises(NotSupportedError, match=r"1\.3\.6\.1\.4\.1\.9\.1\.2494"):
        await source.read()


async def test_slow_outlets_cost_the_outlets_and_not_the_totals(
    peer: Agent, snmp: SnmpEngine, clock: HandClock
) -> None:
    class Refusing(Agent):
        mute = False

        def respond(self, kind: int, version: int, oids: Any, non_repeaters: int, repetitions: int) -> Any:
            if self.mute and any(oid[:12] == (1, 3, 6, 1, 4, 1, 318, 1, 1, 26, 9, 4) for oid in oids):
                raise ValueError("no answer")
            return super().respond(kind, version, oids, non_repeaters, repetitions)

    with Refusing(peer.objects, community=COMMUNITY) as device:
        source = PduSource(config(device.port), snmp, clock)
        await source.read()
        device.mute = True
        clock.time_s += 10
        with impatient(source, 1.0):
            pdu = await source.read()
        assert (pdu.up, pdu.power_w) == (True, Reading(6120.0, 1010.0))
        assert pdu.outlets_w == Reading(505.0, 1000.0), "the old one with its old time, to be aged"
        for _ in range(3):
            clock.time_s += 10
            with impatient(source, 1.0):
                pdu = await source.read()
        assert pdu.power_w == Reading(6120.0, 1040.0)
        assert pdu.outlets_w == Failed("timeout", 1010.0)
        assert pdu.outlets[6].power_w is None
        device.mute = False
        clock.time_s += 10
        assert (await source.read()).outlets_w == Reading(505.0, 1050.0)


async def test_a_contradiction_is_suspect_only_when_it_lasts(peer: Agent, source: PduSource, clock: HandClock) -> None:
    assert (await source.read()).suspect == ()
    peer.set(DEVICE_POWER, INTEGER, 6)  # 60 W beside phases of 6 kW
    seen = []
    for _ in range(5):
        clock.time_s += 5
        seen.append((await source.read()).suspect)
    assert seen[:3] == [(), (), ()], "parts are read at different times"
    assert "total_power_w" in seen[4]
    peer.set(DEVICE_POWER, INTEGER, 612)
    for _ in range(5):
        clock.time_s += 5
        pdu = await source.read()
    assert pdu.suspect == ()


async def test_a_falling_load_does_not_make_slower_readings_suspect(
    peer: Agent, source: PduSource, clock: HandClock
) -> None:
    await source.read()
    for oid, value in ((DEVICE_POWER, 60), ("1.3.6.1.4.1.318.1.1.26.4.3.1.16.1", 63)):
        peer.set(oid, INTEGER, value)
    for phase in (1, 2, 3):
        for column, value in ((5, 9), (7, 20), (8, 21)):
            peer.set(f"1.3.6.1.4.1.318.1.1.26.6.3.1.{column}.{phase}", INTEGER, value)
    for outlet in range(1, 25):
        peer.set(f"{METERED}.6.{outlet}", INTEGER, 1)
        peer.set(f"{METERED}.7.{outlet}", INTEGER, 25)
    for _ in range(14):
        clock.time_s += 5
        assert (await source.read()).suspect == ()


async def test_outlets_that_stay_silent_for_long_have_failed_and_are_not_taken_for_unmetered(
    snmp: SnmpEngine, clock: HandClock, peer: Agent
) -> None:
    source = PduSource(config(peer.port), snmp, clock)
    peer.set("1.3.6.1.4.1.318.1.1.26.4.3.1.9.1", INTEGER, -1)
    await source.read()
    ready = peer.objects
    peer.objects = {oid: value for oid, value in ready.items() if oid[10:13] != (9, 4, 3)}
    for _ in range(14):
        clock.time_s += 5
        pdu = await source.read()
    assert isinstance(pdu.outlets_w, Failed)
    peer.set("1.3.6.1.4.1.318.1.1.26.4.3.1.9.1", INTEGER, 5)  # something else gives its first value meanwhile
    clock.time_s += 10
    assert isinstance((await source.read()).outlets_w, Failed)
    peer.objects = ready
    clock.time_s += 10
    assert (await source.read()).outlets_w == Reading(505.0, clock.time_s)


async def test_doubtful_outlets_of_this_node_make_their_sum_suspect(snmp: SnmpEngine, clock: HandClock) -> None:
    with Agent(load_recording(recording("apc_contradictory")), community=COMMUNITY) as peer:
        first = await PduSource(config(peer.port, outlets=(1, 2)), snmp, clock).read()
        second = await PduSource(config(peer.port, outlets=(1,)), snmp, clock).read()
    assert "outlets_w" in first.suspect
    assert "outlets_w" not in second.suspect


async def test_only_reading_requests_are_sent_by_a_source(peer: Agent, source: PduSource, clock: HandClock) -> None:
    for _ in range(14):
        await source.read()
        clock.time_s += 5
    assert {kind for kind, _ in peer.asked} <= {GET, GET_NEXT, GET_BULK}


async def test_one_sick_pdu_costs_its_own_readings_only(peer: Agent, snmp: SnmpEngine, clock: HandClock) -> None:
    """F36."""
    with Agent({}, community=COMMUNITY) as sick:
        sick.garbage = lambda reply: [reply[:-4]]
        ill = PduSource(config(sick.port, timeout_s=1.0), snmp, clock)
        well = PduSource(config(peer.port), snmp, clock)
        await well.read()
        task = asyncio.create_task(ill.read())
        passes = 0
        while not task.done():
            assert (await well.read()).up
            clock.time_s += 1
            passes += 1
        assert passes >= 3
        with pytest.raises(DeviceError) as raised:
            await task
    assert raised.value.reason == "bad_answer"


async def test_the_community_is_in_no_log_line_snapshot_or_error(
    peer: Agent, snmp: SnmpEngine, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    texts = []
    with structlog.testing.capture_logs() as lines:
        source = PduSource(config(peer.port, outlets=(99,)), snmp, clock)
        texts.append(repr(await source.read()))
        for fault in (lambda _: [], lambda reply: [reply[:30]], lambda _: [b"\xff" * 60]):
            peer.garbage = fault
            clock.time_s += 5
            with impatient(source), pytest.raises(DeviceError) as raised:
                await source.read()
            texts += [str(raised.value), repr(raised.value), repr(vars(source))]
    together = "\n".join([*texts, *map(repr, lines), caplog.text])
    assert lines, "the warning about outlet 99"
    assert not [COMMUNITY[n : n + 6] for n in range(len(COMMUNITY) - 5) if COMMUNITY[n : n + 6] in together]


async def test_a_configuration_without_its_secrets_says_so(snmp: SnmpEngine, clock: HandClock) -> None:
    auth = SnmpAuth(secret_file="/nowhere")
    for without in (
        PduConfig(name="a", host="127.0.0.1", community_file="/nowhere"),
        PduConfig(name="a", host="127.0.0.1", version="3", user="monitor", auth=auth),
    ):
        with pytest.raises(NotSupportedError, match=r"PDU a cannot be asked: the (community is empty|authentication)"):
            await PduSource(without, snmp, clock).read()


async def test_refused_credentials_are_not_tried_hotly(snmp: SnmpEngine, clock: HandClock) -> None:
    class Refusing(Agent):
        def respond(self, kind: int, _version: int, oids: Any, *_: int) -> Any:
            self.asked.append((kind, len(oids)))
            return 16, 1, [(oids[0], Typed((NULL, None)))]

    with Refusing({}, community=COMMUNITY) as peer:
        source = PduSource(config(peer.port), snmp, clock)
        for _ in range(12 * 60):  # an hour
            with pytest.raises(DeviceError) as raised:
                await source.read()
            assert raised.value.reason == "auth"
            clock.time_s += 5
    assert 5 <= len(peer.asked) <= 16


async def test_the_simulated_pdu_is_read_like_a_real_one(snmp: SnmpEngine, clock: HandClock) -> None:
    power = {7: 3000.0, 8: 2900.0}
    pdu = serve_pdu(lambda: PduValues(outlets_w=dict(power)), community=COMMUNITY, now_s=clock.now_s)
    try:
        source = PduSource(config(pdu.port), snmp, clock)
        assert (await source.read()).outlets_w == Reading(5900.0, 1000.0)
        power[7] = 3500.0
        clock.time_s += 10
        after = await source.read()
        assert (after.outlets_w, after.suspect) == (Reading(6400.0, 1010.0), ())
    finally:
        pdu.close()
