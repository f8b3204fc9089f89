"""Where feeds and PDUs carry too much or nothing: the predicates of these conditions. Pure."""

from collections.abc import Iterator

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import PduSnapshot
from nodewarden_alerts.facts import Facts, Finding

_SHARE = 0.8  # what a breaker carries for hours (NEC 210.20; IEC boards use the same)
_NEAR, _OVER = frozenset({"nearOverload", "near_overload", "warning"}), frozenset({"overload", "critical"})


def feed_lost(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A feed has no power, shown by more than silence."""
    del now_s
    for name, feed in facts.snapshot.feeds.items():
        if feed.lost:
            yield Finding(
                what=f"feed {name} without power ({feed.evidence})",
                done="nothing is redundant any longer",
                since_s=feed.since_s,
                key=name,
            )


def feed_overcommitted(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A feed could not carry the other one's load."""
    del now_s
    for name, feed in facts.snapshot.feeds.items():
        after = feed.total_after_loss_w
        if isinstance(after, Reading) and feed.rated_w is not None and after.value > feed.rated_w and not feed.silent:
            yield Finding(
                what=f"feed {name} would carry {after.value:.0f} W without the other feed, rated {feed.rated_w:.0f} W",
                key=name,
            )


def pdu_over_80(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A PDU carries over 80 % of its rating, or says so itself."""
    del now_s
    yield from _loaded(facts, over=False)


def pdu_over_rating(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A PDU carries more than its rating, or says so itself."""
    del now_s
    yield from _loaded(facts, over=True)


def _loaded(facts: Facts, *, over: bool) -> Iterator[Finding]:
    for name, pdu in facts.snapshot.pdus.items():
        if not pdu.up:
            continue
        share, words = _load(pdu)
        states = {phase.load_state for phase in pdu.phases} | {bank.load_state for bank in pdu.banks}
        by_itself = bool(states & _OVER), bool(states & _NEAR)
        is_over = share > 1 or by_itself[0]
        is_near = share > _SHARE or by_itself[1]
        if is_over if over else is_near and not is_over:
            said = f"says that it is {'overloaded' if is_over else 'near overload'}"
            yield Finding(what=f"PDU {name} {words or said}", pdu=name)


def _load(pdu: PduSnapshot) -> tuple[float, str]:
    """The highest share of a configured rating, and its words; 0 where none is known."""
    found = [(0.0, "")]
    if pdu.rated_w is not None and isinstance(pdu.power_w, Reading) and "total_power_w" not in pdu.suspect:
        found.append((pdu.power_w.value / pdu.rated_w, f"at {pdu.power_w.value:.0f} W, rated {pdu.rated_w:.0f} W"))
    for position, phase in enumerate(pdu.phases):
        if pdu.rated_a is None or phase.current_a is None or f"phases[{position}].current_a" in pdu.suspect:
            continue
        words = f"at {phase.current_a:.1f} A on {phase.id}, rated {pdu.rated_a:.0f} A"
        found.append((phase.current_a / pdu.rated_a, words))
    share, words = max(found)
    return share, words if share > _SHARE else ""
