"""How much counters grew within a trailing stretch of time; a decrease is a reset and counts as nothing."""

from collections import deque

from nodewarden.model.readings import Absent, Failed, Reading

Number = Reading[float] | Absent | Failed
_MAX_STEPS = 400


class Growth:
    """One counter. After a gap longer than the stretch nobody knows when it grew: it begins anew.

    Args:
        window_s: how far back "lately" goes.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._last: Reading[float] | None = None
        self._steps: deque[tuple[float, float]] = deque(maxlen=_MAX_STEPS)

    def add(self, number: Number) -> Number:
        """Take the newest reading and say how much it grew lately; nothing before the second one."""
        if not isinstance(number, Reading):
            return number
        at_s, before, self._last = number.taken_at_s, self._last, number
        if before is None or at_s - before.taken_at_s > self._window_s:
            self._steps.clear()
            return Absent("first_reading")
        if number.value > before.value:
            self._steps.append((at_s, number.value - before.value))
        while self._steps and self._steps[0][0] <= at_s - self._window_s:
            self._steps.popleft()
        return Reading(sum(grown for _, grown in self._steps), at_s)
