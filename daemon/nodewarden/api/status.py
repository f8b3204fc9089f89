"""What `nodectl status --json` prints: the view as a document whose keys never change meaning. Missing is null.

`python -m nodewarden.api.status` prints its JSON schema, which is kept in docs/status.schema.json.
"""

import math
import re
import sys
from datetime import UTC, datetime
from typing import Literal, overload

import msgspec

from nodewarden.api.view import Health, View
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import Cause, Level
from nodewarden.model.snapshot import GpuHealth, GpuSnapshot, JobSnapshot, JobState, Number, PduSnapshot, SourceStatus
from nodewarden.xid_table import Severity as XidSeverity
from nodewarden_alerts import advice_of
from nodewarden_alerts.conditions import Severity
from nodewarden_alerts.predicates import behind
from nodewarden_alerts.xids import advice_on_xid

SCHEMA = 1
_GPU_STALE_S = 3.0
_PDU_STALE_S = 15.0


class CapStatus(msgspec.Struct, kw_only=True):
    """A cap of ours in force: why, since when, and what would lift it; paced_by is the GPU whose pace it keeps."""

    cause: str
    since: str | None
    lifts_when: str
    prior_w: float
    protects: Literal["none", "gpu", "breaker"]
    paced_by: str | None = None


class GpuStatus(msgspec.Struct, kw_only=True):
    """One GPU. A lost one stays in the list with null readings. Degrees Celsius, watts, seconds; utilisation 0 to 1.

    age_s is the age of the newest reading even where it is too old to be shown; margins are positive when safe.
    """

    uuid: str
    index: int | None
    model: str
    state: GpuHealth
    junction_c: float | None = None
    hbm_c: float | None = None
    margin_to_max_op_c: float | None = None
    margin_to_slowdown_c: float | None = None
    power_w: float | None = None
    cap_w: float | None = None
    cap: CapStatus | None = None
    utilisation: float | None = None
    slow: list[str] | None = None
    age_s: float | None = None
    time_to_slowdown_s: float | None = None


class PduStatus(msgspec.Struct, kw_only=True):
    """One PDU. power_w is the whole device; outlets_w this node's outlets together, which limit_w bounds."""

    name: str
    power_w: float | None
    outlets_w: float | None
    limit_w: float | None
    age_s: float | None
    up: bool


class JobStatus(msgspec.Struct, kw_only=True):
    """One training job; duty is the share of time that it is asked to run."""

    id: str
    ranks: int
    step: int | None
    steps_per_s: float | None
    state: JobState
    duty: float
    last_checkpoint_age_s: float | None


class ProblemStatus(msgspec.Struct, kw_only=True):
    """One condition that holds, with what a person can do; uuid or pdu where it concerns one device."""

    code: str
    severity: Severity
    text: str
    since: str
    advice: str = ""
    uuid: str | None = None
    pdu: str | None = None


class Status(msgspec.Struct, kw_only=True):
    """The node. health, armed and ladder are null when no agent answered."""

    schema: int = SCHEMA
    node: str
    time: str
    armed: bool | None
    health: Health | None
    ladder: int | None
    gpus: list[GpuStatus]
    pdus: list[PduStatus]
    jobs: list[JobStatus]
    problems: list[ProblemStatus]


def status_document(view: View) -> Status:
    """The document of `nodectl status --json`."""
    return Status(
        node=view.node_name,
        time=rfc3339(view.wall_s),
        armed=view.armed,
        health="critical" if view.setpoints.level >= Level.CHECKPOINT else view.health,
        ladder=int(view.setpoints.level),
        gpus=[gpu_status(view, gpu) for gpu in sorted_gpus(view)],
        pdus=[pdu_status(view, pdu) for pdu in view.snapshot.pdus.values()],
        jobs=[job_status(view, job) for job in view.snapshot.jobs],
        problems=[
            ProblemStatus(
                code=problem.code,
                severity=problem.severity,
                text=problem.text,
                since=rfc3339(view.unix_s(problem.since_s)),
                advice=advice_for(view, problem.code, problem.uuid),
                uuid=problem.uuid,
                pdu=problem.pdu,
            )
            for problem in view.problems
        ],
    )


_XIDS: dict[str, XidSeverity] = {
    "xid_critical": "critical",
    "xid_warning": "warning",
    "xid_application": "application",
}


def advice_for(view: View, code: str, uuid: str | None) -> str:
    """What to do about a problem, with the GPU's index where the commands in it say GPU."""
    advice = advice_of(code)
    known = view.snapshot.xids.get(uuid) if uuid is not None else None
    if known is not None and code in _XIDS:
        advice = advice_on_xid(known.incidents, _XIDS[code]) or advice
    if uuid is not None and (cap := cap_status(view, uuid)) is not None:
        advice = _of_this_cause(advice, cap)
    gpu = view.snapshot.gpus.get(uuid) if uuid is not None else None
    if gpu is None or gpu.index is None:
        return advice
    return re.sub(r"(nodectl \w+(?: \w+)?) GPU\b", rf"\1 {gpu.index}", advice)


def _of_this_cause(advice: str, cap: CapStatus) -> str:
    """Leaves out what an advice says for other causes than the one of this cap, as in "thermal: look at cooling"."""
    cause = "pace" if cap.paced_by else "manual" if cap.cause in {Cause.MANUAL, Cause.LEASE} else cap.cause
    parts = [part.partition(": ") for part in advice.split("; ")]
    others = set(Cause) - {cause}
    return "; ".join(
        text if label == cause else label + colon + text for label, colon, text in parts if label not in others
    )


def status_without_agent(node: str, wall_s: float, now_s: float, ledger: list[LedgerEntry]) -> Status:
    """The same document when no agent answers: what the ledger holds is all that is known."""
    problems = [
        ProblemStatus(
            code="cap_kept",
            severity="warning",
            text=f"{entry.uuid} kept at {entry.w:.0f} W, before {entry.prior_w:.0f} W: {entry.cause or 'unknown'}",
            since=rfc3339(wall_s - (now_s - entry.since_s)),
            advice=advice_of("cap_kept"),
            uuid=entry.uuid,
        )
        for entry in ledger
    ]
    return Status(
        node=node,
        time=rfc3339(wall_s),
        armed=None,
        health=None,
        ladder=None,
        gpus=[],
        pdus=[],
        jobs=[],
        problems=problems,
    )


def sorted_gpus(view: View) -> list[GpuSnapshot]:
    """In the order that people know: by index, those without one last."""
    return sorted(view.snapshot.gpus.values(), key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid))


def gpu_status(view: View, gpu: GpuSnapshot) -> GpuStatus:
    """One GPU; what is too old to trust is null."""
    source = view.snapshot.sources.get(f"gpu/{gpu.uuid}")
    stale_s = source.stale_after_s if source else _GPU_STALE_S
    fast = (gpu.junction_c, gpu.hbm_c, gpu.margin_c, gpu.power_w, gpu.cap_w, gpu.utilisation)
    age_s = _age_s(view, fast, source)
    readable = gpu.health in {"ok", "unresponsive"}
    is_fresh = readable and age_s is not None and age_s <= stale_s
    forecast = view.setpoints.forecast.get(gpu.uuid) if is_fresh else None

    def shown(quantity: Number) -> float | None:
        return fresh_value(view, quantity, stale_s) if readable else None

    slow = gpu.slow
    has_slow = readable and isinstance(slow, Reading) and slow.age_s(view.now_s) <= stale_s
    return GpuStatus(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        state=gpu.health,
        junction_c=tidy(shown(gpu.junction_c)),
        hbm_c=tidy(shown(gpu.hbm_c)),
        margin_to_max_op_c=tidy(forecast.margin_to_max_op_c) if forecast else None,
        margin_to_slowdown_c=tidy(forecast.margin_to_slowdown_c) if forecast else None,
        power_w=tidy(shown(gpu.power_w)),
        cap_w=tidy(shown(gpu.cap_w)),
        cap=cap_status(view, gpu.uuid),
        utilisation=tidy(shown(gpu.utilisation), 2),
        slow=list(slow.value) if has_slow and isinstance(slow, Reading) else None,
        age_s=tidy(age_s),
        time_to_slowdown_s=tidy(forecast.time_to_slowdown_s) if forecast else None,
    )


def cap_status(view: View, uuid: str) -> CapStatus | None:
    """The cap of ours that the helper holds on this GPU, None when it holds none."""
    entry = next((e for e in view.ledger if e.uuid == uuid), None)
    if entry is None or entry.state == "vanished":
        return None
    setpoint = behind(entry, view.setpoints.caps.get(uuid), armed=view.armed)
    since_s = view.caps_since.get(uuid, entry.since_s)
    return CapStatus(
        cause=str(setpoint.cause) if setpoint else entry.cause or "none",
        since=rfc3339(view.unix_s(since_s)) if since_s else None,
        lifts_when=setpoint.lifts_when if setpoint else "",
        prior_w=tidy(entry.prior_w),
        protects=setpoint.protects.value if setpoint else entry.protects,
        paced_by=setpoint.paced_by if setpoint else None,
    )


def pdu_status(view: View, pdu: PduSnapshot) -> PduStatus:
    """One PDU; what is too old to trust is null."""
    source = view.snapshot.sources.get(f"pdu/{pdu.name}")
    stale_s = source.stale_after_s if source else _PDU_STALE_S
    return PduStatus(
        name=pdu.name,
        power_w=tidy(fresh_value(view, pdu.power_w, stale_s)),
        outlets_w=tidy(fresh_value(view, pdu.outlets_w, stale_s)),
        limit_w=tidy(pdu.limit_w),
        age_s=tidy(_age_s(view, (pdu.power_w, pdu.outlets_w), source)),
        up=pdu.up,
    )


def job_status(view: View, job: JobSnapshot) -> JobStatus:
    """One job."""
    saved_s = job.last_checkpoint_at_s
    return JobStatus(
        id=job.id,
        ranks=job.ranks,
        step=job.step,
        steps_per_s=tidy(job.steps_per_s, 3),
        state=job.state,
        duty=tidy(job.duty, 2),
        last_checkpoint_age_s=tidy(max(0.0, view.now_s - saved_s)) if saved_s is not None else None,
    )


def fresh_value(view: View, quantity: Number, stale_s: float) -> float | None:
    """The value of a reading that is not older than `stale_s`, else None."""
    if isinstance(quantity, Reading) and quantity.age_s(view.now_s) <= stale_s:
        return quantity.value
    return None


def _age_s(view: View, quantities: tuple[Number, ...], source: SourceStatus | None) -> float | None:
    """Age of the newest of these readings, else of the last answer of their source; None when there was never one."""
    ages = [q.age_s(view.now_s) for q in quantities if isinstance(q, Reading)]
    if ages:
        return min(ages)
    if source is not None and source.last_success_s is not None:
        return max(0.0, view.now_s - source.last_success_s)
    return None


@overload
def tidy(value: float, digits: int = 1) -> float: ...
@overload
def tidy(value: float | None, digits: int = 1) -> float | None: ...
def tidy(value: float | None, digits: int = 1) -> float | None:
    """Rounded for people; whole numbers lose their ".0"."""
    if value is None or not math.isfinite(value):
        return None
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded


def rfc3339(unix_s: float) -> str:
    """Wall-clock time for people and programs, UTC, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def schema() -> bytes:
    """The JSON schema of the status document, as docs/status.schema.json holds it."""
    document = msgspec.json.schema(Status)
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = "nodectl status --json"
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(schema())
