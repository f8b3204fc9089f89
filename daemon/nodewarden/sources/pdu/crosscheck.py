"""Quantities of one device that contradict each other, whatever the vendor.

Checked are watts against volts times amperes, watts against apparent power and power factor, the total against its
phases, outlets against the total. Only contradictions that no sampling skew, rounding or waveform explains are
reported: a kilowatt taken for a watt, a factor of ten. What is suspect is shown and not used for control.
"""

import math
from collections.abc import Sequence
from typing import Any

_LINE_TO_NEUTRAL_V = ((90.0, 135.0), (215.0, 260.0))
_OVER = 1.25  # real power over apparent power: meters of both may be a few percent apart and seconds too
_UNDER = 0.12  # real over apparent power: less than this does not happen above a few hundred volt-amperes
_UNDER_FROM_VA = 300.0
_TOTAL = 1.35  # total against the sum of its parts


def suspects(
    scalars: dict[str, Any],
    phases: Sequence[dict[str, Any]] = (),
    outlets: Sequence[dict[str, Any]] = (),
    *,
    outlets_with_total: bool = True,
) -> list[str]:
    """Key paths of what is contradicted, such as "total_power_w" or "phases[0].power_w", in SI units throughout.

    Args:
        scalars: total_power_w, apparent_power_va, power_factor; missing ones are not checked.
        phases: rows with voltage_v, current_a, power_w, apparent_va, power_factor.
        outlets: rows with current_a, voltage_v, power_w, apparent_va, power_factor.
        outlets_with_total: compare the sum of the outlets with the total; they must have been read together.
    """
    found: list[str] = []
    for position, row in enumerate(phases):
        quantity = _contradicted(row, line_factor(row.get("voltage_v"), len(phases)))
        if quantity is not None:
            found.append(f"phases[{position}].{quantity}")
    if _total_contradicted(scalars, phases, found):
        found.append("total_power_w")
    volts = [row["voltage_v"] for row in phases if row.get("voltage_v")]
    for position, row in enumerate(outlets):
        if _outlet_contradicted(row, volts):
            found.append(f"outlets[{position}].power_w")
    powers = [row.get("power_w") for row in outlets]
    total = scalars.get("total_power_w")
    if outlets_with_total and total is not None and "total_power_w" not in found:
        together = sum(power for power in powers if power is not None)
        if together > total * _TOTAL + 30 + 5 * len(powers):
            found += [f"outlets[{position}].power_w" for position, power in enumerate(powers) if power]
    return list(dict.fromkeys(found))


def line_factor(voltage_v: float | None, rows: int) -> float:
    """How much power a row may carry beyond V x A: sqrt(3) where one row may stand for three lines, else 1."""
    if voltage_v is None or (rows > 1 and voltage_v < 300):
        return 1.0
    neutral = any(low <= voltage_v <= high for low, high in _LINE_TO_NEUTRAL_V)
    return 1.0 if neutral else math.sqrt(3)


def _contradicted(row: dict[str, Any], factor: float) -> str | None:
    """The quantity of a phase that the others outvote."""
    volts, amps, watts = row.get("voltage_v"), row.get("current_a"), row.get("power_w")
    apparent, power_factor = row.get("apparent_va"), row.get("power_factor")
    by_product = None if volts is None or amps is None else volts * amps
    slack = 15 + 0.15 * (volts or 0.0)  # steps of 10 W and 0.1 A
    product_wrong = watts is not None and by_product is not None and _apart(watts, by_product, factor, slack)
    apparent_wrong = watts is not None and apparent is not None and _apart(watts, apparent, 1.0, slack)
    if product_wrong and apparent is not None and not apparent_wrong:
        return "current_a"  # watts and volt-amperes agree with each other
    if product_wrong or apparent_wrong:
        return "power_w"
    if watts is not None and apparent is not None and power_factor is not None:
        expected = apparent * abs(power_factor)
        if abs(watts - expected) > 0.4 * max(watts, expected) + slack:
            return "power_w"
    return None


def _apart(watts: float, volt_amps: float, factor: float, slack: float) -> bool:
    """Real power that does not fit apparent power."""
    watts = abs(watts)
    if watts > volt_amps * factor * _OVER + slack:
        return True
    return volt_amps > _UNDER_FROM_VA and watts < volt_amps * _UNDER - slack / 10


def _total_contradicted(scalars: dict[str, Any], phases: Sequence[dict[str, Any]], found: list[str]) -> bool:
    total, apparent = scalars.get("total_power_w"), scalars.get("apparent_power_va")
    if total is None:
        return False
    slack = 30.0 + 10 * len(phases)
    if apparent is not None and _apart(total, apparent, 1.0, slack):
        return True
    rows = [row for row in phases if row.get("power_w") is not None]
    if rows and len(rows) == len(phases):
        together = sum(row["power_w"] for row in rows)
        if any(path.endswith("power_w") for path in found):
            # the phases are wrong themselves; the total is too when it repeats them
            return bool(abs(total - together) <= 0.1 * abs(together) + 1)
        low, high = sorted((abs(total), abs(together)))
        return bool(high > low * _TOTAL + slack)
    products = [
        (row["voltage_v"] * row["current_a"], line_factor(row["voltage_v"], len(phases)))
        for row in phases
        if row.get("voltage_v") is not None and row.get("current_a") is not None
    ]
    if products and len(products) == len(phases):
        together = sum(product for product, _ in products)
        return _apart(total, together, max(factor for _, factor in products), slack + 0.15 * 230 * len(phases))
    return False


def _outlet_contradicted(row: dict[str, Any], phase_volts: Sequence[float]) -> bool:
    watts, amps = row.get("power_w"), row.get("current_a")
    if watts is None:
        return False
    apparent = row.get("apparent_va")
    if apparent is not None and _apart(watts, apparent, 1.0, 15.0):
        return True
    if amps is None:
        return False
    volts = row.get("voltage_v")
    if volts is not None:
        return _apart(watts, volts * amps, 1.0, 5 + 0.15 * volts)
    if not phase_volts:
        return False
    # which lines feed it is unknown: between line and neutral, or between two lines
    low, high = min(phase_volts) / math.sqrt(3), max(phase_volts) * math.sqrt(3)
    too_much = abs(watts) > high * amps * _OVER + 5 + 0.15 * high
    too_little = low * amps > _UNDER_FROM_VA and abs(watts) < low * amps * _UNDER
    return bool(too_much or too_little)
