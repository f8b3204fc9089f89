"""Before a helper begins: how it waits, and what it waits for."""

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from nodewarden.clock import Clock
from nodewarden.errors import AlreadyRunningError
from nodewarden.file_lock import FileLock, LockFailedError
from nodewarden.gpuhelper.locks import stuck_holder
from nodewarden.sdnotify import notify

log = logging.getLogger("nodewarden.gpu")


def waiting(stop: threading.Event) -> tuple[threading.Event, Callable[[float], None]]:
    """`stop`, and a way to sleep that ends early with it.

    In the main thread the signals are blocked and waited for: a handler could run while a lock is held.
    """
    if threading.current_thread() is not threading.main_thread():
        return stop, stop.wait  # type: ignore[return-value]
    numbers = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def wait(seconds: float) -> None:
        caught = signal.sigtimedwait(numbers, seconds)
        # Frozen past the end of the wait and thawed, CPython returns what no signal has filled in: number 0.
        if caught is not None and caught.si_signo in numbers:
            log.info("signal_caught number=%d", caught.si_signo)
            stop.set()

    return stop, wait


def wait_for_turn(
    lock: FileLock,
    lock_dir: Path,
    clock: Clock,
    stop: threading.Event,
    wait: Callable[[float], None],
    *,
    limit_s: float,
) -> bool:
    """Take the runtime lock, touching no GPU while another helper lives or hangs in the kernel.

    Ready all the while: there is nothing that a restart could mend. False when stopped or past `limit_s`.
    """
    began_s = clock.now_s()
    told = ""
    while not stop.is_set():
        status = ""
        try:
            lock.acquire()
        except AlreadyRunningError as error:
            status = f"waiting for pid {error.pid or 'unknown'}"
        except LockFailedError as error:
            status = f"waiting: {error}"
        if not status:
            pid = stuck_holder(lock_dir)
            if pid is None:
                return True
            status = f"waiting for pid {pid}"
        if status != told:
            told = status
            log.warning("waiting text=%r", status)
            notify("READY=1", STATUS=status)
        if clock.now_s() - began_s > limit_s:
            return False
        wait(clock.real_s(1.0))
    return False
