"""A responder that lies: other senders, other request ids, duplicates, wrong types, giants. None of it is believed."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from nodewarden.devices.snmp import Community, SnmpDevice, SnmpEngine
from nodewarden.errors import DeviceError
from nodewarden.sim.snmp_agent import INTEGER, OCTETS, RESPONSE, SEQUENCE, Typed, decode, encode
from support.snmp_agents import Agent

OID = "1.3.6.1.4.1.99.1.1.0"
KEY = (1, 3, 6, 1, 4, 1, 99, 1, 1, 0)


def ask(engine: SnmpEngine, port: int, timeout_s: float = 0.4) -> SnmpDevice:
    return engine.device("127.0.0.1", port, Community("public"), timeout_s=timeout_s)


@contextlib.contextmanager
def lying(how: Callable[[bytes], list[bytes]]) -> Iterator[Agent]:
    with Agent({KEY: Typed((INTEGER, 7))}) as peer:
        peer.garbage = how
        yield peer


def parts(reply: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """Version and community as they are, and the four parts of the PDU: request id, status, index, bindings."""
    _, message, _ = decode(reply)
    _, _, after_version = decode(message)
    _, _, after_community = decode(message, after_version)
    _, pdu, _ = decode(message, after_community)
    pieces, position = [], 0
    while position < len(pdu):
        _, _, end = decode(pdu, position)
        pieces.append(pdu[position:end])
        position = end
    return message[:after_version], message[after_version:after_community], pieces


def message(version: bytes, community: bytes, pieces: list[bytes], kind: int = RESPONSE) -> bytes:
    return encode(SEQUENCE, version + community + encode(kind, b"".join(pieces)))


def changed(reply: bytes, position: int, piece: bytes) -> list[bytes]:
    version, community, pieces = parts(reply)
    pieces[position] = piece
    return [message(version, community, pieces)]


def with_community(reply: bytes, community: bytes) -> list[bytes]:
    version, _, pieces = parts(reply)
    return [message(version, encode(OCTETS, community), pieces)]


def with_kind(reply: bytes, kind: int) -> list[bytes]:
    return [message(*parts(reply), kind)]


LIES: dict[str, Callable[[bytes], list[bytes]]] = {
    "another request id": lambda reply: changed(reply, 0, encode(INTEGER, 12345)),
    "a request id that is text": lambda reply: changed(reply, 0, encode(OCTETS, b"1234")),
    "a status that is text": lambda reply: changed(reply, 1, encode(OCTETS, b"x")),
    "an unknown status": lambda reply: changed(reply, 1, encode(INTEGER, 250)),
    "bindings that are a number": lambda reply: changed(reply, 3, encode(INTEGER, 1)),
    "no bindings": lambda reply: changed(reply, 3, encode(SEQUENCE, b"")),
    "another community": lambda reply: with_community(reply, b"other"),
    "a request instead of an answer": lambda reply: with_kind(reply, 0xA0),
    "a trap instead of an answer": lambda reply: with_kind(reply, 0xA7),
    "another version": lambda reply: [reply.replace(b"\x02\x01\x01\x04", b"\x02\x01\x00\x04", 1)],
    "a version that does not exist": lambda reply: [reply.replace(b"\x02\x01\x01\x04", b"\x02\x01\x09\x04", 1)],
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_answer_that_is_none_is_never_believed_and_the_next_one_is(lie: str, snmp: SnmpEngine) -> None:
    with lying(LIES[lie]) as peer:
        device = ask(snmp, peer.port)
        (outcome,) = await asyncio.gather(device.get([OID]), return_exceptions=True)
        if isinstance(outcome, DeviceError):
            assert outcome.reason in {"timeout", "bad_answer", "auth"}
        else:
            assert outcome == {OID: None}, "an error status for one object: it has no value"
        peer.garbage = None
        device.timeout_s = 10.0
        assert await device.get([OID]) == {OID: 7}


async def test_duplicates_do_not_answer_the_next_question(snmp: SnmpEngine) -> None:
    with lying(lambda reply: [reply] * 3) as peer:
        device = ask(snmp, peer.port, 10.0)
        for value in range(6):
            peer.set(OID, INTEGER, value)
            assert await device.get([OID]) == {OID: value}


async def test_an_answer_from_another_address_is_dropped(snmp: SnmpEngine) -> None:
    """A neighbour that guesses the request id must not be able to answer for the device."""
    loop = asyncio.get_running_loop()
    agent = Agent({KEY: Typed((INTEGER, 7))})
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        for one in (peer, stranger):
            one.bind(("127.0.0.1", 0))
            one.setblocking(False)
        device = ask(snmp, peer.getsockname()[1], 10.0)
        for sender, believed in ((stranger, False), (peer, True)):
            question = asyncio.create_task(device.get([OID]))
            datagram, client = await loop.sock_recvfrom(peer, 2000)
            reply = agent.answer(datagram)
            assert reply is not None
            device.timeout_s = 10.0
            await loop.sock_sendto(sender, reply, client)
            if believed:
                assert await question == {OID: 7}
            else:
                done, _ = await asyncio.wait({question}, timeout=0.5)
                assert not done
                question.cancel()


async def test_a_huge_text_and_a_deep_one_cost_nothing_but_themselves(snmp: SnmpEngine) -> None:
    with (
        lying(lambda reply: changed(reply, 3, encode(SEQUENCE, b"\x30\x80" * 20000))) as peer,
        Agent({KEY: Typed((INTEGER, 1))}) as good,
    ):
        with pytest.raises(DeviceError):
            await ask(snmp, peer.port).get([OID])
        assert await ask(snmp, good.port, 10.0).get([OID]) == {OID: 1}


async def test_a_flood_of_garbage_does_not_stop_the_others(snmp: SnmpEngine) -> None:
    with (
        lying(lambda reply: [reply[: n % len(reply)] for n in range(300)]) as peer,
        Agent({KEY: Typed((INTEGER, 1))}) as good,
    ):
        bad = asyncio.create_task(ask(snmp, peer.port, 1.0).get([OID]))
        device = ask(snmp, good.port, 10.0)
        for _ in range(5):
            assert await device.get([OID]) == {OID: 1}
        with pytest.raises(DeviceError):
            await bad
