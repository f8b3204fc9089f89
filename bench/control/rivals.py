"""Other controllers on the same plant, with the same sensors, the same writes: what our law must beat.

Each is a class with `GRID`: the settings tried on the training set. Degrees are relative to max-operating of the
nearest limit (HBM included), watts are the H100's and scaled to other boards. None of them equalises speeds.
"""

import math
from typing import Any, ClassVar

from nodewarden.model.events import Event
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, Setpoints
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden.sim.closed_loop import ClosedLoop
from nodewarden.sim.plant import ACTIVITY, ALL_REDUCE_S, COMPUTE_S, LANES, GpuPlant
from nodewarden.sim.scenario import Scenario


class Rival(ClosedLoop):
    """The loop with another controller: `cap` says what one GPU gets, from what its sensors say."""

    GRID: ClassVar[list[dict[str, float]]] = [{}]
    PERIOD_S: ClassVar[int] = 1

    def __init__(self, scenario: Scenario, seed: int, settings: dict[str, float]) -> None:
        super().__init__(scenario, seed=seed)
        self.settings = settings
        self.memory: list[dict[str, float]] = [{} for _ in self.plant.gpus]
        self._turn = 0

    def decide(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Setpoints, list[Event]]:
        del now_s
        board = self.plant.board
        scale = board.max_w / 700.0
        caps = dict(self.setpoints.caps)
        for (uuid, gpu), memory in zip(snapshot.gpus.items(), self.memory, strict=True):
            margins = [board.max_op_c - _value(gpu.junction_c), board.hbm_max_op_c - _value(gpu.hbm_c)]
            if self._turn % self.PERIOD_S == 0 and not any(math.isnan(margin) for margin in margins):
                cap_w = scale * self.cap(-min(margins), memory.get("cap_w", 700.0), memory)
                memory["cap_w"] = min(max(cap_w, board.min_w), board.max_w) / scale
            w = memory.get("cap_w", 700.0) * scale
            caps[uuid] = CapSetpoint(w=round(w), cause=Cause.THERMAL if w < board.max_w - 0.5 else Cause.NONE)
        self._turn += 1
        return Setpoints(caps=caps), []

    def cap(self, rel_c: float, cap_w: float, memory: dict[str, float]) -> float:
        raise NotImplementedError


def _value(number: Any) -> float:
    return float(number.value) if isinstance(number, Reading) else math.nan


class BangBang(Rival):
    """Low above one temperature, full below another."""

    GRID: ClassVar = [{"on_c": on, "low_w": low} for on in (-3.0, -5.0, -7.0) for low in (200.0, 350.0, 450.0)]

    def cap(self, rel_c: float, cap_w: float, memory: dict[str, float]) -> float:
        del memory
        if rel_c >= self.settings["on_c"]:
            return self.settings["low_w"]
        return 700.0 if rel_c < self.settings["on_c"] - 3.0 else cap_w


class StepWise(Rival):
    """The kernel's trend rule: above the trip and rising one step down, below and falling one step up."""

    GRID: ClassVar = [{"trip_c": trip, "step_w": step} for trip in (-3.0, -5.0, -8.0) for step in (25.0, 50.0, 100.0)]

    def cap(self, rel_c: float, cap_w: float, memory: dict[str, float]) -> float:
        rising = rel_c - memory.get("rel_c", rel_c)
        memory["rel_c"] = rel_c
        if rel_c >= self.settings["trip_c"]:
            return cap_w - self.settings["step_w"] * (rising >= 0)
        return cap_w + self.settings["step_w"] * (rising <= 0)


class ThreeBand(Rival):
    """As Dynamo caps racks, every three seconds: above one band cut towards a target, below another let go."""

    GRID: ClassVar = [
        {"cap_c": cap, "gain_w_per_c": gain, "uncap_c": cap - below}
        for cap in (-5.0, -8.0)
        for gain in (15.0, 30.0)
        for below in (6.0, 10.0)
    ]
    PERIOD_S: ClassVar = 3

    def cap(self, rel_c: float, cap_w: float, memory: dict[str, float]) -> float:
        del memory
        if rel_c > self.settings["cap_c"]:
            return cap_w - self.settings["gain_w_per_c"] * (rel_c - self.settings["cap_c"] + 5.0)
        return cap_w + 50.0 if rel_c < self.settings["uncap_c"] else cap_w


class Ipa(Rival):
    """The kernel's power_allocator: sustainable power plus two proportional gains, integral only when too hot."""

    GRID: ClassVar = [{"s_w": s, "control_c": c} for s in (300.0, 400.0, 500.0) for c in (-7.0, -5.0, -3.0)]

    def cap(self, rel_c: float, cap_w: float, memory: dict[str, float]) -> float:
        del cap_w
        s_w, control_c = self.settings["s_w"], self.settings["control_c"]
        if rel_c < control_c - 8.0:
            memory["sum"] = 0.0
            return 700.0
        error = control_c - rel_c
        k_po, k_pu = s_w / 8.0, 2 * s_w / 8.0
        if error < 0:
            memory["sum"] = max(-s_w, memory.get("sum", 0.0) + k_pu / 10 * error)
        return s_w + (k_po if error < 0 else k_pu) * error + memory.get("sum", 0.0)


class Pi(Rival):
    """Proportional and integral, clamped."""

    GRID: ClassVar = [
        {"kp": kp, "ki": ki, "set_c": c} for kp in (20.0, 40.0) for ki in (1.0, 3.0) for c in (-3.0, -6.0)
    ]

    def cap(self, rel_c: float, cap_w: float, memory: dict[str, float]) -> float:
        del cap_w
        error = self.settings["set_c"] - rel_c
        memory["sum"] = min(700.0, max(200.0, memory.get("sum", 700.0) + self.settings["ki"] * error))
        return memory["sum"] + self.settings["kp"] * error


class Clairvoyant(Rival):
    """Knows every temperature, flow and resistance exactly, holds the worst board 0.3 degrees below its limit.

    Greedy and not proved to be the best; an anchor, no bound.
    """

    def decide(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Setpoints, list[Event]]:
        del now_s
        caps, board = {}, self.plant.board
        speeds = [self._speed(gpu) for gpu in self.plant.gpus]
        f = min(speeds)
        for uuid, gpu in zip(snapshot.gpus, self.plant.gpus, strict=True):
            idle_w = board.idle_w + board.leak_w * math.exp((gpu.junction_c - 70.0) / 40.0)
            w = idle_w + board.dynamic_w * gpu.dynamic_share * min(1.0, f) ** 2.5
            w = min(max(w, board.min_w), board.max_w)
            caps[uuid] = CapSetpoint(w=w, cause=Cause.THERMAL if w < board.max_w - 0.5 else Cause.NONE)
        return Setpoints(caps=caps), []

    def _speed(self, gpu: GpuPlant) -> float:
        """The speed at which this board comes to rest just below its limit, over a step's mean activity."""
        plant, board, cooling = self.plant, self.plant.board, self.plant.cooling
        lane = gpu.index % LANES
        flow = plant.flows[lane]
        plate, paste = plant.resistances(gpu.index)
        r_sa = (cooling.r_base + cooling.r_flow * flow**-cooling.flow_power) * gpu.r_share * plate
        air_c = plant.inlet_c
        if gpu.index >= LANES:
            front = plant.gpus[lane]
            air_c += min(0.85 * front.mean_w / (cooling.mcp * flow), max(0.0, front.sink_c - plant.inlet_c))
        limit_c = min(board.max_op_c - gpu.junction_c, board.hbm_max_op_c - gpu.hbm_c) + gpu.junction_c - 0.3
        k = cooling.c_s / 3.0
        out_w = (gpu.sink_c - air_c) / r_sa
        r_ds = cooling.r_ds * paste
        peak_w = max(0.0, (out_w + k * (limit_c - gpu.sink_c)) / (1 + k * r_ds))
        idle_w = board.idle_w + board.leak_w * math.exp((gpu.junction_c - 70.0) / 40.0)
        # Mean over the step: full activity while computing, less in the all-reduce.
        g = max(0.0, peak_w - idle_w) / (board.dynamic_w * gpu.dynamic_share)
        for _ in range(8):
            f = min(1.0, g**0.4) if g > 0 else 0.0
            compute_s = COMPUTE_S / max(f, 0.1)
            share = (compute_s + ALL_REDUCE_S * ACTIVITY["all_reduce"]) / (compute_s + ALL_REDUCE_S)
            g = max(0.0, peak_w - idle_w) / (board.dynamic_w * gpu.dynamic_share * share)
        # The die follows within a second, so the compute phase itself must stay below the limit too.
        burst_w = max(0.0, (limit_c + 0.2 - gpu.sink_c) / r_ds - idle_w)
        g = min(g, burst_w / (board.dynamic_w * gpu.dynamic_share))
        return max(0.0, g) ** 0.4


RIVALS: dict[str, type[Rival]] = {
    "bang-bang": BangBang,
    "step_wise": StepWise,
    "three-band, 3 s": ThreeBand,
    "IPA": Ipa,
    "PI": Pi,
}
