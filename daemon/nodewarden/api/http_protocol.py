"""One HTTP connection with bounds: uvicorn's protocol on the agent's own loop, and what it may cost us at most.

A peer that says nothing, says it slowly, says too much, or reads too slowly loses its connection and disturbs nobody.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 8192
# A request must be complete this long after the connection was made or its first byte came.
REQUEST_S = 5.0
# A connection that has asked before may be silent this long: longer than a usual scrape interval.
IDLE_S = 75.0
# An answer must have been read this long after it was written.
READ_S = 10.0
# Small enough that the kernel does not hide a slow reader from us.
SEND_BUFFER_BYTES = 64 * 1024


class Connections:
    """The open connections, oldest first. A new one always gets in: the oldest idle one makes room."""

    def __init__(self, dropped: Callable[[str], None], changed: Callable[[int], None]) -> None:
        self._open: dict[BoundedProtocol, None] = {}
        self.dropped = dropped
        self._changed = changed

    def add(self, new: "BoundedProtocol") -> None:
        """Count it in, and somebody out when there are too many."""
        if len(self._open) >= MAX_CONNECTIONS:
            victim = next((each for each in self._open if not each.busy), None) or next(iter(self._open))
            victim.drop("full")
        self._open[new] = None
        self._changed(len(self._open))

    def discard(self, gone: "BoundedProtocol") -> None:
        """It is closed."""
        self._open.pop(gone, None)
        self._changed(len(self._open))

    def abort_all(self) -> None:
        """Close them at once."""
        for each in list(self._open):
            each.transport.abort()


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with deadlines for asking, for reading the answer, and for being idle."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], connections: Connections
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state)
        self._table = connections
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """A request is being answered, or its answer is still being read."""
        asked = self.cycle is not None and not self.cycle.response_complete
        return asked or self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer connected."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._table.add(self)
        self._within(REQUEST_S, "idle")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whomever."""
        self._disarm()
        self._table.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self.transport.is_closing():
            return
        waiting = self.timeout_keep_alive_task is not None
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._within(READ_S, "slow")
        elif waiting:  # the first bytes of another request on a connection that was idle
            self._within(REQUEST_S, "idle")

    def on_response_complete(self) -> None:
        """An answer was handed over; it need not have been read yet."""
        if self.conn.their_state is not h11.DONE or self.conn.our_state is not h11.DONE:
            # It sent a body that nobody wants, or asked for the connection to be closed: never read the rest.
            self._leave()
            return
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._within(READ_S, "slow")
        else:
            self._disarm()

    def timeout_keep_alive_handler(self) -> None:
        """Idle for too long after a request."""
        if self.transport.get_write_buffer_size() > 0:
            self.drop("slow")
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP: say so and close, reading no further."""
        super().send_400_response(msg)
        self._within(READ_S, "slow")

    def drop(self, reason: str) -> None:
        """Close at once, whatever is unsent."""
        self._table.dropped(reason)
        self._table.discard(self)
        self.transport.abort()

    def _leave(self) -> None:
        self.transport.close()  # what is written is still sent
        self._within(READ_S, "slow")

    def _within(self, seconds: float, reason: str) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._too_late, reason)

    def _too_late(self, reason: str) -> None:
        self._deadline = None
        if reason == "slow" and self.transport.get_write_buffer_size() == 0 and not self.transport.is_closing():
            return  # it has read everything; the keep-alive timer looks after it
        self.drop(reason)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def protocol_factory(config: Config, connections: Connections) -> Callable[[], asyncio.Protocol]:
    """What `loop.create_server` needs; `config` is loaded here."""
    if not config.loaded:
        config.load()
    state = ServerState()

    def make() -> asyncio.Protocol:
        return cast("asyncio.Protocol", BoundedProtocol(config, state, {}, connections))

    return make
