"""The simulated PDU: a real agent that publishes like a real device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.devices.snmp import Community, SnmpEngine
from nodewarden.sim.pdu import OUTLETS, PduValues, serve_pdu
from nodewarden.sim.snmp_agent import (
    GET,
    INTEGER,
    NULL,
    OBJECT_ID,
    OCTETS,
    SEQUENCE,
    SET,
    SnmpAgent,
    Typed,
    decode,
    encode,
)
from nodewarden.sources.pdu.discovery import discover

from .conftest import HandClock


async def test_what_flows_is_what_is_read_in_the_steps_of_the_device(snmp: SnmpEngine) -> None:
    pdu = serve_pdu(lambda: PduValues(outlets_w={7: 3123.6, 8: 2987.2}, outlets_off=frozenset({3})), community="twin")
    try:
        ours = await discover("127.0.0.1", pdu.port, community="twin", engine=snmp)
    finally:
        pdu.close()
    assert (ours["vendor"], len(ours["outlets"]), len(ours["phases"])) == ("APC", OUTLETS, 3)
    assert ours["total_power_w"] == 6110, "in steps of 10 W"
    assert [ours["outlets"][n]["power_w"] for n in (5, 6, 7)] == [0, 3124, 2987]
    assert [ours["outlets"][n]["state"] for n in (2, 6)] == ["off", "on"]
    assert sum(row["power_w"] for row in ours["phases"]) == pytest.approx(6110, abs=30)
    assert ours["suspect"] == []


async def test_readings_are_published_every_five_seconds_of_its_clock(snmp: SnmpEngine, clock: HandClock) -> None:
    power = {"w": 1000.0}
    pdu = serve_pdu(lambda: PduValues(outlets_w={1: power["w"]}), now_s=clock.now_s)
    oid = "1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.1"
    energy = "1.3.6.1.4.1.318.1.1.26.9.4.3.1.11.1"
    device = snmp.device("127.0.0.1", pdu.port, Community("public"))
    try:
        assert (await device.get([oid]))[oid] == 1000
        power["w"] = 2000.0
        clock.time_s += 4.9
        assert (await device.get([oid]))[oid] == 1000
        clock.time_s += 0.2
        assert (await device.get([oid]))[oid] == 2000
        clock.time_s += 3600
        assert (await device.get([energy]))[energy] == 20, "2 kWh in steps of 100 Wh"
    finally:
        pdu.close()


def agent() -> SnmpAgent:
    return SnmpAgent(lambda: {(1, 3, 6, 1): Typed((INTEGER, 5))})


def request(kind: int, version: int, community: bytes = b"public") -> bytes:
    binding = encode(SEQUENCE, encode(OBJECT_ID, (1, 3, 6, 1)) + encode(NULL, None))
    body = encode(INTEGER, 77) + encode(INTEGER, 0) + encode(INTEGER, 0) + encode(SEQUENCE, binding)
    return encode(SEQUENCE, encode(INTEGER, version) + encode(OCTETS, community) + encode(kind, body))


@pytest.mark.parametrize(("version", "status"), [(0, 4), (1, 17)])
def test_it_refuses_to_be_written(version: int, status: int) -> None:
    reply = agent().answer(request(SET, version))
    assert reply is not None
    assert bytes((INTEGER, 1, status)) in reply


def test_a_wrong_community_and_version_3_get_no_answer() -> None:
    assert agent().answer(request(GET, 1)) is not None
    assert agent().answer(request(GET, 1, b"wrong")) is None
    assert agent().answer(request(GET, 3)) is None


@given(st.binary(max_size=200))
def test_garbage_gets_no_answer_and_does_no_harm(datagram: bytes) -> None:
    assert list(agent().answers(datagram)) == []


@given(st.integers(0, 200), st.binary(max_size=4))
def test_a_damaged_request_does_no_harm(cut: int, tail: bytes) -> None:
    assert all(isinstance(reply, bytes) for reply in agent().answers(request(GET, 1)[:cut] + tail))


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_survive_encoding(value: int) -> None:
    tag, body, end = decode(encode(INTEGER, value))
    assert (tag, int.from_bytes(body, "big", signed=True), end) == (INTEGER, value, len(encode(INTEGER, value)))
