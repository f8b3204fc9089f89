"""One decision: readings in, setpoints out. Pure: same inputs, bit-identical outputs; no clock, no I/O, no chance.

The pass: screen every GPU's readings -> thermal command per GPU -> limits on sums -> the lowest wins -> slew -> ladder.
"""

from typing import Final

from nodewarden.model.events import Event
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.readings import Absent
from nodewarden.model.setpoints import PROTECTS, CapSetpoint, Cause, Forecast, JobSetpoint, Level, Protects, Setpoints
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden.policy import ladder, power_budget, tell, thermal
from nodewarden.policy.arbiter import Demand, arbitrate
from nodewarden.policy.observe import BARRING_BITS, HOT_BITS, Look, look
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import GpuState, OutletState, PolicyState
from nodewarden.policy.worst_case import power_or_limit_w

MOST_STEP_S: Final = 10.0
"""A gap between decisions longer than this (or a clock that goes back) counts as no time at all."""

MOST_RISE_S: Final = 2.0
"""At most this much of a gap counts for raising caps."""

ADOPTION_HOLD_S: Final = 10.0
_IDLE_S: Final = 30.0
_FAR_S: Final = 600.0


def initial_state(limits: Limits) -> PolicyState:
    """The memory of a policy that has decided nothing yet: caps are adopted from the first readings."""
    return PolicyState(
        gpus={uuid: _new_gpu(gpu) for uuid, gpu in limits.gpus.items()},
        outlets={name: OutletState() for name in limits.outlets},
    )


def _new_gpu(limits: GpuLimits) -> GpuState:
    return GpuState(command_w=limits.prior_w, out_w=limits.prior_w)


def decide(
    state: PolicyState, snapshot: NodeSnapshot, limits: Limits, now_s: float
) -> tuple[PolicyState, Setpoints, list[Event]]:
    """Decide what is asked of hardware and jobs.

    Args:
        state: from `initial_state` or the last decision; not changed.
        snapshot: the newest readings; nothing in it is trusted before it passed the plausibility limits.
        limits: what must not be passed. Every GPU in it gets a setpoint.
        now_s: CLOCK_BOOTTIME seconds.

    Returns:
        The new state, the setpoints, and what happened (edges only).
    """
    new = state.copied()
    if not accept("now_s", now_s):
        now_s = state.now_s if state.now_s is not None else 0.0
    gap_s = 0.0 if state.now_s is None else now_s - state.now_s
    dt_s = gap_s if 0 < gap_s <= MOST_STEP_S else 0.0
    new.now_s = now_s
    new.gpus = {uuid: new.gpus.get(uuid) or _new_gpu(gpu) for uuid, gpu in limits.gpus.items()}
    new.outlets = {name: new.outlets.get(name) or OutletState() for name in limits.outlets}
    events: list[Event] = []

    looks: dict[str, Look] = {}
    powers: dict[str, float] = {}
    rises: dict[str, float] = {}
    for uuid, bounds in limits.gpus.items():
        gpu = new.gpus[uuid]
        seen = look(snapshot.gpus.get(uuid), bounds, gpu, now_s, _around_c(state, uuid))
        looks[uuid] = seen
        _adopt(gpu, seen, bounds, limits, uuid, snapshot, now_s, events)
        powers[uuid], rises[uuid] = _heat(gpu, seen, bounds, limits.target_margin_c, now_s, dt_s)
        tell.rejections(new, gpu, seen, uuid, snapshot, events)

    demands = _own_demands(new, limits, looks, now_s)
    _equalise(new, limits, snapshot, demands)
    budget = _share(new, snapshot, limits, looks, powers, demands, now_s, dt_s, events)

    caps: dict[str, CapSetpoint] = {}
    for uuid, bounds in limits.gpus.items():
        gpu = new.gpus[uuid]
        caps[uuid] = _slew(gpu, bounds, demands[uuid], looks[uuid], rises[uuid])
        tell.caps(gpu, caps[uuid], bounds, uuid, snapshot, dt_s, events)

    forecast = {uuid: _forecast(new.gpus[uuid], looks[uuid], limits.gpus[uuid], now_s) for uuid in limits.gpus}
    job = _ladder(state, new, snapshot, limits, caps, forecast, looks, budget, dt_s, events)
    return new, Setpoints(caps=caps, job=job, level=Level(new.level), forecast=forecast), events


def _around_c(state: PolicyState, uuid: str) -> float | None:
    """Mean temperature of the other GPUs at the last decision; None for a GPU alone."""
    others = [gpu.junction_c for other, gpu in state.gpus.items() if other != uuid and gpu.sink_c is not None]
    return sum(others) / len(others) if others else None


def _floor_w(bounds: GpuLimits) -> float:
    return min(bounds.min_w, bounds.prior_w)


def _adopt(
    gpu: GpuState,
    seen: Look,
    bounds: GpuLimits,
    limits: Limits,
    uuid: str,
    snapshot: NodeSnapshot,
    now_s: float,
    events: list[Event],
) -> None:
    """Start from the cap that is in force when it is first seen: a predecessor had its reasons."""
    gpu.out_w = min(max(gpu.out_w, _floor_w(bounds)), bounds.prior_w)
    gpu.command_w = min(max(gpu.command_w, _floor_w(bounds)), bounds.prior_w)
    if gpu.adopted or seen.cap_w is None:
        return
    gpu.adopted, gpu.hold_s = True, 0.0
    found_w = max(seen.cap_w, _floor_w(bounds))
    if found_w >= min(gpu.out_w, bounds.prior_w) - 0.5:
        return
    gpu.out_w = found_w
    manual = limits.manual.get(uuid)
    if manual is not None and (manual.expires_s is None or now_s < manual.expires_s) and abs(manual.w - found_w) <= 1:
        gpu.cause = Cause(manual.cause)
    else:
        gpu.command_w = min(gpu.command_w, found_w)
        gpu.cause = Cause.THERMAL
    events.append(
        Event("cap_adopted", uuid, f"{tell.name(uuid, snapshot)} was found capped at {found_w:.0f} W, kept for now")
    )


def _heat(
    gpu: GpuState, seen: Look, bounds: GpuLimits, target_margin_c: float, now_s: float, dt_s: float
) -> tuple[float, float]:
    """One GPU's thermal command. Returns its power in watts and the seconds that it may rise."""
    in_force_w = seen.cap_w if seen.cap_w is not None else min(gpu.limit_in_force_w or gpu.out_w, bounds.max_w)
    power_w = power_or_limit_w(seen.power_w, in_force_w)
    gpu.power_mean_w = (
        power_w if not gpu.power_seen else gpu.power_mean_w + min(1.0, dt_s / 20) * (power_w - gpu.power_mean_w)
    )
    gpu.power_seen = True
    if seen.power_w is not None and in_force_w > 0 and power_w > 0.4 * in_force_w:
        gpu.duty += min(1.0, 0.1 * dt_s) * (min(max(power_w / in_force_w, 0.5), 1.0) - gpu.duty)
    gpu.hold_s += dt_s
    gpu.blind_s = 0.0 if seen.fresh else gpu.blind_s + dt_s
    gpu.stalled_s = 0.0 if seen.answering else gpu.stalled_s + dt_s
    idle = seen.power_w is not None and seen.power_w < 0.4 * bounds.prior_w and seen.utilisation is not None
    gpu.idle_s = gpu.idle_s + dt_s if idle and (seen.utilisation or 0.0) < 0.05 else 0.0

    barred = bool(seen.bits & BARRING_BITS) or seen.hbm_hot or gpu.hold_s < ADOPTION_HOLD_S
    rise_s = 0.0 if barred else min(dt_s, MOST_RISE_S)
    target_c = -max(0.0, target_margin_c) - (2.0 if seen.hbm_lost else 0.0)
    believed = thermal.step(
        gpu,
        seen,
        target_c=target_c,
        slowdown_c=bounds.slowdown_above_max_op_c,
        power_w=power_w,
        in_force_w=in_force_w,
        floor_w=_floor_w(bounds),
        prior_w=bounds.prior_w,
        dt_s=dt_s,
        rise_s=rise_s,
        age_s=_age_s(gpu, now_s),
    )
    return power_w, rise_s if believed else 0.0


def _age_s(gpu: GpuState, now_s: float) -> float:
    """Age of the newest believed temperature; the time spent blind where the clock cannot tell."""
    times = [c.taken_at_s for c in (gpu.core, gpu.board) if c.rel_c is not None]
    if not times:
        return gpu.blind_s
    return max(gpu.blind_s, min(now_s - max(times), gpu.blind_s + MOST_STEP_S))


def _own_demands(new: PolicyState, limits: Limits, looks: dict[str, Look], now_s: float) -> dict[str, list[Demand]]:
    """What heat, missing readings and people ask of each GPU on its own."""
    demands: dict[str, list[Demand]] = {}
    margin_c = limits.target_margin_c
    for uuid, bounds in limits.gpus.items():
        gpu, seen, mine = new.gpus[uuid], looks[uuid], []
        if gpu.command_w < bounds.prior_w:
            words = f"margin > {margin_c + thermal.DEAD_ZONE_C:.1f} degC"
            if seen.bits & HOT_BITS:
                words = f"when the board no longer reports {', '.join(sorted(seen.bits & HOT_BITS))}"
            mine.append(Demand(Cause.THERMAL, gpu.command_w, words))
        if not seen.fresh:
            _stale_demands(gpu, seen, bounds, limits.failsafe_w, mine)
        manual = limits.manual.get(uuid)
        if manual is not None and accept("cap_w", manual.w) and (manual.expires_s is None or now_s < manual.expires_s):
            words = "it is released" if manual.expires_s is None else "its time is over, or when it is released"
            mine.append(Demand(Cause(manual.cause), manual.w, words, manual.expires_s))
        demands[uuid] = mine
    return demands


def _stale_demands(gpu: GpuState, seen: Look, bounds: GpuLimits, failsafe_w: float | None, mine: list[Demand]) -> None:
    """A GPU that answers without a temperature is derated; one that does not answer at all keeps its cap."""
    words = "a fresh temperature"
    if failsafe_w is not None and accept("cap_w", failsafe_w) and gpu.blind_s > thermal.BLIND_FLOOR_S:
        mine.append(Demand(Cause.FAILSAFE, failsafe_w, words))
    if gpu.sink_c is None or not seen.answering:
        return
    if gpu.blind_s > thermal.BLIND_FLOOR_S:
        mine.append(Demand(Cause.STALE, _floor_w(bounds), words))
    elif gpu.blind_s > thermal.BLIND_DERATE_S:
        mine.append(Demand(Cause.STALE, 0.7 * bounds.prior_w, words))


def _equalise(new: PolicyState, limits: Limits, snapshot: NodeSnapshot, demands: dict[str, list[Demand]]) -> None:
    """Give all GPUs of one job the pace of its slowest: watts above that heat the node and finish nothing earlier."""
    for gpu in new.gpus.values():
        gpu.paced_by = None
    for job in snapshot.jobs:
        members = [uuid for uuid in job.gpus if uuid in limits.gpus]
        if len(members) < 2:
            continue
        hottest = [
            (min(heat, key=lambda demand: demand.w), uuid)
            for uuid in members
            if (heat := [demand for demand in demands[uuid] if demand.cause in _HEAT])
        ]
        if not hottest:
            continue
        own, slowest = min(hottest, key=lambda entry: entry[0].w)
        pace_w = power_budget.equal_speed_w(max(own.w, _floor_w(limits.gpus[slowest])))
        for uuid in members:
            if uuid != slowest and pace_w < limits.gpus[uuid].prior_w:
                slow = tell.name(slowest, snapshot)
                if pace_w < min((d.w for d in demands[uuid]), default=pace_w + 1):
                    new.gpus[uuid].paced_by = slow
                demands[uuid].append(Demand(own.cause, pace_w, f"{slow}, the slowest of its job, is faster again"))


def _share(
    new: PolicyState,
    snapshot: NodeSnapshot,
    limits: Limits,
    looks: dict[str, Look],
    powers: dict[str, float],
    demands: dict[str, list[Demand]],
    now_s: float,
    dt_s: float,
    events: list[Event],
) -> "Budget":
    """Divide what the node's and the outlets' limits allow; adds the demands of both."""
    sum_w = sum(powers.values())
    mean_w = sum_w if new.sum_mean_w is None else new.sum_mean_w + min(1.0, dt_s / 10) * (sum_w - new.sum_mean_w)
    new.sum_mean_w = mean_w
    new.history = power_budget.remember(new.history, now_s, sum_w)
    measured = all(looks[uuid].power_w is not None for uuid in limits.gpus)
    pools: list[tuple[Cause, str, float]] = []
    near = False
    node_w = limits.node_power_w
    if node_w is not None:
        told_w = sum(looks[uuid].cap_w or limits.gpus[uuid].max_w for uuid in limits.gpus)
        new.settled_s = new.settled_s + dt_s if measured and told_w <= node_w + len(limits.gpus) else 0.0
        if new.settled_s > power_budget.SETTLED_S:
            new.trim_w = power_budget.trimmed(new.trim_w, mean_w, node_w, dt_s)
        pools.append((Cause.NODE_POWER, "node_power_w", node_w - new.trim_w))
        near = mean_w > 0.9 * node_w
    for name, limit_w in limits.outlets.items():
        outlet = new.outlets[name]
        was = (outlet.stale, outlet.lost)
        refused = power_budget.learn(
            outlet, snapshot.outlets.get(name, _NO_READING), limit_w, new.history, len(limits.outlets)
        )
        outlet.stale = outlet.taken_at_s is not None and now_s - outlet.taken_at_s > power_budget.PDU_STALE_S
        tell.outlet(new, outlet, name, limit_w, was, refused=refused, events=events)
        allowed_w = power_budget.outlet_budget_w(outlet, limit_w, now_s)
        if allowed_w is not None:
            pools.append((Cause.OUTLETS, name, allowed_w))
            near = near or outlet.value_w > 0.9 * limit_w

    lows, busy, highs, weights = _ranges(new, limits, looks, demands)
    infeasible: list[str] = []
    share = 1.0
    for cause, name, allowed_w in pools:
        floors_w = sum(lows)
        if floors_w > allowed_w + 0.5:
            infeasible.append(name)
            share = min(share, max(0.0, allowed_w) / floors_w)
        shares = power_budget.fill(allowed_w, lows, busy, weights)
        shares = power_budget.fill(allowed_w, shares, highs, weights)  # what the busy ones leave is the idle ones'
        for uuid, w, own_w in zip(limits.gpus, shares, highs, strict=True):
            if w < own_w - 0.01:
                demands[uuid].append(Demand(cause, w, _lifts(cause, name, limits)))
    tell.budgets(new, tuple(infeasible), pools, sum(lows), limits, demands, events)
    return Budget(near=near, share=share)


class Budget:
    """What the limits on sums left: `near` one of them; the share of a limit that the floors leave (1 = they fit)."""

    __slots__ = ("near", "share")

    def __init__(self, *, near: bool, share: float) -> None:
        self.near = near
        self.share = share


def _lifts(cause: Cause, name: str, limits: Limits) -> str:
    if cause is Cause.NODE_POWER:
        return f"the other GPUs need less of the node's {limits.node_power_w:.0f} W, or the limit is raised"
    return f"the outlets of {name} carry less, or their limit of {limits.outlets[name]:.0f} W is raised"


def _ranges(
    new: PolicyState, limits: Limits, looks: dict[str, Look], demands: dict[str, list[Demand]]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Per GPU of a limit on sums: the least it takes, the most that it has a use for and that it may have, its weight.

    What a person takes from one GPU is not given to others: it must be free again when the manual cap ends.
    """
    lows: list[float] = []
    busy: list[float] = []
    highs: list[float] = []
    weights: list[float] = []
    for uuid, bounds in limits.gpus.items():
        gpu = new.gpus[uuid]
        floor_w = _floor_w(bounds)
        high_w = bounds.prior_w
        for demand in demands[uuid]:
            if PROTECTS[demand.cause] is not Protects.NONE:
                high_w = min(high_w, max(demand.w, floor_w))
        low_w = floor_w
        if not looks[uuid].answering and gpu.stalled_s > 3:
            # It cannot be told anything: it goes on with the limit in force, which others must not use.
            low_w = high_w = max(floor_w, gpu.limit_in_force_w or bounds.prior_w)
        lows.append(low_w)
        busy.append(low_w if gpu.idle_s > _IDLE_S else high_w)
        highs.append(high_w)
        weights.append(max(bounds.max_w, 1.0))
    return lows, busy, highs, weights


def _slew(gpu: GpuState, bounds: GpuLimits, demands: list[Demand], seen: Look, rise_s: float) -> CapSetpoint:
    """The lowest demand, at once when it falls, at most 8 W/s when it rises, never up without a fresh temperature."""
    floor_w = _floor_w(bounds)
    wanted_w = min((d.w for d in demands), default=bounds.prior_w)
    wanted_w = min(max(wanted_w, floor_w), bounds.prior_w)
    held = ""
    if wanted_w < gpu.out_w:
        gpu.out_w = wanted_w
    elif rise_s > 0:
        gpu.out_w = min(wanted_w, gpu.out_w + thermal.RISE_W_PER_S * rise_s)
    elif wanted_w > gpu.out_w:
        held = _why_held(gpu, seen)
    return arbitrate(demands, floor_w=floor_w, prior_w=bounds.prior_w, out_w=gpu.out_w, last=gpu.cause, held=held)


def _why_held(gpu: GpuState, seen: Look) -> str:
    if not seen.fresh:
        return "a fresh temperature"
    if seen.bits & BARRING_BITS:
        return f"the board no longer reports {', '.join(sorted(seen.bits & BARRING_BITS))}"
    if gpu.hold_s < ADOPTION_HOLD_S:
        return "found in force; rises when it has been watched for 10 s"
    return "plausible temperatures"


def _forecast(gpu: GpuState, seen: Look, bounds: GpuLimits, now_s: float) -> Forecast:
    """Where this GPU is heading, from the observer; nothing is said without a temperature."""
    if gpu.sink_c is None:
        return Forecast()
    above_c = bounds.slowdown_above_max_op_c
    rel_c = seen.rel_c
    if rel_c is None:
        rel_c = gpu.junction_c + 0.7 * min(_age_s(gpu, now_s), 10.0)
    return Forecast(
        margin_to_max_op_c=-rel_c,
        margin_to_slowdown_c=above_c - rel_c,
        time_to_max_op_s=_time_to(-gpu.junction_c, gpu.rise_c_per_s),
        time_to_slowdown_s=_time_to(above_c - gpu.junction_c, gpu.rise_c_per_s),
    )


def _time_to(distance_c: float, rise_c_per_s: float) -> float | None:
    if distance_c <= 0:
        return 0.0
    if rise_c_per_s <= 0.02:
        return None
    time_s = distance_c / rise_c_per_s
    return time_s if time_s <= _FAR_S else None


def _ladder(
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
        hung |= gpu.stalled_s > thermal.BLIND_DERATE_S and gpu.sink_c is not None
        if cap.cause in _AUTOMATIC:
            capping = True
            part = cap.w / bounds.prior_w
            if part < lowest:
                lowest, worst = part, uuid
        if cap.cause in _HEAT:
            share = min(share, part)
            span_w = bounds.prior_w - _floor_w(bounds)
            room = min(room, (cap.w - _floor_w(bounds)) / span_w if span_w > 0 else 1.0)
            rising |= gpu.rise_c_per_s > 0.02 and gpu.junction_c > -limits.target_margin_c - 1
        if gpu.sink_c is None or not seen.fresh:
            continue
        at_floor = cap.w <= 1.05 * _floor_w(bounds)
        hot_at_floor |= at_floor and gpu.junction_c > -limits.target_margin_c + 1
        left_s = thermal.floor_time_s(gpu, bounds.slowdown_above_max_op_c, _floor_w(bounds))
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


def _job_cause(found: ladder.Findings, caps: dict[str, CapSetpoint], worst: str | None) -> Cause:
    if found.floor_time_s is not None:
        return Cause.THERMAL
    if found.hung:
        return Cause.STALE
    if found.feed_lost:
        return Cause.OUTLETS
    return caps[worst].cause if worst is not None else Cause.THERMAL


_AUTOMATIC: Final = frozenset({Cause.THERMAL, Cause.NODE_POWER, Cause.OUTLETS, Cause.STALE, Cause.FAILSAFE})
_HEAT: Final = frozenset({Cause.THERMAL, Cause.STALE, Cause.FAILSAFE})
_NO_READING: Final = Absent("not_read")
