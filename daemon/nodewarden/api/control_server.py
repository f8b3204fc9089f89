"""control.sock: takes lines, checks who asks, calls the verb, answers. Never lets one peer disturb another.

Bounds: a request is 64 KiB, a connection idles 60 s, a begun line must end within 10 s, an unread answer is given up
after 5 s, each uid has a number of connections (the next one takes the place of its longest idle one) and a number of
requests that are worked on at a time (the others wait).
"""

import asyncio
import contextlib
import grp
import select
import socket
from pathlib import Path

import msgspec
import structlog

from nodewarden.api.node import Node, Who
from nodewarden.api.protocol import (
    FORBIDDEN,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LIMITED,
    MAX_REQUEST_BYTES,
    REFUSED,
    UNKNOWN_VERB,
    Request,
    RpcError,
    error_line,
    parse_request,
    result_line,
)
from nodewarden.api.verbs import VERBS, Call
from nodewarden.errors import HelperError, NodewardenError, RefusedError
from nodewarden.served_socket import ServedSocket
from nodewarden.unix_socket import BACKLOG, Peer, peer_of

log = structlog.get_logger("nodewarden.control_server")

ADMIN_GROUP = "nodewarden-admin"
_READ_BYTES = 16 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the agent one peer may hold. Times are in seconds of the event loop."""

    connections_per_uid: int = 32
    requests_per_uid: int = 4
    connections: int = 256
    idle_s: float = 60.0
    line_s: float = 10.0
    write_s: float = 5.0
    handler_s: float = 30.0


def admin_gid() -> int | None:
    """Id of the group whose members may change things; None when the machine has no such group. Asks NSS: at start."""
    try:
        return grp.getgrnam(ADMIN_GROUP).gr_gid
    except KeyError:
        return None


class _Connection:
    """One peer: its stream and whether a request of it is being worked on."""

    def __init__(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        self.reader = reader
        self.writer = writer
        self.is_busy = False
        self.task: asyncio.Task[None] | None = None
        self.evicted = False


class ControlServer:
    """Serves the verbs on a Unix socket.

    Args:
        path: of the socket; its directory is made when missing.
        node: the agent.
        admin_gid: members of this group may change things, None = no such group.
        own_uid: of an agent started by hand: this uid may change things; None when it runs as a service.
    """

    def __init__(
        self,
        path: Path,
        node: Node,
        *,
        admin_gid: int | None = None,
        own_uid: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._path = path
        self._node = node
        self._admin_gid = admin_gid
        self._own_uid = own_uid
        self._limits = limits or Limits()
        self._socket = ServedSocket(path, self._serve)
        self._connections: dict[_Connection, None] = {}  # in the order of their last use
        self._turns: dict[int, asyncio.Semaphore] = {}  # by uid; only of those that are connected

    @property
    def connections(self) -> int:
        """How many peers are connected."""
        return len(self._connections)

    async def start(self) -> None:
        """Bind and serve. AlreadyRunningError or RefusedError when the place is taken."""
        await self._socket.start()

    async def _serve(self, bound: socket.socket) -> asyncio.Server:
        return await asyncio.start_unix_server(self._accept, sock=bound, limit=MAX_REQUEST_BYTES, backlog=BACKLOG)

    async def listen_again(self) -> None:
        """Make the socket anew when somebody removed its file; who is connected stays. Raises as `start`."""
        await self._socket.start_again()

    async def close(self) -> None:
        """Stop serving, drop every peer, take the socket file away."""
        self._socket.refuse()
        tasks = [c.task for c in self._connections if c.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    # One connection -----------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = peer_of(writer.get_extra_info("socket"))
        except OSError:  # gone before we looked
            writer.transport.abort()
            return
        connection = _Connection(peer, reader, writer)
        if not self._make_room(peer.uid):
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(writer, error_line(None, _limited(f"too many busy connections of uid {peer.uid}")))
            writer.transport.abort()
            return
        connection.task = asyncio.current_task()
        self._connections[connection] = None
        try:
            await self._converse(connection)
        except (OSError, TimeoutError):
            pass  # the peer is gone or does not read; nobody is left to tell
        except asyncio.CancelledError:  # by `_evict` or `close`; this task ends here either way
            if connection.evicted:
                said = "this connection was idle and made room for a newer one of the same user"
                with contextlib.suppress(OSError, TimeoutError):
                    await self._send(writer, error_line(None, _limited(said)))
        finally:
            self._connections.pop(connection, None)
            if not any(other.peer.uid == peer.uid for other in self._connections):
                self._turns.pop(peer.uid, None)
            writer.close()

    def _make_room(self, uid: int) -> bool:
        """False when nobody's idle connection can make room."""
        mine = [c for c in self._connections if c.peer.uid == uid]
        if len(mine) >= self._limits.connections_per_uid:
            return self._evict(mine)
        if len(self._connections) >= self._limits.connections:
            held: dict[int, int] = {}
            for connection in self._connections:
                held[connection.peer.uid] = held.get(connection.peer.uid, 0) + 1
            greediest = max(held, key=lambda other: held[other])
            return self._evict([c for c in self._connections if c.peer.uid == greediest])
        return True

    def _evict(self, candidates: list[_Connection]) -> bool:
        for connection in candidates:
            if not connection.is_busy and not connection.evicted and connection.task is not None:
                connection.evicted = True
                del self._connections[connection]
                connection.task.cancel()
                return True
        return False

    async def _converse(self, connection: _Connection) -> None:
        while True:
            line = await self._read_line(connection)
            if not line:
                return
            if line.isspace():
                continue
            connection.is_busy = True
            async with self._turns.setdefault(connection.peer.uid, asyncio.Semaphore(self._limits.requests_per_uid)):
                answer = await self._answer(line, connection)
            if answer is not None:
                await self._send(connection.writer, answer)
            connection.is_busy = False
            self._connections[connection] = self._connections.pop(connection, None)  # newest use goes last

    async def _read_line(self, connection: _Connection) -> bytes:
        """One line, or nothing when the conversation is over; a peer that breaks a limit is told."""
        reader, said = connection.reader, ""
        try:
            async with asyncio.timeout(self._limits.idle_s):
                first = await reader.read(1)
            if not first or first == b"\n":
                return first
            async with asyncio.timeout(self._limits.line_s):
                return first + await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return b""  # half a line and then nothing: not a request
        except asyncio.LimitOverrunError:
            said = f"a request is longer than {MAX_REQUEST_BYTES} bytes"
        except TimeoutError:
            said = "nothing complete was sent for too long"
        await self._send(connection.writer, error_line(None, _limited(said)))
        return b""

    async def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.write_s):
                writer.write(line)
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()
            raise

    # One request --------------------------------------------------------------------------------------------------

    async def _answer(self, line: bytes, connection: _Connection) -> bytes | None:
        request: Request | None = None
        peer = connection.peer
        try:
            request = parse_request(line)
            if request.id is not msgspec.UNSET and _has_left(connection.writer):
                log.warning("request_dropped", verb=request.method, uid=peer.uid, pid=peer.pid, reason="nobody waits")
                return None
            result = await self._call(request, peer)
        except RpcError as error:
            failed = error
        except RefusedError as error:
            failed = RpcError(REFUSED, str(error), error.code)
        except HelperError as error:
            failed = RpcError(REFUSED, f"the GPU helper refused: {error}", error.code)
        except NodewardenError as error:
            failed = RpcError(REFUSED, str(error), "failed")
        except TimeoutError:
            failed = RpcError(INTERNAL_ERROR, "the agent did not finish this in time", "timeout")
        except Exception:
            log.exception("verb_failed", verb=request.method if request else None)
            failed = RpcError(INTERNAL_ERROR, "internal error; the agent's log has the details", "internal")
        else:
            return None if request.id is msgspec.UNSET else result_line(request.id, result)
        if request is None:
            return error_line(None, failed)
        return None if request.id is msgspec.UNSET else error_line(request.id, failed)

    async def _call(self, request: Request, peer: Peer) -> object:
        verb = VERBS.get(request.method)
        if verb is None:
            raise RpcError(UNKNOWN_VERB, f'no verb "{request.method[:40]}"; known: {", ".join(VERBS)}', "unknown_verb")
        if verb.access == "control" and not self._may_change(peer):
            log.warning("verb_forbidden", verb=request.method, uid=peer.uid, pid=peer.pid)
            raise RpcError(
                FORBIDDEN,
                f"{request.method} is refused for uid {peer.uid}; allowed: root or members of {ADMIN_GROUP} (try sudo)",
                "forbidden",
            )
        try:
            params = msgspec.json.decode(request.params, type=verb.params)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise RpcError(INVALID_PARAMS, f"{request.method}: {error}", "invalid_params") from None
        reason = getattr(params, "reason", "")
        call = Call(node=self._node, who=Who(peer.uid, peer.pid, reason))
        if verb.access == "control":
            log.info("verb_called", verb=request.method, uid=peer.uid, pid=peer.pid, reason=reason)
        async with asyncio.timeout(self._limits.handler_s):
            return await verb.handler(call, params)

    def _may_change(self, peer: Peer) -> bool:
        return (
            peer.uid == 0
            or (self._own_uid is not None and peer.uid == self._own_uid)
            or (self._admin_gid is not None and self._admin_gid in peer.gids)
        )


def _has_left(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer has closed, not just finished asking: what it gave up must not be done behind its back."""
    fd = writer.get_extra_info("socket").fileno()
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def _limited(said: str) -> RpcError:
    return RpcError(LIMITED, said, "limited")
