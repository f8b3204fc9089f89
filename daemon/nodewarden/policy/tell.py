"""What the policy says about its decisions: events on edges only, in plain words with numbers."""

from typing import Final

from nodewarden.model.events import Event
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.setpoints import CapSetpoint, Cause, Level
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden.policy.arbiter import Demand
from nodewarden.policy.ladder import Findings, can_finish
from nodewarden.policy.observe import Look
from nodewarden.policy.state import GpuState, OutletState, PolicyState

CAUSE_SETTLES_S: Final = 10.0
"""A cap whose cause changes is told again only when the new cause has lasted."""

BEFORE_S: Final = 60.0
"""What cooling removed before a cap is its mean over about this long."""

_SUMS: Final = frozenset({Cause.NODE_POWER, Cause.OUTLETS})


def rejections(
    new: PolicyState, gpu: GpuState, seen: Look, uuid: str, snapshot: NodeSnapshot, events: list[Event]
) -> None:
    """Count what was not believed, and tell when a field starts to say such things."""
    for field in seen.rejected:
        new.rejected[field] = new.rejected.get(field, 0) + 1
        if field not in gpu.rejected:
            events.append(
                Event("reading_rejected", uuid, f"{snapshot.gpu_name(uuid)}: {field} is not plausible, it is not used")
            )
    gpu.rejected = seen.rejected


def _why(gpu: GpuState, cap: CapSetpoint) -> str:
    if cap.paced_by is not None:
        return f"kept at the pace of {cap.paced_by}, the slowest GPU of its job"
    match cap.cause:
        case Cause.THERMAL:
            margin = f"margin {-gpu.junction_c:.1f} °C" if gpu.sink_c is not None else "margin unknown"
            if gpu.sink_c is None:
                return margin
            before_w = gpu.removed_before_w
            was = f", was {before_w:.0f} W" if before_w is not None and before_w - gpu.removed_w >= 10 else ""
            return f"cooling removes {gpu.removed_w:.0f} W{was}; {margin}"
        case Cause.NODE_POWER:
            return "its share of the node's power limit"
        case Cause.OUTLETS:
            return "its share of the outlets' power limit"
        case Cause.STALE:
            return f"no fresh temperature for {gpu.blind_s:.0f} s"
        case Cause.FAILSAFE:
            return f"fail-safe, no temperature for {gpu.blind_s:.0f} s"
        case Cause.LEASE:
            return "a lease"
        case _:
            return "a person asked for it"


def caps(
    gpu: GpuState,
    cap: CapSetpoint,
    bounds: GpuLimits,
    uuid: str,
    snapshot: NodeSnapshot,
    dt_s: float,
    events: list[Event],
) -> None:
    """Tell that a GPU is capped, is no longer, or is so for another cause; keeps the cause in `gpu`."""
    gpu.cause_s = gpu.cause_s + dt_s if cap.cause is gpu.cause else 0.0
    gpu.cause = cap.cause
    if cap.cause is Cause.NONE:
        if gpu.told_cause is not Cause.NONE:
            events.append(Event("gpu_uncapped", uuid, f"{snapshot.gpu_name(uuid)} is back at {bounds.prior_w:.0f} W"))
            gpu.told_cause = Cause.NONE
        if gpu.sink_c is not None:
            before_w = gpu.removed_w if gpu.removed_before_w is None else gpu.removed_before_w
            gpu.removed_before_w = before_w + min(1.0, dt_s / BEFORE_S) * (gpu.removed_w - before_w)
    elif gpu.told_cause is Cause.NONE or (cap.cause is not gpu.told_cause and gpu.cause_s >= CAUSE_SETTLES_S):
        gpu.told_cause = cap.cause
        events.append(Event("gpu_capped", uuid, f"{snapshot.gpu_name(uuid)} capped at {cap.w:.0f} W: {_why(gpu, cap)}"))


def outlet(
    new: PolicyState,
    outlet: OutletState,
    name: str,
    limit_w: float,
    was: tuple[bool, bool],
    *,
    refused: bool,
    events: list[Event],
) -> None:
    """Tell when the readings of a limit on outlets go stale or come back, and when a feed loses its load."""
    if refused:
        new.rejected["outlets_w"] = new.rejected.get("outlets_w", 0) + 1
    if outlet.stale and not was[0]:
        events.append(Event("outlets_stale", None, f"{name}: no outlet power any more, a growing reserve is kept"))
    elif was[0] and not outlet.stale:
        events.append(Event("outlets_back", None, f"{name}: outlet power is read again ({outlet.value_w:.0f} W)"))
    if outlet.lost and not was[1]:
        events.append(
            Event("feed_lost", None, f"{name}: outlets carry {outlet.value_w:.0f} W, they carried load before")
        )
    elif was[1] and not outlet.lost:
        events.append(
            Event("feed_back", None, f"{name}: outlets carry {outlet.value_w:.0f} W of {limit_w:.0f} W again")
        )


def budgets(
    new: PolicyState,
    infeasible: tuple[str, ...],
    pools: list[tuple[Cause, str, float]],
    floors_w: float,
    limits: Limits,
    demands: dict[str, list[Demand]],
    events: list[Event],
) -> None:
    """Tell when a limit on a sum starts or stops to bind, and when the lowest caps do not fit into it."""
    limited = any(demand.cause in _SUMS for mine in demands.values() for demand in mine)
    for _, pool, allowed_w in pools:
        if pool in infeasible and pool not in new.infeasible:
            text = f"{pool} leaves {allowed_w:.0f} W for the GPUs, their lowest caps need {floors_w:.0f} W"
            events.append(Event("budget_infeasible", None, text))
    events.extend(
        Event("budget_feasible", None, f"{pool}: the lowest caps fit again")
        for pool in new.infeasible
        if pool not in infeasible
    )
    if limited and not new.budget_limited:
        least = min(pools, key=lambda entry: entry[2])
        text = f"{len(limits.gpus)} GPUs share {least[2]:.0f} W ({least[1]})"
        events.append(Event("budget_limited", None, text))
    elif new.budget_limited and not limited:
        events.append(Event("budget_free", None, "no limit on a sum of GPUs binds any more"))
    new.infeasible, new.budget_limited = infeasible, limited


def level(
    old: PolicyState,
    new: PolicyState,
    found: Findings,
    checkpoint_s: float | None,
    deadline_s: float | None,
    worst: str | None,
    snapshot: NodeSnapshot,
    events: list[Event],
) -> None:
    """Tell steps of the ladder, and what became of the wish for a checkpoint."""
    if new.level != old.level:
        code = "ladder_raised" if new.level > old.level else "ladder_lowered"
        words = f"{Level(new.level).name.lower()} ({new.level}), was {Level(old.level).name.lower()} ({old.level})"
        events.append(Event(code, worst, f"ladder at {words}: {_reason(found, worst, snapshot)}"))
    if old.checkpoint_since_s is None and new.checkpoint_since_s is not None:
        until = f"within {deadline_s:.0f} s" if deadline_s is not None else "soon"
        events.append(
            Event("checkpoint_wanted", worst, f"jobs are asked to save {until}: {_reason(found, worst, snapshot)}")
        )
    if not old.checkpoint_done and new.checkpoint_done:
        events.append(Event("checkpoint_done", None, "all jobs have saved"))
    short = (
        new.level >= Level.CHECKPOINT
        and new.checkpoint_since_s is None
        and not new.checkpoint_done
        and checkpoint_s is not None
        and not can_finish(found.floor_time_s, checkpoint_s)
    )
    if short and not old.checkpoint_told and found.floor_time_s is not None and checkpoint_s is not None:
        text = f"a save takes {checkpoint_s:.0f} s, slowdown is {found.floor_time_s:.0f} s away: none is asked for"
        events.append(Event("checkpoint_impossible", worst, text))
    new.checkpoint_told = short


def _reason(found: Findings, worst: str | None, snapshot: NodeSnapshot) -> str:
    who = snapshot.gpu_name(worst) if worst is not None else "the node"
    if found.floor_time_s is not None:
        return f"{who} reaches slowdown in {found.floor_time_s:.0f} s even at its lowest cap"
    if found.hung:
        return "GPUs do not answer, their heat is unknown"
    if found.feed_lost:
        return "a feed lost its load"
    if found.infeasible < 1:
        return "the lowest caps do not fit into a power limit"
    if found.capping:
        return f"the lowest cap is at {100 * found.lowest:.0f} % ({who})"
    return "a limit is near" if found.notify else "nothing is near a limit"
