"""Threads that may get stuck in the driver, and the gate that all driver calls pass.

A lane runs jobs one after another on a thread of its own; a job that hangs costs that lane only. The gate counts the
calls in flight, because the library may be closed and opened again only while there are none.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nodewarden.clock import Clock
from nodewarden.errors import DeviceError

log = logging.getLogger("nodewarden.gpu")

MAX_JOBS = 16
GATE_WAIT_S = 2.0
"""How long a call waits while the library is being opened again, in real seconds."""
HANGING_S = 1.0
"""A call in flight for longer, in real seconds, is not waited for: the calls of other GPUs would wait with us."""


class Lane:
    """One daemon thread and its bounded queue; the thread is there from the first job on."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self.busy_since_s: float | None = None
        self._name = name
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False when the lane is full or stopped."""
        with self._wake:
            if self._stopping or len(self._jobs) >= MAX_JOBS:
                return False
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify()
        return True

    def busy_for_s(self) -> float:
        """How long the job in progress has been running; 0 when idle."""
        since_s = self.busy_since_s
        return 0.0 if since_s is None else self._clock.now_s() - since_s

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        with self._wake:
            return self.busy_since_s is None and not self._jobs

    def stop(self) -> None:
        """Take no more jobs; what is queued is dropped, what runs goes on."""
        with self._wake:
            self._stopping = True
            self._jobs.clear()
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self.busy_since_s = None
                while not self._jobs and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                job = self._jobs.popleft()
                self.busy_since_s = self._clock.now_s()
            try:
                job()
            except Exception:
                log.exception("job_failed lane=%s", self._name)


class Gate:
    """Counts driver calls in flight."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._in_flight: dict[int, float] = {}  # since when, CLOCK_MONOTONIC
        self._closed = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around every use of a device. Raises DeviceError when the library stays closed for long."""
        with self._changed:
            if self._closed and not self._changed.wait_for(lambda: not self._closed, GATE_WAIT_S):
                raise DeviceError("the library is being opened again", "driver_not_loaded")
            number = next(self._numbers)
            self._in_flight[number] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._in_flight[number]
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Let no new call in and wait until none is in flight; False, and open again, when that takes too long.

        False at once while a call hangs.
        """
        with self._changed:
            if any(time.monotonic() - since_s > HANGING_S for since_s in self._in_flight.values()):
                return False
            self._closed = True
            if self._changed.wait_for(lambda: not self._in_flight, timeout_s):
                return True
            self._closed = False
            self._changed.notify_all()
            return False

    def open(self) -> None:
        """Let calls in again."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()
