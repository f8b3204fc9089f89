"""The listening Unix socket: its mode from the first moment, and never in the place of something that is not ours."""

import os
import socket
import stat
from pathlib import Path

from nodewarden.errors import AlreadyRunningError, RefusedError


def listen(path: Path, *, mode: int = 0o666, backlog: int = 128) -> socket.socket:
    """A listening, non-blocking stream socket at `path`, which must lie in a directory that only we may write.

    A socket file that nobody listens on (left by a crash) is replaced.

    Args:
        path: where; at most 107 bytes, a limit of the kernel.
        mode: permissions of the socket file; set by the umask, so that there is no moment with others.
        backlog: connections that may wait to be accepted.

    Raises:
        AlreadyRunningError: somebody listens there.
        RefusedError: something else is there (nothing is deleted), or the path cannot be used.
    """
    if len(os.fsencode(path)) > 107:
        raise RefusedError(f"{path}: a Unix socket's path may have 107 bytes; choose a shorter runtime directory")
    _make_way(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(os.fspath(path))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise RefusedError(f"{path}: cannot listen: {error.strerror}") from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _make_way(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise RefusedError(f"{path} is not a socket; it is left alone: move it away, then start again", "in_the_way")
    if found.st_uid not in {os.geteuid(), 0}:
        text = f"{path} is a socket of uid {found.st_uid}; it is left alone: remove it, then start again"
        raise RefusedError(text, "in_the_way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a frozen daemon with a full backlog is alive all the same
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass
    raise AlreadyRunningError(f"{path}: another daemon listens there")
