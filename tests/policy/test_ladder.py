"""The ladder: entered at once, left slowly and one by one; when jobs are throttled, and when they are asked to save."""

import itertools

from nodewarden.model.setpoints import Cause, Level
from nodewarden.policy.ladder import DWELL_S, Findings, can_finish, climb
from nodewarden.policy.state import PolicyState
from policy.hand import Hand
from policy.loop import run
from policy.plant import AIR, Faults, Node

QUIET = Findings(
    notify=False, capping=False, lowest=1.0, share=1.0, room=1.0, hot_at_floor=False, rising=False, floor_time_s=None,
    hung=False, feed_lost=False, infeasible=1.0,
)  # fmt: skip


def climbed(state: PolicyState, seconds: int, checkpoint_s: float | None = 30.0, **found: object) -> list[int]:
    levels = []
    for _ in range(seconds):
        state.now_s = (state.now_s or 0.0) + 1
        climb(state, QUIET._replace(**found), checkpoint_s=checkpoint_s, dt_s=1.0)
        levels.append(state.level)
    return levels


def fresh_state() -> PolicyState:
    return PolicyState(gpus={}, outlets={})


def test_levels_are_entered_at_once_and_left_one_by_one_after_their_dwell() -> None:
    state = fresh_state()
    assert climbed(state, 1, feed_lost=True) == [4]
    levels = climbed(state, 200)
    assert sorted(levels, reverse=True) == levels
    assert {before - after for before, after in itertools.pairwise(levels)} == {0, 1}
    assert levels.count(4) == int(DWELL_S[Level.CHECKPOINT]) - 1
    assert levels[-1] == 0


def test_a_limit_that_comes_near_again_stops_the_way_down() -> None:
    state = fresh_state()
    climbed(state, 1, capping=True)
    climbed(state, 59)
    assert climbed(state, 1, capping=True) == [2]
    assert climbed(state, 59)[-1] == 2


def test_a_job_is_throttled_when_heat_caps_below_70_percent_for_10_seconds_and_recovers_5_percent_in_10_s() -> None:
    state = fresh_state()
    assert 3 not in climbed(state, 9, capping=True, share=0.6, room=0.5)
    climbed(state, 1, capping=True, share=0.6, room=0.5)
    assert (state.level, state.job_duty) == (3, 0.95)
    climbed(state, 200, capping=True, share=0.74, room=0.5)
    assert (state.level, state.job_duty) == (3, 0.95)
    climbed(state, 5)
    assert 0.97 < state.job_duty < 0.98
    climbed(state, 5)
    assert state.job_duty == 1.0


def test_the_duty_falls_further_as_the_caps_run_out_of_room_and_most_at_the_floor() -> None:
    state = fresh_state()
    climbed(state, 11, capping=True, share=0.3, room=0.0)
    assert state.job_duty == 0.8
    climbed(state, 20, capping=True, share=0.3, room=0.0, hot_at_floor=True)
    assert state.job_duty == 0.5


def test_nobody_is_throttled_without_a_job() -> None:
    state = fresh_state()
    climbed(state, 60, None, capping=True, share=0.4, room=0.2)
    assert (state.level, state.job_duty) == (3, 1.0)


def test_a_checkpoint_is_asked_for_when_the_floor_will_not_hold_and_it_can_still_finish() -> None:
    state = fresh_state()
    climbed(state, 1, capping=True, floor_time_s=50.0)
    assert state.checkpoint_since_s is not None
    late = fresh_state()
    climbed(late, 1, capping=True, floor_time_s=20.0)
    assert late.level == 4
    assert late.checkpoint_since_s is None
    calm = fresh_state()
    climbed(calm, 1, capping=True, floor_time_s=80.0)
    assert calm.level == 2


def test_whether_a_save_can_finish_depends_on_the_jobs_own_time() -> None:
    assert can_finish(None, 3600.0)
    assert can_finish(35.0, 30.0)
    assert not can_finish(31.0, 30.0)


def test_throttled_for_two_minutes_and_still_rising_asks_for_a_checkpoint() -> None:
    state = fresh_state()
    levels = climbed(state, 140, capping=True, share=0.6, room=0.5, rising=True)
    assert levels[120] == 3
    assert levels[-1] == 4


def test_caps_without_room_left_ask_for_a_checkpoint() -> None:
    state = fresh_state()
    assert climbed(state, 6, capping=True, share=0.3, room=0.05)[-1] == 4
    assert state.checkpoint_since_s is not None


def test_the_request_is_held_until_all_jobs_have_saved_and_its_deadline_fits_the_forecast() -> None:
    hand = Hand(1, caps_follow=True)
    jobs = [{"id": "a", "gpus": ["GPU-0"], "ckpt_s": 20.0}, {"id": "b", "gpus": [], "ckpt_s": 25.0}]
    hand.play(20, jobs=jobs)
    requests = []
    junction_c, watts = 66.0, 640.0
    for _ in range(60):  # a cooler that removes 100 W and no more, behind 500 J/K
        junction_c += (watts - 100) / 500
        setpoints = hand.play(junction_c=round(junction_c), hbm_c=70, power_w=watts, jobs=jobs)
        watts = min(640.0, hand.cap().w)
        requests.append(setpoints.job)
    asked = [job for job in requests if job.request == "checkpoint"]
    assert asked
    assert all(job.deadline_s is not None and job.deadline_s >= 25.0 for job in asked), "the slower job sets the time"
    assert {job.cause for job in asked} == {Cause.THERMAL}
    saved = [{**job, "last_checkpoint_at_s": hand.now_s} for job in jobs]
    assert hand.play(junction_c=88, power_w=200.0, jobs=saved).job.request == "none"
    assert hand.events.count("checkpoint_wanted") == 1
    assert hand.events.count("checkpoint_done") == 1


def test_notify_comes_with_a_margin_of_7_degrees_and_goes_after_30_s() -> None:
    hand = Hand(1)
    assert hand.play(20).level == 0
    assert hand.play(10, junction_c=81, hbm_c=85).level == 1
    assert hand.play(25, junction_c=70).level == 1
    assert hand.play(20, junction_c=70).level == 0
    assert [code for code in hand.events if code.startswith("ladder")] == ["ladder_raised", "ladder_lowered"]


def test_the_forecast_says_when_a_limit_is_reached_and_nothing_when_the_gpu_is_not_heading_there() -> None:
    hand = Hand(1)
    setpoints = hand.play(30)
    ahead = setpoints.forecast["GPU-0"]
    assert (ahead.margin_to_max_op_c, ahead.margin_to_slowdown_c) == (22.0, 24.0)
    assert (ahead.time_to_max_op_s, ahead.time_to_slowdown_s) == (None, None)
    for second in range(30):
        setpoints = hand.play(junction_c=65 + second // 2, hbm_c=60)
    ahead = setpoints.forecast["GPU-0"]
    assert ahead.time_to_max_op_s is not None
    assert ahead.time_to_slowdown_s is not None
    assert 5 < ahead.time_to_max_op_s < 40
    assert ahead.time_to_max_op_s < ahead.time_to_slowdown_s


def test_a_job_that_cooperates_keeps_the_node_as_cool() -> None:
    node = Node(AIR, Faults(flow=lambda _, t: 0.2 if t > 60 else 1.0))
    result = run(node, 300, cooperates=True)
    assert node.worst_c < 87.0
    assert min(setpoints.job.duty for setpoints in result.setpoints) < 1.0
    told = [event.code for _, event in result.events]
    assert told.index("gpu_capped") < told.index("ladder_raised") + 5
