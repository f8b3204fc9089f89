"""`nodewarden-gpu --restore`: undo all caps in the ledger when no helper lives."""

import sys
import threading
from pathlib import Path

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import GpuLibrary
from nodewarden.errors import AlreadyRunningError
from nodewarden.file_lock import LockFailedError
from nodewarden.gpuhelper.locks import runtime_lock, stuck_holder
from nodewarden.gpuhelper.server import EXIT_FAILED, EXIT_OK, EXIT_SECOND, Helper

FIND_GPUS_S = 30.0
RESTORE_S = 10.0


def restore_once(library: GpuLibrary, *, runtime_dir: Path, lock_dir: Path, clock: Clock, force: bool) -> int:
    """Restore everything in the ledger and say what happened to each GPU.

    Returns 0 only if every cap was lifted; 1 when one stays (it protects something, or its board does not answer), 75
    when a helper lives: then it is the one to ask.
    """
    if not runtime_dir.is_dir():
        _say(f"nothing to restore: {runtime_dir} does not exist")
        return EXIT_OK
    lock = runtime_lock(runtime_dir)
    try:
        lock.acquire()
    except AlreadyRunningError as error:
        _say(
            f"a helper lives (pid {error.pid or 'unknown'}): use `nodectl restore`, or stop it, which restores as well"
        )
        return EXIT_SECOND
    except LockFailedError as error:
        _say(f"cannot restore: {error}")
        return EXIT_FAILED
    pid = stuck_holder(lock_dir)
    if pid is not None:
        _say(f"cannot restore: pid {pid} hangs in the driver and holds a GPU; nothing was touched")
        return EXIT_FAILED
    helper = Helper(library, runtime_dir, lock_dir, clock, threading.Event(), contest=False)
    helper.begin(FIND_GPUS_S)
    outcomes = helper.restore_all(force=force, why="restore", timeout_s=RESTORE_S)
    if not outcomes:
        _say("nothing to restore: the ledger has no caps of this boot")
    for outcome in outcomes:
        watts = "" if outcome.w is None else f" {outcome.w:g} W"
        hint = "; --force lifts it" if outcome.outcome == "kept" else ""
        text = f": {outcome.text}" if outcome.text else ""
        _say(f"{outcome.uuid} {outcome.outcome}{watts}{text}{hint}")
    helper.end()
    lock.release()
    return EXIT_OK if all(outcome.outcome in {"restored", "none"} for outcome in outcomes) else EXIT_FAILED


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)  # noqa: T201 - a command's answer
