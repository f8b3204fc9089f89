"""What the server's BMC tells of supplies, fans, leaks, coolant and inlet: the predicates of these conditions. Pure.

Only what is fresh counts, and only what is said: a supply or fan of unknown health is neither well nor ill.
"""

from collections.abc import Iterator

from nodewarden.model.bmc import BmcSnapshot
from nodewarden_alerts.facts import Facts, Finding

INLET_SHARE_C = 2.0  # so near to the BMC's own critical threshold the inlet is too hot
LOW_FLOW_SHARE = 0.7  # of the rated flow
UNSETTLED_S = 30.0  # a hot spare that wakes, a reading between two firmware states


def fresh(facts: Facts, now_s: float) -> BmcSnapshot:
    """The BMC's readings while they are fresh, else none."""
    source = facts.snapshot.sources.get("bmc")
    return BmcSnapshot() if source is None or source.is_stale(now_s) else facts.snapshot.bmc


def unreachable(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A BMC is configured and does not answer."""
    source = facts.snapshot.sources.get("bmc")
    if source is not None and not source.up and source.is_stale(now_s):
        why = f" ({source.reason})" if source.reason else ""
        yield Finding(what=f"the BMC does not answer{why}", done="supplies, fans and leaks of this server are not seen")


def supply_failed(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A supply that is there is not well; without its input it is not well either."""
    for supply in fresh(facts, now_s).psus:
        if supply.is_failed:  # iLO gives all supplies one name
            line = "" if supply.line_v is None else f", {supply.line_v:.0f} V at its input"
            yield Finding(what=f"power supply {supply.name} ({supply.id}): {supply.health}{line}", key=supply.id)


def redundancy_lost(facts: Facts, now_s: float) -> Iterator[Finding]:
    """Supplies no longer back each other: the next failure ends the machine."""
    bmc = fresh(facts, now_s)
    if bmc.is_redundancy_lost:
        sick = ", ".join(bmc.failed_supplies)
        yield Finding(what=f"power supplies are no longer redundant{f': {sick}' if sick else ''}")


def fan_failed(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A fan is not well by the BMC's word."""
    for fan in fresh(facts, now_s).fans:
        if fan.present and (fan.health or "").lower() in {"warning", "critical"}:
            speed = "" if fan.rpm is None else f", {fan.rpm:.0f} rpm"
            yield Finding(what=f"fan {fan.name}: {fan.health}{speed}", key=fan.name)


def leak_detected(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A detector found a leak. Each is looked at: a Critical one under a healthy rollup was seen."""
    for detector in fresh(facts, now_s).leak:
        if detector.is_leaking:
            yield Finding(what=f"leak detector {detector.name} says {detector.state}", key=detector.name)


def leak_detection_lost(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A detector that does not watch: no leak, but nobody would know of one."""
    for detector in fresh(facts, now_s).leak:
        if detector.is_leaking is None and (detector.state or "").lower() != "absent":
            said = detector.status_state or detector.state or "nothing"
            yield Finding(what=f"leak detector {detector.name} does not watch ({said})", key=detector.name)


def flow_low(facts: Facts, now_s: float) -> Iterator[Finding]:
    """Less coolant flows than it should."""
    for each in fresh(facts, now_s).flow:
        if each.flow_lpm is not None and each.rated_flow_lpm and each.flow_lpm < LOW_FLOW_SHARE * each.rated_flow_lpm:
            yield Finding(
                what=f"coolant {each.name} flows at {each.flow_lpm:.1f} l/min, rated {each.rated_flow_lpm:.1f}",
                key=each.name,
            )


def inlet_hot(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The air that comes in is about as warm as the server bears."""
    for each in fresh(facts, now_s).temperatures:
        limit_c = each.upper_critical_c
        if each.location == "inlet" and limit_c is not None and each.value_c >= limit_c - INLET_SHARE_C:
            yield Finding(what=f"inlet air at {each.value_c:.0f} degC, critical is {limit_c:.0f} degC", key=each.name)
