"""Feeds: redundancy-aware totals, and a loss that is only told with evidence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import OutletSnapshot, PduSnapshot, PhaseSnapshot
from nodewarden.sources.pdu.feeds import FeedWatch


def pdu(feed: str, outlets_w: float | None, now_s: float, **more: Any) -> PduSnapshot:
    power = Failed("timeout", now_s) if outlets_w is None else Reading(outlets_w, now_s)
    return PduSnapshot(
        name=more.pop("name", f"pdu-{feed}"),
        feed=feed,
        mapped_outlets=(1,),
        outlets_w=power,
        **{"up": outlets_w is not None, "power_w": power, "since_s": 0.0, **more},
    )


def healthy(watch: FeedWatch, *, until_s: float = 100.0, gpus_w: float = 2400.0) -> dict[str, FeedSnapshot]:
    feeds: dict[str, FeedSnapshot] = {}
    for now_s in range(0, int(until_s) + 1, 5):
        feeds = run(watch, 1500.0, 1500.0, float(now_s), gpus_w)
    return feeds


def run(
    watch: FeedWatch, a_w: float | None, b_w: float | None, now_s: float, gpus_w: float | None = 2400.0, **of_a: Any
) -> dict[str, FeedSnapshot]:
    pdus = {"a": pdu("A", a_w, now_s, **of_a), "b": pdu("B", b_w, now_s)}
    return watch.update(pdus, gpus_w, now_s)


def test_a_feed_is_the_sum_of_its_pdus_and_knows_what_it_carries_alone() -> None:
    pdus = {
        "a1": pdu("A", 700.0, 10.0, name="a1", power_w=Reading(5000.0, 10.0), rated_w=7000.0),
        "a2": pdu("A", 800.0, 8.0, name="a2", power_w=Reading(4000.0, 8.0), rated_w=7000.0),
        "b": pdu("B", 1600.0, 9.0, power_w=Reading(8000.0, 9.0)),
        "c": pdu("", 100.0, 9.0, name="c"),
    }
    feeds = FeedWatch().update(pdus, None, 10.0)
    assert list(feeds) == ["A", "B"]
    a, b = feeds["A"], feeds["B"]
    assert (a.pdus, a.rated_w, b.rated_w) == (("a1", "a2"), 14000.0, None)
    assert (a.power_w, a.outlets_w) == (Reading(9000.0, 8.0), Reading(1500.0, 8.0))
    assert a.after_loss_w == b.after_loss_w == Reading(3100.0, 8.0)
    assert a.total_after_loss_w == Reading(17000.0, 8.0)
    assert (a.lost, b.lost) == (False, False)


def test_no_sum_is_made_of_some_of_the_pdus() -> None:
    pdus = {"a1": pdu("A", 700.0, 10.0, name="a1"), "a2": pdu("A", None, 10.0, name="a2"), "b": pdu("B", 5.0, 10.0)}
    feeds = FeedWatch().update(pdus, None, 10.0)
    assert isinstance(feeds["A"].power_w, Failed)
    assert isinstance(feeds["A"].after_loss_w, Failed)
    assert isinstance(feeds["B"].after_loss_w, Failed)
    assert feeds["A"].silent == ("a2",)


def test_one_feed_alone_has_no_other() -> None:
    feeds = FeedWatch().update({"a": pdu("A", 700.0, 10.0)}, None, 10.0)
    assert feeds["A"].after_loss_w == Absent("no_other_feed")


def test_outlets_without_load_while_the_other_feed_carries_all_are_a_lost_feed() -> None:
    watch = FeedWatch()
    assert healthy(watch)["A"].lost is False
    run(watch, 1500.0, 2950.0, 105.0)  # the other PDU is polled first
    feeds = run(watch, 0.0, 2950.0, 110.0)
    assert (feeds["A"].lost, feeds["A"].since_s, feeds["B"].lost) == (True, 110.0, False)
    assert feeds["A"].evidence == "this node's outlets on it read 0 W; the other feeds carry 2950 W"
    assert run(watch, 0.0, 2900.0, 300.0)["A"].since_s == 110.0, "still, and since then"
    feeds = run(watch, 1400.0, 1500.0, 305.0)
    assert (feeds["A"].lost, feeds["A"].since_s, feeds["A"].evidence) == (False, None, "")


def test_silence_alone_is_no_loss() -> None:
    watch = FeedWatch()
    healthy(watch)
    for now_s in (105.0, 130.0, 300.0):
        assert run(watch, None, 1520.0, now_s, since_s=105.0)["A"].lost is None


def test_silence_and_a_load_that_has_moved_is_a_loss() -> None:
    watch = FeedWatch()
    healthy(watch)
    assert run(watch, None, 2950.0, 110.0, since_s=105.0)["A"].lost is None, "too early"
    feeds = run(watch, None, 2950.0, 125.0, since_s=105.0)
    assert (feeds["A"].lost, feeds["A"].evidence) == (
        True,
        "its PDUs are silent and its load has moved; the other feeds carry 2950 W",
    )


def test_a_job_that_starts_while_a_pdu_is_silent_is_not_taken_for_a_moved_load() -> None:
    watch = FeedWatch()
    healthy(watch, gpus_w=1200.0)
    for now_s in (125.0, 300.0):
        assert run(watch, None, 3000.0, now_s, gpus_w=2600.0, since_s=105.0)["A"].lost is None


def test_a_load_that_falls_with_the_job_is_seen_to_move() -> None:
    watch = FeedWatch()
    healthy(watch, gpus_w=2400.0)
    assert run(watch, 0.0, 1700.0, 110.0, gpus_w=1300.0)["A"].lost is True


def test_a_supply_that_sleeps_at_low_load_is_no_lost_feed() -> None:
    watch = FeedWatch()
    for now_s in range(0, 100, 5):
        run(watch, 150.0, 150.0, float(now_s), 300.0)
    assert run(watch, 0.0, 300.0, 105.0, 300.0)["A"].lost is False


def test_a_feed_that_never_carried_is_not_called_lost_for_reading_zero() -> None:
    assert run(FeedWatch(), 0.0, 3000.0, 10.0)["A"].lost is False


def test_outlets_that_are_switched_off_and_dead_phases_need_no_history() -> None:
    off = (OutletSnapshot(index=1, state="off"), OutletSnapshot(index=2, state="on"))
    feeds = run(FeedWatch(), 0.0, 3000.0, 10.0, outlets=off)
    assert feeds["A"].evidence == "this node's outlets on it are off; the other feeds carry 3000 W"
    dead = (PhaseSnapshot(id="L1", voltage_v=0.0), PhaseSnapshot(id="L2", voltage_v=1.0))
    assert run(FeedWatch(), 0.0, 3000.0, 10.0, phases=dead)["A"].lost is True
    one_line = (PhaseSnapshot(id="L1", voltage_v=0.0), PhaseSnapshot(id="L2", voltage_v=231.0))
    assert run(FeedWatch(), 0.0, 3000.0, 10.0, phases=one_line)["A"].lost is False


@given(
    steps=st.lists(
        st.tuples(st.none() | st.floats(0, 5000), st.none() | st.floats(0, 5000), st.none() | st.floats(0, 6000)),
        max_size=30,
    )
)
def test_whatever_is_read_both_feeds_are_never_lost_at_once_and_memory_is_bounded(
    steps: list[tuple[float | None, float | None, float | None]],
) -> None:
    watch = FeedWatch()
    for position, (a_w, b_w, gpus_w) in enumerate(steps):
        feeds = run(watch, a_w, b_w, 5.0 * position, gpus_w, since_s=0.0)
        assert not (feeds["A"].lost and feeds["B"].lost)
        assert len(watch._before) <= 13
        for feed in feeds.values():
            assert (feed.since_s is not None) == bool(feed.lost)


@pytest.mark.parametrize("gpus_w", [None, 0.0])
def test_unknown_power_of_the_gpus_is_no_obstacle(gpus_w: float | None) -> None:
    watch = FeedWatch()
    for now_s in range(0, 101, 5):
        run(watch, 1500.0, 1500.0, float(now_s), gpus_w)
    assert run(watch, 0.0, 3000.0, 110.0, gpus_w)["A"].lost is True
