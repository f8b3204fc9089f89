"""What carries the heat away, and how it fails: flow per lane and inlet temperature as functions of time.

A lane is one front GPU and the rear GPU that breathes its exhaust; lane n carries GPU n and GPU n + 4.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

LANES = 4
FaultKind = Literal[
    "fan",  # one fan of a bank
    "fan_bank",
    "all_fans",
    "fan_hunting",
    "hot_aisle",
    "clogged_filter",
    "pump_degraded",
    "pump_stop",
    "leak",  # a quick disconnect: the flow falls over minutes
    "cold_plate",  # one GPU: an air bubble, a blocked channel
    "paste",  # one GPU: what conducts between die and sink
]

RESISTANCE_KINDS = frozenset({"cold_plate", "paste"})
# What is left of the flow (1 = all), for the hot aisle the degC on top, for one GPU's faults the factor on its thermal
# resistance, when the scenario does not say.
DEFAULT_VALUE: dict[str, float] = {
    "fan": 0.6,
    "fan_bank": 0.3,
    "all_fans": 0.05,
    "fan_hunting": 0.35,
    "hot_aisle": 22.0,
    "clogged_filter": 0.45,
    "pump_degraded": 0.14,
    "pump_stop": 0.02,
    "leak": 0.10,
    "cold_plate": 2.0,
    "paste": 1.6,
}
# How long it takes to arrive, when the scenario does not say.
DEFAULT_RAMP_S: dict[str, float] = {"hot_aisle": 90.0, "clogged_filter": 900.0, "leak": 240.0, "paste": 60.0}
HUNTING_PERIOD_S = 90.0
MIN_FLOW = 0.01


class Cooling(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of one way to cool. Thermal resistances in K/W, heat capacities in J/K.

    Attributes:
        r_ds, c_d: die to sink, and the die's own heat capacity.
        r_base, r_flow, flow_power: sink to coolant = r_base + r_flow * flow ** -flow_power.
        c_s: heat sink or cold plate with its water.
        mcp: what one lane's coolant takes up, W/K at full flow.
        r_hs, r_hd, c_h: HBM to sink, HBM to die, HBM's own heat capacity.
        inlet_c: coolant temperature at the front.
    """

    r_ds: float
    c_d: float = 25.0
    c_s: float
    r_base: float
    r_flow: float
    flow_power: float
    mcp: float
    r_hs: float = 0.22
    r_hd: float = 0.50
    c_h: float = 20.0
    inlet_c: float


AIR = Cooling(r_ds=0.025, c_s=900.0, r_base=0.010, r_flow=0.021, flow_power=0.8, mcp=94.0, inlet_c=31.0)
LIQUID = Cooling(r_ds=0.032, c_s=260.0, r_base=0.012, r_flow=0.018, flow_power=0.7, mcp=500.0, inlet_c=34.0)
COOLING: dict[str, Cooling] = {"air": AIR, "liquid": LIQUID}


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong with the cooling.

    Attributes:
        at_s, until_s: scenario seconds at which it starts and at which it is repaired (None = never).
        value: what is left of the flow, 1 = all of it; for "hot_aisle" the degC on top of the inlet; for "cold_plate"
            (sink to coolant) and "paste" (die to sink) the factor on the thermal resistance.
        ramp_s: how long it takes to arrive; repair takes as long.
        lanes: the lanes it concerns, empty = all (a fan bank concerns two lanes).
        gpu: the GPU that "cold_plate" or "paste" concerns.
    """

    kind: FaultKind
    at_s: float
    until_s: float | None = None
    value: float | None = None
    ramp_s: float | None = None
    lanes: tuple[int, ...] = ()
    gpu: int = 0

    def share(self, t_s: float) -> float:
        """How much of the fault is there at `t_s`: 0 = nothing, 1 = all of it."""
        ramp_s = self.ramp_s if self.ramp_s is not None else DEFAULT_RAMP_S.get(self.kind, 0.0)

        def ramp(since_s: float) -> float:
            if since_s < 0.0:
                return 0.0
            return 1.0 if ramp_s <= 0.0 else min(1.0, since_s / ramp_s)

        share = ramp(t_s - self.at_s)
        return share if self.until_s is None else max(0.0, share - ramp(t_s - self.until_s))

    def flow(self, t_s: float, lane: int) -> float:
        """The flow that this fault leaves to `lane` at `t_s`; 1 = all of it."""
        if self.kind == "hot_aisle" or self.kind in RESISTANCE_KINDS or (self.lanes and lane not in self.lanes):
            return 1.0
        share = self.share(t_s)
        left = self.value if self.value is not None else DEFAULT_VALUE[self.kind]
        if self.kind == "fan_hunting":
            share *= 0.5 - 0.5 * math.cos(2 * math.pi * (t_s - self.at_s) / HUNTING_PERIOD_S)
        return max(MIN_FLOW, 1.0 - share * (1.0 - left))

    def inlet_rise_c(self, t_s: float) -> float:
        """How much warmer the inlet is at `t_s`."""
        if self.kind != "hot_aisle":
            return 0.0
        return self.share(t_s) * (self.value if self.value is not None else DEFAULT_VALUE[self.kind])


def flows(faults: Sequence[Fault], t_s: float) -> tuple[float, ...]:
    """Flow per lane at `t_s`; the worst fault of a lane counts."""
    return tuple(min((fault.flow(t_s, lane) for fault in faults), default=1.0) for lane in range(LANES))


def inlet_rise_c(faults: Sequence[Fault], t_s: float) -> float:
    """How much warmer the inlet is than normal at `t_s`."""
    return math.fsum(fault.inlet_rise_c(t_s) for fault in faults)


def resistance(faults: Sequence[Fault], t_s: float, kind: FaultKind, gpu: int) -> float:
    """Factor on one thermal resistance of one GPU at `t_s`, from the faults of this kind; 1 = healthy."""
    factor = 1.0
    for fault in faults:
        if fault.kind == kind and fault.gpu == gpu:
            value = fault.value if fault.value is not None else DEFAULT_VALUE[kind]
            factor *= 1.0 + fault.share(t_s) * (value - 1.0)
    return factor
