"""Who may write: one flock per GPU, and one per runtime directory. The kernel frees them when their holder is gone.

A process stuck in the driver (D state) keeps its locks even when it was killed; whoever finds such a holder must not
touch any GPU, since the next call would get stuck beside it.
"""

import contextlib
import fcntl
import os
import re
from pathlib import Path

from nodewarden.file_lock import FileLock, pid_in

DEFAULT_LOCK_DIR = Path("/run/lock/nodewarden")


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
            pid = pid_in(fd)
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
