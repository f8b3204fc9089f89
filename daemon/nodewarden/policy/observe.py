"""One GPU's readings, screened: which are believed, how fresh, and how hot the GPU is relative to max-operating."""

from typing import Final, Literal, NamedTuple

from nodewarden.model.limits import DEGREES_FROM_C, GpuLimits
from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import GpuSnapshot, Number
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import Channel, GpuState
from nodewarden.policy.worst_case import is_fresh

HBM_MAX_OP_C: Final = 95.0
"""Max-operating of HBM on every board of this generation; believed only to bar a rise where the board does not say."""

HOT_BITS: Final = frozenset({"sw_thermal", "hw_thermal"})
BARRING_BITS: Final = HOT_BITS | {"hw_power_brake"}
_FROZEN_S: Final = 60.0
_FROZEN_POWER_W: Final = 100.0
_FROZEN_AROUND_C: Final = 4.0


class Look:
    """What one pass over a GPU's readings found.

    Attributes:
        rel_c: hottest believed reading relative to max-operating, None when there is none.
        taken_at_s: when it was true.
        fresh: a core temperature (or the board's margin) is recent enough to raise a cap on.
        answering: any quantity of this GPU is fresh, so the driver answers.
        power_w, cap_w, utilisation: fresh and believed, else None.
        bits: active slow-down reasons, empty where unknown.
        hbm_hot: HBM with an unstated limit is near the usual one: no rise.
        hbm_lost: HBM should answer and does not.
    """

    __slots__ = (
        "answering",
        "bits",
        "cap_w",
        "fresh",
        "hbm_hot",
        "hbm_lost",
        "power_w",
        "rejected",
        "rel_c",
        "taken_at_s",
        "utilisation",
    )

    def __init__(self) -> None:
        self.rel_c: float | None = None
        self.taken_at_s = 0.0
        self.fresh = False
        self.answering = False
        self.power_w: float | None = None
        self.cap_w: float | None = None
        self.utilisation: float | None = None
        self.bits: frozenset[str] = frozenset()
        self.hbm_hot = False
        self.hbm_lost = False
        self.rejected: tuple[str, ...] = ()


def _believed(field: str, quantity: Number, max_w: float, rejected: list[str]) -> tuple[float, float] | None:
    """Value and time of a plausible reading, else None; what is not plausible is noted."""
    if not isinstance(quantity, Reading):
        return None
    if not accept(field, quantity.value, max_w) or not accept("taken_at_s", quantity.taken_at_s):
        rejected.append(field)
        return None
    return quantity.value, quantity.taken_at_s


def max_op_c(limits: GpuLimits, state: GpuState | None = None) -> float | None:
    """Max-operating in degC, None where the board only speaks of margins and none was learnt."""
    if limits.max_op_c > DEGREES_FROM_C and accept("threshold_c", limits.max_op_c):
        return limits.max_op_c
    if limits.kind == "absolute":
        return 85.0  # the threshold reads as a marker: the lowest of the known boards
    return state.max_op_c if state is not None else None


def look(
    snapshot: GpuSnapshot | None, limits: GpuLimits, state: GpuState, now_s: float, around_c: float | None = None
) -> Look:
    """Screen one GPU's readings and update its channels in `state` (a private copy).

    `around_c` is how hot the other GPUs of the node are: a sensor that stands still while they move is frozen.
    """
    seen = Look()
    if snapshot is None:
        return seen
    rejected: list[str] = []
    power = _believed("power_w", snapshot.power_w, limits.max_w, rejected)
    if power is None:
        power = _believed("power_instant_w", snapshot.power_instant_w, limits.max_w, rejected)
    cap = _believed("cap_w", snapshot.cap_w, limits.max_w, rejected)
    used = _believed("utilisation", snapshot.utilisation, limits.max_w, rejected)
    core = _believed("junction_c", snapshot.junction_c, limits.max_w, rejected)
    hbm = _believed("hbm_c", snapshot.hbm_c, limits.max_w, rejected)
    margin = _believed("margin_c", snapshot.margin_c, limits.max_w, rejected)

    if power is not None and is_fresh(power[1], now_s):
        seen.power_w, seen.answering = power[0], True
    if cap is not None and is_fresh(cap[1], now_s):
        seen.cap_w, seen.answering = cap[0], True
        state.limit_in_force_w = cap[0]
    if used is not None and is_fresh(used[1], now_s):
        seen.utilisation, seen.answering = used[0], True
    slow = snapshot.slow
    if isinstance(slow, Reading) and isinstance(slow.value, tuple) and accept("taken_at_s", slow.taken_at_s):
        if is_fresh(slow.taken_at_s, now_s):
            seen.answering = True
            seen.bits = frozenset(bit for bit in slow.value if isinstance(bit, str))
    elif isinstance(slow, Reading):
        rejected.append("slow")

    if limits.kind == "tlimit" and margin and core and abs(margin[1] - core[1]) < 0.5:
        state.max_op_c = core[0] + margin[0]
    top_c = max_op_c(limits, state)
    core_rel = None if core is None or top_c is None else core[0] - top_c
    board_rel = None if margin is None or limits.kind != "tlimit" else -margin[0]
    hbm_rel = None
    if hbm is not None:
        if limits.hbm_max_op_c is not None and accept("threshold_c", limits.hbm_max_op_c):
            hbm_rel = hbm[0] - limits.hbm_max_op_c
        elif is_fresh(hbm[1], now_s):
            seen.hbm_hot = hbm[0] > HBM_MAX_OP_C - 2
    if hbm is not None and is_fresh(hbm[1], now_s):
        around_c = hbm[0]
    fresh_core = _update(state.core, core_rel, core, now_s, state.power_mean_w, around_c)
    fresh_board = _update(state.board, board_rel, margin, now_s, state.power_mean_w, around_c)
    fresh_hbm = _update(state.hbm, hbm_rel, hbm, now_s, state.power_mean_w, None)
    seen.answering |= fresh_core or fresh_board or fresh_hbm or (core is not None and is_fresh(core[1], now_s))
    seen.hbm_lost = not fresh_hbm and limits.hbm_max_op_c is not None and not isinstance(snapshot.hbm_c, Absent)
    # A channel that a board has and that is not fresh bars any rise, unless the other core channel speaks for it.
    seen.fresh = fresh_core or fresh_board
    for channel, is_new in ((state.core, fresh_core), (state.board, fresh_board), (state.hbm, fresh_hbm)):
        if channel.rel_c is None:
            continue
        if is_new:
            if seen.rel_c is None or channel.rel_c > seen.rel_c:
                seen.rel_c = channel.rel_c
            seen.taken_at_s = max(seen.taken_at_s, channel.taken_at_s)
    seen.rejected = tuple(rejected)
    return seen


def _update(
    channel: Channel,
    rel_c: float | None,
    reading: tuple[float, float] | None,
    now_s: float,
    power_w: float,
    around_c: float | None,
) -> bool:
    """Keep the newest believed value of one channel; True when it is fresh and moves as a live sensor does."""
    if rel_c is None or reading is None:
        return False
    taken_at_s = reading[1]
    if channel.rel_c is None or rel_c != channel.rel_c:
        channel.changed_at_s = taken_at_s
        channel.low_w = channel.high_w = power_w
        channel.low_c = channel.high_c = around_c
    channel.rel_c, channel.taken_at_s = rel_c, taken_at_s
    if not is_fresh(taken_at_s, now_s):
        return False
    channel.low_w, channel.high_w = min(channel.low_w, power_w), max(channel.high_w, power_w)
    if around_c is not None:
        channel.low_c = around_c if channel.low_c is None else min(channel.low_c, around_c)
        channel.high_c = around_c if channel.high_c is None else max(channel.high_c, around_c)
    if taken_at_s - channel.changed_at_s <= _FROZEN_S or channel.low_c is None or channel.high_c is None:
        return True
    # A minute on the same degree, while the mean power and the temperatures around it moved: a frozen sensor.
    moved = channel.high_w - channel.low_w > _FROZEN_POWER_W and channel.high_c - channel.low_c > _FROZEN_AROUND_C
    return not moved


class Margin(NamedTuple):
    """A margin in degrees, positive when safe, and what it was taken from: the nearest limit counts."""

    c: float
    source: Literal["tlimit", "junction", "hbm"]


def sourced_margins(gpu: GpuSnapshot, limits: GpuLimits) -> tuple[Margin | None, Margin | None]:
    """Margins to max-operating and to the hardware's slowdown, None when unknown.

    For people: the newest plausible readings, not aged. HBM counts for the first (its own limit) and has no slowdown.
    """
    core: list[Margin] = []
    margin, junction, hbm = gpu.margin_c, gpu.junction_c, gpu.hbm_c
    if limits.kind == "tlimit" and isinstance(margin, Reading) and accept("margin_c", margin.value):
        core.append(Margin(margin.value, "tlimit"))
    top_c = max_op_c(limits)
    if top_c is not None and isinstance(junction, Reading) and accept("junction_c", junction.value):
        core.append(Margin(top_c - junction.value, "junction"))
    to_max_op = list(core)
    if limits.hbm_max_op_c is not None and isinstance(hbm, Reading) and accept("hbm_c", hbm.value):
        to_max_op.append(Margin(limits.hbm_max_op_c - hbm.value, "hbm"))

    def nearest(found: list[Margin]) -> Margin | None:
        return min(found, key=lambda one: one.c, default=None)

    to_slowdown = nearest(core)
    if to_slowdown is not None:
        to_slowdown = to_slowdown._replace(c=to_slowdown.c + limits.slowdown_above_max_op_c)
    return nearest(to_max_op), to_slowdown


def margins(gpu: GpuSnapshot, limits: GpuLimits) -> tuple[float | None, float | None]:
    """The same without the sources."""
    to_max_op, to_slowdown = sourced_margins(gpu, limits)
    return to_max_op.c if to_max_op else None, to_slowdown.c if to_slowdown else None
