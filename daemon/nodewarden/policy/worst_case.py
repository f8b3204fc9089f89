"""What a stale reading can have become by now: temperatures climb, unknown power is the limit in force."""

from typing import Final

FRESH_S: Final = 3.0
"""Age in seconds up to which a GPU reading may be used to raise a cap."""

AIR_SLEW_C_PER_S: Final = 0.7
"""Fastest climb of an air-cooled GPU at full power after all fans stop."""

HUNG_AGEING_S: Final = 10.0
"""When nothing of a GPU answers, ageing stops here: a hung driver says nothing more about the heat (caps are held)."""

FUTURE_S: Final = 1.0
"""A reading from further in the future than this has no usable time, so it is not fresh."""


def is_fresh(taken_at_s: float, now_s: float) -> bool:
    """True for a reading that is recent enough to raise a cap on; times in CLOCK_BOOTTIME seconds."""
    return -FUTURE_S <= now_s - taken_at_s <= FRESH_S


def hottest_c(value_c: float, age_s: float, slew_c_per_s: float = AIR_SLEW_C_PER_S) -> float:
    """Hottest that the part can be by now, had it climbed at full slew since the reading."""
    return value_c + max(0.0, age_s) * slew_c_per_s


def power_or_limit_w(power_w: float | None, limit_in_force_w: float) -> float:
    """The measured power; where it is unknown the limit in force, never 0 W."""
    return limit_in_force_w if power_w is None else power_w
