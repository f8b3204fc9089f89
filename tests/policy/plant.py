"""A small thermal and electrical model of one 8-GPU node for closed-loop tests of the policy: one RC chain per GPU.

Nothing of the product is in here: it is the other side of the loop. Four front and four rear GPUs; the front preheats
the rear. `Faults` change flow (relative to nominal) and inlet temperature over time.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

DT_S = 0.1
GPUS = 8
T_OP_C, SLOWDOWN_C, SHUTDOWN_C = 87.0, 89.0, 92.0
HBM_OP_C = 95.0
MIN_W, MAX_W = 200.0, 700.0


@dataclass(frozen=True)
class Cooling:
    """Constants of one kind of cooling."""

    r_ds: float
    c_s: float
    r_b: float
    r_v: float
    k: float
    mcp: float


AIR = Cooling(r_ds=0.025, c_s=900.0, r_b=0.010, r_v=0.021, k=0.8, mcp=94.0)
LIQUID = Cooling(r_ds=0.032, c_s=260.0, r_b=0.012, r_v=0.018, k=0.7, mcp=500.0)


def nominal_flow(gpu: int, t: float) -> float:
    return 1.0


def nominal_inlet_c(t: float) -> float:
    return 25.0


@dataclass
class Faults:
    """What goes wrong: flow of lane i at time t (1 = nominal) and inlet temperature."""

    flow: Callable[[int, float], float] = nominal_flow
    inlet_c: Callable[[float], float] = nominal_inlet_c


@dataclass
class Node:
    """Eight GPUs that run one synchronous job (or eight independent loops)."""

    cooling: Cooling
    faults: Faults
    seed: int = 0
    c_s_factor: float = 1.0
    r_factor: float = 1.0
    nominal_flow: float = 0.9
    front_inlet_w: float = 1.0
    synchronous: bool = True
    now_s: float = 0.0
    caps: list[float] = field(default_factory=lambda: [MAX_W] * GPUS)
    duty: float = 1.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.spread = [850.0 * (1 + self.random.uniform(-0.03, 0.03)) for _ in range(GPUS)]
        self.cap_eff = list(self.caps)
        self.die = [66.0] * GPUS
        self.hbm = [70.0] * GPUS
        self.sink = [50.0] * GPUS
        self.power = [650.0] * GPUS
        self.brake = [False] * GPUS
        self.removed = [0.0] * GPUS
        self.energy = [0.0] * GPUS
        self.work = [0.0] * GPUS
        self.reduce_s = 0.0
        self.steps = 0.0
        self.worst_c = -1e9
        self.worst_hbm_c = -1e9
        self.over_op_s = 0.0
        self.over_slowdown = 0
        self.history: list[float] = []
        self.meter_w = 7000.0
        self.meter_taken_s = -10.0
        self._second_j = 0.0
        self._settle()

    def _settle(self) -> None:
        """Start near the healthy steady state."""
        for _ in range(3000):
            self.step(count=False)
        self.now_s = 0.0
        self.steps = 0.0
        self.worst_c = self.worst_hbm_c = -1e9
        self.over_op_s = 0.0
        self.over_slowdown = 0
        self.energy = [0.0] * GPUS
        self._second_j = 0.0

    def step(self, *, count: bool = True) -> None:
        """Advance by 0.1 s."""
        c = self.cooling
        t = self.now_s
        faulty = count
        c_s = c.c_s * self.c_s_factor
        r_ds = c.r_ds
        inlet = self.faults.inlet_c(t) if faulty else 25.0
        preheat_from = self.power[:]
        exp = math.exp
        reducing = self.reduce_s > 0
        idle = self.duty < 1.0 and (t % 2.0) > 2.0 * self.duty
        total = 0.0
        for i in range(GPUS):
            die, hbm, sink = self.die[i], self.hbm[i], self.sink[i]
            flow = self.nominal_flow * (self.faults.flow(i, t) if faulty else 1.0)
            if reducing:
                a = 0.42
            elif idle or (self.synchronous and self.work[i] >= 1.6):
                a = 0.30
            else:
                a = 1.0
            static = 70 + 30 * exp((die - 70) / 40)
            d = self.spread[i] * a
            eff = self.cap_eff[i]
            eff += (self.caps[i] - eff) * DT_S / 0.2
            self.cap_eff[i] = eff
            room = (eff - static) / d
            if room >= 1:
                f = 1.0
            elif room >= 0.17677669529663687:
                f = room**0.4
            else:
                f = max(0.05, room / 0.35355339059327373)
            if self.brake[i]:
                f = min(f, 0.5)
            g = f**2.5 if f >= 0.5 else f * 0.35355339059327373
            p = static + d * g
            p_h = 45 + 55 * a * min(f / 0.87, 1.15)
            pre = 0.85 * preheat_from[i - 4] / (c.mcp * max(flow, 0.02)) if i >= 4 else 0.0
            pre = min(pre, 40.0)
            r_sa = (c.r_b + c.r_v * max(flow, 0.02) ** -c.k) * self.r_factor
            q_dh = (hbm - die) / 0.5
            q_ds = (die - sink) / r_ds
            q_hs = (hbm - sink) / 0.22
            q_out = (sink - inlet - pre) / r_sa
            die += DT_S * (p - p_h + q_dh - q_ds) / 25
            hbm += DT_S * (p_h - q_hs - q_dh) / 20
            sink += DT_S * (q_ds + q_hs - q_out) / c_s
            self.die[i], self.hbm[i], self.sink[i], self.power[i], self.removed[i] = die, hbm, sink, p, q_out
            self.energy[i] += p * DT_S
            total += p
            if die >= SLOWDOWN_C:
                self.brake[i] = True
            elif die < 86:
                self.brake[i] = False
            if not reducing and not idle:
                self.work[i] += f * DT_S
            if count:
                self.worst_c = max(self.worst_c, die)
                self.worst_hbm_c = max(self.worst_hbm_c, hbm)
                if die > T_OP_C:
                    self.over_op_s += DT_S
                if die >= SLOWDOWN_C:
                    self.over_slowdown += 1
        if reducing:
            self.reduce_s -= DT_S
            if self.reduce_s <= 0:
                self.work = [0.0] * GPUS
                self.steps += 1
        elif min(self.work) >= 1.6:
            self.reduce_s = 0.4
        self._second_j += total * DT_S
        self.now_s = t + DT_S
        if round(self.now_s / DT_S) % 10 == 0:
            mean = self._second_j
            self._second_j = 0.0
            self.history.append(mean)
            if round(self.now_s) % 5 == 0 and len(self.history) >= 3:
                # one-second mean, published every 5 s, 1.5 s late, in steps of 10 W
                self.meter_w = round((1900 + self.history[-2]) / 0.94 / 10) * 10.0
                self.meter_taken_s = self.now_s

    def sensor_c(self, i: int) -> float:
        return float(round(self.die[i] + self.random.gauss(0, 0.25)))

    def sensor_hbm_c(self, i: int) -> float:
        return float(round(self.hbm[i] + self.random.gauss(0, 0.25)))
