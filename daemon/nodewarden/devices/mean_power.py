"""Mean power from a cumulative energy counter."""

from collections import deque

MIN_SPAN_S = 1.0
"""The counter steps about every 100 ms: over less than this its steps would show as power."""
MAX_SPAN_S = 5.0
"""After a longer gap the mean would describe the past, not now."""
MIN_STEP_S = 0.05
"""Samples closer than this are not kept, which bounds the window."""


class MeanPower:
    """Mean power over the shortest span of at least `MIN_SPAN_S` that the samples offer."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, energy_j: float, at_s: float) -> None:
        """Take one sample of the counter; `at_s` is from a monotonic clock."""
        samples = self._samples
        if samples:
            last_at_s, last_j = samples[-1]
            if energy_j < last_j or at_s < last_at_s:
                samples.clear()  # the counter started again (driver load, reset): a new epoch, never a negative power
            elif at_s - last_at_s > MAX_SPAN_S:
                samples.clear()
            elif at_s - last_at_s < MIN_STEP_S:
                return
        samples.append((at_s, energy_j))
        while len(samples) > 2 and at_s - samples[1][0] >= MIN_SPAN_S:
            samples.popleft()

    def mean_w(self) -> float | None:
        """Watts, or None while the samples span less than `MIN_SPAN_S`, or where the counter stands still."""
        if len(self._samples) < 2:
            return None
        (first_s, first_j), (last_s, last_j) = self._samples[0], self._samples[-1]
        if last_s - first_s < MIN_SPAN_S or last_j <= first_j:
            return None  # no board uses nothing for a second: a counter that stands still measures nothing
        return (last_j - first_j) / (last_s - first_s)
