"""Where each condition holds: one function per row of the table in `conditions.py`. Pure: facts in, findings out."""

import math
from collections.abc import Iterator

from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, Level
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden_alerts.facts import RECENT_S, Facts, Finding, clock_time

# Why a cap is there, in words that go on "... capped at 540 W: ".
CAUSE_WORDS = {
    Cause.THERMAL: "cooling removes less heat",
    Cause.NODE_POWER: "all GPUs together reach the node's power limit",
    Cause.OUTLETS: "this node's outlets reach their limit",
    Cause.MANUAL: "a person asked for it",
    Cause.LEASE: "a lease asked for it",
    Cause.FAILSAFE: "fail-safe, readings are missing",
    Cause.STALE: "its readings are too old to trust",
}


def _capped(facts: Facts) -> Iterator[tuple[LedgerEntry, str]]:
    gpus = facts.snapshot.gpus
    for entry in sorted(facts.ledger, key=lambda entry: (_index(gpus.get(entry.uuid)), entry.uuid)):
        yield entry, facts.snapshot.gpu_name(entry.uuid)


def _index(gpu: GpuSnapshot | None) -> float:
    """For the order that people know; those without an index last."""
    return gpu.index if gpu is not None and gpu.index is not None else math.inf


def behind(entry: LedgerEntry, setpoint: CapSetpoint | None, *, armed: bool) -> CapSetpoint | None:
    """The decision behind a cap in force; None = none any more.

    While disarmed a person's cap is nothing else, whatever would be decided if the node were armed.
    """
    if setpoint is None or setpoint.cause == Cause.NONE:
        return None
    if armed or entry.protects != "none":
        return setpoint
    return CapSetpoint(
        w=entry.w,
        cause=Cause.LEASE if entry.cause == Cause.LEASE else Cause.MANUAL,
        manual_w=entry.w,
        expires_s=entry.expires_at_s,
        lifts_when="released" if entry.expires_at_s is None else "released, or its time is over",
    )


def cause_words(setpoint: CapSetpoint) -> str:
    """Why this cap is what it is, for people."""
    return f"kept at the pace of {setpoint.paced_by}" if setpoint.paced_by else CAUSE_WORDS[setpoint.cause]


def _why(facts: Facts, entry: LedgerEntry) -> str:
    setpoint = behind(entry, facts.setpoints.caps.get(entry.uuid), armed=facts.armed)
    if setpoint is not None:
        return cause_words(setpoint)
    try:
        return CAUSE_WORDS[Cause(entry.cause)]
    except (KeyError, ValueError):
        return entry.cause or "cause unknown"


def _is_fresh(facts: Facts, source_name: str, now_s: float) -> bool:
    source = facts.snapshot.sources.get(source_name)
    return source is None or not source.is_stale(now_s)


def helper_missing(facts: Facts, now_s: float) -> Iterator[Finding]:
    """No helper process is there."""
    helper = facts.snapshot.helper
    if helper.state == "missing":
        yield Finding(
            what="GPU helper not running: GPUs can be neither read nor capped",
            done="caps of a stopped helper were restored by it, those of a killed one stay",
            since_s=_known(helper.since_s, now_s),
        )


def _known(since_s: float | None, now_s: float) -> float | None:
    """A time that a source gave, unless it never set it (0) or it lies ahead."""
    return since_s if since_s is not None and 0.0 < since_s <= now_s else None


def driver_missing(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The helper found no usable driver although GPUs are expected."""
    helper = facts.snapshot.helper
    if (
        facts.expected_gpus > 0
        and helper.state == "ok"
        and helper.driver not in {"ok", "unknown", "unresponsive", "released"}
    ):
        reason = helper.text or helper.driver.replace("_", " ")
        yield Finding(
            what=f"no GPU driver, {facts.expected_gpus} GPUs expected: {reason}",
            done="looked for again every few seconds",
            since_s=_known(helper.driver_since_s, now_s),
        )


def driver_unresponsive(facts: Facts, now_s: float) -> Iterator[Finding]:
    """Calls into the driver hang: all of them, or those of one GPU."""
    helper = facts.snapshot.helper
    if helper.state == "unresponsive":
        yield Finding(
            what="GPU helper does not answer: the driver is unresponsive",
            done="caps are held, the job may be throttled",
            since_s=_known(helper.since_s, now_s),
        )
        return
    if helper.state == "ok" and helper.driver == "unresponsive":
        yield Finding(
            what="GPU driver does not answer: looking for GPUs hangs",
            done="caps are held, the job may be throttled",
            since_s=_known(helper.driver_since_s, now_s),
        )
    for uuid, gpu in facts.snapshot.gpus.items():
        if gpu.health == "unresponsive":
            source = facts.snapshot.sources.get(f"gpu/{uuid}")
            reason = (source.reason if source is not None else None) or "timeout"
            why = "driver calls hang" if reason == "timeout" else reason.replace("_", " ")
            yield Finding(
                what=f"{gpu.name} does not answer: {why}",
                done="its cap is held, the other GPUs go on",
                since_s=_known(gpu.health_since_s, now_s),
                uuid=uuid,
            )


def gpu_lost(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A GPU that was here is not, or fewer were found than expected."""
    snapshot = facts.snapshot
    for uuid, gpu in snapshot.gpus.items():
        if gpu.health in {"lost", "absent"}:
            what = "fell off the bus" if gpu.health == "lost" else "is gone from the driver's list"
            if gpu.health_text:
                what = f"is {gpu.health_text}" if gpu.health_text.startswith("lost") else f"is lost: {gpu.health_text}"
            place = f"{uuid}, {gpu.pci_bus_id}" if gpu.pci_bus_id else uuid
            yield Finding(
                what=f"{gpu.name} ({place}) {what}",
                done="looked for again; it needs a reset or a reboot",
                since_s=_known(gpu.health_since_s, now_s),
                uuid=uuid,
            )
    missing = facts.expected_gpus - len(snapshot.gpus)
    if missing > 0 and snapshot.helper.state == "ok" and snapshot.helper.driver == "ok":
        yield Finding(what=f"only {len(snapshot.gpus)} of {facts.expected_gpus} expected GPUs found", key="count")


def gpu_released(facts: Facts, now_s: float) -> Iterator[Finding]:
    """We let go of a GPU because a person asked for it."""
    for uuid, gpu in facts.snapshot.gpus.items():
        if gpu.health == "released":
            until = ""
            if gpu.released_until_s is not None:
                until = f" until {clock_time(gpu.released_until_s, now_s, facts.wall_offset_s)}"
            yield Finding(
                what=f"{gpu.name} released{until}, so that it can be reset or set up anew",
                done="neither read nor capped",
                since_s=_known(gpu.health_since_s, now_s),
                uuid=uuid,
            )


def limit_exceeded(facts: Facts, now_s: float) -> Iterator[Finding]:
    """What must not be passed is passed: outlets, all GPUs together, slowdown temperature."""
    snapshot, limits = facts.snapshot, facts.limits
    for name, limit_w in limits.outlets.items():
        power = snapshot.outlets.get(name)
        if isinstance(power, Reading) and _is_fresh(facts, f"pdu/{name}", now_s) and power.value > limit_w:
            yield Finding(what=f"outlets of PDU {name} at {power.value:.0f} W, limit {limit_w:.0f} W", pdu=name)
    if limits.node_power_w is not None and snapshot.gpus:
        powers = [gpu.power_w for uuid, gpu in snapshot.gpus.items() if _is_fresh(facts, f"gpu/{uuid}", now_s)]
        total_w = sum(power.value for power in powers if isinstance(power, Reading))
        if total_w > limits.node_power_w:
            yield Finding(what=f"GPUs together at {total_w:.0f} W, limit {limits.node_power_w:.0f} W", key="node_power")
    for uuid, forecast in facts.setpoints.forecast.items():
        margin_c = forecast.margin_to_slowdown_c
        gpu = snapshot.gpus.get(uuid)
        if margin_c is not None and margin_c <= 0 and gpu is not None and gpu.health == "ok":
            yield Finding(what=f"{gpu.name} at its slowdown temperature", uuid=uuid)


_RUNG_WORDS = {
    Level.CHECKPOINT: "the job was asked to save",
    Level.PAUSE: "the job was paused",
    Level.DRAIN: "the node is being drained",
}


def ladder_high(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The ladder is at checkpoint, pause or drain."""
    del now_s
    level = facts.setpoints.level
    if level >= Level.CHECKPOINT:
        done = _RUNG_WORDS[Level(level)] if facts.armed else "disarmed: nothing was done"
        yield Finding(what=f"ladder at level {int(level)} ({Level(level).name.lower()})", done=done)


def gpu_capped(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A cap of ours is in force."""
    for entry, name in _capped(facts):
        if entry.state == "owned" and entry.pending is None and entry.w < entry.prior_w:
            setpoint = behind(entry, facts.setpoints.caps.get(entry.uuid), armed=facts.armed)
            lifts = setpoint.lifts_when if setpoint is not None else ""
            yield Finding(
                what=f"{name} capped at {entry.w:.0f} W: {_why(facts, entry)}",
                done=f"lifts when {lifts}" if lifts else "",
                since_s=_known(entry.since_s, now_s),
                uuid=entry.uuid,
            )


def cap_kept(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A cap outlived its agent because it protects something."""
    for entry, name in _capped(facts):
        if entry.state == "kept":
            yield Finding(
                what=f"{name} kept at {entry.w:.0f} W (before: {entry.prior_w:.0f} W) because it protects the "
                f"{'breaker' if entry.protects == 'breaker' else 'GPU'}: {_why(facts, entry)}",
                since_s=_known(entry.since_s, now_s),
                uuid=entry.uuid,
            )


def restore_pending(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A restore failed or hangs."""
    del now_s
    for entry, name in _capped(facts):
        if entry.pending is not None:
            yield Finding(
                what=f"{name} could not be restored to {entry.prior_w:.0f} W ({entry.pending})",
                done=f"still at {entry.w:.0f} W, tried again",
                uuid=entry.uuid,
            )


def cap_vanished(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The driver forgot a cap of ours, now or lately."""
    told: set[str] = set()
    for entry, name in _capped(facts):
        if entry.state == "vanished":
            told.add(entry.uuid)
            yield Finding(
                what=f"{name} lost its cap of {entry.w:.0f} W (driver reload or reset)",
                done="what protects is set again",
                uuid=entry.uuid,
            )
    for event in facts.events:
        if event.code == "cap_vanished" and now_s - event.at_s <= RECENT_S and (event.uuid or "") not in told:
            told.add(event.uuid or "")
            yield Finding(what=event.text, since_s=_known(event.at_s, now_s), uuid=event.uuid)


def persistence_off(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A cap is in force that ends with the last client of its GPU."""
    del now_s
    for entry, name in _capped(facts):
        gpu = facts.snapshot.gpus.get(entry.uuid)
        mode = gpu.number("persistence_mode") if gpu is not None else None
        if isinstance(mode, Reading) and mode.value == 0:
            what = f"{name} is capped while its persistence mode is off: the cap is lost with the GPU's last client"
            yield Finding(what=what, done="what protects is set again when it is lost", uuid=entry.uuid)


def foreign_cap(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The limit in force is neither ours nor the one before us."""
    del now_s
    for entry, name in _capped(facts):
        if entry.state == "foreign":
            gpu = facts.snapshot.gpus.get(entry.uuid)
            found = (
                f"{gpu.cap_w.value:.0f} W" if gpu is not None and isinstance(gpu.cap_w, Reading) else "another limit"
            )
            yield Finding(
                what=f"{name} has {found} that somebody else set (ours {entry.w:.0f} W, before {entry.prior_w:.0f} W)",
                done="set again at most 3 times in 10 minutes, then left alone",
                uuid=entry.uuid,
            )


def helper_foreign(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The helper is another user's or serves another agent."""
    helper = facts.snapshot.helper
    if helper.state in {"foreign", "busy"}:
        whose = "serves another agent" if helper.state == "busy" else "belongs to another user"
        yield Finding(
            what=f"GPU helper (pid {helper.pid}, uid {helper.uid}) {whose}",
            done="GPUs are neither read nor capped from here",
            since_s=_known(helper.since_s, now_s),
        )


def control_unavailable(facts: Facts, now_s: float) -> Iterator[Finding]:
    """GPUs can be read but not capped."""
    del now_s
    helper = facts.snapshot.helper
    if helper.state == "ok" and helper.driver == "ok" and facts.snapshot.gpus and not helper.can_write:
        reason = (helper.write_reason or "no right to write").replace("_", " ")
        yield Finding(what=f"caps cannot be set ({reason})", done="readings and job requests go on")


def cap_not_written(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A cap is wanted, and the driver does not put it in force."""
    for uuid, (why, since_s) in sorted(facts.refusals.items()):
        yield Finding(
            what=f"the cap of {facts.snapshot.gpu_name(uuid)} is not in force: {why}",
            done="tried again, at most once a minute",
            since_s=_known(since_s, now_s),
            uuid=uuid,
        )


def ledger_failed(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The helper cannot keep what it would have to undo."""
    del now_s
    helper = facts.snapshot.helper
    if helper.state == "ok" and helper.ledger_problem is not None:
        yield Finding(what=f"caps cannot be kept on file ({helper.ledger_problem})", done="no further GPU is capped")


def pdu_stale(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A PDU does not answer or its readings are too old."""
    for name, pdu in facts.snapshot.pdus.items():
        source = facts.snapshot.sources.get(f"pdu/{name}")
        if pdu.up and (source is None or not source.is_stale(now_s)):
            continue
        reason = (pdu.reason or (source.reason if source is not None else None) or "no answer").replace("_", " ")
        since_s = source.last_success_s if source is not None and source.last_success_s is not None else pdu.since_s
        yield Finding(
            what=f"PDU {name} not read ({reason})",
            done="its outlets count as at their worst" if pdu.limit_w is not None else "",
            since_s=_known(since_s, now_s),
            pdu=name,
        )


def pdu_suspect(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A PDU reports quantities that contradict each other."""
    del now_s
    for name, pdu in facts.snapshot.pdus.items():
        if pdu.suspect:
            shown = ", ".join(pdu.suspect[:3]) + (f" and {len(pdu.suspect) - 3} more" if len(pdu.suspect) > 3 else "")
            yield Finding(what=f"PDU {name} contradicts itself in {shown}", done="not used for control", pdu=name)


def journal_degraded(facts: Facts, now_s: float) -> Iterator[Finding]:
    """Decisions are not recorded."""
    del now_s
    if facts.journal_problem is not None:
        yield Finding(what=f"journal does not record ({facts.journal_problem})", done="control goes on")


def http_unavailable(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The metrics port is not ours."""
    del now_s
    if facts.http_problem is not None:
        yield Finding(what=f"metrics cannot be scraped ({facts.http_problem})", done="tried again every 5 s")


def mqtt_unavailable(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The broker does not take what we publish."""
    del now_s
    if facts.mqtt_problem is not None:
        yield Finding(what=f"not published to MQTT ({facts.mqtt_problem})", done="tried again, growing apart")


def config_reload_failed(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A reload was refused."""
    del now_s
    if facts.config_problem is not None:
        yield Finding(what=f"new configuration refused ({facts.config_problem})", done="the old one stays in force")


def loop_stalled(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A loop stopped making progress."""
    for name, progress_s in facts.stalled.items():
        yield Finding(what=f"loop {name} makes no progress", since_s=_known(progress_s, now_s), key=name)


def clock_stepped(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The wall clock jumped lately."""
    at_s = facts.clock_stepped_at_s
    if at_s is not None and now_s - at_s <= RECENT_S:
        way = "forward" if facts.clock_step_s >= 0 else "back"
        yield Finding(
            what=f"wall clock jumped {abs(facts.clock_step_s):.1f} s {way}",
            done="times shown to people may be off, control is not affected",
            since_s=_known(at_s, now_s),
        )


def disarmed(facts: Facts, now_s: float) -> Iterator[Finding]:
    """Automatic control is off."""
    if not facts.armed:
        yield Finding(
            what="disarmed: no automatic caps or job requests",
            since_s=_known(facts.armed_since_s, now_s),
        )
