"""One connection to job.sock: who the kernel says it is, lines in, lines out, and limits on all of it.

Whatever a peer sends costs that peer its connection and nobody else anything: at most one line of 64 KiB is buffered,
lines per second are bounded, a peer that does not read is dropped.
"""

import asyncio
from typing import Protocol, cast

from nodewarden.clock import Clock
from nodewarden.jobs import protocol
from nodewarden.jobs.protocol import FromRank, Hello, HelloResult, LineError, ToRank
from nodewarden.unix_socket import peer_of

LINES_PER_S = 100.0
LINES_AT_ONCE = 200.0
WRITE_BUFFER_BYTES = 64 * 1024


class Host(Protocol):
    """What a session needs from the server."""

    def admit(self, session: "Session") -> str | None:
        """Count a new connection; a text when there are too many."""

    def on_hello(self, session: "Session", request_id: int | str | None, hello: Hello) -> None:
        """The first message."""

    def on_message(self, session: "Session", body: FromRank) -> None:
        """Any later message that this version knows."""

    def on_gone(self, session: "Session") -> None:
        """The connection has ended."""


class Session(asyncio.Protocol):
    """One connection.

    Attributes:
        pid, uid: of the peer when it connected, by SO_PEERCRED; pid 0 when it lives in a pid namespace we cannot see.
        hello: what it said of itself, None before.
        confirmed: the GPUs on which the driver shows it at work.
        verified: those are all that it named.
        checked_at_s: when that was last looked up.
        heard_at_s: when it last sent a line, CLOCK_BOOTTIME seconds.
        said_bye: it ended cleanly.
        ended: why the connection ended, for the log.
    """

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._tokens = LINES_AT_ONCE
        self._refilled_at_s = clock.now_s()
        self.opened_at_s = clock.now_s()
        self.heard_at_s = self.opened_at_s
        self.checked_at_s = float("-inf")
        self.pid = 0
        self.uid = -1
        self.hello: Hello | None = None
        self.confirmed: frozenset[str] = frozenset()
        self.verified = False
        self.said_bye = False
        self.ended = "end of file"

    @property
    def is_open(self) -> bool:
        """False once it is closed or closing."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, body: ToRank) -> None:
        """Send a notification; does nothing on a closed connection."""
        if self.is_open:
            assert self._transport is not None
            self._transport.write(protocol.notification(body))

    def welcome(self, request_id: int | str | None, body: HelloResult) -> None:
        """Answer the hello."""
        if self.is_open:
            assert self._transport is not None
            self._transport.write(protocol.result(request_id, body))

    def refuse(
        self, code: str, text: str, *, number: int = protocol.REFUSED, request_id: int | str | None = None
    ) -> None:
        """Tell the peer why, and close."""
        if not self.is_open:
            return
        assert self._transport is not None
        self.ended = code
        self._transport.write(protocol.error(request_id, number, code, text))
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # it does not read; closing politely would wait for it for ever
        else:
            self._transport.close()

    def close(self) -> None:
        """Close without a word (the agent stops)."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the kernel who it is and whether there is room."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer = peer_of(transport.get_extra_info("socket"))
        self.pid, self.uid = peer.pid, peer.uid
        refusal = self._host.admit(self)
        if refusal is not None:
            self.refuse("too_many", refusal)

    def data_received(self, data: bytes) -> None:
        """Cut lines and handle them; stop at the first that costs the connection."""
        self._buffer += data
        start = 0
        while self.is_open:
            end = self._buffer.find(b"\n", start)
            if end < 0:
                break
            if end - start > protocol.MAX_LINE_BYTES or not self._take_token():
                break
            line = self._buffer[start:end]
            start = end + 1
            if line.strip():
                self._handle(line)
        del self._buffer[:start]
        if not self.is_open:
            self._buffer.clear()
        elif len(self._buffer) > protocol.MAX_LINE_BYTES:
            self.refuse(
                "line_too_long", f"a line may have {protocol.MAX_LINE_BYTES} bytes", number=protocol.PARSE_ERROR
            )
            self._buffer.clear()
        elif self._tokens < 1 and b"\n" in self._buffer:
            self.refuse("too_fast", f"more than {LINES_PER_S:.0f} lines per second", number=protocol.INVALID_REQUEST)
            self._buffer.clear()

    def pause_writing(self) -> None:
        """The peer does not read: drop it rather than buffer for it."""
        self.ended = "slow_reader"
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        """The connection has ended."""
        self._buffer.clear()
        self._host.on_gone(self)
        self._transport = None

    def _take_token(self) -> bool:
        now_s = self._clock.now_s()
        # real_s, because a peer is as fast as the machine, whatever speed the clock has.
        gained = self._clock.real_s(now_s - self._refilled_at_s) * LINES_PER_S
        self._tokens = min(LINES_AT_ONCE, self._tokens + max(0.0, gained))
        self._refilled_at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _handle(self, line: bytearray) -> None:
        try:
            message = protocol.decode(line)
        except LineError as error:
            self.refuse(error.code, str(error), number=error.number, request_id=error.id)
            return
        self.heard_at_s = self._clock.now_s()
        body = message.body
        if isinstance(body, Hello):
            if self.hello is not None:
                self.refuse("hello_twice", "one hello per connection", request_id=message.id)
                return
            if message.id is None:
                self.refuse("invalid_request", "hello is a request and needs an id", number=protocol.INVALID_REQUEST)
                return
            self.hello = body
            self._host.on_hello(self, message.id, body)
        elif self.hello is None:
            text = f"the first message must be hello, not {message.method!r}"
            self.refuse("hello_first", text, number=protocol.INVALID_REQUEST, request_id=message.id)
        elif body is not None:
            self._host.on_message(self, body)
        elif message.id is not None:
            assert self._transport is not None
            text = f"unknown method {message.method!r}; known: {', '.join(protocol.FROM_RANK)}"
            self._transport.write(protocol.error(message.id, protocol.METHOD_NOT_FOUND, "unknown_method", text))
