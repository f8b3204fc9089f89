"""What one sensor said, and when; or why it says nothing.

`Absent` (this machine has none) is not `Failed` (it should answer and does not). Neither is ever a zero.
"""

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Reading(msgspec.Struct, Generic[T], frozen=True, tag="reading"):
    """One value from one sensor.

    Attributes:
        value: in the unit that the field name carries.
        taken_at_s: CLOCK_BOOTTIME seconds at which it was true.
    """

    value: T
    taken_at_s: float

    def age_s(self, now_s: float) -> float:
        """Seconds since it was true; never negative."""
        return max(0.0, now_s - self.taken_at_s)


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """This machine has no such sensor. `reason` is from a small fixed set, such as "not_supported", "no_permission"."""

    reason: str = "not_supported"


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The sensor should answer and does not. `reason` is short; `since_s` is CLOCK_BOOTTIME seconds."""

    reason: str
    since_s: float


def value_or_none(quantity: "Reading[T] | Absent | Failed") -> T | None:
    """The value, or None where there is no reading: for what people see, never for a decision."""
    return quantity.value if isinstance(quantity, Reading) else None
