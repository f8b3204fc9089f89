"""Where the errors of GPUs and NVSwitches are conditions; rows of the table in `conditions.py`. Pure."""

from collections.abc import Callable, Iterator

from nodewarden.model.xids import Incident
from nodewarden.xid_table import Severity
from nodewarden_alerts.facts import Facts, Finding, clock_time

SWITCH_RECENT_S = 3600.0


def xids(severity: Severity) -> Callable[[Facts, float], Iterator[Finding]]:
    """The incidents of this severity that are not over."""

    def find(facts: Facts, now_s: float) -> Iterator[Finding]:
        for uuid, known in facts.snapshot.xids.items():
            for incident in known.incidents:
                if incident.row.severity == severity and (incident.over_s is None or now_s < incident.over_s):
                    yield Finding(
                        what=_what(facts, uuid, incident, now_s),
                        done=_over(facts, incident, now_s),
                        since_s=incident.first_s if 0.0 < incident.first_s <= now_s else None,
                        uuid=uuid,
                        key=str(incident.code),
                    )

    return find


def _what(facts: Facts, uuid: str, incident: Incident, now_s: float) -> str:
    gpu = facts.snapshot.gpus.get(uuid)
    name = gpu.name if gpu is not None else f"GPU at {uuid.removeprefix('pci-')}"
    what = f"{name}: Xid {incident.code}, {incident.row.name}"
    if incident.count > 1:
        what += f", {incident.count} times, last at {clock_time(incident.last_s, now_s, facts.wall_offset_s)}"
    return f"{what}{_whose(facts, uuid, incident)}"


def _whose(facts: Facts, uuid: str, incident: Incident) -> str:
    """The job and the process, as far as known."""
    jobs = [job for job in facts.snapshot.jobs if incident.pid is not None and incident.pid in job.pids]
    jobs = jobs or [job for job in facts.snapshot.jobs if uuid in job.gpus]
    words = [f"job {jobs[0].id}"] if jobs else []
    if incident.pid is not None:
        words.append(f"pid {incident.pid} {incident.process}".strip())
    return f", {', '.join(words)}" if words else ""


def _over(facts: Facts, incident: Incident, now_s: float) -> str:
    if incident.over_s is None:
        return "over when the GPU is reset or a person clears it"
    return f"over at {clock_time(incident.over_s, now_s, facts.wall_offset_s)} if no other comes"


def advice_on_xid(facts_xids: tuple[Incident, ...], severity: Severity) -> str:
    """What the table advises about the worst incident of this severity, empty when there is none."""
    return next((f"Xid {each.code}: {each.row.advice}" for each in facts_xids if each.row.severity == severity), "")


def nvswitch_error(facts: Facts, now_s: float) -> Iterator[Finding]:
    """An NVSwitch reported an error lately."""
    for bus_id, switch in facts.snapshot.switches.items():
        if 0.0 < switch.last_s <= now_s and now_s - switch.last_s <= SWITCH_RECENT_S:
            yield Finding(
                what=f"NVSwitch {bus_id}: SXid {switch.last_code}: {switch.last_text or 'no words'}, last",
                since_s=switch.last_s,
                key=bus_id,
            )
