"""What the policy does without eyes: it holds, it derates what answers but cannot be seen, it never raises."""

import math

import pytest

from nodewarden.model.setpoints import Cause, Protects
from policy.hand import ABSENT, SILENT, Hand

JOB = ({"id": "job", "gpus": ["GPU-0"], "ckpt_s": 20.0},)


def warmed(**limits: object) -> Hand:
    hand = Hand(caps_follow=True, **limits)  # type: ignore[arg-type]
    hand.play(20, jobs=JOB)
    return hand


def capped() -> Hand:
    """A GPU that heat has capped, now cool enough to rise."""
    hand = warmed()
    hand.play(20, junction_c=88, jobs=JOB)
    hand.play(4, junction_c=70, power_w=300.0, jobs=JOB)
    assert hand.cap().w < 600
    return hand


def test_a_hung_driver_on_a_healthy_gpu_holds_the_caps_asks_once_for_a_checkpoint_and_throttles_at_most() -> None:
    hand = warmed()
    requests, levels = [], []
    for _ in range(600):
        done = {"last_checkpoint_at_s": 1060.0} if hand.now_s > 1060 else {}
        setpoints = hand.play(silent=True, jobs=({**JOB[0], **done},))
        requests.append(setpoints.job.request)
        levels.append(int(setpoints.level))
        assert setpoints.caps["GPU-0"].w == 700.0
    asked = [i for i, request in enumerate(requests) if request == "checkpoint"]
    assert asked == list(range(asked[0], asked[-1] + 1)), "one request, held as a level"
    assert 5 <= asked[0] <= 20
    assert hand.events.count("checkpoint_wanted") == 1
    assert max(levels) == 4
    assert levels[-1] == 3
    assert hand.last is not None
    assert 0.5 <= hand.last.job.duty < 1.0


def test_a_hung_driver_does_not_raise_a_cap_and_hot_gpus_are_aged_towards_the_worst() -> None:
    hand = warmed()
    hand.play(3, junction_c=84, jobs=JOB)
    before_w = hand.cap().w
    hand.play(30, silent=True, jobs=JOB)
    assert hand.cap().w < before_w
    assert hand.cap().cause is Cause.THERMAL


@pytest.mark.parametrize(
    "value", [SILENT, ABSENT, 0, -5, 127, 255, 2**63, math.nan, math.inf, None, {"v": 40, "t_s": 5.0}]
)
def test_no_unusable_temperature_ever_raises_a_cap(value: object) -> None:
    hand = capped()
    before_w = hand.cap().w
    for _ in range(40):
        hand.play(junction_c=ABSENT if value is None else value, power_w=300.0, jobs=JOB)
        assert hand.cap().w <= before_w
        before_w = hand.cap().w
    assert hand.cap().keep_w is not None, "what protects stays when the agent goes"
    assert hand.cap().protects is Protects.GPU


def test_a_fresh_temperature_lets_the_cap_rise_again_at_8_w_per_second() -> None:
    hand = capped()
    before_w = hand.cap().w
    hand.play(5, junction_c=SILENT, power_w=300.0)
    held_w = hand.cap().w
    assert held_w <= before_w
    hand.play(10, junction_c=65, power_w=300.0)
    assert held_w + 40 < hand.cap().w <= held_w + 80


def test_a_gpu_that_answers_without_a_temperature_is_derated_to_70_percent_and_then_to_the_floor() -> None:
    hand = warmed()
    hand.play(9, junction_c=SILENT, hbm_c=ABSENT)
    assert hand.cap().w == 700.0 or hand.cap().cause is Cause.THERMAL
    hand.play(8, junction_c=SILENT, hbm_c=ABSENT)
    assert hand.cap().w <= 490.0
    hand.play(20, junction_c=SILENT, hbm_c=ABSENT)
    assert hand.cap().w == 200.0
    assert hand.cap().cause in {Cause.STALE, Cause.THERMAL}
    assert "temperature" in hand.cap().lifts_when or "margin" in hand.cap().lifts_when


def test_without_any_reading_ever_nothing_is_capped_blindly() -> None:
    hand = Hand()
    setpoints = hand.play(120, silent=True)
    assert setpoints.caps["GPU-0"].w == 700.0
    assert setpoints.level == 0
    assert hand.events == []


def test_without_any_reading_for_long_the_configured_fail_safe_is_demanded() -> None:
    hand = Hand(failsafe_w=350)
    hand.play(29, silent=True)
    assert hand.cap().w == 700.0
    hand.play(5, silent=True)
    assert (hand.cap().w, hand.cap().cause, hand.cap().keep_w) == (350.0, Cause.FAILSAFE, 350.0)


def test_a_cool_reading_with_a_hot_bit_does_not_raise_and_is_not_believed_for_long() -> None:
    hand = capped()
    before_w = hand.cap().w
    hand.play(20, junction_c=60, power_w=300.0, slow=["sw_thermal"])
    assert hand.cap().w < before_w
    assert "sw_thermal" in hand.cap().lifts_when or hand.cap().w == 200.0


def test_hot_hbm_caps_although_the_junction_reads_cool() -> None:
    hand = warmed()
    hand.play(20, junction_c=60, hbm_c=97)
    assert hand.cap().w < 700.0
    assert hand.cap().cause is Cause.THERMAL


def test_a_temperature_that_stands_still_while_power_and_hbm_move_is_frozen_and_raises_nothing() -> None:
    hand = capped()
    hand.play(65, junction_c=66, hbm_c=70, power_w=300.0)
    before_w = hand.cap().w
    for watts, hbm_c in ((300.0, 70), (560.0, 80)):
        hand.play(40, junction_c=66, hbm_c=hbm_c, power_w=watts)
    assert hand.cap().w < before_w
    assert hand.cap().cause in {Cause.STALE, Cause.THERMAL}


def test_a_temperature_that_stands_still_because_nothing_changes_is_fresh() -> None:
    hand = capped()
    hand.play(200, junction_c=66, hbm_c=70, power_w=500.0)
    assert hand.cap().w == 700.0


def test_unknown_power_counts_as_the_limit_in_force_never_as_nothing() -> None:
    hand = Hand(2, node_power_w=1000)
    hand.play(5, power_w=SILENT)
    assert hand.last is not None
    assert sum(cap.w for cap in hand.last.caps.values()) <= 1000.0
    assert hand.state.sum_mean_w == pytest.approx(1400.0)


def test_a_spike_of_one_sample_changes_nothing() -> None:
    hand = warmed()
    hand.play(1, junction_c=99)
    assert hand.cap().w == 700.0
    hand.play(3)
    assert hand.cap().w == 700.0


def test_clock_steps_neither_crash_nor_raise_a_cap_in_one_step() -> None:
    for step_s in (-1e6, -30.0, 0.0, 3600.0, 2.6e6):
        hand = capped()
        before_w = hand.cap().w
        hand.play(1, junction_c=65, power_w=300.0, step_s=step_s)
        assert hand.cap().w == before_w, step_s
        hand.play(20, junction_c=65, power_w=300.0)
        assert before_w < hand.cap().w <= before_w + 160


def test_a_temperature_that_does_not_follow_the_power_is_strange_but_no_danger() -> None:
    """A manual cap takes 240 W off the board, and the sensor stays at 65 degC: no alarm, no checkpoint, no heat cap."""
    hand = Hand()
    hand.play(30)
    for _ in range(60):
        hand.play(power_w=400.0, cap_w=400.0)
        assert hand.last is not None
        assert hand.last.level <= 1
        assert hand.cap().cause == Cause.NONE
    assert "checkpoint_wanted" not in hand.events


def test_lost_cooling_is_believed_within_seconds_once_the_temperature_rises() -> None:
    hand = Hand()
    hand.play(30)
    for step in range(6):
        hand.play(junction_c=65 + 3 * step)
    assert hand.cap().cause == Cause.THERMAL
    assert hand.cap().w < 500
