"""The GPU helper as a child of an agent that was started by hand: started, watched, and stopped in order, never killed.

It runs in a session of its own, so that Ctrl-C reaches only the agent; if the agent is killed, the helper stays for the
next one and restores by itself when none comes.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import structlog

from nodewarden.clock import Clock

log = structlog.get_logger("nodewarden.helper")

STOP_S = 5.0
RESTART_MAX_S = 30.0
LOCK_DIR_VARIABLE = "NODEWARDEN_LOCK_DIR"


def helper_answers(path: Path) -> bool:
    """True when something accepts on gpu.sock (a helper in D state does, too), or another user's helper has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except PermissionError:
            return True
        except OSError:
            return False
    return True


class HelperProcess:
    """One child process at a time."""

    def __init__(self, runtime_dir: Path, clock: Clock) -> None:
        self._runtime_dir = runtime_dir
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def keep_running(self) -> None:
        """Start the helper, and again when it ends by itself, with growing delay."""
        delay_s = 1.0
        while not self._stopping:
            began_s = self._clock.now_s()
            command = [sys.executable, "-m", "nodewarden.gpuhelper.main", "--runtime-dir", str(self._runtime_dir)]
            lock_dir = os.environ.get(LOCK_DIR_VARIABLE)
            if lock_dir:
                command += ["--lock-dir", lock_dir]
            environment = {k: v for k, v in os.environ.items() if k not in {"NOTIFY_SOCKET", "WATCHDOG_USEC"}}
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True, env=environment
            )
            code = await self._process.wait()
            if self._stopping:
                return
            log.warning("helper_ended", code=code, again_in_s=delay_s)
            delay_s = 1.0 if self._clock.now_s() - began_s > RESTART_MAX_S else min(RESTART_MAX_S, delay_s * 2)
            await self._clock.sleep_until(self._clock.now_s() + delay_s)

    async def stop(self) -> None:
        """SIGTERM: the helper restores and ends. One that hangs in the driver is left alone."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("helper_left_alone", pid=process.pid, reason="it hangs in the driver; caps are in its ledger")
