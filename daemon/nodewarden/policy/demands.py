"""What each cause asks of each GPU: heat, missing readings, people, the pace of a job, the limits on sums."""

from typing import Final

from nodewarden.model.events import Event
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.readings import Absent
from nodewarden.model.setpoints import PROTECTS, Cause, Protects
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden.policy import power_budget, tell, thermal
from nodewarden.policy.arbiter import Demand
from nodewarden.policy.observe import HOT_BITS, Look
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import GpuState, PolicyState

HEAT: Final = frozenset({Cause.THERMAL, Cause.STALE, Cause.FAILSAFE})
_NO_READING: Final = Absent("not_read")
_IDLE_S: Final = 30.0


class Budget:
    """What the limits on sums left: `near` one of them; the share of a limit that the floors leave (1 = they fit)."""

    __slots__ = ("near", "share")

    def __init__(self, *, near: bool, share: float) -> None:
        self.near = near
        self.share = share


def floor_w(bounds: GpuLimits) -> float:
    """Lowest cap in watts that the board takes; never above the limit found before."""
    return min(bounds.min_w, bounds.prior_w)


def own_demands(new: PolicyState, limits: Limits, looks: dict[str, Look], now_s: float) -> dict[str, list[Demand]]:
    """What heat, missing readings and people ask of each GPU on its own."""
    demands: dict[str, list[Demand]] = {}
    margin_c = limits.target_margin_c
    for uuid, bounds in limits.gpus.items():
        gpu, seen, mine = new.gpus[uuid], looks[uuid], []
        if gpu.command_w < bounds.prior_w:
            words = f"its margin is above {margin_c + thermal.DEAD_ZONE_C:.1f} °C"
            if seen.bits & HOT_BITS:
                words = f"the board no longer reports {', '.join(sorted(seen.bits & HOT_BITS))}"
            mine.append(Demand(Cause.THERMAL, gpu.command_w, words))
        if not seen.fresh:
            _stale_demands(gpu, seen, bounds, limits.failsafe_w, mine)
        manual = limits.manual.get(uuid)
        if manual is not None and accept("cap_w", manual.w) and (manual.expires_s is None or now_s < manual.expires_s):
            words = "released" if manual.expires_s is None else "released, or its time is over"
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
        mine.append(Demand(Cause.STALE, floor_w(bounds), words))
    elif gpu.blind_s > thermal.BLIND_DERATE_S:
        mine.append(Demand(Cause.STALE, 0.7 * bounds.prior_w, words))


def equalise(new: PolicyState, limits: Limits, snapshot: NodeSnapshot, demands: dict[str, list[Demand]]) -> None:
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
            if (heat := [demand for demand in demands[uuid] if demand.cause in HEAT])
        ]
        if not hottest:
            continue
        own, slowest = min(hottest, key=lambda entry: entry[0].w)
        pace_w = power_budget.equal_speed_w(max(own.w, floor_w(limits.gpus[slowest])))
        for uuid in members:
            if uuid != slowest and pace_w < limits.gpus[uuid].prior_w:
                slow = snapshot.gpu_name(slowest)
                if pace_w < min((d.w for d in demands[uuid]), default=pace_w + 1):
                    new.gpus[uuid].paced_by = slow
                demands[uuid].append(Demand(own.cause, pace_w, f"{slow}, the slowest of its job, is faster again"))


def share_sums(
    new: PolicyState,
    snapshot: NodeSnapshot,
    limits: Limits,
    looks: dict[str, Look],
    powers: dict[str, float],
    demands: dict[str, list[Demand]],
    now_s: float,
    dt_s: float,
    events: list[Event],
) -> Budget:
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
        if busy != highs:
            shares = power_budget.fill(allowed_w, shares, highs, weights)  # what the busy ones leave is the idle ones'
        for uuid, w, own_w in zip(limits.gpus, shares, highs, strict=True):
            if w < own_w - 0.01:
                demands[uuid].append(Demand(cause, w, _lifts(cause, name, limits)))
    tell.budgets(new, tuple(infeasible), pools, sum(lows), limits, demands, events)
    return Budget(near=near, share=share)


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
        least_w = floor_w(bounds)
        high_w = bounds.prior_w
        for demand in demands[uuid]:
            if PROTECTS[demand.cause] is not Protects.NONE:
                high_w = min(high_w, max(demand.w, least_w))
        low_w = least_w
        if not looks[uuid].answering and gpu.stalled_s > 3:
            # It cannot be told anything: it goes on with the limit in force, which others must not use.
            low_w = high_w = max(least_w, gpu.limit_in_force_w or bounds.prior_w)
        lows.append(low_w)
        busy.append(low_w if gpu.idle_s > _IDLE_S else high_w)
        highs.append(high_w)
        weights.append(max(bounds.max_w, 1.0))
    return lows, busy, highs, weights
