"""A device's energy counter as one that only grows: over its wrap, its restart, its reset by a person, a garbled read.

Pure. The counter of most PDUs has 32 bits of some unit; which case a fall is, sysUpTime and the place of the fall tell.
"""

from typing import Final

_WRAP: Final = 2**32
_NEAR: Final = 0.02  # of the counter's range: so near to its end, and then so near to its start, a fall is a wrap
_MOST_W: Final = 1_000_000.0  # no rack PDU carries more; a faster rise is a garbled read until it is there twice
_SLACK_WH: Final = 2_000.0  # counters of whole kWh step


class EnergyCounter:
    """Args: wh_per_count: of the device's counter, 0 = not known (then no wrap is seen, only restarts)."""

    def __init__(self, wh_per_count: float = 0.0) -> None:
        self._range_wh = wh_per_count * _WRAP
        self._total_wh = 0.0
        self._last_wh: float | None = None
        self._last_s = 0.0
        self._doubtful_wh: float | None = None

    def take(self, raw_wh: float | None, now_s: float, *, restarted: bool) -> float | None:
        """The total in watt-hours, never less than before; the last one while a read is not believed.

        Args:
            raw_wh: what the device says; None = nothing.
            now_s: when it was read.
            restarted: its sysUpTime has fallen since.
        """
        if raw_wh is None:
            return None
        if self._last_wh is None:
            step_wh = raw_wh
        else:
            step_wh = raw_wh - self._last_wh
            most_wh = _MOST_W * max(0.0, now_s - self._last_s) / 3600 + _SLACK_WH
            if step_wh < 0 and restarted:
                step_wh = raw_wh  # it began at zero
            elif step_wh < 0 and self._is_wrap(self._last_wh, raw_wh):
                step_wh += self._range_wh
            if not 0 <= step_wh <= most_wh:
                if not self._is_confirmed(raw_wh, most_wh):
                    self._doubtful_wh = raw_wh
                    return self._total_wh
                step_wh = 0.0  # goes on from here; what lies between is not known
        self._doubtful_wh, self._last_wh, self._last_s = None, raw_wh, now_s
        self._total_wh += step_wh
        return self._total_wh

    def _is_wrap(self, before_wh: float, after_wh: float) -> bool:
        near_wh = _NEAR * self._range_wh
        return before_wh > self._range_wh - near_wh > 0 and after_wh < near_wh

    def _is_confirmed(self, raw_wh: float, most_wh: float) -> bool:
        """The read before said about the same."""
        return self._doubtful_wh is not None and 0 <= raw_wh - self._doubtful_wh <= most_wh
