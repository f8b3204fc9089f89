"""What a sensor can possibly say: one table of ranges, shared by the policy and by the sources.

Drivers and devices put markers where they have no value (127, 255, 4294967295, numbers near 2^63, NaN) and sometimes a
plain 0. None of them is ever taken for a measurement.
"""

import math
from typing import Final, NamedTuple

from nodewarden.model.gpu_quantities import GPU_QUANTITIES


class Range(NamedTuple):
    """Lowest and highest value that is believed, both included, in the unit of the field's name."""

    low: float
    high: float


# Power and caps are bounded by twice the board's largest cap where that is known (`max_w` of `accept`).
RANGES: Final[dict[str, Range]] = {
    **{quantity.name: Range(quantity.low, quantity.high) for quantity in GPU_QUANTITIES},
    "inlet_c": Range(-20, 80),
    "outlets_w": Range(0, 100_000),
    "apparent_va": Range(0, 1_000_000),
    "voltage_v": Range(0, 1_000),
    "current_a": Range(0, 1_000),
    "power_factor": Range(-1, 1),
    "energy_wh": Range(0, 1e12),
    "ckpt_s": Range(0, 86_400),
}

# Not-available markers that could lie inside a range.
MARKERS: Final = frozenset({127.0, 255.0, 65_535.0, 2_147_483_647.0, 4_294_967_295.0, 140_737_488_355_328.0})
_BLANK_FROM: Final = 9.0e18  # blanks of the driver stack lie near 2^63
_BOUND_BY_MAX_W: Final = frozenset(
    {"power_w", "power_energy_w", "power_average_w", "power_instant_w", "cap_w", "enforced_w"}
)
# Where a marker cannot be a measurement; elsewhere 255 W is a cap, 127 V a voltage, and only the range counts.
_MARKED: Final = frozenset({"junction_c", "hbm_c", "margin_c", "inlet_c", "threshold_c"})


def accept(field: str, value: object, max_w: float | None = None) -> bool:
    """True when `value` can be a measurement of `field`.

    Args:
        field: a name of `RANGES`; other names are only checked for being a finite number that is no marker near 2^63.
        value: whatever the sensor said.
        max_w: the board's largest power cap in watts, where known; power above twice this is not believed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if not -_BLANK_FROM < value < _BLANK_FROM:  # also refuses NaN and the infinities
        return False
    if field in _MARKED and value in MARKERS:
        return False
    bounds = RANGES.get(field)
    if bounds is None:
        return True
    high = bounds.high
    if max_w is not None and field in _BOUND_BY_MAX_W and math.isfinite(max_w) and max_w > 0:
        high = min(high, 2 * max_w)
    return bounds.low <= value <= high
