"""Counts how often a speed turns round: the oscillation that a training job feels."""

from typing import Final

SHARE: Final = 0.05


class Reversals:
    """Changes of direction by more than `SHARE` of the turning point; smaller wiggles do not count."""

    def __init__(self) -> None:
        self.count = 0
        self._low = self._high = 0.0
        self._up: bool | None = None

    def see(self, speed: float) -> None:
        """The next speed."""
        if self._high == 0.0:
            self._low = self._high = speed
            return
        self._low, self._high = min(self._low, speed), max(self._high, speed)
        fell = speed < self._high * (1 - SHARE)
        rose = speed > self._low * (1 + SHARE)
        if fell and self._up is not False:
            self.count += self._up is True
            self._up, self._low = False, speed
        elif rose and self._up is not True:
            self.count += self._up is False
            self._up, self._high = True, speed
