"""An exclusive lock on a file. The kernel frees it when its holder is gone, however it ended."""

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from nodewarden.errors import AlreadyRunningError, NodewardenError


class LockFailedError(NodewardenError):
    """The lock file cannot be used at all: no directory, no permission."""


class FileLock:
    """An exclusive flock on one file, with our pid inside for people.

    Args:
        path: of the file; its directory exists.
        own_directory: as root, the directory must be root's: in a folder of somebody else, a lock means nothing.
    """

    def __init__(self, path: Path, *, own_directory: bool = False) -> None:
        self.path = path
        self._own_directory = own_directory
        self._fd = -1

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._fd >= 0

    def acquire(self) -> None:
        """Take it without waiting.

        Raises AlreadyRunningError with the holder's pid, LockFailedError when the file cannot be used.
        """
        if self.held:
            return
        self._check_directory()
        try:
            # Only the owner may open it: whoever can open a file can also hold a lock on it.
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except PermissionError as error:  # the same words for every file: people read those of several GPUs together
            raise LockFailedError(f"no right to lock files in {self.path.parent}") from error
        except OSError as error:
            raise LockFailedError(f"no lock {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            pid = _settled_pid_in(fd)
            os.close(fd)
            raise AlreadyRunningError(f"locked by pid {pid or 'unknown'}", pid) from None
        except OSError as error:
            os.close(fd)
            raise LockFailedError(f"no lock {self.path}: {error.strerror}") from error
        self._fd = fd

    def _check_directory(self) -> None:
        if not self._own_directory or os.geteuid() != 0:
            return
        folder = self.path.parent
        try:
            status = folder.lstat()
        except OSError as error:
            raise LockFailedError(f"no lock directory {folder}: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0:
            raise LockFailedError(f"the lock directory {folder} is not root's own (uid {status.st_uid}): remove it")

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes hold "the same" lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)


def _settled_pid_in(fd: int) -> int | None:
    """`pid_in`, with a moment's patience: who has just taken the lock has not written its pid yet."""
    for attempt in range(5):
        pid = pid_in(fd)
        if pid is not None and Path(f"/proc/{pid}").exists():
            return pid
        if attempt < 4:
            time.sleep(0.005)
    return pid


def pid_in(fd: int) -> int | None:
    """The pid that the holder of an open lock file wrote into it; None when it cannot be told."""
    try:
        words = os.pread(fd, 32, 0).split()
    except OSError:
        return None
    return int(words[0]) if words and words[0].isdigit() else None
