"""Limits in watts: on the sum of the GPUs, and on this node's outlets; who gets how much of them.

Outlet watts are `share` x GPU watts + `base`; the base (fans, processors, losses) is learnt slowly, because a meter
that publishes a one-second mean every five seconds beats with the training step. GPUs of one synchronous job get the
speed of its slowest, the rest share by weighted max-min.
"""

from collections.abc import Sequence
from typing import Final

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import Number
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import OutletState

STATIC_W: Final = 70.0
"""Power of a loaded GPU that buys no speed: leakage, memory, fabric."""

SUPPLY_EFFICIENCY: Final = 0.94
PDU_STALE_S: Final = 30.0
"""Three periods of this node's outlets (10 s), as everywhere a reading is stale after three periods."""

SETTLED_S: Final = 60.0
"""Only after all caps have been at their share for this long is a sum above the limit the boards' own doing."""

_METER_LAG_S: Final = (7.5, 1.0)
_HISTORY_S: Final = 20.0
_FROZEN_SHARE: Final = 0.05
_FROZEN_REPEATS: Final = 3
_GUARD: Final = 0.01
_STALE_GUARD: Final = 0.03
_STALE_GUARD_PER_S: Final = 0.0005
_MOST_STALE_GUARD: Final = 0.10


def equal_speed_w(slowest_w: float) -> float:
    """The cap in watts that lets a sibling keep up with the slowest GPU of a synchronous job, and little more."""
    return (STATIC_W + max(0.0, slowest_w - STATIC_W) * 1.025) * 1.03


def fill(budget_w: float, low_w: Sequence[float], high_w: Sequence[float], weight: Sequence[float]) -> list[float]:
    """Weighted max-min: the most equal shares within [low, high] whose sum is at most the budget, where floors fit."""
    if sum(high_w) <= budget_w:
        return list(high_w)
    if sum(low_w) >= budget_w:
        return list(low_w)
    rows = list(zip(low_w, high_w, weight, strict=True))
    # The sum grows with the level in straight pieces, with a bend where a share leaves its low or meets its high end.
    bends = sorted({bound / w for low, high, w in rows for bound in (low, high)})
    first, last = 0, len(bends) - 1
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if _sum_w(rows, bends[middle]) <= budget_w else (first, middle)
    level = bends[first]
    moving = sum(w for low, high, w in rows if low / w <= level < high / w)
    if moving > 0:
        level = min(bends[last], level + (budget_w - _sum_w(rows, level)) / moving)
    return [min(max(level * w, low), high) for low, high, w in rows]


def _sum_w(rows: list[tuple[float, float, float]], level: float) -> float:
    return sum(min(max(level * w, low), high) for low, high, w in rows)


def remember(history: tuple[tuple[float, float], ...], now_s: float, sum_w: float) -> tuple[tuple[float, float], ...]:
    """Keep the GPUs' sum of the last seconds: a late meter is compared with what was true when it measured."""
    if history and not 0.5 <= now_s - history[-1][0] <= _HISTORY_S:
        return history if 0 <= now_s - history[-1][0] < 0.5 else ((now_s, sum_w),)
    oldest_s = now_s - _HISTORY_S
    return (*(entry for entry in history if entry[0] >= oldest_s), (now_s, sum_w))


def learn(
    outlet: OutletState, quantity: Number, limit_w: float, history: tuple[tuple[float, float], ...], feeds: int
) -> bool:
    """Take one new meter reading into `outlet` (a private copy); True when it was rejected as implausible."""
    if not isinstance(quantity, Reading):
        return False
    if not accept("outlets_w", quantity.value) or not accept("taken_at_s", quantity.taken_at_s):
        return True
    if outlet.taken_at_s is not None and quantity.taken_at_s <= outlet.taken_at_s:
        return False
    if quantity.value < 0.02 * limit_w:
        outlet.taken_at_s, outlet.value_w = quantity.taken_at_s, quantity.value
        outlet.lost = outlet.alive  # a feed that carried load and carries none: the others carry it now
        return False
    outlet.lost, outlet.alive = False, True
    lag_from_s, lag_to_s = _METER_LAG_S
    window = [w for t, w in history if quantity.taken_at_s - lag_from_s <= t <= quantity.taken_at_s - lag_to_s]
    if not window and outlet.base_w is None:
        window = [w for _, w in history[-1:]]
    mean_w = sum(window) / len(window) if window else outlet.mean_w
    if quantity.value != outlet.value_w:
        outlet.mean_w, outlet.repeats = mean_w, 0
    elif abs(mean_w - outlet.mean_w) > _FROZEN_SHARE * outlet.mean_w > 0:
        outlet.repeats += 1
        if outlet.repeats >= _FROZEN_REPEATS:
            return False  # the same to the watt although the GPUs moved: no news, the reading before goes on ageing
    outlet.taken_at_s, outlet.value_w = quantity.taken_at_s, quantity.value
    if not window:
        return False
    outlet.share = 1 / (SUPPLY_EFFICIENCY * max(1, feeds))
    base_w = quantity.value - outlet.share * mean_w
    if outlet.base_w is None:
        outlet.base_w = base_w
    elif max(window) - min(window) < 0.35 * mean_w:
        outlet.samples += 1
        over = quantity.value > limit_w and base_w > outlet.base_w
        gain = max(0.15 if over else 0.05, 1 / (outlet.samples + 1))
        outlet.base_w += gain * (base_w - outlet.base_w)
    outlet.base_w = max(outlet.base_w, -0.3 * limit_w)
    return False


def outlet_budget_w(outlet: OutletState, limit_w: float, now_s: float) -> float | None:
    """Watts that the GPUs together may take so that these outlets stay within their limit; None before any reading."""
    if outlet.base_w is None or outlet.taken_at_s is None:
        return None
    age_s = now_s - outlet.taken_at_s
    guard = _GUARD
    if age_s > PDU_STALE_S:
        guard += min(_MOST_STALE_GUARD, _STALE_GUARD + (age_s - PDU_STALE_S) * _STALE_GUARD_PER_S)
    return max(0.0, (limit_w * (1 - guard) - outlet.base_w) / outlet.share)


def trimmed(trim_w: float, sum_mean_w: float, limit_w: float, dt_s: float) -> float:
    """Slow correction in watts for boards that draw more than their cap; it grows while the mean is over the limit."""
    over_w = sum_mean_w - limit_w
    trim_w += 0.1 * dt_s * over_w if over_w > 0 else -0.001 * dt_s * trim_w
    return min(max(trim_w, 0.0), 0.05 * limit_w)
