"""A small real SNMP agent: v1 and v2c, GET, GETNEXT and GETBULK over UDP, answered from a table of objects.

It encodes and decodes BER itself, so that the twin needs no SNMP library and a request costs tens of microseconds. SET
is always refused. What the objects are is decided by the caller.
"""

import contextlib
import socket
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping

Oid = tuple[int, ...]

INTEGER, OCTETS, NULL, OBJECT_ID, SEQUENCE = 0x02, 0x04, 0x05, 0x06, 0x30
COUNTER32, GAUGE32, TIME_TICKS, COUNTER64 = 0x41, 0x42, 0x43, 0x46
NO_SUCH_OBJECT, NO_SUCH_INSTANCE, END_OF_MIB_VIEW = 0x80, 0x81, 0x82
GET, GET_NEXT, RESPONSE, SET, GET_BULK = 0xA0, 0xA1, 0xA2, 0xA3, 0xA5
TOO_BIG, NO_SUCH_NAME, READ_ONLY, NOT_WRITABLE = 1, 2, 4, 17

_MAX_DATAGRAM = 1472  # one Ethernet frame, as the agents of PDUs do


class Typed(tuple[int, int | bytes | Oid | None]):
    """A value with its BER tag, such as `Typed((GAUGE32, 270))`."""

    __slots__ = ()


def encode(tag: int, value: int | bytes | Oid | None) -> bytes:
    """One TLV."""
    if value is None:
        return bytes((tag, 0))
    if isinstance(value, int):
        body = _integer(value)
    elif isinstance(value, tuple):
        body = _oid(value)
    else:
        body = value
    return bytes((tag,)) + _length(len(body)) + body


def decode(data: bytes, position: int = 0) -> tuple[int, bytes, int]:
    """Tag, content and end of the TLV at `position`. Raises ValueError on anything malformed."""
    if position + 2 > len(data):
        raise ValueError("cut short")
    tag, length = data[position], data[position + 1]
    position += 2
    if length & 0x80:
        size = length & 0x7F
        if not 0 < size <= 4 or position + size > len(data):
            raise ValueError("bad length")
        length = int.from_bytes(data[position : position + size], "big")
        position += size
    if position + length > len(data):
        raise ValueError("cut short")
    return tag, data[position : position + length], position + length


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes((size,))
    body = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(body),)) + body


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _oid(oid: Oid) -> bytes:
    body = bytearray()
    for part in (oid[0] * 40 + oid[1], *oid[2:]):
        chunk = [part & 0x7F]
        while part := part >> 7:
            chunk.append(0x80 | part & 0x7F)
        body += bytes(reversed(chunk))
    return bytes(body)


def _decode_oid(body: bytes) -> Oid:
    parts: list[int] = []
    part = 0
    for byte in body:
        part = part << 7 | byte & 0x7F
        if not byte & 0x80:
            parts.append(part)
            part = 0
    if not parts:
        raise ValueError("empty OID")
    first = min(parts[0] // 40, 2)
    return (first, parts[0] - first * 40, *parts[1:])


class SnmpAgent:
    """Answers datagrams. `answer` is the whole protocol; `start` runs it in a thread of its own.

    Args:
        objects: the tree as it is now, called once per request; from the agent's thread once it is started.
        community: what a request must carry; others get no answer, as with real devices.
    """

    def __init__(self, objects: Callable[[], Mapping[Oid, Typed]], *, community: str = "public") -> None:
        self._objects = objects
        self._community = community.encode()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self.host, self.port = "", 0

    def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Bind and answer until `close`. With port 0 the system chooses; `self.port` tells. Raises OSError."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, port))
        self._closing = False
        self.host, self.port = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._serve, args=(self._socket,), name="snmp-agent", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; returns when the thread has ended."""
        if self._socket is not None and self._thread is not None:
            self._closing = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes recvfrom, although it complains of no connection
            self._thread.join()
            self._socket.close()
        self._socket = self._thread = None

    def _serve(self, sock: socket.socket) -> None:
        while True:
            try:
                datagram, peer = sock.recvfrom(65535)
            except OSError:
                return
            if self._closing:
                return
            for reply in self.answers(datagram):
                with contextlib.suppress(OSError):
                    sock.sendto(reply, peer)

    def answers(self, datagram: bytes) -> Iterable[bytes]:
        """What is sent back for one datagram: nothing for garbage and for a wrong community."""
        try:
            reply = self.answer(datagram)
        except (ValueError, OverflowError, IndexError):
            return ()
        return () if reply is None else (reply,)

    def answer(self, datagram: bytes) -> bytes | None:
        """The response to a request; None where a real agent stays silent. Raises ValueError on garbage."""
        _, message, _ = decode(datagram)
        _, version_body, position = decode(message)
        _, community, position = decode(message, position)
        kind, body, _ = decode(message, position)
        version = int.from_bytes(version_body, "big")
        if version > 1 or community != self._community or kind not in {GET, GET_NEXT, SET, GET_BULK}:
            return None
        _, request_id, position = decode(body)
        _, first, position = decode(body, position)
        _, second, position = decode(body, position)
        _, bindings, _ = decode(body, position)
        oids = []
        position = 0
        while position < len(bindings):
            _, binding, position = decode(bindings, position)
            oids.append(_decode_oid(decode(binding)[1]))
        status, index, pairs = self.respond(
            kind, version, oids, int.from_bytes(first, "big"), int.from_bytes(second, "big")
        )
        while True:
            content = b"".join(encode(SEQUENCE, encode(OBJECT_ID, oid) + encode(*value)) for oid, value in pairs)
            reply = encode(
                SEQUENCE,
                encode(INTEGER, version)
                + encode(OCTETS, community)
                + encode(
                    RESPONSE,
                    encode(INTEGER, request_id)
                    + encode(INTEGER, status)
                    + encode(INTEGER, index)
                    + encode(SEQUENCE, content),
                ),
            )
            if len(reply) <= _MAX_DATAGRAM or not pairs:
                return reply
            if kind == GET_BULK:
                pairs = pairs[:-1]
            else:
                status, index, pairs = TOO_BIG, 0, []

    def respond(
        self, kind: int, version: int, oids: list[Oid], non_repeaters: int, repetitions: int
    ) -> tuple[int, int, list[tuple[Oid, Typed]]]:
        """Error status, error index and bindings for a decoded request."""
        null = [(oid, Typed((NULL, None))) for oid in oids]
        if kind == SET:
            return (READ_ONLY if version == 0 else NOT_WRITABLE), 1, null
        objects = self._objects()
        if kind == GET:
            pairs = [(oid, objects.get(oid, Typed((NO_SUCH_INSTANCE, None)))) for oid in oids]
        else:
            order = sorted(objects)
            if kind == GET_NEXT:
                non_repeaters, repetitions = len(oids), 0
            pairs = [_next(objects, order, oid) for oid in oids[:non_repeaters]]
            row = oids[non_repeaters:]
            for _ in range(min(repetitions, 128)):
                found = [_next(objects, order, oid) for oid in row]
                pairs += found
                row = [oid for oid, _ in found]
                if all(value[0] == END_OF_MIB_VIEW for _, value in found):
                    break
        if version == 0:
            for position, (_, value) in enumerate(pairs):
                if value[0] in {NO_SUCH_OBJECT, NO_SUCH_INSTANCE, END_OF_MIB_VIEW}:
                    return NO_SUCH_NAME, position + 1, null
        return 0, 0, pairs


def _next(objects: Mapping[Oid, Typed], order: list[Oid], oid: Oid) -> tuple[Oid, Typed]:
    position = bisect_right(order, oid)
    if position == len(order):
        return oid, Typed((END_OF_MIB_VIEW, None))
    return order[position], objects[order[position]]
