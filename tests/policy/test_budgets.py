"""Limits on sums: the node's, the outlets', and what a person asked for; who gets what, and what is said about it."""

import pytest

from nodewarden.model.setpoints import Cause, Protects
from nodewarden.policy.power_budget import equal_speed_w, fill
from policy.hand import SILENT, Hand
from policy.loop import run
from policy.plant import AIR, Faults, Node


def ten_second_means(watts: list[float]) -> list[float]:
    return [sum(watts[i - 10 : i]) / 10 for i in range(10, len(watts) + 1)]


def plug_w(gpus_w: float) -> float:
    return (1900 + gpus_w) / 0.94


@pytest.mark.parametrize(
    ("budget_w", "low_w", "high_w", "weight", "expected"),
    [
        (1000, [100, 100], [700, 700], [1, 1], [500, 500]),
        (1000, [100, 100], [300, 700], [1, 1], [300, 700]),
        (900, [100, 100], [700, 700], [1, 2], [300, 600]),
        (2000, [100, 100], [700, 600], [1, 1], [700, 600]),
        (150, [100, 100], [700, 700], [1, 1], [100, 100]),
        (900, [650, 100], [700, 700], [1, 1], [650, 250]),
    ],
)
def test_water_is_filled_to_the_most_equal_level(
    budget_w: float, low_w: list[float], high_w: list[float], weight: list[float], expected: list[float]
) -> None:
    shares = fill(budget_w, low_w, high_w, weight)
    assert shares == pytest.approx(expected, abs=1e-3)
    assert sum(shares) <= max(budget_w, sum(low_w))


def test_a_sibling_gets_hardly_more_than_the_pace_of_the_slowest_needs() -> None:
    assert 400 < equal_speed_w(400) < 430
    assert equal_speed_w(0) < 80


@pytest.mark.parametrize("node_power_w", [4800.0, 4000.0, 3000.0])
def test_the_sum_of_the_gpus_keeps_to_the_nodes_limit_and_hardly_below(node_power_w: float) -> None:
    result = run(Node(AIR, Faults(), seed=2), 90, node_power_w=node_power_w)
    assert max(ten_second_means(result.sums[3:])) <= node_power_w
    assert sum(result.caps[-1]) == pytest.approx(node_power_w, rel=0.02)
    assert sum(len(writes) for writes in result.writes) <= 3 * 8


@pytest.mark.parametrize("limit_w", [6800.0, 6200.0, 5500.0])
def test_outlets_keep_to_their_limit_with_a_meter_that_is_late_and_coarse(limit_w: float) -> None:
    result = run(Node(AIR, Faults(), seed=1), 240, outlets={"rack": limit_w})
    means = ten_second_means([plug_w(watts) for watts in result.sums])
    assert max(means[10:]) <= limit_w
    assert means[-1] > 0.95 * limit_w


def test_a_meter_that_falls_silent_costs_a_growing_reserve_and_never_gives_any() -> None:
    hand = Hand(8, caps_follow=True, outlets={"rack": 6500})
    for _ in range(20):
        hand.play(power_w=600.0 if hand.last is None else 0.93 * hand.cap().w, outlets={"rack": 6500.0})
    sums = []
    for _ in range(300):
        hand.play(power_w=0.93 * hand.cap().w, outlets={"rack": SILENT})
        assert hand.last is not None
        sums.append(sum(cap.w for cap in hand.last.caps.values()))
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] < sums[0] - 300
    assert hand.events.count("outlets_stale") == 1
    hand.play(2, power_w=0.93 * hand.cap().w, outlets={"rack": 5400.0})
    assert hand.events.count("outlets_back") == 1


def test_a_limit_on_outlets_that_were_never_read_caps_nothing() -> None:
    hand = Hand(8, outlets={"rack": 3000})
    hand.play(60, outlets={"rack": SILENT})
    assert {cap.w for cap in hand.last.caps.values()} == {700.0}  # type: ignore[union-attr]


def test_a_node_limit_is_shared_equally_and_says_so() -> None:
    hand = Hand(8, node_power_w=4000)
    setpoints = hand.play(3)
    for cap in setpoints.caps.values():
        assert cap.w == pytest.approx(500.0, abs=0.01)
        assert (cap.cause, cap.protects) == (Cause.NODE_POWER, Protects.BREAKER)
        assert cap.keep_w == pytest.approx(500.0, abs=0.01)
        assert "4000 W" in cap.lifts_when
    assert hand.events.count("budget_limited") == 1
    assert setpoints.level == 2
    assert setpoints.job.duty == 1.0


def test_an_idle_gpu_leaves_its_watts_to_the_busy_ones() -> None:
    hand = Hand(2, caps_follow=True, node_power_w=1000)
    hand.play(60, per={1: {"junction_c": 32, "hbm_c": 38, "power_w": 80.0, "utilisation": 0.0}})
    assert hand.cap(0).w == 700.0
    assert hand.cap(1).w == pytest.approx(300.0)
    hand.play(2)
    assert hand.cap(0).w + hand.cap(1).w <= 1000.0
    hand.play(60, power_w=480.0)
    assert hand.cap(0).w == pytest.approx(500.0, abs=0.1)
    assert hand.cap(1).w == pytest.approx(500.0, abs=0.1)


def test_a_limit_that_does_not_bind_leaves_an_idle_gpu_alone() -> None:
    hand = Hand(2, node_power_w=1400)
    hand.play(60, per={1: {"junction_c": 32, "hbm_c": 38, "power_w": 80.0, "utilisation": 0.0}})
    assert (hand.cap(0).w, hand.cap(1).w) == (700.0, 700.0)


def test_a_gpu_that_cannot_be_reached_keeps_its_watts_and_the_others_go_without() -> None:
    hand = Hand(2, node_power_w=1000)
    hand.play(15, per={1: dict.fromkeys(("junction_c", "hbm_c", "power_w", "cap_w", "utilisation"), SILENT)})
    assert hand.cap(0).w == pytest.approx(300.0)


def test_floors_that_do_not_fit_are_said_and_the_job_is_slowed_instead() -> None:
    hand = Hand(8, node_power_w=1200)
    setpoints = hand.play(3, jobs=[{"id": "job", "gpus": []}])
    assert {cap.w for cap in setpoints.caps.values()} == {200.0}
    assert hand.events.count("budget_infeasible") == 1
    assert any("1200 W" in text and "1600 W" in text for text in hand.texts)
    assert setpoints.level == 3
    assert setpoints.job.duty == pytest.approx(0.75)
    hand.plain["node_power_w"] = 5600
    hand.play(3)
    assert hand.events.count("budget_feasible") == 1


def test_boards_that_draw_more_than_their_cap_are_trimmed() -> None:
    hand = Hand(2, caps_follow=True, node_power_w=1000)
    for _ in range(200):
        hand.play(power_w=520.0 if hand.last is None else 1.04 * hand.cap().w)
    assert 1.04 * (hand.cap(0).w + hand.cap(1).w) <= 1003.0


def test_a_lost_feed_asks_for_a_checkpoint() -> None:
    hand = Hand(8, outlets={"a": 4000, "b": 4000})
    jobs = [{"id": "job", "gpus": [], "ckpt_s": 10.0}]
    hand.play(5, outlets={"a": 3700.0, "b": 3700.0}, jobs=jobs)
    setpoints = hand.play(2, outlets={"a": 0.0, "b": 7400.0}, jobs=jobs)
    assert setpoints.job.request == "checkpoint"
    assert "feed_lost" in hand.events


def test_the_lowest_of_all_demands_wins_and_the_rest_is_kept_apart() -> None:
    hand = Hand(8, node_power_w=4000, manual={"GPU-0": {"w": 300, "expires_s": 1060.0}, "GPU-1": {"w": 600}})
    hand.play(20)
    mine, other = hand.cap(0), hand.cap(1)
    assert (mine.w, mine.cause, mine.protects, mine.manual_w) == (300.0, Cause.MANUAL, Protects.NONE, 300.0)
    assert mine.expires_s == 1060.0
    assert mine.keep_w == pytest.approx(500.0)
    assert (other.cause, other.manual_w) == (Cause.NODE_POWER, 600.0)
    assert other.keep_w == pytest.approx(other.w)


def test_a_manual_cap_acts_at_once_ends_at_its_time_and_comes_back_slowly() -> None:
    hand = Hand(1, caps_follow=True, manual={"GPU-0": {"w": 400, "expires_s": 1030.0}})
    hand.play(1)
    assert (hand.cap().w, hand.cap().cause, hand.cap().keep_w) == (400.0, Cause.MANUAL, None)
    hand.play(28, power_w=380.0)
    assert hand.cap().w == 400.0
    hand.play(11, power_w=380.0)
    assert 470 <= hand.cap().w <= 488.0
    assert hand.cap().manual_w is None
    assert "8 W/s" in hand.cap().lifts_when
    hand.play(40)
    assert (hand.cap().w, hand.cap().cause) == (700.0, Cause.NONE)
    assert [code for code in hand.events if code.startswith("gpu_")] == ["gpu_capped", "gpu_uncapped"]


@pytest.mark.parametrize(("asked_w", "given_w"), [(50.0, 200.0), (900.0, 500.0), (300.0, 300.0)])
def test_no_manual_cap_leaves_the_range_of_floor_and_prior_limit(asked_w: float, given_w: float) -> None:
    hand = Hand(1, gpu_limits={"prior_w": 500}, manual={"GPU-0": {"w": asked_w}})
    hand.play(2)
    assert hand.cap().w == given_w


def test_a_cap_found_in_force_is_adopted_and_not_raised_in_the_first_10_s() -> None:
    hand = Hand(1, caps_follow=True)
    hand.play(1, cap_w=420.0, power_w=400.0)
    assert hand.cap().w == 420.0
    assert hand.cap().keep_w == 420.0
    hand.play(9, power_w=400.0)
    assert hand.cap().w == 420.0
    hand.play(20, power_w=400.0)
    assert 420.0 < hand.cap().w <= 420.0 + 8 * 20
    hand.play(60, power_w=480.0)
    assert hand.cap().w == 700.0
    assert hand.events[0] == "cap_adopted"
    assert "gpu_uncapped" in hand.events


def test_a_prior_limit_below_the_factorys_is_where_everything_returns_to() -> None:
    hand = Hand(1, caps_follow=True, gpu_limits={"prior_w": 500})
    hand.play(30, cap_w=500.0, power_w=480.0, junction_c=88)
    assert hand.cap().w < 450.0
    hand.play(200, junction_c=60, power_w=300.0)
    assert (hand.cap().w, hand.cap().cause) == (500.0, Cause.NONE)


def test_a_meter_that_repeats_itself_while_the_load_rises_is_not_believed() -> None:
    """A frozen PDU: 900 W of fans and processors beside 8 x 350 W, the same reading for two minutes at full load."""
    hand = Hand(8, outlets={"rack": 4000.0})
    hand.play(30, power_w=350.0, outlets={"rack": 3880.0})
    for _ in range(120):
        setpoints = hand.play(power_w=380.0, outlets={"rack": 3880.0})
        assert sum(cap.w for cap in setpoints.caps.values()) <= 3000
    assert {cap.cause for cap in setpoints.caps.values()} == {Cause.OUTLETS}
