"""Unix sockets: how ours come to be, and who is at the other end of a connection.

Dead leftovers are replaced, anything else in the way is refused and left alone.
"""

import os
import socket
import stat
import struct
from pathlib import Path

import msgspec

from nodewarden.errors import AlreadyRunningError, RefusedError
from nodewarden.file_lock import FileLock, LockFailedError

_SO_PEERGROUPS = 59  # asm-generic/socket.h; not in the socket module
_MAX_PATH_BYTES = 107  # sun_path with its closing zero
BACKLOG = 512
"""Connections that may wait to be accepted."""
_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}


class Peer(msgspec.Struct, frozen=True):
    """Who is at the other end, as the kernel noted it at connect.

    Attributes:
        pid: 0 when it lives in a pid namespace that we cannot see.
        uid: its user.
        gids: the primary and the other groups.
    """

    pid: int
    uid: int
    gids: frozenset[int]


def peer_of(sock: socket.socket) -> Peer:
    """Credentials of the peer, without asking any name service. OSError when it is gone."""
    pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:  # more than 256 groups, or a kernel before 4.13: only the primary group is known
        raw = b""
    return Peer(pid, uid, frozenset((gid, *(one for (one,) in struct.iter_unpack("I", raw)))))


def bind(path: Path, mode: int) -> socket.socket:
    """A bound stream socket that does not listen yet; blocking.

    Two processes that do this at the same moment could each take the other's for dead: the caller holds a lock.

    Args:
        path: where; at most 107 bytes, a limit of the kernel.
        mode: of the socket file, from its first moment.

    Raises:
        AlreadyRunningError: somebody listens there.
        RefusedError: something else is there (nothing is changed), or the path cannot be used.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise RefusedError(f"{path} is longer than {_MAX_PATH_BYTES} bytes; use a shorter --runtime-dir")
    _clear_the_way(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)  # a chmod after bind would leave a window
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise RefusedError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        os.umask(before)
    return sock


class OwnedSocket:
    """A socket that is bound and listens; `close()` takes its file away again.

    A lock file beside it is held as long as it lives, so that two daemons that start at the same moment cannot each
    take the other's socket for dead.

    Args:
        path: where; its directory is made if missing.
        mode: of the socket file.

    Raises:
        AlreadyRunningError: somebody else listens there, or is about to.
        RefusedError: something that is not a dead socket is in the way, or the directory is not safe.
    """

    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        self.path = path
        _check_directory(path.parent)
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        try:
            self._lock.acquire()
            self.socket = bind(path, mode)
            self.socket.listen(BACKLOG)
            self._identity = _identity(path)
        except LockFailedError as error:
            raise RefusedError(str(error)) from error
        except AlreadyRunningError as error:
            self._lock.release()
            raise AlreadyRunningError(f"somebody listens on {path} (pid {error.pid or 'unknown'})", error.pid) from None
        except BaseException:
            self._lock.release()
            raise

    @property
    def is_missing(self) -> bool:
        """Whether nothing is at the path any more, so that nobody can connect."""
        return not os.path.lexists(self.path)

    def close(self) -> None:
        """Stop listening; the file goes only if it is still ours."""
        self.socket.close()
        try:
            if _identity(self.path) == self._identity:
                self.path.unlink()
        except OSError:
            pass  # gone already
        self._lock.release()


def _identity(path: Path) -> tuple[int, int, int]:
    """Which file this is; inode numbers alone are used again."""
    found = path.lstat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _check_directory(directory: Path) -> None:
    """It exists (made if not), belongs to root or to us, and not everybody may put files there."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise RefusedError(f"{directory} cannot be used: {error.strerror}; give another --runtime-dir") from error
    if os.geteuid() != 0 and found.st_uid not in {0, os.geteuid()}:
        raise RefusedError(f"{directory} belongs to uid {found.st_uid}, allowed: root or uid {os.geteuid()}")
    if found.st_mode & stat.S_IWOTH:
        raise RefusedError(f"{directory} can be written by everyone, allowed: mode 0755 or less")


def _clear_the_way(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RefusedError(f"{path} cannot be used: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        text = f"{path} is in the way: {what}, not a socket; it is left alone: look at it, and remove it"
        raise RefusedError(text, "in_the_way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a daemon with a full backlog is busy or stopped, but alive
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            _remove_dead(path)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise RefusedError(f"{path} cannot be probed ({error.strerror}); nothing was changed") from error
    raise AlreadyRunningError(f"somebody listens on {path}")


def _remove_dead(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RefusedError(f"{path}, a dead socket, cannot be replaced: {error.strerror}", "in_the_way") from error
