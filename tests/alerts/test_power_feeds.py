"""The conditions of feeds and of loaded PDUs, from plain readings."""

from typing import Any

from msgspec.structs import replace

from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import BankSnapshot, PduSnapshot, PhaseSnapshot
from nodewarden_alerts.power_feeds import feed_lost, feed_overcommitted, pdu_over_80, pdu_over_rating

from .test_conditions import NOW_S, Facts, facts


def with_pdu(**changes: Any) -> Facts:
    base = facts()
    pdu = PduSnapshot(name="rack12-a", **{"up": True, **changes})
    return replace(base, snapshot=replace(base.snapshot, pdus={"rack12-a": pdu}))


def with_feed(**changes: Any) -> Facts:
    base = facts()
    return replace(base, snapshot=replace(base.snapshot, feeds={"A": FeedSnapshot(name="A", **changes)}))


def both(of: Facts) -> tuple[list[str], list[str]]:
    return [f.what for f in pdu_over_80(of, NOW_S)], [f.what for f in pdu_over_rating(of, NOW_S)]


def test_a_lost_feed_is_told_with_its_evidence_and_an_unknown_one_is_not() -> None:
    (finding,) = feed_lost(with_feed(lost=True, since_s=NOW_S - 5, evidence="its PDUs measure no voltage"), NOW_S)
    assert finding.what == "feed A without power (its PDUs measure no voltage)"
    assert (finding.since_s, finding.key) == (NOW_S - 5, "A")
    for lost in (None, False):
        assert not list(feed_lost(with_feed(lost=lost), NOW_S))


def test_a_feed_that_could_not_carry_the_other_one_is_told_only_with_all_readings_and_a_rating() -> None:
    after = Reading(7200.0, NOW_S)
    (finding,) = feed_overcommitted(with_feed(total_after_loss_w=after, rated_w=7000.0), NOW_S)
    assert finding.what == "feed A would carry 7200 W without the other feed, rated 7000 W"
    for quiet in (
        {"total_after_loss_w": after, "rated_w": 7300.0},
        {"total_after_loss_w": after},
        {"rated_w": 7000.0},
        {"total_after_loss_w": after, "rated_w": 7000.0, "silent": ("a",)},
    ):
        assert not list(feed_overcommitted(with_feed(**quiet), NOW_S))


def test_80_percent_and_100_percent_of_the_configured_rating() -> None:
    assert both(with_pdu(power_w=Reading(5600.0, NOW_S), rated_w=7000.0)) == ([], [])
    near = "PDU rack12-a at 5700 W, rated 7000 W"
    assert both(with_pdu(power_w=Reading(5700.0, NOW_S), rated_w=7000.0)) == ([near], [])
    over = "PDU rack12-a at 7100 W, rated 7000 W"
    assert both(with_pdu(power_w=Reading(7100.0, NOW_S), rated_w=7000.0)) == ([], [over])


def test_amperes_of_each_phase_count_and_suspect_ones_do_not() -> None:
    phases = (PhaseSnapshot(id="L1", current_a=10.0), PhaseSnapshot(id="L2", current_a=28.0))
    assert both(with_pdu(phases=phases, rated_a=32.0)) == (["PDU rack12-a at 28.0 A on L2, rated 32 A"], [])
    assert both(with_pdu(phases=phases, rated_a=32.0, suspect=("phases[1].current_a",))) == ([], [])
    watts = Reading(61200.0, NOW_S)
    assert both(with_pdu(power_w=watts, rated_w=7000.0, suspect=("total_power_w",))) == ([], [])


def test_what_the_device_says_of_its_own_load_needs_no_rating() -> None:
    banks = (BankSnapshot(id="1", load_state="nearOverload"),)
    assert both(with_pdu(banks=banks)) == (["PDU rack12-a says that it is near overload"], [])
    phases = (PhaseSnapshot(id="L1", load_state="overload"),)
    assert both(with_pdu(phases=phases)) == ([], ["PDU rack12-a says that it is overloaded"])


def test_a_pdu_that_does_not_answer_or_has_no_rating_says_nothing() -> None:
    assert both(with_pdu(power_w=Reading(9e4, NOW_S))) == ([], [])
    assert both(with_pdu(power_w=Reading(9e4, NOW_S), rated_w=7000.0, up=False)) == ([], [])
