"""The metrics of errors of GPUs (Xid) and NVSwitches (SXid): counts only rise, also over restarts of the agent.

`nodewarden_gpu_xid_total` has a series for each number that was seen; their sum is `nodewarden_gpu_xid_events_total`,
which is there from the start and has another name, so that nobody adds the two.
"""

from collections.abc import Iterator

from nodewarden.api.view import View
from nodewarden_exporters.metric import Metric, row
from nodewarden_exporters.readers import ONE, GpuFacts, Sample

_SOURCES = ("nvml", "kernel")


def _by_code(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    if facts.xids is not None:
        for code, count in facts.xids.by_code.items():
            yield (code,), count


def _total(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    yield ONE, facts.xids.total if facts.xids is not None else 0


def _by_source(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    for source in _SOURCES:
        yield (source,), facts.xids.by_source.get(source, 0) if facts.xids is not None else 0


def _last(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    if facts.xids is not None and facts.xids.last_s is not None:
        yield ONE, round(facts.xids.last_s + facts.wall_offset_s, 3)


def _open(facts: GpuFacts, _now_s: float) -> Iterator[Sample]:
    if facts.xids is not None:
        for incident in facts.xids.incidents:
            yield (str(incident.code), incident.row.severity), 1


def _switches(view: View, _now_s: float) -> Iterator[Sample]:
    for bus_id, switch in view.snapshot.switches.items():
        for code, count in switch.by_code.items():
            yield (bus_id, code), count


def _key(facts: GpuFacts) -> object:
    return facts.xids


XID_METRICS: tuple[Metric, ...] = (
    row(
        "gpu_",
        "xid_total",
        "Errors that driver or kernel reported, by Xid, each counted once; only those that were seen.",
        _by_code,
        ("xid",),
        scope="gpu",
        key=_key,
    ),
    row("gpu_", "xid_events_total", "All Xids of the GPU together, 0 from the start.", _total, scope="gpu", key=_key),
    row(
        "gpu_",
        "xid_source_events_total",
        "Xids as each source told them (nvml, kernel): where the two differ, one of them does not see everything.",
        _by_source,
        ("source",),
        scope="gpu",
        key=_key,
    ),
    row(
        "gpu_",
        "xid_last_timestamp_seconds",
        "When the last Xid of the GPU came, Unix time.",
        _last,
        scope="gpu",
        key=_key,
    ),
    row(
        "gpu_",
        "xid_open",
        "1 for each Xid that is not over: by quiet for an application's, by a reset for a critical one.",
        _open,
        ("xid", "severity"),
        scope="gpu",
        key=_key,
    ),
    row(
        "",
        "nvswitch_sxid_total",
        "Errors of NVSwitches in the kernel's log, by PCI address and SXid.",
        _switches,
        ("switch", "sxid"),
        scope="node",
        key=lambda view: view.snapshot.switches,
    ),
)
