"""Random scenes for the properties: limits, and a few passes of readings that are sane, stale, garbage or missing.

A scene comes from one integer, so that thousands take seconds and each can be played again from its number.
"""

import math
import random
from typing import Any, NamedTuple

from nodewarden.model.limits import GpuLimits, Limits, ManualCap
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.setpoints import Setpoints
from nodewarden.model.snapshot import GpuSnapshot, JobSnapshot, NodeSnapshot
from nodewarden.policy import PolicyState, accept, decide, initial_state

START_S = 500.0
FIELDS = ("junction_c", "hbm_c", "margin_c", "power_w", "cap_w", "utilisation")
ODD: list[Any] = [
    math.nan, math.inf, -math.inf, -5.0, 0.0, 127.0, 255.0, 655.35, 4294967295, 9223372036854775794, 2**63, -1, 1e308,
    140737488355328.0, None, True, "87", [], 10**400,
]  # fmt: skip
GAPS_S = (1.0, 1.0, 1.0, 1.0, 0.1, 0.0, 5.0, 9.9, 12.0, -30.0, 3600.0, 2.6e6)


class Pass(NamedTuple):
    """One decision's input."""

    snapshot: NodeSnapshot
    now_s: float


class Scene(NamedTuple):
    """Limits and the passes played on them."""

    limits: Limits
    passes: list[Pass]


def _sane(rng: random.Random, field: str) -> float:
    match field:
        case "junction_c":
            return rng.randint(30, 100)
        case "hbm_c":
            return rng.randint(30, 105)
        case "margin_c":
            return rng.randint(-12, 57)
        case "power_w":
            return rng.uniform(40, 760)
        case "cap_w":
            return rng.uniform(200, 700)
        case _:
            return rng.random()


def quantity(rng: random.Random, field: str, now_s: float, *, calm: float) -> Any:
    """Fresh and sane with probability `calm`; else anything that a sensor has ever said."""
    if rng.random() < calm:
        return Reading(_sane(rng, field), now_s - rng.choice((0.0, 0.4)))
    match rng.randrange(6):
        case 0:
            return Absent()
        case 1:
            return Failed("timeout", now_s)
        case 2:
            return Reading(rng.choice(ODD), now_s)
        case 3:
            return Reading(_sane(rng, field), now_s - rng.uniform(3.1, 90))
        case 4:
            return Reading(_sane(rng, field), now_s + rng.uniform(2, 500))
        case _:
            return Reading(_sane(rng, field), rng.choice((math.nan, math.inf, None, "now")))


def _gpu_limits(rng: random.Random) -> GpuLimits:
    kind: Any = rng.choice(("tlimit", "absolute"))
    offsets = kind == "tlimit" and rng.random() < 0.5
    return GpuLimits(
        min_w=200.0,
        max_w=700.0,
        prior_w=rng.choice((700.0, 700.0, 650.0, 500.0, 200.0)),
        kind=kind,
        max_op_c=0.0 if offsets else rng.choice((87.0, 87.0, 127.0)),
        slowdown_c=-2.0 if offsets else 89.0,
        hbm_max_op_c=rng.choice((None, 95.0, 255.0)),
    )


def scene(number: int, *, calm: float | None = None) -> Scene:
    """The scene of this number; `calm` fixes how often readings are sane, else the number decides."""
    rng = random.Random(number)
    if calm is None:
        calm = rng.choice((0.3, 0.8, 0.97))
    uuids = [f"GPU-{i}" for i in range(rng.randint(1, 3))]
    limits = Limits(
        gpus={uuid: _gpu_limits(rng) for uuid in uuids},
        node_power_w=rng.choice((None, 900.0, 1500.0, 300.0, 0.0)),
        outlets=rng.choice(({}, {"a": 2600.0}, {"a": 2600.0, "b": 500.0})),
        manual={
            uuid: ManualCap(
                w=rng.uniform(100, 800),
                expires_s=rng.choice((None, START_S + 5, START_S - 5)),
                cause=rng.choice(("manual", "lease")),
            )
            for uuid in uuids
            if rng.random() < 0.3
        },
        failsafe_w=rng.choice((None, None, 350.0, 50.0)),
    )
    now_s = START_S
    passes = []
    for _ in range(rng.randint(2, 25)):
        now_s += rng.choice(GAPS_S) if rng.random() > calm else 1.0
        gpus = {
            uuid: GpuSnapshot(
                uuid=uuid,
                slow=Reading((rng.choice(("sw_thermal", "hw_thermal", "idle")),) if rng.random() < 0.1 else (), now_s),
                **{field: quantity(rng, field, now_s, calm=calm) for field in FIELDS},
            )
            for uuid in uuids
            if rng.random() < 0.95
        }
        outlets = {
            name: Reading(rng.uniform(0, 9000) if rng.random() < calm else rng.choice(ODD), now_s)
            for name in ("a", "b")
        }
        jobs = (JobSnapshot(id="job", gpus=(*uuids, "GPU-elsewhere"), ckpt_s=rng.choice((None, 5.0, math.nan))),)
        passes.append(Pass(NodeSnapshot(gpus=gpus, outlets=outlets, jobs=jobs if rng.random() < 0.5 else ()), now_s))
    return Scene(limits, passes)


def play(limits: Limits, passes: list[Pass]) -> list[tuple[PolicyState, Setpoints]]:
    """Decide pass after pass."""
    state = initial_state(limits)
    decisions = []
    for snapshot, now_s in passes:
        state, setpoints, _ = decide(state, snapshot, limits, now_s)
        decisions.append((state, setpoints))
    return decisions


def garbage(rng: random.Random, field: str, now_s: float) -> Reading[Any]:
    """A reading that no sensor of this kind can mean."""
    return Reading(rng.choice([value for value in ODD if not accept(field, value, 700.0)]), now_s)
