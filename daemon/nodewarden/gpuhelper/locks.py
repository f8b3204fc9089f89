"""Who may write: one flock per GPU, and one per runtime directory. The kernel frees them when their holder is gone.

A process stuck in the driver (D state) keeps its locks even when it was killed; whoever finds such a holder must not
touch any GPU, since the next call would get stuck beside it.
"""

import contextlib
import fcntl
import os
import re
import stat
from pathlib import Path

from nodewarden.errors import AlreadyRunningError, NodewardenError

DEFAULT_LOCK_DIR = Path("/run/lock/nodewarden")


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
        except OSError as error:
            if isinstance(error, PermissionError):  # the same words for every GPU: people read them together
                raise LockFailedError(f"no right to lock GPUs in {self.path.parent}") from error
            raise LockFailedError(f"no lock {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            pid = _pid_in(fd)
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


def gpu_lock(lock_dir: Path, uuid: str) -> FileLock:
    """The lock of one GPU; creates the directory if that is allowed."""
    with contextlib.suppress(OSError):
        lock_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    return FileLock(lock_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock", own_directory=True)


def runtime_lock(runtime_dir: Path) -> FileLock:
    """The lock of the one helper of a runtime directory."""
    return FileLock(runtime_dir / "gpu-helper.lock")


def stuck_holder(lock_dir: Path) -> int | None:
    """The pid of a process that holds a GPU lock and is stuck in the kernel or half dead; None = none."""
    for path in sorted(lock_dir.glob("*.lock")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(fd)
            if pid is not None and is_stuck(pid):
                return pid
        except OSError:
            continue
        finally:
            os.close(fd)
    return None


def is_stuck(pid: int) -> bool:
    """Whether any thread of a process is in uninterruptible sleep, or its first thread is dead and others are not."""
    states = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(status.read_text(errors="replace").rpartition(")")[2].split()[0])
        except (OSError, IndexError):
            continue
    return "D" in states or ("Z" in states and len(states) > 1)


def _pid_in(fd: int) -> int | None:
    try:
        words = os.pread(fd, 32, 0).split()
    except OSError:
        return None
    return int(words[0]) if words and words[0].isdigit() else None
