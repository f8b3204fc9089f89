"""How long a device that failed is left alone. Pure: time and chance are given."""

import random

PATIENT = 12  # failed passes before a silent device is asked less often
_EASE = 3  # then only after so many periods
_LONGEST_S = 60.0  # and never longer than this, so that it is found soon after it returns
_CREDENTIALS_FIRST_S, _CREDENTIALS_LONGEST_S = 30.0, 600.0  # devices lock a user out who fails too often
_JITTER = 0.2  # the PDUs of a rack that lost its network are not asked all at once


class Backoff:
    """When one device may be asked again.

    Args:
        period_s: of the passes.
        name: seeds the jitter, so that nodes and devices differ and a test repeats.
    """

    def __init__(self, period_s: float, name: str) -> None:
        self._period_s = period_s
        self._random = random.Random(name)
        self._failures = 0
        self._refusals = 0
        self._next_s = 0.0

    def failed(self, now_s: float, *, refused: bool) -> None:
        """Account for one failure; `refused`: only other credentials can mend it."""
        self._failures += 1
        self._refusals = self._refusals + 1 if refused else 0
        delay_s = 0.0
        if refused:
            delay_s = min(_CREDENTIALS_LONGEST_S, _CREDENTIALS_FIRST_S * 2.0 ** min(self._refusals - 1, 10))
        elif self._failures >= PATIENT:
            delay_s = max(self._period_s, min(_LONGEST_S, _EASE * self._period_s)) - 0.5 * self._period_s
        if delay_s > 0:
            delay_s *= self._random.uniform(1 - _JITTER, 1 + _JITTER)
        self._next_s = now_s + delay_s

    def succeeded(self) -> None:
        """It answers: start from the beginning."""
        self._failures = self._refusals = 0
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """True when it may be asked now."""
        return now_s >= self._next_s
