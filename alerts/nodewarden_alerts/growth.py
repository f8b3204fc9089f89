"""How much error counters of GPUs have grown in the last hour. State of the node's alerts; no I/O, no clock.

A counter that goes back began anew (reset, driver reload): what it says then has all come since.
"""

from collections import deque

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import NodeSnapshot

WINDOW_S = 3600.0
STEP_S = 60.0
MAX_COUNTERS = 256
COUNTERS = ("nvlink_total_errors", "pcie_replays")

GrowthKey = tuple[str, str, str]
"""Uuid, quantity, the value of its label ("" where it has none)."""


class _Counter:
    __slots__ = ("before", "grown", "steps")

    def __init__(self) -> None:
        self.before: float | None = None
        self.grown = 0.0
        self.steps: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, value: float) -> None:
        before, self.before = self.before, value
        if before is None:
            return
        more = value - before if value >= before else value
        if more > 0:
            self.grown += more
            if self.steps and at_s - self.steps[-1][0] < STEP_S:
                last_s, last = self.steps.pop()
                self.steps.append((last_s, last + more))
            else:
                self.steps.append((at_s, more))

    def within(self, now_s: float) -> float:
        while self.steps and now_s - self.steps[0][0] > WINDOW_S:
            self.grown -= self.steps.popleft()[1]
        if not self.steps:
            self.grown = 0.0
        return self.grown


class Growth:
    """One for the node; `observe` every snapshot."""

    def __init__(self) -> None:
        self._counters: dict[GrowthKey, _Counter] = {}

    def observe(self, snapshot: NodeSnapshot) -> None:
        """Take note of the counters."""
        for uuid, gpu in snapshot.gpus.items():
            for quantity in COUNTERS:
                for labels, number in gpu.series(quantity).items():
                    if isinstance(number, Reading):
                        key = (uuid, quantity, labels[0] if labels else "")
                        self._counters.setdefault(key, _Counter()).add(number.taken_at_s, number.value)
        if len(self._counters) > MAX_COUNTERS:  # GPUs that came and went
            self._counters = {key: each for key, each in self._counters.items() if key[0] in snapshot.gpus}

    def within_window(self, now_s: float) -> dict[GrowthKey, float]:
        """What has grown in the last hour, and by how much."""
        grown = {key: counter.within(now_s) for key, counter in self._counters.items()}
        return {key: count for key, count in grown.items() if count > 0}
