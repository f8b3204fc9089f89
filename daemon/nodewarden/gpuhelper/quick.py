"""Sampling by the helper itself, up to ten times a second: the agent need not wake up as often to ask for it."""

from nodewarden.clock import Clock
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.adoption import Adoption
from nodewarden.gpuhelper.gpus import Gpus
from nodewarden.gpuhelper.pool import Pool

MIN_EVERY_S, MAX_EVERY_S = 0.05, 60.0
ASKED_FOR_S = 3.0
"""It ends when no fast reading has asked for it for so long."""
NUDGE_EVERY_S = 0.2


class Quick:
    """Whether, how often and for whom."""

    def __init__(self, gpus: Gpus, pool: Pool, adoption: Adoption, clock: Clock) -> None:
        self._gpus = gpus
        self._pool = pool
        self._adoption = adoption
        self._clock = clock
        self._asked_at_s = 0.0
        self._nudged_at_s = 0.0

    def wanted(self, every_s: float | None) -> None:
        """The agent asks for a fast reading, and for this beside it."""
        self._asked_at_s = self._clock.now_s()
        self._pool.tick(None if every_s is None else min(max(every_s, MIN_EVERY_S), MAX_EVERY_S), self._sample)

    def keep(self) -> None:
        """Once a second: stop when nobody asks any more."""
        if self._clock.now_s() - self._asked_at_s > ASKED_FOR_S:
            self._pool.tick(None, self._sample)

    def nudge(self) -> None:
        """A GPU has become much hotter than the agent knows."""
        now_s = self._clock.now_s()
        if now_s - self._nudged_at_s >= NUDGE_EVERY_S:
            self._nudged_at_s = now_s
            self._adoption.tell(wire.Nudge())

    def _sample(self) -> None:
        for worker in self._gpus.workers.values():
            worker.sample()
