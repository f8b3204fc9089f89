"""The loop around the model node: one decision per second, caps written as the actuator does."""

from dataclasses import dataclass, field
from typing import Any

from nodewarden.model.events import Event
from nodewarden.model.setpoints import Setpoints
from nodewarden.policy import decide, initial_state, limits_from, snapshot_from, worth_writing
from policy.plant import GPUS, HBM_OP_C, MAX_W, MIN_W, SHUTDOWN_C, SLOWDOWN_C, T_OP_C, Node

UUIDS = [f"GPU-{i}" for i in range(GPUS)]
BOOT_S = 1000.0


def limits_dict(kind: str = "tlimit", **others: Any) -> dict[str, Any]:
    if kind == "tlimit":
        c = {"max_op_c": 0.0, "slowdown_c": -2.0, "shutdown_c": -5.0}
    else:
        c = {"max_op_c": T_OP_C, "slowdown_c": SLOWDOWN_C, "shutdown_c": SHUTDOWN_C}
    gpu = {"min_w": MIN_W, "max_w": MAX_W, "prior_w": MAX_W, "kind": kind, **c, "hbm_max_op_c": HBM_OP_C}
    return {"gpus": {uuid: dict(gpu) for uuid in UUIDS}, **others}


@dataclass
class Run:
    """What one closed-loop run left behind."""

    node: Node
    caps: list[list[float]] = field(default_factory=list)
    writes: list[list[float]] = field(default_factory=lambda: [[] for _ in range(GPUS)])
    setpoints: list[Setpoints] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)


def run(
    node: Node, seconds: int, *, armed: bool = True, jobs: bool = True, kind: str = "tlimit", cooperates: bool = False,
    every: int = 10, **limits: Any,
) -> Run:  # fmt: skip
    """Let policy and node play against each other; a decision every `every` tenths of a second."""
    bounds = limits_from(limits_dict(kind, **limits))
    state = initial_state(bounds)
    out = Run(node)
    energy = list(node.energy)
    for _ in range(seconds * 10 // every):
        for _ in range(every):
            node.step()
        now_s = BOOT_S + node.now_s
        powers = [(node.energy[i] - energy[i]) * 10 / every for i in range(GPUS)]
        energy = list(node.energy)
        out.sums.append(sum(powers))
        gpus: dict[str, Any] = {}
        for i, uuid in enumerate(UUIDS):
            junction_c = node.sensor_c(i)
            gpus[uuid] = {
                "junction_c": {"v": junction_c, "t_s": now_s},
                "margin_c": {"v": T_OP_C - junction_c, "t_s": now_s},
                "hbm_c": {"v": node.sensor_hbm_c(i), "t_s": now_s},
                "power_w": {"v": powers[i], "t_s": now_s},
                "cap_w": {"v": node.caps[i], "t_s": now_s},
                "utilisation": {"v": 1.0, "t_s": now_s},
            }
        snapshot = snapshot_from(
            {
                "gpus": gpus,
                "outlets": {name: {"v": node.meter_w, "t_s": BOOT_S + node.meter_taken_s} for name in bounds.outlets},
                "jobs": [{"id": "job", "gpus": UUIDS, "ckpt_s": 30.0}] if jobs else [],
            }
        )
        state, setpoints, events = decide(state, snapshot, bounds, now_s)
        out.setpoints.append(setpoints)
        out.events.extend((node.now_s, event) for event in events)
        out.caps.append([setpoints.caps[uuid].w for uuid in UUIDS])
        if armed:
            for i, uuid in enumerate(UUIDS):
                w = setpoints.caps[uuid].w
                margin_c = setpoints.forecast[uuid].margin_to_max_op_c
                hot = margin_c is not None and margin_c < bounds.target_margin_c
                if worth_writing(node.caps[i], w, hot) or (w == MAX_W and node.caps[i] != MAX_W):
                    node.caps[i] = float(round(w))
                    out.writes[i].append(node.now_s)
            if cooperates:
                node.duty = setpoints.job.duty
    return out
