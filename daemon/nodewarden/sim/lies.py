"""What can be wrong between the plant and the agent: temperature sensors that lie, power meters that are off."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

LieKind = Literal["frozen", "high", "low", "nan", "swapped"]


class Lie(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core temperature sensor (and the margin that the board takes from it) that does not tell the truth.

    Attributes:
        kind: "frozen" on the degree that it had; "high", "low" by `by_c`; "nan"; "swapped" with GPU `other`.
        at_s, until_s: scenario seconds (None = for ever).
    """

    kind: LieKind
    gpu: int
    at_s: float = 0.0
    until_s: float | None = None
    by_c: float = 20.0
    other: int = 0

    def holds(self, t_s: float) -> bool:
        """True while the sensor lies."""
        return self.at_s <= t_s and (self.until_s is None or t_s < self.until_s)


class Liar:
    """Applies lies to a sweep of core temperatures; keeps what a frozen sensor froze on."""

    def __init__(self, lies: Sequence[Lie]) -> None:
        self._lies = tuple(lies)
        self._frozen: dict[Lie, float] = {}

    def told(self, true_c: Sequence[float], t_s: float) -> list[float]:
        """What the sensors say at scenario second `t_s` instead of `true_c`."""
        told = list(true_c)
        for lie in self._lies:
            if not lie.holds(t_s):
                continue
            if lie.kind == "frozen":
                told[lie.gpu] = self._frozen.setdefault(lie, true_c[lie.gpu])
            elif lie.kind == "swapped":
                told[lie.gpu], told[lie.other] = true_c[lie.other], true_c[lie.gpu]
            elif lie.kind == "nan":
                told[lie.gpu] = math.nan
            else:
                told[lie.gpu] += lie.by_c if lie.kind == "high" else -lie.by_c
        return told
