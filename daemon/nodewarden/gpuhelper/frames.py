"""Replies of the helper, as they arrive at the agent's end of gpu.sock: no task, and no wake-up for half a frame."""

import asyncio
from collections.abc import Callable

import msgspec

from nodewarden.gpuhelper import wire


class Frames(asyncio.Protocol):
    """Takes the frames of one connection apart.

    Args:
        on_reply: called with each reply; returns why the connection ends with it, empty = it goes on.
        on_end: called once with why it has ended, unless we closed it.

    Attributes:
        ended: set when it has.
    """

    def __init__(self, on_reply: Callable[[wire.Reply], str], on_end: Callable[["Frames", str], None]) -> None:
        self._on_reply = on_reply
        self._on_end = on_end
        self._rest = b""
        self._why = "it closed the connection"
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Some more bytes."""
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= wire.HEADER_BYTES and not self.ended.is_set():
            body = at + wire.HEADER_BYTES
            length = int.from_bytes(data[at:body], "little")
            if length > wire.MAX_FRAME_BYTES:
                self._end(f"it sent a frame of {length} bytes")
                return
            if len(data) < body + length:
                break
            try:
                reply = wire.reply_decoder.decode(data[body : body + length])
            except (msgspec.DecodeError, ValueError) as error:
                self._end(f"it sent what we do not understand: {error}")
                return
            why = self._on_reply(reply)
            if why:
                self._end(why)
                return
            at = body + length
        self._rest = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        del exc
        self._end(self._why)

    def close(self) -> None:
        """Ended by us: nobody is told."""
        self.ended.set()
        if self.transport is not None:
            self.transport.close()

    def _end(self, why: str) -> None:
        if not self.ended.is_set():
            self.close()
            self._on_end(self, why)
