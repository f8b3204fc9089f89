"""One decision: readings in, setpoints out. Pure: same inputs, bit-identical outputs; no clock, no I/O, no chance.

The pass: screen every GPU's readings -> thermal command per GPU -> limits on sums -> the lowest wins -> slew -> ladder.
"""

from typing import Final

from msgspec import structs

from nodewarden.model.events import Event
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.setpoints import CapSetpoint, Cause, Forecast, Level, Setpoints
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden.policy import tell, thermal
from nodewarden.policy.arbiter import Demand, arbitrate
from nodewarden.policy.demands import HEAT, equalise, floor_w, own_demands, share_sums
from nodewarden.policy.escalate import escalate
from nodewarden.policy.observe import BARRING_BITS, Look, look
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import GpuState, OutletState, PolicyState
from nodewarden.policy.worst_case import power_or_limit_w

MOST_STEP_S: Final = 10.0
"""A gap between decisions longer than this (or a clock that goes back) counts as no time at all."""

MOST_RISE_S: Final = 2.0
"""At most this much of a gap counts for raising caps."""

ADOPTION_HOLD_S: Final = 10.0
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

    demands = own_demands(new, limits, looks, now_s)
    equalise(new, limits, snapshot, demands)
    budget = share_sums(new, snapshot, limits, looks, powers, demands, now_s, dt_s, events)

    caps: dict[str, CapSetpoint] = {}
    for uuid, bounds in limits.gpus.items():
        gpu = new.gpus[uuid]
        caps[uuid] = _slew(gpu, bounds, demands[uuid], looks[uuid], rises[uuid])
        tell.caps(gpu, caps[uuid], bounds, uuid, snapshot, dt_s, events)

    forecast = {uuid: _forecast(new.gpus[uuid], looks[uuid], limits.gpus[uuid], now_s) for uuid in limits.gpus}
    job = escalate(state, new, snapshot, limits, caps, forecast, looks, budget, dt_s, events)
    return new, Setpoints(caps=caps, job=job, level=Level(new.level), forecast=forecast), events


def _around_c(state: PolicyState, uuid: str) -> float | None:
    """Mean temperature of the other GPUs at the last decision; None for a GPU alone."""
    others = [gpu.junction_c for other, gpu in state.gpus.items() if other != uuid and gpu.sink_c is not None]
    return sum(others) / len(others) if others else None


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
    gpu.out_w = min(max(gpu.out_w, floor_w(bounds)), bounds.prior_w)
    gpu.command_w = min(max(gpu.command_w, floor_w(bounds)), bounds.prior_w)
    if gpu.adopted or seen.cap_w is None:
        return
    gpu.adopted, gpu.hold_s = True, 0.0
    found_w = max(seen.cap_w, floor_w(bounds))
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
        Event("cap_adopted", uuid, f"{snapshot.gpu_name(uuid)} was found capped at {found_w:.0f} W, kept for now")
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
        floor_w=floor_w(bounds),
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


def _slew(gpu: GpuState, bounds: GpuLimits, demands: list[Demand], seen: Look, rise_s: float) -> CapSetpoint:
    """The lowest demand, at once when it falls, at most 8 W/s when it rises, never up without a fresh temperature."""
    least_w = floor_w(bounds)
    wanted_w = min((d.w for d in demands), default=bounds.prior_w)
    wanted_w = min(max(wanted_w, least_w), bounds.prior_w)
    held = ""
    if wanted_w < gpu.out_w:
        gpu.out_w = wanted_w
    elif rise_s > 0:
        gpu.out_w = min(wanted_w, gpu.out_w + thermal.RISE_W_PER_S * rise_s)
    elif wanted_w > gpu.out_w:
        held = _why_held(gpu, seen)
    cap = arbitrate(demands, floor_w=least_w, prior_w=bounds.prior_w, out_w=gpu.out_w, last=gpu.cause, held=held)
    return structs.replace(cap, paced_by=gpu.paced_by) if gpu.paced_by is not None and cap.cause in HEAT else cap


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
