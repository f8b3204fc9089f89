"""Feeds from the readings of their PDUs: redundancy-aware totals, and whether a feed has lost its power.

A PDU that does not answer is not a feed without power: its network may be gone. What counts is where the load went.
"""

from collections import deque
from collections.abc import Mapping

from nodewarden.model.feeds import FeedSnapshot, Number
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import PduSnapshot

_DEAD_W = 2.0  # outlets read no less than this while a power supply is plugged in and alive
_DEAD_V = 20.0
_CARRIED_W = 100.0  # below this some meters read 0 by themselves (APC under 0.5 A)
_MOVED = 0.8  # share of what all feeds carried before that the others carry now
_TOGETHER_W = 500.0  # a node that draws less may have put a supply to sleep on purpose
_SILENT_S = 15.0
_BEFORE_S = 60.0  # how long healthy readings are kept: the oldest is from before the loss, whatever was polled first


class FeedWatch:
    """Puts the feeds together after each poll; remembers what they carried while all of them were well."""

    def __init__(self) -> None:
        self._before: deque[tuple[float, dict[str, float], float | None]] = deque()
        self._lost_since_s: dict[str, float] = {}

    def update(self, pdus: Mapping[str, PduSnapshot], gpus_w: float | None, now_s: float) -> dict[str, FeedSnapshot]:
        """The feeds now.

        Args:
            pdus: by name; those without a feed are left out.
            gpus_w: power of this node's GPUs together, None when unknown: tells a moved load from a changed one.
            now_s: CLOCK_BOOTTIME.
        """
        by_feed: dict[str, list[PduSnapshot]] = {}
        for pdu in pdus.values():
            if pdu.feed:
                by_feed.setdefault(pdu.feed, []).append(pdu)
        totals = {feed: _sum([_now(pdu, pdu.power_w) for pdu in members]) for feed, members in by_feed.items()}
        outlets = {
            feed: _sum([_now(pdu, pdu.outlets_w) for pdu in members if pdu.mapped_outlets])
            for feed, members in by_feed.items()
        }
        self._remember(outlets, by_feed, gpus_w, now_s)
        feeds = {}
        for feed, members in by_feed.items():
            lost, evidence = self._judge(feed, members, outlets, gpus_w, now_s)
            if lost:
                self._lost_since_s.setdefault(feed, now_s)
            else:
                self._lost_since_s.pop(feed, None)
            ratings = [pdu.rated_w for pdu in members if pdu.rated_w is not None]
            feeds[feed] = FeedSnapshot(
                name=feed,
                pdus=tuple(pdu.name for pdu in members),
                silent=tuple(pdu.name for pdu in members if not pdu.up),
                power_w=totals[feed],
                outlets_w=outlets[feed],
                after_loss_w=_after_loss(feed, outlets),
                total_after_loss_w=_after_loss(feed, totals),
                rated_w=sum(ratings) if len(ratings) == len(members) else None,
                lost=lost,
                since_s=self._lost_since_s.get(feed),
                evidence=evidence,
            )
        return feeds

    def _remember(
        self,
        outlets: Mapping[str, Number],
        by_feed: Mapping[str, list[PduSnapshot]],
        gpus_w: float | None,
        now_s: float,
    ) -> None:
        carried = {feed: number.value for feed, number in outlets.items() if isinstance(number, Reading)}
        all_up = all(pdu.up for members in by_feed.values() for pdu in members)
        if len(carried) < 2 or len(carried) < len(by_feed) or not all_up or min(carried.values()) < _CARRIED_W:
            return
        self._before.append((now_s, carried, gpus_w))
        while now_s - self._before[0][0] > _BEFORE_S:
            self._before.popleft()

    def _judge(
        self,
        feed: str,
        members: list[PduSnapshot],
        outlets: Mapping[str, Number],
        gpus_w: float | None,
        now_s: float,
    ) -> tuple[bool | None, str]:
        """Whether a feed has lost its power, and what shows it."""
        answering = [pdu for pdu in members if pdu.up]
        others = [number for name, number in outlets.items() if name != feed]
        carry = [number.value for number in others if isinstance(number, Reading)]
        others_w = sum(carry)
        now = f"the other feeds carry {others_w:.0f} W"
        if len(answering) == len(members):
            volts = [phase.voltage_v for pdu in members for phase in pdu.phases]
            known = [volt for volt in volts if volt is not None]
            if known and len(known) == len(volts) and max(known) < _DEAD_V:
                return True, f"its PDUs measure no voltage; {now}"
            mine = [
                outlet for pdu in members for outlet in pdu.outlets if outlet.index in pdu.mapped_outlets
            ]  # fmt: skip
            own = outlets[feed]
            dead = isinstance(own, Reading) and own.value <= _DEAD_W
            off = bool(mine) and all(outlet.state == "off" for outlet in mine)
            if (dead or off) and others_w > _TOGETHER_W and (off or self._has_moved(feed, others_w, gpus_w)):
                how = "are off" if off else f"read {own.value:.0f} W" if isinstance(own, Reading) else "are off"
                return True, f"this node's outlets on it {how}; {now}"
            return False, ""
        if answering:
            return (False, "") if any(_carries(pdu) for pdu in answering) else (None, "")
        silent_s = min(now_s - pdu.since_s for pdu in members)
        if silent_s >= _SILENT_S and others_w > _TOGETHER_W and self._has_moved(feed, others_w, gpus_w):
            return True, f"its PDUs are silent and its load has moved; {now}"
        return None, ""

    def _has_moved(self, feed: str, others_w: float, gpus_w: float | None) -> bool:
        """True when the others carry what all feeds carried together before, at the same load of the GPUs."""
        if not self._before:
            return False
        _, carried, gpus_then_w = self._before[0]
        if feed not in carried:
            return False
        load = 1.0
        if gpus_w is not None and gpus_then_w:
            load = max(0.25, min(4.0, gpus_w / gpus_then_w))
        without = sum(carried.values()) - carried[feed]
        # more than the others' own share at the present load, and nearly everything
        return others_w >= _MOVED * sum(carried.values()) * load and others_w >= 1.25 * without * load


def _now(pdu: PduSnapshot, number: Number) -> Number:
    """A PDU that does not answer keeps its last sum for the policy; here it has none."""
    return number if pdu.up or not isinstance(number, Reading) else Failed(pdu.reason or "no_answer", pdu.since_s)


def _carries(pdu: PduSnapshot) -> bool:
    return isinstance(pdu.outlets_w, Reading) and pdu.outlets_w.value > _DEAD_W


def _sum(numbers: list[Number]) -> Number:
    """The sum of all of them, as old as the oldest; the first reason why one is missing."""
    if not numbers:
        return Absent("no_outlets_mapped")
    readings = [number for number in numbers if isinstance(number, Reading)]
    if len(readings) == len(numbers):
        return Reading(sum(number.value for number in readings), min(number.taken_at_s for number in readings))
    failed = [number for number in numbers if isinstance(number, Failed)]
    return failed[0] if failed else next(number for number in numbers if isinstance(number, Absent))


def _after_loss(feed: str, numbers: Mapping[str, Number]) -> Number:
    """What this feed carries with the load of the largest other one."""
    others = [number for name, number in numbers.items() if name != feed]
    if not others:
        return Absent("no_other_feed")
    own = numbers[feed]
    readings = [number for number in others if isinstance(number, Reading)]
    if not isinstance(own, Reading) or len(readings) != len(others):
        return _sum([own, *others])
    oldest_s = min(own.taken_at_s, *(number.taken_at_s for number in readings))
    return Reading(own.value + max(number.value for number in readings), oldest_s)
