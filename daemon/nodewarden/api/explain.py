"""`nodectl explain`: for the operator at 3 a.m. What is wrong, what we did, why, what would lift it, how to undo it.

Sentences are made here, from one view; nothing is decided.
"""

import msgspec

from nodewarden.api.status import GpuStatus, advice_for, gpu_status, rfc3339, sorted_gpus, tidy
from nodewarden.api.view import View
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, Level
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.model.xids import GpuXids
from nodewarden_alerts.predicates import CAUSE_WORDS, behind, cause_words

LEVEL_WORDS = {
    Level.NORMAL: "nothing needs to be done",
    Level.NOTIFY: "a limit is near; people are told, nothing is changed",
    Level.CAP: "GPU power is capped",
    Level.THROTTLE: "the job is slowed down",
    Level.CHECKPOINT: "the job is asked to save",
    Level.PAUSE: "the job is paused",
    Level.DRAIN: "the node is being drained",
}


class Explained(msgspec.Struct, kw_only=True):
    """One problem with what a person can do about it."""

    code: str
    severity: str
    text: str
    since: str
    advice: str


class GpuExplanation(msgspec.Struct, kw_only=True):
    """One GPU in sentences; `undo` are commands, the gentlest first."""

    uuid: str
    index: int | None
    headline: str
    done: list[str]
    why: list[str]
    lifts_when: str
    undo: list[str]


class Explanation(msgspec.Struct, kw_only=True):
    """The node, then each GPU that was asked for or has something to say."""

    schema: int = 1
    node: str
    time: str
    health: str
    armed: bool
    ladder: int
    ladder_text: str
    headline: str
    problems: list[Explained]
    gpus: list[GpuExplanation]
    jobs: list[str]


def explanation(view: View, uuids: list[str] | None = None) -> Explanation:
    """Explain the named GPUs, or with None all that are not simply fine."""
    level = Level(view.setpoints.level)
    problems = [
        Explained(
            code=p.code,
            severity=p.severity,
            text=p.text,
            since=rfc3339(view.unix_s(p.since_s)),
            advice=advice_for(view, p.code, p.uuid),
        )
        for p in view.problems
        if uuids is None or p.uuid is None or p.uuid in uuids
    ]
    gpus = sorted_gpus(view)
    named = [gpu for gpu in gpus if (gpu.uuid in uuids if uuids is not None else _has_something_to_say(view, gpu))]
    return Explanation(
        node=view.node_name,
        time=rfc3339(view.wall_s),
        health=view.health,
        armed=view.armed,
        ladder=int(level),
        ladder_text=LEVEL_WORDS[level],
        headline=_node_headline(view),
        problems=problems,
        gpus=[_explain_gpu(view, gpu, is_asked=uuids is not None) for gpu in named],
        jobs=_job_lines(view),
    )


def for_long(seconds: float) -> str:
    """A length of time in words: "40 s", "12 min", "3 h 5 min"."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:.0f} days"


def _node_headline(view: View) -> str:
    loud = [p for p in view.problems if p.severity != "info"]
    if not loud:
        return "Everything is within its limits." + ("" if view.armed else " The node is disarmed: it only watches.")
    worst = next((p for p in loud if p.severity == "critical"), loud[0])
    more = f" ({len(loud) - 1} more below)" if len(loud) > 1 else ""
    return f"{worst.text}{more}"


def _has_something_to_say(view: View, gpu: GpuSnapshot) -> bool:
    setpoint = view.setpoints.caps.get(gpu.uuid)
    return (
        gpu.health != "ok"
        or any(p.uuid == gpu.uuid for p in view.problems)
        or any(e.uuid == gpu.uuid for e in view.ledger)
        or (setpoint is not None and setpoint.cause != Cause.NONE)
        or gpu.uuid in view.refusals
    )


def _explain_gpu(view: View, gpu: GpuSnapshot, *, is_asked: bool) -> GpuExplanation:
    status = gpu_status(view, gpu)
    setpoint = view.setpoints.caps.get(gpu.uuid)
    if not is_asked and gpu.health == "ok" and status.cap is not None and status.cap.paced_by is not None:
        headline, lifts_when = _gpu_headline(view, gpu, status, setpoint), _lifts_when(view, gpu, setpoint)
        return GpuExplanation(  # the GPU that sets the pace is explained in full; this one when it is asked for
            uuid=gpu.uuid, index=gpu.index, headline=headline, done=[], why=[], lifts_when=lifts_when, undo=[]
        )
    return GpuExplanation(
        uuid=gpu.uuid,
        index=gpu.index,
        headline=_gpu_headline(view, gpu, status, setpoint),
        done=_done(view, gpu, status, setpoint),
        why=_why(view, gpu, status, setpoint),
        lifts_when=_lifts_when(view, gpu, setpoint),
        undo=_undo(view, gpu, status),
    )


def _lifts_when(view: View, gpu: GpuSnapshot, setpoint: CapSetpoint | None) -> str:
    if gpu.health in {"lost", "absent", "released"}:
        return ""  # no cap holds it down
    entry = next((e for e in view.ledger if e.uuid == gpu.uuid), None)
    if entry is not None:
        setpoint = behind(entry, setpoint, armed=view.armed)
    return setpoint.lifts_when if setpoint is not None and setpoint.cause != Cause.NONE else ""


def _gpu_headline(view: View, gpu: GpuSnapshot, status: GpuStatus, setpoint: CapSetpoint | None) -> str:
    name = gpu.name
    since = f" for {for_long(view.now_s - gpu.health_since_s)}" if gpu.health_since_s else ""
    if gpu.health == "lost":
        return f"{name} has been lost{since}: {gpu.health_text or 'it fell off the bus and needs a reset'}."
    if gpu.health == "released":
        left = "" if gpu.released_until_s is None else f" for another {for_long(gpu.released_until_s - view.now_s)}"
        return f"{name} is released{left}, so that it can be reset or set up anew: it is neither read nor capped."
    if gpu.health == "absent":
        return f"{name} has been gone{since}: the driver does not list it any more."
    if gpu.health == "unresponsive":
        return f"{name} has not answered{since}: calls into the driver hang. Readings below are the last known."
    if status.cap is not None:
        entry = next(e for e in view.ledger if e.uuid == gpu.uuid)
        held = f" for {for_long(view.now_s - view.caps_since.get(gpu.uuid, entry.since_s))}"
        paced = f"kept at the pace of {status.cap.paced_by}" if status.cap.paced_by else ""
        words = paced or _cause_words(status.cap.cause)
        return f"{name} is capped at {entry.w:.0f} W of {entry.prior_w:.0f} W{held}: {words}."
    if setpoint is not None and setpoint.cause != Cause.NONE:
        word = cause_words(setpoint)
        if not view.armed:
            return f"{name} would be capped at {setpoint.w:.0f} W if the node were armed: {word}."
        return f"{name} is about to be capped at {setpoint.w:.0f} W: {word}."
    if status.junction_c is None and status.power_w is None:
        return f"{name} has no fresh reading."
    margin = status.margin_to_slowdown_c
    room = f", {margin:g} °C below its slowdown temperature" if margin is not None else ""
    return f"{name} is fine{room}."


def _cause_words(cause: str) -> str:
    try:
        return CAUSE_WORDS.get(Cause(cause), "on its way back to its own limit")
    except ValueError:
        return cause


def _done(view: View, gpu: GpuSnapshot, status: GpuStatus, setpoint: CapSetpoint | None) -> list[str]:
    lines = []
    entry = next((e for e in view.ledger if e.uuid == gpu.uuid), None)
    if entry is not None:
        protects = {"gpu": "protects this GPU", "breaker": "protects the breaker", "none": "protects nothing"}
        lines.append(
            f"Its power limit was set from {entry.prior_w:.0f} W to {entry.w:.0f} W ({protects[entry.protects]})."
        )
        if entry.keep_w is not None and entry.keep_w < entry.prior_w:
            lines.append(f"If the agent stopped now, it would stay at {min(entry.prior_w, entry.keep_w):.0f} W.")
        if entry.expires_at_s is not None:
            lines.append(f"It ends by itself in {for_long(entry.expires_at_s - view.now_s)}.")
        if entry.pending:
            lines.append(f"Restoring it failed ({entry.pending}); it is tried again.")
        if entry.state == "foreign":
            lines.append("Somebody else changed the limit since.")
    if gpu.uuid in view.refusals:
        lines.append(f"The last cap asked for is not in force: {view.refusals[gpu.uuid]}.")
    if not lines and setpoint is not None and setpoint.cause != Cause.NONE and not view.armed:
        lines.append("Nothing: the node is disarmed.")
    job = view.setpoints.job
    if job.gpu == gpu.uuid and view.armed:
        if job.duty < 1:
            lines.append(f"The job was asked to run {job.duty:.0%} of the time.")
        if job.request != "none":
            lines.append(f"The job was asked to {job.request}.")
    if status.slow and set(status.slow) & {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"}:
        lines.append("The hardware slows itself down as well; that is not ours to lift.")
    return lines


def _why(view: View, gpu: GpuSnapshot, status: GpuStatus, setpoint: CapSetpoint | None) -> list[str]:
    """The readings behind it."""
    lines = []
    for name, quantity, unit in (
        ("junction", gpu.junction_c, "°C"),
        ("HBM", gpu.hbm_c, "°C"),
        ("board's own margin", gpu.margin_c, "°C"),
        ("power", gpu.power_w, "W"),
        ("power limit in force", gpu.cap_w, "W"),
    ):
        if isinstance(quantity, Reading):
            lines.append(f"{name} {tidy(quantity.value):g} {unit}, read {for_long(quantity.age_s(view.now_s))} ago")
    if status.margin_to_max_op_c is not None:
        held = f"held at {view.limits.target_margin_c:g} °C or more"
        lines.append(f"margin to max-operating {status.margin_to_max_op_c:g} °C ({held})")
    if status.time_to_slowdown_s is not None:
        lines.append(f"at this rate it would reach its slowdown temperature in {for_long(status.time_to_slowdown_s)}")
    for incident in view.snapshot.xids.get(gpu.uuid, GpuXids()).incidents:
        times = f", {incident.count} times" if incident.count > 1 else ""
        ago = for_long(view.now_s - incident.last_s)
        lines.append(f"Xid {incident.code}, {incident.row.name}{times}, last {ago} ago: {incident.row.meaning}")
    if status.slow:
        lines.append(f"clocks are held down by: {', '.join(status.slow)}")
    cause = setpoint.cause if setpoint is not None else Cause.NONE
    if cause == Cause.NODE_POWER and view.limits.node_power_w is not None:
        powers = [g.power_w.value for g in view.snapshot.gpus.values() if isinstance(g.power_w, Reading)]
        lines.append(f"all GPUs together {sum(powers):.0f} W, limit {view.limits.node_power_w:.0f} W")
    if cause == Cause.OUTLETS:
        for name, limit_w in view.limits.outlets.items():
            power = view.snapshot.outlets.get(name)
            said = (
                f"{power.value:.0f} W, read {for_long(power.age_s(view.now_s))} ago"
                if isinstance(power, Reading)
                else ("not known, taken as the worst")
            )
            lines.append(f"this node's outlets of PDU {name}: {said}, limit {limit_w:.0f} W")
    return lines


def _undo(view: View, gpu: GpuSnapshot, status: GpuStatus) -> list[str]:
    if gpu.health == "released":
        return [f"nodectl gpus resume {gpu.index}"]
    if status.cap is None:
        return []
    name = str(gpu.index) if gpu.index is not None else gpu.uuid
    lines = []
    manual = view.limits.manual.get(gpu.uuid)
    if manual is not None:
        lines.append(f"nodectl release {name}")
    if status.cap.protects != "none":
        if view.armed:
            lines.append("nodectl disarm                # lifts automatic caps step by step and starts none")
        lines.append("nodectl restore --force       # as root: back to the limits before, now, protection or not")
    elif not lines:
        lines.append("nodectl restore               # as root: back to the limits before")
    lines.append(
        f"nvidia-smi -i {gpu.pci_bus_id or name} -pl {status.cap.prior_w:.0f}   # without Nodewarden; disarm first"
    )
    return lines


def _job_lines(view: View) -> list[str]:
    lines = []
    for job in view.snapshot.jobs:
        words = {
            "running": "runs freely",
            "throttled": f"is slowed to {job.duty:.0%} of its time",
            "checkpointing": "is saving",
            "paused": "is paused",
            "stopping": "is stopping",
            "lost": "has stopped answering",
        }
        saved_s = job.last_checkpoint_at_s
        saved = f"last save {for_long(view.now_s - saved_s)} ago" if saved_s is not None else "no save seen yet"
        lines.append(f"{job.id} {words[job.state]}; {saved}")
    return lines
