"""A listening Unix socket that is ours alone: dead leftovers are replaced, anything else in the way is refused."""

import fcntl
import os
import socket
import stat
import struct
from pathlib import Path

import msgspec

from nodewarden.errors import AlreadyRunningError, RefusedError

_SO_PEERGROUPS = 59  # not in the socket module
_MAX_PATH_BYTES = 107  # sun_path with its closing zero
BACKLOG = 512


class Peer(msgspec.Struct, frozen=True):
    """Who is at the other end, as the kernel noted it at connect. `gids` holds the primary and the other groups."""

    uid: int
    pid: int
    gids: frozenset[int]


def peer_of(sock: socket.socket) -> Peer:
    """Credentials of the peer, without asking any name service."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:  # more than 256 groups, or a kernel before 4.13: only the primary group is known
        raw = b""
    return Peer(uid, pid, frozenset((gid & 0xFFFFFFFF, *(g[0] for g in struct.iter_unpack("I", raw)))))


class OwnedSocket:
    """A bound, listening, non-blocking socket; `close()` takes its file away again.

    A lock file beside it is held as long as it lives, so that two daemons that start at the same moment cannot each
    take the other's socket for dead. The kernel drops the lock with the process.

    Raises:
        AlreadyRunningError: somebody else listens there.
        RefusedError: something that is not a dead socket is in the way, or the directory is not safe.
    """

    def __init__(self, path: Path, *, mode: int = 0o666) -> None:
        self.path = path
        self._inode: tuple[int, int] | None = None
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise RefusedError(f"{path} is longer than {_MAX_PATH_BYTES} bytes; use a shorter --runtime-dir")
        _check_directory(path.parent)
        self._lock = _lock(path.with_name(f"{path.name}.lock"))
        try:
            _clear_the_way(path)
            self.socket = self._bind(path, mode)
        except BaseException:
            os.close(self._lock)
            raise

    def _bind(self, path: Path, mode: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        # The mode is right from the first moment: a chmod after bind would leave a window.
        before = os.umask(0o777 & ~mode)
        try:
            sock.bind(str(path))
        except OSError as error:
            sock.close()
            raise RefusedError(f"{path} cannot be made: {error.strerror}") from error
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
        made = path.lstat()
        self._inode = (made.st_dev, made.st_ino)
        return sock

    def close(self) -> None:
        """Stop listening; the file goes only if it is still ours."""
        self.socket.close()
        try:
            here = self.path.lstat()
            if (here.st_dev, here.st_ino) == self._inode:
                self.path.unlink()
        except OSError:
            pass  # gone already
        os.close(self._lock)


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


def _lock(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise RefusedError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        pid = int(holder) if holder.isdigit() else None
        raise AlreadyRunningError(f"{path.with_suffix('')} is served by another process (pid {pid})", pid) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _clear_the_way(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        kind = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}
        what = kind.get(stat.S_IFMT(found.st_mode), "something else")
        raise RefusedError(f"{path} is {what}, not a socket of ours; nothing was changed, move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)  # nobody listens: its process is dead
            return
        except BlockingIOError:
            pass  # a full backlog: somebody listens, but is busy or stopped
        except OSError as error:
            raise RefusedError(f"{path} cannot be probed ({error.strerror}); nothing was changed") from error
    raise AlreadyRunningError(f"{path} is served by another process")
