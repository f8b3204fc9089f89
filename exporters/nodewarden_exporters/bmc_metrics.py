"""The rows of the metric table that describe the server as its BMC sees it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nodewarden.model.bmc import HEALTHY, SICK, BmcSnapshot
from nodewarden.model.readings import Reading
from nodewarden_exporters.metric import row
from nodewarden_exporters.readers import Reader, Sample

_bmc = partial(row, "bmc_", scope="bmc")

MAX_SENSORS = 256  # of one kind; a DGX H100 has 147 temperatures

_TEMPERATURE = ("sensor", "location")
_NAME = ("sensor",)


def _each(things: str, labels: Callable[[Any, str], tuple[str, ...]], value: Callable[[Any], float | None]) -> Reader:
    """One line per thing that has the value; names that repeat (iLO, Cray) are told apart by their position."""

    def read(bmc: BmcSnapshot, _now_s: float) -> Iterator[Sample]:
        seen: dict[str, int] = {}
        for thing in getattr(bmc, things)[:MAX_SENSORS]:
            seen[thing.name] = seen.get(thing.name, 0) + 1
            name = thing.name if seen[thing.name] == 1 else f"{thing.name} #{seen[thing.name]}"
            found = value(thing)
            if found is not None:
                yield labels(thing, name), Reading(float(found), thing.taken_at_s)

    return read


def _named(_thing: Any, name: str) -> tuple[str, ...]:
    return (name,)


def _placed(thing: Any, name: str) -> tuple[str, ...]:
    return name, thing.location


def _field(name: str) -> Callable[[Any], float | None]:
    def value(thing: Any) -> float | None:
        found: float | None = getattr(thing, name)
        return found

    return value


def _is_well(thing: Any) -> float | None:
    """1, 0, or unknown; a supply or fan that is not there is neither."""
    said = (thing.health or "").lower()
    if getattr(thing, "present", True) is False or said not in HEALTHY | SICK:
        return None
    return float(said in HEALTHY)


def _is_wet(thing: Any) -> float | None:
    return None if thing.is_leaking is None else float(thing.is_leaking)


def _power(bmc: BmcSnapshot, _now_s: float) -> Iterator[Sample]:
    if bmc.chassis_power_w is not None:
        yield (), Reading(bmc.chassis_power_w, bmc.chassis_power_at_s)


def _info(bmc: BmcSnapshot, _now_s: float) -> Iterator[Sample]:
    if bmc.taken_at_s:
        yield (bmc.source, bmc.vendor, bmc.model, bmc.bmc), Reading(1, bmc.taken_at_s)


def _redundant(bmc: BmcSnapshot, _now_s: float) -> Iterator[Sample]:
    if bmc.is_redundancy_lost is not None:
        yield (), Reading(float(not bmc.is_redundancy_lost), bmc.taken_at_s)


BMC_METRICS = (
    _bmc("info", "What the BMC is, and how it is asked; always 1.", _info, ("source", "vendor", "model", "firmware")),
    _bmc("chassis_power_watts", "Power of the whole machine at its input, watts.", _power),
    _bmc(
        "temperature_celsius",
        "Temperature of the sensor, degrees Celsius; location as its name tells.",
        _each("temperatures", _placed, _field("value_c")),
        _TEMPERATURE,
    ),
    _bmc(
        "temperature_critical_celsius",
        "The BMC's own upper critical threshold.",
        _each("temperatures", _placed, _field("upper_critical_c")),
        _TEMPERATURE,
    ),
    _bmc(
        "margin_celsius",
        "Distance to a limit that the BMC calls a temperature, degrees Celsius.",
        _each("margins", _named, _field("margin_c")),
        _NAME,
    ),
    _bmc("fan_rpm", "Speed of the fan, revolutions per minute.", _each("fans", _named, _field("rpm")), _NAME),
    _bmc(
        "fan_speed_ratio",
        "Speed of the fan as a share of its greatest, 0 to 1.",
        _each("fans", _named, lambda fan: None if fan.percent is None else fan.percent / 100),
        _NAME,
    ),
    _bmc("fan_healthy", "1 while the BMC calls the fan well, 0 otherwise.", _each("fans", _named, _is_well), _NAME),
    _bmc(
        "supply_input_watts",
        "Power at the input of the supply, watts.",
        _each("psus", _named, _field("input_w")),
        ("supply",),
    ),
    _bmc(
        "supply_output_watts",
        "Power at the output of the supply, watts; 0 of a sleeping hot spare.",
        _each("psus", _named, _field("output_w")),
        ("supply",),
    ),
    _bmc(
        "supply_input_volts",
        "Voltage at the input of the supply, volts.",
        _each("psus", _named, _field("line_v")),
        ("supply",),
    ),
    _bmc(
        "supply_capacity_watts",
        "What the supply may give, watts.",
        _each("psus", _named, _field("capacity_w")),
        ("supply",),
    ),
    _bmc(
        "supply_healthy",
        "1 while the BMC calls the supply well, 0 otherwise.",
        _each("psus", _named, _is_well),
        ("supply",),
    ),
    _bmc("supplies_redundant", "1 while every group of supplies is whole, 0 otherwise.", _redundant),
    _bmc(
        "leak_detected",
        "1 while the detector finds a leak; no line while it does not watch.",
        _each("leak", _named, _is_wet),
        ("detector",),
    ),
    _bmc(
        "coolant_flow_litres_per_minute",
        "Flow of coolant, litres per minute.",
        _each("flow", _named, _field("flow_lpm")),
        ("connector",),
    ),
    _bmc(
        "coolant_supply_celsius",
        "Temperature of the coolant that comes, degrees Celsius.",
        _each("flow", _named, _field("supply_c")),
        ("connector",),
    ),
    _bmc(
        "coolant_return_celsius",
        "Temperature of the coolant that goes, degrees Celsius.",
        _each("flow", _named, _field("return_c")),
        ("connector",),
    ),
    _bmc(
        "part_power_watts",
        "Power of a part of the machine, watts; never to be added to the whole.",
        _each("power_sensors", _named, _field("value_w")),
        _NAME,
    ),
)
