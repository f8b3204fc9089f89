"""Lowest and highest of a quantity over fixed trailing windows, so that a short event between two scrapes is not lost.

Fed with every snapshot, the same for every scraper. Memory is bounded by the longest window.
"""

from collections import deque
from typing import Literal

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import NodeSnapshot

WINDOWS_S = (15.0, 60.0)
Quantity = Literal["junction_c", "power_w", "power_instant_w"]
QUANTITIES: tuple[Quantity, ...] = ("junction_c", "power_w", "power_instant_w")


class _Extremes:
    """Monotonic queues: what can still become the lowest (highest) of a window that ends later."""

    def __init__(self) -> None:
        self.low: deque[tuple[float, float]] = deque()
        self.high: deque[tuple[float, float]] = deque()
        self.newest_s = float("-inf")

    def add(self, at_s: float, value: float) -> None:
        """Take one reading; one that is not newer than the last is the same reading again."""
        if at_s <= self.newest_s:
            return
        self.newest_s = at_s
        low, high = self.low, self.high
        while low and low[-1][1] >= value:
            low.pop()
        while high and high[-1][1] <= value:
            high.pop()
        low.append((at_s, value))
        high.append((at_s, value))
        oldest_s = at_s - WINDOWS_S[-1]
        while low[0][0] < oldest_s:
            low.popleft()
        while high[0][0] < oldest_s:
            high.popleft()

    def over(self, from_s: float) -> tuple[float, float] | None:
        """Lowest and highest since `from_s`, None when nothing was read since."""
        if self.newest_s < from_s:
            return None
        return _first(self.low, from_s), _first(self.high, from_s)


def _first(queue: deque[tuple[float, float]], from_s: float) -> float:
    for at_s, value in queue:
        if at_s >= from_s:
            return value
    raise AssertionError("the newest reading is in every queue")


class Windows:
    """The windows of all GPUs."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], _Extremes] = {}

    def observe(self, snapshot: NodeSnapshot) -> None:
        """Take the readings of a snapshot; call it for each."""
        for uuid, gpu in snapshot.gpus.items():
            for quantity in QUANTITIES:
                reading = getattr(gpu, quantity)
                if isinstance(reading, Reading):
                    extremes = self._of.get((uuid, quantity))
                    if extremes is None:
                        extremes = self._of[uuid, quantity] = _Extremes()
                    extremes.add(reading.taken_at_s, reading.value)
        if len(self._of) > len(QUANTITIES) * len(snapshot.gpus):
            self._of = {key: each for key, each in self._of.items() if key[0] in snapshot.gpus}

    def add(self, uuid: str, quantity: str, at_s: float, value: float) -> None:
        """Take one reading from between two snapshots; of a quantity that has no windows, nothing."""
        extremes = self._of.get((uuid, quantity))
        if extremes is not None:
            extremes.add(at_s, value)

    def extremes(self, uuid: str, quantity: Quantity, window_s: float, now_s: float) -> tuple[float, float] | None:
        """Lowest and highest reading of the last `window_s` seconds, None when there is none."""
        extremes = self._of.get((uuid, quantity))
        return None if extremes is None else extremes.over(now_s - window_s)
