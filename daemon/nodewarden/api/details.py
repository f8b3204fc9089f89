"""The longer documents beside the status: everything known of each GPU, PDU, job and cap. Missing is null."""

from typing import Any

import msgspec

from nodewarden.api.gpu_attention import attention, quantities
from nodewarden.api.status import SCHEMA, gpu_status, job_status, pdu_status, rfc3339, sorted_gpus, tidy
from nodewarden.api.view import View
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.setpoints import CapSetpoint, Cause
from nodewarden.model.snapshot import GpuSnapshot, JobSnapshot, PduSnapshot, SourceStatus
from nodewarden.model.topology import MEANING, Topology
from nodewarden.model.xids import GpuXids
from nodewarden.policy.observe import sourced_margins
from nodewarden_alerts.predicates import behind

Document = dict[str, Any]


def gpus_document(view: View) -> Document:
    """Every GPU with its limits, clocks, memory, links and processes."""
    return _headed(view, gpus=[_gpu(view, gpu) for gpu in sorted_gpus(view)])


def pdus_document(view: View) -> Document:
    """Every PDU with phases, banks and outlets as it reported them, and the feeds that they make."""
    pdus = [_pdu(view, pdu) for pdu in view.snapshot.pdus.values()]
    return _headed(view, pdus=pdus, feeds=[_feed(view, feed) for feed in view.snapshot.feeds.values()])


def jobs_document(view: View) -> Document:
    """Every job with its ranks, what it can do and its last save."""
    return _headed(view, jobs=[_job(view, job) for job in view.snapshot.jobs], unlinked=_unlinked(view))


def _unlinked(view: View) -> list[Document]:
    """Jobs as schedulers name them, with their GPUs that no connected job holds; nothing can be asked of them."""
    linked = {uuid for job in view.snapshot.jobs if job.verified for uuid in job.gpus}
    found: dict[str, Document] = {}
    for gpu in sorted_gpus(view):
        workload = view.snapshot.workloads.get(gpu.uuid)
        for job in workload.jobs if workload and gpu.uuid not in linked else ():
            if job.source != "client":
                found.setdefault(job.id, _plain(job) | {"gpus": []})["gpus"].append(gpu.uuid)
    return list(found.values())


def topology_document(view: View, topology: Topology) -> Document:
    """How near GPUs and network cards are to each other, and what the words mean."""
    return _headed(
        view,
        gpus=[
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "pci_bus_id": gpu.place.pci_bus_id,
                "numa": gpu.place.numa,
                "cpus": gpu.place.cpus,
                "to_gpus": list(gpu.to_gpus),
                "to_nics": list(gpu.to_nics),
                "nearest_nics": list(gpu.nearest_nics),
            }
            for gpu in topology.gpus
        ],
        nics=[
            {"name": nic.name, "pci_bus_id": nic.pci_bus_id, "numa": nic.numa, "ports": list(nic.ports)}
            for nic in topology.nics
        ],
        meaning=MEANING,
    )


def caps_document(view: View) -> Document:
    """Every cap that is in force or asked for: why, since when, until when, and the limit before it."""
    entries = {entry.uuid: entry for entry in view.ledger}
    wanted = [uuid for uuid, setpoint in view.setpoints.caps.items() if setpoint.cause != Cause.NONE]
    gpus = {gpu.uuid: gpu for gpu in sorted_gpus(view)}
    order = [u for u in gpus if u in entries or u in wanted] + [u for u in entries if u not in gpus]
    caps = []
    for uuid in order:
        entry, setpoint = entries.get(uuid), view.setpoints.caps.get(uuid)
        gpu = gpus.get(uuid)
        shown = gpu_status(view, gpu) if gpu else None
        if entry is not None:
            setpoint = behind(entry, setpoint, armed=view.armed)
        is_wanted = setpoint is not None and setpoint.cause != Cause.NONE
        expires_s = _expires_s(entry, setpoint)
        caps.append(
            {
                "uuid": uuid,
                "index": gpu.index if gpu else None,
                "in_force": entry is not None,
                "cap_w": shown.cap_w if shown else None,
                "w": tidy(entry.w) if entry else tidy(setpoint.w) if setpoint else None,
                "prior_w": tidy(entry.prior_w) if entry else None,
                "keep_w": tidy(entry.keep_w) if entry else None,
                "cause": str(setpoint.cause) if is_wanted and setpoint else entry.cause if entry else None,
                "protects": entry.protects if entry else setpoint.protects.value if setpoint else None,
                "since": _time(view, view.caps_since.get(uuid) or (entry.since_s if entry else None)),
                "expires": _time(view, expires_s),
                "lifts_when": setpoint.lifts_when if setpoint else "",
                "paced_by": setpoint.paced_by if setpoint else None,
                "state": entry.state if entry else None,
                "pending": entry.pending if entry else None,
                "refused": view.refusals.get(uuid),
            }
        )
    return _headed(view, armed=view.armed, caps=caps)


def _expires_s(entry: LedgerEntry | None, setpoint: CapSetpoint | None) -> float | None:
    """When the cap itself ends: a protective one does not with the time of the manual one beside it."""
    if setpoint is not None and setpoint.cause != Cause.NONE:
        return setpoint.expires_s if setpoint.cause in {Cause.MANUAL, Cause.LEASE} else None
    return entry.expires_at_s if entry is not None and entry.protects == "none" else None


def agent_document(view: View) -> Document:
    """The agent itself: for `nodectl doctor`."""
    helper = view.snapshot.helper
    return _headed(
        view,
        version=view.version,
        health=view.health,
        armed=view.armed,
        started=rfc3339(view.unix_s(view.started_s)),
        expected_gpus=view.expected_gpus,
        gpus=len(view.snapshot.gpus),
        config_path=view.config_path,
        config_error=view.config_error,
        http_listen=view.http_listen,
        helper=_plain(helper),
        sources=[_source(view, source) for source in view.snapshot.sources.values()],
        loops={
            name: {"age_s": tidy(view.now_s - loop.progress_s), "period_s": loop.period_s, "critical": loop.critical}
            for name, loop in view.loops.items()
        },
        problems=[{"code": p.code, "severity": p.severity, "text": p.text} for p in view.problems],
    )


def _headed(view: View, **rest: Any) -> Document:
    return {"schema": SCHEMA, "node": view.node_name, "time": rfc3339(view.wall_s), **rest}


def _gpu(view: View, gpu: GpuSnapshot) -> Document:
    limits = view.limits.gpus.get(gpu.uuid)
    is_linked = bool(gpu.links)
    workload = view.snapshot.workloads.get(gpu.uuid)
    to_max_op, to_slowdown = sourced_margins(gpu, limits) if limits else (None, None)
    return _plain(gpu_status(view, gpu)) | {
        "pci_bus_id": gpu.pci_bus_id,
        "state_since": _time(view, gpu.health_since_s or None),
        "state_why": gpu.health_text or None,
        "released_until": _time(view, gpu.released_until_s),
        "power_instant_w": _shown(gpu.power_instant_w),
        "energy_j": _shown(gpu.energy_j),
        "enforced_w": _shown(gpu.enforced_w),
        "memory_used_bytes": _shown(gpu.memory_used_bytes),
        "memory_total_bytes": _shown(gpu.memory_total_bytes),
        "sm_clock_hz": _shown(gpu.sm_clock_hz),
        "memory_clock_hz": _shown(gpu.memory_clock_hz),
        "margin_c": _shown(gpu.margin_c),
        "margin_to_max_op_source": to_max_op.source if to_max_op else None,
        "margin_to_slowdown_source": to_slowdown.source if to_slowdown else None,
        "slow_s": {reason: _shown(seconds) for reason, seconds in gpu.slow_s.items()},
        "links_active": sum(link.active for link in gpu.links) if is_linked else None,
        "links": len(gpu.links) if is_linked else None,
        "pids": list(gpu.pids.value) if isinstance(gpu.pids, Reading) else None,
        "jobs": [job.id for job in workload.jobs] if workload else [],
        "processes": [
            _plain(process) | {"memory_bytes": _shown(gpu.number("process_bytes", str(process.pid)))}
            for process in (workload.processes if workload else ())
        ],
        "mig": [_instance(gpu, *labels) for labels in gpu.series("mig_info") if len(labels) == 4],
        "limits": _plain(limits) if limits else None,
        "refused": view.refusals.get(gpu.uuid),
        "xids": _xids(view, gpu.uuid),
        "attention": attention(gpu),
        "quantities": quantities(gpu),
        "missing": {
            name: quantity.reason
            for name in ("junction_c", "hbm_c", "margin_c", "power_w", "cap_w", "utilisation", "slow")
            if isinstance(quantity := getattr(gpu, name), Absent | Failed)
        },
    }


def _instance(gpu: GpuSnapshot, uuid: str, gpu_instance: str, compute_instance: str, profile: str) -> Document:
    return {
        "uuid": uuid,
        "gpu_instance": gpu_instance,
        "compute_instance": compute_instance,
        "profile": profile,
        "memory_used_bytes": _shown(gpu.number("mig_memory_used_bytes", uuid)),
        "memory_total_bytes": _shown(gpu.number("mig_memory_total_bytes", uuid)),
    }


def _xids(view: View, uuid: str) -> Document:
    """Counts by Xid since they are counted, and what is not over."""
    known = view.snapshot.xids.get(uuid, GpuXids())
    return {
        "total": known.total,
        "by_code": known.by_code,
        "by_source": known.by_source,
        "last": _time(view, known.last_s),
        "open": [
            {
                "xid": each.code,
                "name": each.row.name,
                "severity": each.row.severity,
                "count": each.count,
                "since": _time(view, each.first_s),
                "last": _time(view, each.last_s),
                "over": _time(view, each.over_s),
                "pid": each.pid,
                "process": each.process or None,
                "text": each.text,
                "meaning": each.row.meaning,
                "advice": each.row.advice,
            }
            for each in known.incidents
        ],
    }


def _job(view: View, job: JobSnapshot) -> Document:
    return _plain(job_status(view, job)) | {
        "world": job.world,
        "framework": job.framework,
        "gpus": list(job.gpus),
        "capabilities": list(job.capabilities),
        "verified": job.verified,
        "pids": list(job.pids),
        "checkpoint_takes_s": tidy(job.ckpt_s),
        "last_checkpoint_path": job.last_checkpoint_path,
    }


def _feed(view: View, feed: FeedSnapshot) -> Document:
    return {
        "name": feed.name,
        "pdus": list(feed.pdus),
        "silent": list(feed.silent),
        "power_w": _shown(feed.power_w),
        "outlets_w": _shown(feed.outlets_w),
        "after_loss_w": _shown(feed.after_loss_w),
        "total_after_loss_w": _shown(feed.total_after_loss_w),
        "rated_w": feed.rated_w,
        "lost": feed.lost,
        "lost_since": _time(view, feed.since_s),
        "evidence": feed.evidence,
    }


def _pdu(view: View, pdu: PduSnapshot) -> Document:
    return _plain(pdu_status(view, pdu)) | {
        "feed": pdu.feed,
        "vendor": pdu.vendor,
        "model": pdu.model,
        "profile": pdu.profile,
        "since": _time(view, pdu.since_s or None),
        "reason": pdu.reason,
        "rated_w": pdu.rated_w,
        "rated_a": pdu.rated_a,
        "mapped_outlets": list(pdu.mapped_outlets),
        "apparent_va": _shown(pdu.apparent_va),
        "power_factor": _shown(pdu.power_factor, 3),
        "energy_wh": _shown(pdu.energy_wh),
        "phases": [_plain(part) for part in pdu.phases],
        "banks": [_plain(part) for part in pdu.banks],
        "outlets": [_plain(part) for part in pdu.outlets],
        "suspect": list(pdu.suspect),
        "estimated": list(pdu.estimated),
    }


def _source(view: View, source: SourceStatus) -> Document:
    age_s = None if source.last_success_s is None else view.now_s - source.last_success_s
    return {
        "name": source.name,
        "up": source.up,
        "stale": source.is_stale(view.now_s),
        "age_s": tidy(age_s),
        "duration_s": tidy(source.duration_s, 4),
        "reason": source.reason,
        "errors": source.errors,
        "rejected": source.rejected,
        "skipped": source.skipped,
    }


def _shown(quantity: Reading[float] | Absent | Failed, digits: int = 1) -> float | None:
    return tidy(quantity.value, digits) if isinstance(quantity, Reading) else None


def _time(view: View, at_s: float | None) -> str | None:
    return rfc3339(view.unix_s(at_s)) if at_s is not None else None


def _plain(thing: msgspec.Struct) -> Document:
    document: Document = msgspec.to_builtins(thing)
    return document
