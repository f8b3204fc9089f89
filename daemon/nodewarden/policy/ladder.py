"""The ladder: one level per node, the highest that any cause demands; entered at once, left slowly, one by one.

0 normal -> 1 notify -> 2 cap -> 3 throttle -> 4 checkpoint
   <- 30 s      <- 60 s     <- 60 s       <- 120 s calm
"""

from typing import Final, NamedTuple

from nodewarden.model.setpoints import Level
from nodewarden.policy.state import PolicyState

DWELL_S: Final = {
    Level.NOTIFY: 30.0,
    Level.CAP: 60.0,
    Level.THROTTLE: 60.0,
    Level.CHECKPOINT: 120.0,
    Level.PAUSE: 60.0,
    Level.DRAIN: 60.0,
}
STEP_DOWN_S: Final = 5.0
NOTIFY_MARGIN_C: Final = 7.0
NOTIFY_TIME_S: Final = 120.0
THROTTLE_BELOW: Final = 0.70
THROTTLE_LEAVE: Final = 0.75
THROTTLE_AFTER_S: Final = 10.0
CHECKPOINT_AFTER_S: Final = 120.0
SPENT_ROOM: Final = 0.1
SPENT_S: Final = 5.0
CHECKPOINT_ACK_S: Final = 2.0
CHECKPOINT_DEFAULT_S: Final = 60.0
DUTY_RISE_PER_S: Final = 0.005
GENTLE_DUTY: Final = 0.95
FLOOR_DUTY: Final = 0.8
LOWEST_DUTY: Final = 0.5
GENTLE_SHARE: Final = 0.5


class Findings(NamedTuple):
    """What the ladder is told about this moment, the worst over all GPUs.

    Attributes:
        notify: a margin, a forecast or a budget is near, or readings are missing.
        capping: an automatic cap is in force.
        lowest: lowest automatic cap as a share of its prior limit.
        share: lowest cap that heat demands, in the same way, the job's duty included; a power budget needs no throttle.
        room: how far that cap still is above its floor, as a share of the range.
        hot_at_floor: a GPU is above its target although its cap is at the floor.
        rising: a capped GPU still gets hotter.
        floor_time_s: time to slowdown although every cap were at its floor, None = the floor holds.
        hung: nothing of a GPU has answered for long (the heat itself is unknown).
        feed_lost: an outlet group that carried load carries none.
        infeasible: share of a budget that the floors leave, below 1 when they do not fit.
    """

    notify: bool
    capping: bool
    lowest: float
    share: float
    room: float
    hot_at_floor: bool
    rising: bool
    floor_time_s: float | None
    hung: bool
    feed_lost: bool
    infeasible: float


def climb(state: PolicyState, found: Findings, *, checkpoint_s: float | None, dt_s: float) -> None:
    """Move level, duty and checkpoint request of `state` (a private copy) by one decision.

    Args:
        state: changed here.
        found: this moment's findings.
        checkpoint_s: longest save of the jobs on this node, None without a job.
        dt_s: seconds that count since the last decision.
    """
    state.low_caps_s = state.low_caps_s + dt_s if found.share < THROTTLE_BELOW else 0.0
    state.full_caps_s = state.full_caps_s + dt_s if found.share > THROTTLE_LEAVE else 0.0
    throttled = state.level >= Level.THROTTLE
    throttle = (
        state.low_caps_s >= THROTTLE_AFTER_S
        or (throttled and found.share <= THROTTLE_LEAVE)
        or found.infeasible < 1
        or (found.hung and state.checkpoint_done)
    )
    state.throttle_s = state.throttle_s + dt_s if throttle or found.hung else 0.0
    heat_wins = found.floor_time_s is not None and (
        found.floor_time_s < 1.5 * (checkpoint_s or CHECKPOINT_DEFAULT_S) + 10
    )
    tired = throttle and state.throttle_s >= CHECKPOINT_AFTER_S and found.rising
    state.spent_s = state.spent_s + dt_s if found.room < SPENT_ROOM else 0.0
    spent = state.spent_s >= SPENT_S
    checkpoint = heat_wins or tired or spent or found.feed_lost or (found.hung and not state.checkpoint_done)

    wanted = Level.NORMAL
    if checkpoint:
        wanted = Level.CHECKPOINT
    elif throttle:
        wanted = Level.THROTTLE
    elif found.capping:
        wanted = Level.CAP
    elif found.notify:
        wanted = Level.NOTIFY
    state.calm_s = tuple(0.0 if rung <= wanted else calm_s + dt_s for rung, calm_s in enumerate(state.calm_s))
    state.step_s += dt_s
    if wanted >= state.level:
        state.level, state.step_s = int(wanted), 0.0
    elif state.step_s >= STEP_DOWN_S and state.calm_s[state.level] >= DWELL_S[Level(state.level)]:
        state.level, state.step_s = state.level - 1, 0.0

    _ask_for_checkpoint(state, found, wanted=checkpoint, checkpoint_s=checkpoint_s)
    _throttle(state, found, wanted=throttle, has_job=checkpoint_s is not None, dt_s=dt_s)


def can_finish(floor_time_s: float | None, checkpoint_s: float) -> bool:
    """True when a save of this length ends before the hardware would slow down with every cap at its floor."""
    return floor_time_s is None or floor_time_s > checkpoint_s + CHECKPOINT_ACK_S


def _ask_for_checkpoint(state: PolicyState, found: Findings, *, wanted: bool, checkpoint_s: float | None) -> None:
    """Open a request when one is wanted and can finish; close it when it is done or its level has been left."""
    if state.level < Level.CHECKPOINT:
        state.checkpoint_since_s = None
        if not found.hung:
            state.checkpoint_done = False
        return
    idle = state.checkpoint_since_s is None and not state.checkpoint_done
    if idle and wanted and checkpoint_s is not None and can_finish(found.floor_time_s, checkpoint_s):
        state.checkpoint_since_s = state.now_s


def _throttle(state: PolicyState, found: Findings, *, wanted: bool, has_job: bool, dt_s: float) -> None:
    """Lower the job's duty at once, give it back by 5 % per 10 s."""
    duty = 1.0
    if has_job and wanted:
        # A watt saved by a cap costs less speed than one saved by duty: gently, as long as caps have room to fall.
        room = min(1.0, found.room / GENTLE_SHARE)
        duty = FLOOR_DUTY + room * (GENTLE_DUTY - FLOOR_DUTY)
        if found.hot_at_floor:
            duty = max(LOWEST_DUTY, state.job_duty - 0.02 * dt_s)
        duty = max(LOWEST_DUTY, min(duty, found.infeasible))
    if not has_job:
        state.job_duty = 1.0
    elif duty < state.job_duty:
        state.job_duty = duty
    else:
        state.job_duty = min(duty, state.job_duty + DUTY_RISE_PER_S * dt_s)
