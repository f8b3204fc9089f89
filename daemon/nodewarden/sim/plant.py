"""The node's heat and power: eight H100 or A100 SXM boards, each a die, its HBM and a heat sink, in lanes.

Plain Python and explicit Euler: one step of 0.1 s for the whole node costs well under 0.1 ms, so that the twin runs in
real time on a fraction of a core and an hour of closed loop takes seconds. Times are seconds since the plant was
switched on; `scenario_s` counts from the beginning of the scenario.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from nodewarden.sim.boards import BOARDS, H100, BoardModel, BoardName
from nodewarden.sim.cooling import COOLING, LANES, RESISTANCE_KINDS, Cooling, Fault, flows, inlet_rise_c, resistance
from nodewarden.sim.firmware import HBM_SPEED_FACTOR, Firmware, SwThermal
from nodewarden.sim.lies import Liar, Lie

DT_S = 0.1
GPUS = 2 * LANES

CAP_DELAY_S = 0.1
CAP_TAU_S = 0.2
V_MIN_SPEED = 0.5  # below this clock the voltage no longer falls, so power is linear in it
V_MIN_POWER = math.pow(V_MIN_SPEED, 2.5)
MIN_SPEED = 0.1
SENSOR_SIGMA_C = 0.25
MEAN_S = 1.0  # the board reports the mean power of this stretch

REST_OF_NODE_W = 1900.0  # processors, fans, network, memory
PSU_EFFICIENCY = 0.94

Phase = Literal["compute", "wait", "all_reduce", "checkpoint", "pause", "idle"]
ACTIVITY: dict[Phase, float] = {
    "compute": 1.0,
    "wait": 0.30,
    "all_reduce": 0.42,
    "checkpoint": 0.08,
    "pause": 0.0,
    "idle": 0.0,
}

LINKS = 18
GRADIENT_BYTES = 40e9
ALL_REDUCE_S = 0.40
OVERLAPPED_SHARE = 0.30  # of the gradients, sent while the backward pass still computes
COMPUTE_S = 1.60


def speed_at(watts_above_idle: float, dynamic_w: float = H100.dynamic_w) -> float:
    """Clock, as a share of the maximum, at which a fully used chip draws `watts_above_idle`; at most 1."""
    g = watts_above_idle / dynamic_w
    if g <= 0.0:
        return MIN_SPEED
    speed = math.pow(g, 0.4) if g >= V_MIN_POWER else g * V_MIN_SPEED / V_MIN_POWER
    return min(1.0, max(MIN_SPEED, speed))


class GpuPlant:
    """One board. Temperatures in degC, power in watts, energy in joules; `speed` is the clock's share of its maximum.

    Attributes:
        work_speed: how fast it computes, as a share of its speed at full clock.
        read_junction_c, read_hbm_c, read_margin_c: what the sensors say, whole degrees with noise.
    """

    __slots__ = (
        "_cap_applies_s",
        "_cap_next_w",
        "_history",
        "_random",
        "board",
        "cap_eff_w",
        "cap_w",
        "dynamic_share",
        "energy_j",
        "firmware",
        "hbm_c",
        "heat_out_j",
        "index",
        "junction_c",
        "link_bytes",
        "mean_w",
        "meter_gain",
        "phase",
        "power_capped",
        "power_w",
        "r_share",
        "read_hbm_c",
        "read_junction_c",
        "read_margin_c",
        "reason_s",
        "sink_c",
        "speed",
        "work_speed",
    )

    def __init__(
        self, index: int, *, seed: int, start_c: float, firmware: Firmware, spread: float, meter_error: float = 0.0
    ) -> None:
        self._random = random.Random(f"{seed}/{index}")
        self.index = index
        self.board = firmware.board
        self.firmware = firmware
        self.dynamic_share = 1.0 + spread * self._random.uniform(-0.03, 0.03)
        self.r_share = 1.0 + spread * self._random.uniform(-0.02, 0.02)
        self.meter_gain = 1.0 + (self._random.uniform(-meter_error, meter_error) if meter_error else 0.0)
        self.junction_c = self.hbm_c = self.sink_c = start_c
        self.cap_w = self.cap_eff_w = self._cap_next_w = self.board.max_w
        self._cap_applies_s = 0.0
        self.phase: Phase = "idle"
        self.speed = self.work_speed = 1.0
        self.power_w = self.mean_w = 80.0
        self.energy_j = self.heat_out_j = 0.0
        self.link_bytes = 0.0
        self._history = deque([(0.0, 0.0)])
        self.power_capped = False
        self.reason_s = {"sw_power_cap": 0.0, "sw_thermal": 0.0, "hw_slowdown": 0.0, "hw_thermal": 0.0}
        self.read_junction_c: float = round(start_c)
        self.read_hbm_c: float = self.read_junction_c
        self.read_margin_c: float = round(self.board.max_op_c - start_c)

    @property
    def off(self) -> bool:
        """True when the board switched itself off."""
        return self.firmware.off

    @property
    def margin_c(self) -> float:
        """Degrees to the nearest limit, exactly; negative above it."""
        return min(self.board.max_op_c - self.junction_c, self.board.hbm_max_op_c - self.hbm_c)

    def set_cap_w(self, watts: float, now_s: float) -> None:
        """Ask for a cap; it begins to act 0.1 s later and settles within a second."""
        self.cap_w = watts
        self._cap_next_w = watts
        self._cap_applies_s = now_s + CAP_DELAY_S

    def step(
        self,
        dt_s: float,
        now_s: float,
        cooling: Cooling,
        flow: float,
        air_c: float,
        plate_factor: float = 1.0,
        paste_factor: float = 1.0,
    ) -> None:
        """Advance by `dt_s` with coolant of `air_c` at this board's sink; factors on its thermal resistances."""
        board = self.board
        if now_s >= self._cap_applies_s - 1e-9:
            self.cap_eff_w += (self._cap_next_w - self.cap_eff_w) * (1.0 - math.exp(-dt_s / CAP_TAU_S))
        factor = self.firmware.step(dt_s, self.junction_c, self.hbm_c)
        activity = ACTIVITY[self.phase]
        # Leakage grows with heat; past 130 degC no chip is left that could leak.
        idle_w = board.idle_w + board.leak_w * math.exp((min(self.junction_c, 130.0) - 70.0) / 40.0)
        dynamic_w = board.dynamic_w * self.dynamic_share * activity
        if factor <= 0.0:
            self.speed = 0.0
            power_w = hbm_w = 0.0
            self.power_capped = False
        else:
            room_w = self.cap_eff_w - idle_w
            at_cap = speed_at(room_w / (self.dynamic_share * activity), board.dynamic_w) if activity else 1.0
            self.power_capped = at_cap < 1.0 and at_cap <= factor
            self.speed = max(MIN_SPEED, min(at_cap, factor))
            g = math.pow(self.speed, 2.5) if self.speed >= V_MIN_SPEED else self.speed * V_MIN_POWER / V_MIN_SPEED
            power_w = idle_w + dynamic_w * g
            hbm_w = board.hbm_idle_w + board.hbm_work_w * activity * min(self.speed / 0.87, 1.15)
        self.work_speed = self.speed * (HBM_SPEED_FACTOR if self.hbm_c >= board.hbm_max_op_c else 1.0)
        die_sink_w = (self.junction_c - self.sink_c) / (cooling.r_ds * paste_factor)
        hbm_sink_w = (self.hbm_c - self.sink_c) / cooling.r_hs
        hbm_die_w = (self.hbm_c - self.junction_c) / cooling.r_hd
        r_sa = (cooling.r_base + cooling.r_flow * flow**-cooling.flow_power) * self.r_share * plate_factor
        out_w = (self.sink_c - air_c) / r_sa
        self.junction_c += dt_s * (power_w - hbm_w + hbm_die_w - die_sink_w) / cooling.c_d
        self.hbm_c += dt_s * (hbm_w - hbm_sink_w - hbm_die_w) / cooling.c_h
        self.sink_c += dt_s * (die_sink_w + hbm_sink_w - out_w) / cooling.c_s
        self.power_w = power_w
        self.energy_j += power_w * dt_s
        history = self._history
        history.append((now_s, self.energy_j))
        while now_s - history[0][0] > MEAN_S + 1e-6:
            history.popleft()
        began_s, began_j = history[0]
        if now_s > began_s:
            self.mean_w = (self.energy_j - began_j) / (now_s - began_s)
        self.heat_out_j += out_w * dt_s
        self._count(dt_s)
        self._sense()

    def _count(self, dt_s: float) -> None:
        if self.power_capped:
            self.reason_s["sw_power_cap"] += dt_s
        if self.firmware.sw_active:
            self.reason_s["sw_thermal"] += dt_s
        if self.firmware.hw_active:
            self.reason_s["hw_slowdown"] += dt_s
            self.reason_s["hw_thermal"] += dt_s
        sent = 2 * (GPUS - 1) / GPUS * GRADIENT_BYTES
        if self.phase == "all_reduce":
            self.link_bytes += sent * (1.0 - OVERLAPPED_SHARE) * dt_s / ALL_REDUCE_S
        elif self.phase == "compute":
            self.link_bytes += sent * OVERLAPPED_SHARE * dt_s * self.work_speed / COMPUTE_S

    def _sense(self) -> None:
        gauss = self._random.gauss
        self.read_junction_c = round(self.junction_c + gauss(0.0, SENSOR_SIGMA_C))
        self.read_hbm_c = round(self.hbm_c + gauss(0.0, SENSOR_SIGMA_C))
        self.read_margin_c = self._margin_read()

    def _margin_read(self) -> float:
        return min(self.board.max_op_c - self.read_junction_c, self.board.hbm_max_op_c - self.read_hbm_c)

    def tell(self, junction_c: float) -> None:
        """Have the core's sensor say this instead of what it measured."""
        if junction_c != self.read_junction_c:
            self.read_junction_c = junction_c
            # min() would hide a NaN behind HBM's margin: the board cannot know better than its sensor.
            self.read_margin_c = junction_c if math.isnan(junction_c) else self._margin_read()


class Plant:
    """The node.

    Args:
        cooling: "air" or "liquid".
        faults: what goes wrong, in scenario seconds; the scenario begins at once.
        seed: of the parts' spread and of the sensors' noise.
        sw_thermal: how good the driver's own thermal loop is ("none" = only the hardware slowdown).
        protection: False switches all of the board's own protection off, to see what the physics alone would do.
        spread: 1 = boards differ as real ones do, 0 = all alike.
        board: which model of GPU.
        r_factor, r_ds_factor, c_factor: on the thermal resistance to the coolant (one, or one per GPU), on that from
            die to sink, and on the heat capacity of the sinks.
        meter_error: each board's power meter is off by a constant share of up to this much.
        lies: temperature sensors that do not tell the truth.
    """

    def __init__(
        self,
        cooling: Literal["air", "liquid"] = "air",
        faults: Sequence[Fault] = (),
        *,
        seed: int = 1,
        sw_thermal: SwThermal = "ideal",
        protection: bool = True,
        spread: float = 1.0,
        board: BoardName = "h100",
        r_factor: float | Sequence[float] = 1.0,
        r_ds_factor: float = 1.0,
        c_factor: float = 1.0,
        meter_error: float = 0.0,
        lies: Sequence[Lie] = (),
    ) -> None:
        self.board: BoardModel = BOARDS[board]
        base = COOLING[cooling]
        self.cooling = structs.replace(
            base,
            r_ds=base.r_ds * self.board.r_scale * r_ds_factor,
            r_base=base.r_base * self.board.r_scale,
            r_flow=base.r_flow * self.board.r_scale,
            c_s=base.c_s * c_factor,
        )
        self._r_factors = (r_factor,) * GPUS if isinstance(r_factor, int | float) else tuple(r_factor)
        self._liar = Liar(lies)
        self._lying = bool(lies)
        self.now_s = self.begin_s = 0.0
        self.flows = (1.0,) * LANES
        self.inlet_c = self.cooling.inlet_c
        start_c = self.inlet_c + 8.0
        self.gpus = tuple(
            GpuPlant(
                index,
                seed=seed,
                start_c=start_c,
                firmware=Firmware(sw_thermal, enabled=protection, board=self.board),
                spread=spread,
                meter_error=meter_error,
            )
            for index in range(GPUS)
        )
        self.begin(faults)

    def begin(self, faults: Sequence[Fault]) -> None:
        """Call this moment second 0 of a scenario with these faults; the clock runs on."""
        self.faults = tuple(faults)
        self._one_gpu = any(fault.kind in RESISTANCE_KINDS for fault in self.faults)
        self.begin_s = self.now_s

    def step(self, dt_s: float = DT_S) -> None:
        """Advance by `dt_s` seconds, at most 0.1."""
        self.now_s += dt_s
        self.flows = flows(self.faults, self.scenario_s)
        self.inlet_c = self.cooling.inlet_c + inlet_rise_c(self.faults, self.scenario_s)
        for lane, flow in enumerate(self.flows):
            front, rear = self.gpus[lane], self.gpus[lane + LANES]
            # The rear board breathes what the front one gives off, which cannot be warmer than the front sink itself.
            preheat_c = min(0.85 * front.mean_w / (self.cooling.mcp * flow), max(0.0, front.sink_c - self.inlet_c))
            front.step(dt_s, self.now_s, self.cooling, flow, self.inlet_c, *self.resistances(lane))
            rear.step(dt_s, self.now_s, self.cooling, flow, self.inlet_c + preheat_c, *self.resistances(lane + LANES))
        if self._lying:
            told = self._liar.told([gpu.read_junction_c for gpu in self.gpus], self.scenario_s)
            for gpu, junction_c in zip(self.gpus, told, strict=True):
                gpu.tell(junction_c)

    def resistances(self, gpu: int) -> tuple[float, float]:
        """Factors on the resistances sink to coolant and die to sink."""
        plate = self._r_factors[gpu]
        if not self._one_gpu:
            return plate, 1.0
        t_s = self.scenario_s
        return (
            plate * resistance(self.faults, t_s, "cold_plate", gpu),
            resistance(self.faults, t_s, "paste", gpu),
        )

    @property
    def scenario_s(self) -> float:
        """Seconds since the scenario began."""
        return self.now_s - self.begin_s

    def gpu_power_w(self) -> float:
        """Power of the eight boards together at this moment."""
        return math.fsum(gpu.power_w for gpu in self.gpus)

    def plug_power_w(self) -> float:
        """What the node draws from the PDU at this moment."""
        return (REST_OF_NODE_W + self.gpu_power_w()) / PSU_EFFICIENCY
