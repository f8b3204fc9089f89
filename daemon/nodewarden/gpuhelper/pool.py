"""Readers of all GPUs: one thread reads them one after another, and another takes over where a read does not come back.

Eight threads that all call the driver at once mostly wait for each other (every call gives up the interpreter's lock),
which costs twice the time of the calls. So there is one as long as every read is quick. A read that hangs keeps its
thread; whoever waits for the rest asks for another (`Pool.help`). Per GPU there is at most one read under way.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from nodewarden.clock import Clock
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.seat import Answerable

log = logging.getLogger("nodewarden.gpu")

MAX_JOBS = 4
PATIENCE_S = 0.01
"""A sweep that is not complete after so many real seconds gets another thread, and once more after as many again."""
MOST_PATIENCE = 16
"""After so many times the sweep's answers are sent as they come."""


class Pool:
    """Threads that run the lanes' jobs."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.wake = threading.Condition()
        self._ready: deque[ReadLane] = deque()
        self._waiting = 0
        self._running = 0
        self._every_s: float | None = None
        self._next_tick_s = 0.0
        self._on_tick: Callable[[], None] = lambda: None
        self._stopping = False

    def offer(self, lane: "ReadLane") -> None:
        """This lane has a job that may run. Called under `wake`."""
        self._ready.append(lane)
        if self._waiting:
            self.wake.notify()
        elif not self._running:
            self._start()

    def help(self) -> None:
        """Jobs wait, and who runs the others does not come back soon: let another thread take them."""
        with self.wake:
            if self._ready and not self._waiting and not self._stopping:
                self._start()

    def stop(self) -> None:
        """Take no more jobs; what runs goes on."""
        with self.wake:
            self._stopping = True
            self._ready.clear()
            self.wake.notify_all()

    def tick(self, every_s: float | None, on_tick: Callable[[], None]) -> None:
        """Call `on_tick` at absolute deadlines, so often, on whatever thread has nothing to do; None = no more."""
        with self.wake:
            if every_s == self._every_s:
                return
            self._every_s, self._on_tick = every_s, on_tick
            self._next_tick_s = time.monotonic()
            if self._waiting:
                self.wake.notify()
            elif not self._running and every_s is not None:
                self._start()

    def _wait(self) -> None:
        """Until there is something to do, or it is time for a tick."""
        if self._every_s is None:
            self.wake.wait()
            return
        left_s = self._next_tick_s - time.monotonic()
        if left_s > 0 and self.wake.wait(self.clock.real_s(left_s)):
            return
        late_s = time.monotonic() - self._next_tick_s
        if late_s >= 0:
            self._next_tick_s += self._every_s * (1 + late_s // self._every_s)  # what was missed is not made up for
            self._on_tick()

    def _start(self) -> None:
        self._running += 1
        threading.Thread(target=self._run, name="read", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self.wake:
                self._running -= 1
                if self._waiting and not self._ready:
                    return  # one that waits is enough
                self._waiting += 1
                while not self._ready and not self._stopping:
                    self._wait()
                self._waiting -= 1
                if self._stopping:
                    return
                self._running += 1
                lane = self._ready.popleft()
                job = lane.begin()
            try:
                job()
            except Exception:
                log.exception("job_failed lane=%s", lane.name)
            with self.wake:
                lane.end()


class ReadLane:
    """The reads of one GPU, one after another."""

    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        self._pool = pool
        self._jobs: deque[Callable[[], None]] = deque()
        self._offered = False
        self._stopping = False
        self.busy_since_s: float | None = None

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False when the lane is full or stopped."""
        with self._pool.wake:
            if self._stopping or len(self._jobs) >= MAX_JOBS:
                return False
            self._jobs.append(job)
            self._offer()
        return True

    def busy_for_s(self) -> float:
        """How long the job in progress has been running; 0 when idle."""
        since_s = self.busy_since_s
        return 0.0 if since_s is None else self._pool.clock.now_s() - since_s

    def stop(self) -> None:
        """Take no more jobs; what is queued is dropped, what runs goes on."""
        with self._pool.wake:
            self._stopping = True
            self._jobs.clear()

    def begin(self) -> Callable[[], None]:
        """The next job; under the pool's `wake`, as are the others below."""
        self.busy_since_s = self._pool.clock.now_s()
        return self._jobs.popleft() if self._jobs else lambda: None

    def end(self) -> None:
        """The job is done."""
        self.busy_since_s = None
        self._offered = False
        self._offer()

    def _offer(self) -> None:
        if self._jobs and not self._offered:
            self._offered = True
            self._pool.offer(self)


class Sweep:
    """The answers of one request that reads several GPUs: sent together when they come soon, else each for itself."""

    def __init__(self, peer: "SweepPeer", count: int) -> None:
        self._peer = peer
        self._count = count
        self._frames: list[bytes] = []
        self._lock = threading.Lock()
        self._complete = threading.Event()
        self._sent = False

    @property
    def owner(self) -> Answerable:
        """Who asked."""
        return self._peer

    def send(self, reply: wire.Reply) -> None:
        """Keep one answer for the others, or send it when it is late."""
        with self._lock:
            if not self._sent:
                self._frames.append(wire.frame(reply))
                if len(self._frames) >= self._count:
                    self._complete.set()
                return
        self._peer.send(reply)

    def wait(self, pool: Pool) -> None:
        """Send all answers when they are there; where some are late, see to it that they are worked on, and go on."""
        for _ in range(MOST_PATIENCE):
            if self._complete.wait(PATIENCE_S):
                break
            pool.help()
        with self._lock:
            self._sent = True
            frames, self._frames = self._frames, []
        if frames:
            self._peer.send_frames(b"".join(frames))


class SweepPeer(Answerable, Protocol):
    """A peer that several answers can be sent to at once."""

    def send_frames(self, data: bytes) -> None:
        """Send what `wire.frame` made."""
        ...
