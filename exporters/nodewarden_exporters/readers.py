"""How each metric is read from a view; `metrics.py` says which. A reader yields nothing where there is no reading."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from nodewarden.api.view import LoopHealth, View
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.limits import GpuLimits
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import CapSetpoint, Cause
from nodewarden.model.snapshot import (
    SLOW_REASONS,
    GpuSnapshot,
    JobSnapshot,
    LinkState,
    NodeSnapshot,
    Number,
    PduSnapshot,
    SourceStatus,
)
from nodewarden.model.workload import GpuJob
from nodewarden.model.xids import GpuXids
from nodewarden.policy import margins
from nodewarden.policy.observe import sourced_margins
from nodewarden_exporters.windows import WINDOWS_S, Quantity, Windows

# Bounds on what one page may hold, whatever devices and jobs call themselves; a test adds them up (F49).
MAX_GPUS = 16
MAX_LINKS = 36
MAX_PDUS = 8
MAX_OUTLETS = 96
MAX_JOBS = 32
MAX_REASONS = 16
MAX_SOURCES = 64
MAX_LOOPS = 32
MAX_LABEL = 128

Part = Literal["phase", "bank", "outlet"]
MAX_PARTS: dict[Part, int] = {"phase": 12, "bank": 24, "outlet": MAX_OUTLETS}

# Decisions and jobs are shown this long after the control loop last put them together.
VIEW_STALE_S = 15.0

JOULES_PER_WH = 3600.0

GPU_STATES = ("ok", "unresponsive", "lost", "absent", "released")
JOB_STATES = ("running", "throttled", "checkpointing", "paused", "stopping", "lost")

# Label values beyond the identity of the subject, and the value; a quantity of a snapshot is taken as it is.
Sample = tuple[tuple[str, ...], float | Number]
Reader = Callable[[Any, float], Iterable[Sample]]
Key = Callable[[Any], object]


class GpuFacts(msgspec.Struct, frozen=True):
    """One GPU with what belongs to it elsewhere in the view."""

    gpu: GpuSnapshot
    limits: GpuLimits | None
    setpoint: CapSetpoint | None
    entry: LedgerEntry | None
    windows: Windows
    now_s: float
    xids: GpuXids | None = None
    wall_offset_s: float = 0.0
    jobs: tuple[GpuJob, ...] = ()


ONE: tuple[str, ...] = ()


def _optional(value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield ONE, value


# Readers: GPU --------------------------------------------------------------------------------------------------------


def nothing(_subject: Any, _now_s: float) -> Iterable[Sample]:
    """For rows that name a field instead."""
    return ()


def gpu_info(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """What the GPU is."""
    gpu = facts.gpu
    yield ("" if gpu.index is None else str(gpu.index), gpu.model, gpu.pci_bus_id), 1


def gpu_state(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """Which of its states it is in."""
    for state in GPU_STATES:
        yield (state,), int(facts.gpu.health == state)


def margin_to(which: int) -> Reader:
    """Margin to max-operating (0) or to slowdown (1), as old as the oldest reading in it."""

    def read(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
        if facts.limits is None:
            return
        value = margins(facts.gpu, facts.limits)[which]
        if value is not None:
            yield ONE, Reading(value, _margin_taken_at_s(facts))

    return read


def margin_sources(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """From what each margin is taken."""
    if facts.limits is not None:
        for limit, margin in zip(("max_op", "slowdown"), sourced_margins(facts.gpu, facts.limits), strict=True):
            if margin is not None:
                yield (limit, margin.source), Reading(1, _margin_taken_at_s(facts))


def _margin_taken_at_s(facts: GpuFacts) -> float:
    """The oldest of the readings that a margin may be computed from."""
    readings = (facts.gpu.margin_c, facts.gpu.junction_c, facts.gpu.hbm_c)
    return min((each.taken_at_s for each in readings if isinstance(each, Reading)), default=0.0)


def slow_reasons(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """Which reasons hold the clocks down."""
    slow = facts.gpu.slow
    if isinstance(slow, Reading):
        for reason in SLOW_REASONS:
            yield (reason,), int(reason in slow.value)


def slow_seconds(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """For how long each reason has held them down."""
    for reason in SLOW_REASONS:
        seconds = facts.gpu.slow_s.get(reason)
        if isinstance(seconds, Reading):
            yield (reason,), seconds.value


def over_window(quantity: Quantity, which: int) -> Reader:
    """Lowest (0) or highest (1) in the trailing windows, shown while the newest reading is."""

    def read(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
        newest = getattr(facts.gpu, quantity)
        if isinstance(newest, Reading):
            for window_s in WINDOWS_S:
                extremes = facts.windows.extremes(facts.gpu.uuid, quantity, window_s, facts.now_s)
                if extremes is not None:
                    yield (f"{window_s:.0f}s",), Reading(extremes[which], newest.taken_at_s)

    return read


def cap_requested(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """What we asked for last, while an entry is open and ours."""
    if facts.entry is not None and facts.entry.state != "foreign":
        yield ONE, facts.entry.w


def cause_of(facts: GpuFacts) -> Cause:
    """Why there is a cap."""
    return facts.setpoint.cause if facts.setpoint is not None else Cause.NONE


def cap_cause(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """Why there is a cap, while there is one."""
    cause = cause_of(facts)
    if cause != Cause.NONE:
        yield (str(cause),), 1


def compute_processes(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """How many processes compute on it."""
    pids = facts.gpu.pids
    if isinstance(pids, Reading):
        yield ONE, Reading(len(pids.value), pids.taken_at_s)


def gpu_jobs(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    """The jobs on it, connected or not."""
    for job in facts.jobs:
        yield (job.id[:MAX_LABEL], job.source, job.namespace, job.pod, job.container), 1


def per_link(value: Callable[[LinkState], float | None]) -> Reader:
    """One value per NVLink."""

    def read(gpu: GpuSnapshot, _now_s: float) -> Iterator[Sample]:
        for link in gpu.links[:MAX_LINKS]:
            number = value(link)
            if number is not None:
                yield (str(link.link),), number

    return read


# Readers: PDU, jobs, sources, node -----------------------------------------------------------------------------------


def pdu_info(pdu: PduSnapshot, _now_s: float) -> Iterator[Sample]:
    """What the PDU is."""
    yield (pdu.feed, pdu.vendor, pdu.model, pdu.profile), 1


def pdu_quantity(field: str, scale: float = 1.0) -> Reader:
    """A quantity of the whole PDU."""

    def read(pdu: PduSnapshot, _now_s: float) -> Iterator[Sample]:
        quantity = getattr(pdu, field)
        if isinstance(quantity, Reading):
            yield ONE, quantity.value * scale

    return read


def per_part(part: Part, field: str, scale: float = 1.0) -> Reader:
    """One value per phase, bank or outlet."""
    parts = f"{part}s"

    def read(pdu: PduSnapshot, _now_s: float) -> Iterator[Sample]:
        for each in getattr(pdu, parts)[: MAX_PARTS[part]]:
            value = getattr(each, field)
            if value is not None:
                yield (str(each.index) if part == "outlet" else each.id,), value * scale

    return read


def outlet_on(pdu: PduSnapshot, _now_s: float) -> Iterator[Sample]:
    """Which outlets are switched on, where the device says."""
    for outlet in pdu.outlets[:MAX_OUTLETS]:
        if outlet.state in {"on", "off"}:
            yield (str(outlet.index),), int(outlet.state == "on")


def job_info(job: JobSnapshot, _now_s: float) -> Iterator[Sample]:
    """What the job is."""
    yield (job.framework[:32],), 1


def job_state(job: JobSnapshot, _now_s: float) -> Iterator[Sample]:
    """Which of its states it is in."""
    for state in JOB_STATES:
        yield (state,), int(job.state == state)


def checkpoint_age(job: JobSnapshot, now_s: float) -> Iterator[Sample]:
    """Grows until the next save is persisted."""
    if job.last_checkpoint_at_s is not None:
        yield ONE, round(max(0.0, now_s - job.last_checkpoint_at_s), 3)


def errors(source: SourceStatus, _now_s: float) -> Iterator[Sample]:
    """Failed reads by reason."""
    return _few(source.errors)


def rejected(source: SourceStatus, _now_s: float) -> Iterator[Sample]:
    """Dropped values by field."""
    return _few(source.rejected)


def _few(counts: dict[str, int]) -> Iterator[Sample]:
    """The first reasons as they are, the rest together as "other"."""
    other = 0
    for position, (reason, count) in enumerate(counts.items()):
        if position < MAX_REASONS - 1 and reason != "other":
            yield (reason[:64],), count
        else:
            other += count
    if other:
        yield ("other",), other


def source_up(source: SourceStatus, now_s: float) -> Iterator[Sample]:
    """Up means answered and fresh, also when the sampler itself is frozen."""
    yield ONE, int(source.up and not source.is_stale(now_s))


def source_age(source: SourceStatus, now_s: float) -> Iterator[Sample]:
    """Grows until the source answers."""
    if source.last_success_s is not None:
        yield ONE, round(max(0.0, now_s - source.last_success_s), 3)


def loop_age(loop: LoopHealth, now_s: float) -> Iterator[Sample]:
    """Grows until the loop turns."""
    yield ONE, round(max(0.0, now_s - loop.progress_s), 3)


def build_info(view: View, _now_s: float) -> Iterator[Sample]:
    """Our version."""
    yield (view.version,), 1


def problems(view: View, _now_s: float) -> Iterator[Sample]:
    """Each kind of problem once, however many GPUs have it."""
    for code, severity in sorted({(problem.code, problem.severity) for problem in view.problems}):
        yield (code, severity), 1


def driver_up(view: View, _now_s: float) -> Iterator[Sample]:
    """Unknown while no helper answers."""
    if view.snapshot.helper.state == "ok":
        yield ONE, int(view.snapshot.helper.driver == "ok")


def present_gpus(snapshot: NodeSnapshot) -> int:
    """How many GPUs are on the bus, hung ones included."""
    return sum(gpu.health in {"ok", "unresponsive", "released"} for gpu in snapshot.gpus.values())


def value_of(pick: Callable[[Any], float | None]) -> Reader:
    """A plain value of the subject, nothing where it is None."""
    return lambda subject, _now_s: _optional(pick(subject))
