"""Runs one sweep over sysfs in a thread of its own and waits for it as long as it gets on.

A read that hangs keeps its thread, which is left alone (a daemon thread: it holds up no end of the process), and the
sweep is begun again without that file.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from nodewarden.clock import Clock
from nodewarden.devices.sysfs import AbandonedError, Sysfs
from nodewarden.errors import DeviceTimeoutError

T = TypeVar("T")

HANGS_AFTER_S = 2.0
MAX_TRIES = 3
MAX_HUNG = 16


class Sweeper(Generic[T]):
    """Args: files: what `sweep` reads, and nothing else does; sweep: called with the time of its readings."""

    def __init__(self, files: Sysfs, sweep: Callable[[float], T], clock: Clock) -> None:
        self._files = files
        self._sweep = sweep
        self._clock = clock

    async def run(self) -> T:
        """One sweep. Raises DeviceTimeoutError when too much hangs; the next one goes on from there."""
        for _ in range(MAX_TRIES):
            if len(self._files.hung) >= MAX_HUNG:
                break
            done = self._start()
            calls = -1
            while calls != self._files.calls:  # it gets on
                calls = self._files.calls
                await asyncio.wait({done}, timeout=HANGS_AFTER_S)
                if done.done():
                    return done.result()
            self._files.abandon()
        raise DeviceTimeoutError(f"{len(self._files.hung)} files of /sys do not answer", "hung")

    def _start(self) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]  # one of the two is given

        def work() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                self._files.begin()
                result = self._sweep(self._clock.now_s())
            except AbandonedError:
                return
            except Exception as raised:  # noqa: BLE001 - it is raised where the sweep is waited for
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=work, name="host", daemon=True).start()
        return done
