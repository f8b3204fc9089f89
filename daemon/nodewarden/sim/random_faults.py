"""Random faults: a node and what goes wrong with it, drawn from the ranges of the plant's description. Seeded.

Fault `n` of a seed is the same whatever else is drawn. Held-out sets are other seeds. The driver's own thermal loop is
off: what keeps the boards below their slowdown is the controller alone.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import structs

from nodewarden.sim.cooling import LANES, Fault, FaultKind
from nodewarden.sim.lies import Lie, LieKind
from nodewarden.sim.plant import GPUS
from nodewarden.sim.scenario import Scenario

AT_S: Final = 40.0
DURATION_S: Final = 600.0
LATEST_END_S: Final = 420.0
LIES: Final[tuple[LieKind, ...]] = ("frozen", "high", "low", "nan", "swapped")
LIE_FAULTS: Final[tuple[FaultKind | None, ...]] = (None, "paste", "cold_plate")


class Case(NamedTuple):
    """One run: what happens, and the seed of the parts' spread and the sensors' noise."""

    name: str
    scenario: Scenario
    seed: int


def _lanes(draw: random.Random, count: int) -> tuple[int, ...]:
    first = draw.randrange(LANES - count + 1)
    return tuple(range(first, first + count))


def _fan(draw: random.Random) -> Fault:
    return Fault(kind="fan", at_s=AT_S, value=draw.uniform(0.45, 0.75), lanes=_lanes(draw, 1))


def _fan_bank(draw: random.Random) -> Fault:
    return Fault(
        kind="fan_bank", at_s=AT_S, value=draw.uniform(0.18, 0.45), ramp_s=draw.uniform(0, 20), lanes=_lanes(draw, 2)
    )


def _row(draw: random.Random) -> Fault:
    """Something lies in front of one row's air."""
    return Fault(
        kind="fan_bank", at_s=AT_S, value=draw.uniform(0.10, 0.35), ramp_s=draw.uniform(0, 5), lanes=_lanes(draw, 1)
    )


def _all_fans(draw: random.Random) -> Fault:
    return Fault(kind="all_fans", at_s=AT_S, value=draw.uniform(0.05, 0.30), ramp_s=draw.uniform(0, 10))


def _hunting(draw: random.Random) -> Fault:
    return Fault(kind="fan_hunting", at_s=AT_S, value=draw.uniform(0.20, 0.50))


def _clog(draw: random.Random) -> Fault:
    return Fault(kind="clogged_filter", at_s=AT_S, value=draw.uniform(0.20, 0.50), ramp_s=draw.uniform(100, 350))


def _aisle(draw: random.Random) -> Fault:
    return Fault(kind="hot_aisle", at_s=AT_S, value=draw.uniform(8, 24), ramp_s=draw.uniform(90, 300))


def _pump(draw: random.Random) -> Fault:
    return Fault(kind="pump_degraded", at_s=AT_S, value=draw.uniform(0.10, 0.30), ramp_s=draw.uniform(0, 5))


def _pump_stop(draw: random.Random) -> Fault:
    """The standby pump takes over after 10 to 60 s."""
    end_s = AT_S + draw.uniform(10, 60)
    return Fault(kind="pump_stop", at_s=AT_S, until_s=end_s, value=0.02, ramp_s=draw.uniform(0, 2))


def _leak(draw: random.Random) -> Fault:
    return Fault(kind="leak", at_s=AT_S, value=draw.uniform(0.08, 0.25), ramp_s=draw.uniform(100, 300))


def _plate(draw: random.Random) -> Fault:
    return Fault(
        kind="cold_plate",
        at_s=AT_S,
        value=draw.uniform(1.5, 2.5),
        ramp_s=draw.uniform(0, 20),
        gpu=draw.randrange(GPUS),
    )


def _paste(draw: random.Random) -> Fault:
    return Fault(
        kind="paste", at_s=AT_S, value=draw.uniform(1.5, 2.4), ramp_s=draw.uniform(20, 120), gpu=draw.randrange(GPUS)
    )


AIR: Final[dict[str, Callable[[random.Random], Fault]]] = {
    "one fan": _fan,
    "fan bank": _fan_bank,
    "row blocked": _row,
    "all fans": _all_fans,
    "fan hunting": _hunting,
    "clogged filter": _clog,
    "hot aisle": _aisle,
    "paste": _paste,
}
LIQUID: Final[dict[str, Callable[[random.Random], Fault]]] = {
    "pump degraded": _pump,
    "pump stop": _pump_stop,
    "leak": _leak,
    "warm coolant": _aisle,
    "cold plate": _plate,
}


def random_case(seed: int, number: int, *, r_ds_factor: bool = False) -> Case:
    """Fault `number` of `seed`: the kinds in turn, everything else drawn.

    Args:
        seed: of the set.
        number: which one of the set.
        r_ds_factor: the die's own resistance differs from the assumed one too, by U(0.8, 1.2).
    """
    draw = random.Random(f"faults/{seed}/{number}")
    kinds = [("air", name) for name in AIR] + [("liquid", name) for name in LIQUID]
    plant, name = kinds[number % len(kinds)]
    fault = (AIR if plant == "air" else LIQUID)[name](draw)
    if fault.until_s is None:
        ramp_s = fault.ramp_s or 0.0
        fault = structs.replace(
            fault, until_s=draw.uniform(AT_S + ramp_s + 60.0, max(LATEST_END_S, AT_S + ramp_s + 90))
        )
    scenario = Scenario(
        title=name,
        plant="liquid" if plant == "liquid" else "air",
        board="a100" if draw.random() < 0.25 else "h100",
        r_factor=draw.uniform(0.9, 1.15),
        c_factor=draw.uniform(0.6, 1.4),
        meter_error=0.05,
        duration_s=DURATION_S,
        sw_thermal="none",
        pdu_limit_w=1e5,
        save_s=draw.uniform(4, 30),
        fault=(fault,),
    )
    if r_ds_factor:
        scenario = structs.replace(scenario, r_ds_factor=draw.uniform(0.8, 1.2))
    return Case(name, scenario, seed * 100_003 + number)


def lying_case(seed: int, number: int) -> Case:
    """The same with one sensor that lies, alone or beside a fault of one GPU: that of the lying sensor."""
    draw = random.Random(f"lies/{seed}/{number}")
    kind = LIES[number % len(LIES)]
    fault_kind = LIE_FAULTS[number // len(LIES) % len(LIE_FAULTS)]
    gpu = draw.randrange(GPUS)
    other = draw.choice([one for one in range(GPUS) if one != gpu])
    faults: tuple[Fault, ...] = ()
    if fault_kind is not None:
        value = draw.uniform(1.6, 2.4) if fault_kind == "paste" else draw.uniform(1.5, 2.2)
        faults = (Fault(kind=fault_kind, at_s=AT_S, until_s=300.0, value=value, ramp_s=draw.uniform(5, 60), gpu=gpu),)
    base = random_case(seed, number).scenario
    # Some sensors lie from before the fault, others from when the GPU is already hot.
    at_s = draw.choice((AT_S - 20.0, AT_S + 30.0, AT_S + 90.0))
    lie = Lie(kind=kind, gpu=gpu, other=other, at_s=at_s, until_s=draw.choice((None, at_s + 120.0)))
    plant = "liquid" if fault_kind == "cold_plate" else base.plant
    scenario = structs.replace(base, plant=plant, fault=faults, lie=(lie,), duration_s=420.0)
    return Case(f"{kind}{' with ' + fault_kind if fault_kind else ''}", scenario, seed * 100_003 + number)
