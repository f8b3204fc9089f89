"""What the ladder must know of this moment, and what the jobs are asked for in the end."""

from typing import Final

from nodewarden.model.events import Event
from nodewarden.model.limits import Limits
from nodewarden.model.setpoints import CapSetpoint, Cause, Forecast, JobSetpoint
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden.policy import ladder, tell, thermal
from nodewarden.policy.demands import HEAT, Budget, floor_w
from nodewarden.policy.observe import Look
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import PolicyState

_AUTOMATIC: Final = HEAT | {Cause.NODE_POWER, Cause.OUTLETS}


def escalate(
    old: PolicyState,
    new: PolicyState,
    snapshot: NodeSnapshot,
    limits: Limits,
    caps: dict[str, CapSetpoint],
    forecast: dict[str, Forecast],
    looks: dict[str, Look],
    budget: Budget,
    dt_s: float,
    events: list[Event],
) -> JobSetpoint:
    """Collect what the ladder must know, climb it, and say what the jobs are asked for."""
    notify, capping, hung, rising, hot_at_floor = budget.near, False, False, False, False
    lowest, share, room, floor_time_s, worst = 1.0, 1.0, 1.0, None, None
    for uuid, bounds in limits.gpus.items():
        gpu, cap, seen = new.gpus[uuid], caps[uuid], looks[uuid]
        ahead = forecast[uuid]
        margin_c = ahead.margin_to_max_op_c
        time_s = ahead.time_to_slowdown_s
        notify |= (margin_c is not None and margin_c < ladder.NOTIFY_MARGIN_C) or (
            time_s is not None and time_s < ladder.NOTIFY_TIME_S
        )
        notify |= gpu.blind_s > thermal.BLIND_DERATE_S and gpu.sink_c is not None
        hung |= gpu.stalled_s > thermal.BLIND_DERATE_S and gpu.sink_c is not None and not _is_gone(snapshot, uuid)
        if cap.cause in _AUTOMATIC:
            capping = True
            part = cap.w / bounds.prior_w
            if part < lowest:
                lowest, worst = part, uuid
        if cap.cause in HEAT:
            share = min(share, part)
            span_w = bounds.prior_w - floor_w(bounds)
            room = min(room, (cap.w - floor_w(bounds)) / span_w if span_w > 0 else 1.0)
            rising |= gpu.rise_c_per_s > 0.02 and gpu.junction_c > -limits.target_margin_c - 1
        if gpu.sink_c is None or not seen.fresh:
            continue
        at_floor = cap.w <= 1.05 * floor_w(bounds)
        hot_at_floor |= at_floor and gpu.junction_c > -limits.target_margin_c + 1
        left_s = thermal.floor_time_s(gpu, bounds.slowdown_above_max_op_c, floor_w(bounds))
        if left_s is not None and (floor_time_s is None or left_s < floor_time_s):
            floor_time_s, worst = left_s, uuid

    saves_s = [
        job.ckpt_s if job.ckpt_s is not None and accept("ckpt_s", job.ckpt_s) else ladder.CHECKPOINT_DEFAULT_S
        for job in snapshot.jobs
    ]
    since_s = new.checkpoint_since_s
    if since_s is not None and snapshot.jobs and not new.checkpoint_done:
        new.checkpoint_done = all(
            job.last_checkpoint_at_s is not None and job.last_checkpoint_at_s >= since_s for job in snapshot.jobs
        )
    checkpoint_s = max(saves_s, default=None)
    found = ladder.Findings(
        notify=notify,
        capping=capping,
        lowest=lowest,
        share=share * new.job_duty,
        room=room,
        hot_at_floor=hot_at_floor,
        rising=rising,
        floor_time_s=floor_time_s,
        hung=hung,
        feed_lost=any(outlet.lost for outlet in new.outlets.values()),
        infeasible=budget.share,
    )
    ladder.climb(new, found, checkpoint_s=checkpoint_s, dt_s=dt_s)
    asked = new.checkpoint_since_s is not None and not new.checkpoint_done and checkpoint_s is not None
    deadline_s = None
    if asked and checkpoint_s is not None:
        deadline_s = max(checkpoint_s, 2 * checkpoint_s if floor_time_s is None else floor_time_s - 2)
    cause = _job_cause(found, caps, worst)
    tell.level(old, new, found, checkpoint_s, deadline_s, worst, snapshot, events)
    if new.job_duty >= 1.0 and not asked:
        return JobSetpoint()
    return JobSetpoint(
        duty=new.job_duty, request="checkpoint" if asked else "none", deadline_s=deadline_s, cause=cause, gpu=worst
    )


def _is_gone(snapshot: NodeSnapshot, uuid: str) -> bool:
    """True for a GPU that is known to be lost, or was released for a reset: it computes nothing that could be saved."""
    gpu = snapshot.gpus.get(uuid)
    return gpu is not None and gpu.health in {"lost", "absent", "released"}


def _job_cause(found: ladder.Findings, caps: dict[str, CapSetpoint], worst: str | None) -> Cause:
    if found.floor_time_s is not None:
        return Cause.THERMAL
    if found.hung:
        return Cause.STALE
    if found.feed_lost:
        return Cause.OUTLETS
    return caps[worst].cause if worst is not None else Cause.THERMAL
