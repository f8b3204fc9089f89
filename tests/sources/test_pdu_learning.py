"""Learning this node's outlets from synthetic days of power: two feeds, late meters, neighbours that do the same."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.sources.pdu.learning import MIN_TURNS, Learnt, Outlet, Series, learn

Power = Callable[[float], float]
MINUTES = 10


def square(low_w: float, high_w: float, period_s: float, phase_s: float = 0.0) -> Power:
    return lambda at_s: high_w if (at_s + phase_s) % period_s < period_s / 2 else low_w


def noisy(seed: int, low_w: float, high_w: float, mean_s: float = 45.0) -> Power:
    """A job that works and pauses in a rhythm of its own."""
    chance = random.Random(seed)
    edges, at_s = [], 0.0
    while at_s < 7200:
        at_s += chance.uniform(0.4, 1.6) * mean_s
        edges.append(at_s)
    return lambda at_s: high_w if sum(edge <= at_s for edge in edges) % 2 else low_w


def gpus(power: Power, minutes: float = MINUTES) -> Series:
    return [(float(t), power(float(t))) for t in range(int(minutes * 60))]


def metered(
    power: Power, share: float, *, lag_s: float = 4.0, base_w: float = 100.0, step_w: float = 1.0, seed: int = 0
) -> Series:
    """An outlet: its share of 1.15 times the GPUs, published late and in steps, read every 5 s."""
    chance = random.Random(seed)
    found = []
    for t in range(0, MINUTES * 60, 5):
        watts = base_w + share * 1.15 * power(max(0.0, t - lag_s)) + chance.uniform(-4, 4)
        found.append((float(t), round(watts / step_w) * step_w))
    return found


def chosen(learnt: Learnt) -> list[Outlet]:
    return [(match.pdu, match.outlet) for match in learnt.matches]


MINE, OTHER, THIRD = noisy(1, 1500, 4800), noisy(2, 1500, 4800), noisy(3, 800, 5200, 60)


def rack(lag_s: float = 4.0, step_w: float = 1.0) -> dict[Outlet, Series]:
    """Three nodes on two feeds, and a switch that draws the same all day."""
    outlets: dict[Outlet, Series] = {}
    for number, power in ((1, OTHER), (3, MINE), (5, THIRD)):
        for feed in ("a", "b"):
            for half in (0, 1):
                outlets[feed, number + half] = metered(power, 0.25, lag_s=lag_s, step_w=step_w, seed=number * 2 + half)
    outlets["a", 20] = metered(lambda _: 0.0, 0.0, base_w=150.0)
    return outlets


@pytest.mark.parametrize("lag_s", [0.0, 4.0, 10.0, 22.0])
@pytest.mark.parametrize("step_w", [1.0, 10.0])
def test_the_outlets_of_both_feeds_are_found_however_late_and_coarse_they_are(lag_s: float, step_w: float) -> None:
    learnt = learn(gpus(MINE), rack(lag_s, step_w))
    assert (learnt.verdict, chosen(learnt)) == ("found", [("a", 3), ("a", 4), ("b", 3), ("b", 4)])
    assert min(match.confidence for match in learnt.matches) > 0.7
    assert learnt.gain == pytest.approx(1.15, abs=0.1)
    assert abs(learnt.matches[0].lag_s - lag_s) <= 6


def test_a_constant_load_says_what_to_do() -> None:
    learnt = learn(gpus(lambda _: 4000.0), rack())
    assert learnt.verdict == "not_enough_swing"
    assert learnt.matches == ()
    assert "start and stop load on this node" in learnt.text


def test_one_rise_is_not_enough_for_anything() -> None:
    once = square(1500, 4800, 1200, 300)
    learnt = learn(gpus(once), {("a", 1): metered(once, 1.0), ("a", 2): metered(once, 1.0)})
    assert (learnt.verdict, learnt.turns) == ("not_enough_swing", 1)
    assert f"needed {MIN_TURNS}" in learnt.text


def test_nodes_that_do_the_same_at_the_same_time_are_not_told_apart() -> None:
    outlets = {**rack(), **{("a", number): metered(MINE, 0.5, seed=number) for number in (11, 12)}}
    learnt = learn(gpus(MINE), outlets)
    assert learnt.verdict == "ambiguous"
    assert "on this node alone" in learnt.text
    assert all(match.confidence <= 0.4 for match in learnt.matches)


def test_a_feed_that_is_not_asked_is_missed() -> None:
    learnt = learn(gpus(MINE), {outlet: series for outlet, series in rack().items() if outlet[0] == "a"})
    assert (learnt.verdict, chosen(learnt)) == ("incomplete", [("a", 3), ("a", 4)])
    assert "other feed" in learnt.text


def test_a_rack_without_this_node_matches_nothing() -> None:
    outlets = {outlet: series for outlet, series in rack().items() if outlet[1] not in {3, 4}}
    assert learn(gpus(MINE), outlets).verdict == "no_match"


def test_a_single_cord_is_found_and_so_is_one_feed_that_only_stands_by() -> None:
    outlets = {
        ("a", 1): metered(MINE, 1.0),
        ("b", 1): metered(lambda _: 0.0, 0.0, base_w=12.0),
        ("a", 2): rack()["a", 1],
    }
    learnt = learn(gpus(MINE), outlets)
    assert (learnt.verdict, chosen(learnt)) == ("found", [("a", 1)])


def test_too_little_is_said_to_be_too_little() -> None:
    assert learn([], {}).verdict == "not_enough_time"
    assert learn(gpus(MINE, 0.1), rack()).verdict == "not_enough_time"
    assert learn(gpus(MINE), {("a", 1): metered(MINE, 1.0)[:5]}).verdict == "not_enough_time"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), lag_s=st.floats(0, 15), supplies=st.integers(1, 4))
def test_a_neighbour_in_its_own_rhythm_is_never_proposed(seed: int, lag_s: float, supplies: int) -> None:
    mine, other = noisy(seed, 1500, 4800), noisy(seed + 20_000, 1500, 4800)
    outlets = {("a", n): metered(mine, 1 / supplies, lag_s=lag_s, seed=n) for n in range(supplies)}
    outlets |= {("a", 10 + n): metered(other, 1 / supplies, lag_s=lag_s, seed=n) for n in range(supplies)}
    learnt = learn(gpus(mine), outlets)
    assert all(outlet < 10 for _, outlet in chosen(learnt))
    if learnt.turns >= MIN_TURNS:
        assert learnt.verdict == "found"
        assert chosen(learnt) == [("a", n) for n in range(supplies)]


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 9)),
        st.lists(st.tuples(st.floats(0, 1e4), st.floats(-1e6, 1e6)), max_size=30).map(sorted),
        max_size=4,
    ),
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e5)), max_size=60).map(sorted),
)
def test_whatever_is_measured_there_is_an_answer(outlets: dict[Outlet, Series], node: Series) -> None:
    learnt = learn(node, outlets)
    assert learnt.text
    assert all(0 <= match.confidence <= 1 for match in learnt.matches)
