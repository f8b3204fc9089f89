"""gpu.sock: who may connect, frames in and out. Nothing a peer sends, or fails to read, holds up anything else.

One thread accepts; one thread per connection reads. Replies are sent by whoever has them, without waiting: a peer that
does not read until its socket is full is cut off.
"""

import contextlib
import errno
import grp
import logging
import os
import pwd
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nodewarden.gpuhelper import wire
from nodewarden.unix_socket import bind, peer_of

log = logging.getLogger("nodewarden.gpu")

GROUP = "nodewarden"
USER = "nodewarden"
MAX_STRANGERS = 16
"""Connections of one uid that have not said hello; past this the one that came first makes room."""
STRANGER_IDLE_S = 10.0
FRAME_S = 10.0
"""How long one frame may take once it has begun."""
MAX_BAD_FRAMES = 8
BACKLOG = 4096
"""A crowd that connects faster than it is sorted out must not make an agent's connect fail."""
SEND_BUFFER_BYTES = 1 << 20

_TIMEVAL = struct.Struct("ll")


class Peer:
    """One connection. `adopted` lifts the idle time-out: a frozen agent keeps its connection."""

    def __init__(self, connection: socket.socket, pid: int, uid: int) -> None:
        self._socket = connection
        self._send_lock = threading.Lock()
        self.pid = pid
        self.uid = uid
        self.adopted = False
        self.closed = False
        self._rest = bytearray()  # received, and not taken yet
        self._within_s: float | None = None

    @property
    def owner(self) -> "Peer":
        """Itself."""
        return self

    def send(self, reply: wire.Reply) -> None:
        """Send without waiting; a peer whose buffer is full is cut off."""
        self.send_frames(wire.frame(reply))

    def send_frames(self, data: bytes) -> None:
        """`send` for several replies at once."""
        with self._send_lock:
            if self.closed:
                return
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError as error:
                sent = -1
                if error.errno == errno.EAGAIN:
                    log.warning("peer_cut_off pid=%d reason=%r", self.pid, "does not read its replies")
        if sent != len(data):
            self.close()

    def close(self) -> None:
        """End the connection; its reader thread notices."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self) -> bytes | None:
        """One frame's body, None at the end. Raises ValueError for a frame that is too long, OSError."""
        while True:
            rest = self._rest
            if len(rest) >= wire.HEADER_BYTES:
                end = wire.HEADER_BYTES + int.from_bytes(rest[: wire.HEADER_BYTES], "little")
                if end > wire.HEADER_BYTES + wire.MAX_FRAME_BYTES:
                    raise ValueError(f"frame of {end} bytes refused: allowed {wire.MAX_FRAME_BYTES}")
                if len(rest) >= end:
                    body, self._rest = bytes(rest[wire.HEADER_BYTES : end]), rest[end:]
                    return body
            self._receive_within(FRAME_S if rest else 0 if self.adopted else STRANGER_IDLE_S)
            part = self._socket.recv(65536)  # what arrives is kept, not what was announced
            if not part:
                if rest:
                    raise ConnectionResetError("closed within a frame")
                return None
            self._rest += part

    def _receive_within(self, seconds: float) -> None:
        """0 = for ever. Python's own time-out would hold up `send` as well."""
        if seconds != self._within_s:
            self._within_s = seconds
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(seconds), 0))

    def release(self) -> None:
        """Give the descriptor back; only its reader thread, at its end."""
        with self._send_lock:
            self.closed = True
            self._socket.close()


class Listener:
    """The socket file and all connections.

    Args:
        on_request: called on the connection's thread.
        on_gone: called once when a connection has ended.
        allowed_uids: whose connections are served.
    """

    def __init__(
        self,
        path: Path,
        allowed_uids: frozenset[int],
        on_request: Callable[[Peer, wire.Request], None],
        on_gone: Callable[[Peer], None],
    ) -> None:
        self.path = path
        self._allowed_uids = allowed_uids
        self._on_request = on_request
        self._on_gone = on_gone
        self._peers: dict[Peer, None] = {}  # in order of arrival
        self._lock = threading.Lock()
        self._closing = False
        self._socket = _listen(path)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    @property
    def is_missing(self) -> bool:
        """Whether nothing is at the path any more, so that no agent can connect."""
        return not os.path.lexists(self.path)

    def close(self) -> None:
        """Remove the socket file and end all connections."""
        self._closing = True
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            peer.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closing:
                    return
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}:
                    self._drop_oldest_stranger()
                    threading.Event().wait(0.1)  # the backlog keeps the others
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        try:
            credentials = peer_of(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        except OSError:
            connection.close()
            return
        pid, uid = credentials.pid, credentials.uid
        peer = Peer(connection, pid, uid)
        if uid not in self._allowed_uids:
            log.warning("peer_refused pid=%d uid=%d", pid, uid)
            allowed = ", ".join(map(str, sorted(self._allowed_uids)))
            peer.send(wire.ErrorReply(id=0, code="foreign", text=f"uid {uid} refused: allowed are the uids {allowed}"))
            peer.release()
            return
        with self._lock:
            full = sum(known.uid == uid and not known.adopted and not known.closed for known in self._peers)
            self._peers[peer] = None
        if full >= MAX_STRANGERS:
            self._drop_oldest_stranger(uid)
        threading.Thread(target=self._serve, args=(peer,), name=f"peer-{pid}", daemon=True).start()

    def _drop_oldest_stranger(self, uid: int | None = None) -> None:
        with self._lock:
            strangers = (peer for peer in self._peers if not peer.adopted and not peer.closed)
            oldest = next((peer for peer in strangers if uid in {None, peer.uid}), None)
        if oldest is not None:
            oldest.close()

    def _serve(self, peer: Peer) -> None:
        bad_frames = 0
        try:
            while bad_frames < MAX_BAD_FRAMES:
                body = peer.receive()
                if body is None:
                    break
                try:
                    request = wire.request_decoder.decode(body)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    bad_frames += 1
                    text = f"not understood: {error}"[:300]
                    peer.send(wire.ErrorReply(id=_id_of(body), code="bad_request", text=text))
                else:
                    self._on_request(peer, request)
        except ValueError as error:
            peer.send(wire.ErrorReply(id=0, code="bad_request", text=str(error)))
        except OSError:
            pass  # idle for too long, or gone: nothing to say to it
        except Exception:
            log.exception("peer_failed pid=%d", peer.pid)
        finally:
            peer.release()
            with self._lock:
                self._peers.pop(peer, None)
            self._on_gone(peer)


def _id_of(body: bytes) -> int:
    """The id of a request that is wrong otherwise, so that its sender can tell; 0 where there is none."""
    try:
        message: Any = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return 0
    number = message.get("id") if isinstance(message, dict) else None
    return number if isinstance(number, int) and 0 <= number < 1 << 63 else 0


def allowed_uids(*, service: bool) -> frozenset[int]:
    """Whom the helper serves: root, its own user, and as a service the agent's user."""
    uids = {0, os.geteuid()}
    if service:
        with contextlib.suppress(KeyError):
            uids.add(pwd.getpwnam(USER).pw_uid)
    return frozenset(uids)


def is_served(path: Path) -> bool:
    """Whether somebody listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            answer = probe.connect_ex(str(path))
        except OSError:  # not even an address
            return False
    return answer not in {errno.ECONNREFUSED, errno.ENOENT}


def _listen(path: Path) -> socket.socket:
    """Listen on `path`, for us and our group. The caller holds the runtime lock, so nobody else does the same."""
    listener = bind(path, 0o660)
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError, OSError):
            os.chown(path, 0, grp.getgrnam(GROUP).gr_gid)
    listener.listen(BACKLOG)
    return listener
