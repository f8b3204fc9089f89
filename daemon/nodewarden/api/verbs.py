"""The verbs of control.sock: one table. Reading is free, changing is asked for and says what came of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from nodewarden.api.bmc_details import bmc_document
from nodewarden.api.capabilities import capabilities_document
from nodewarden.api.details import (
    agent_document,
    caps_document,
    gpus_document,
    jobs_document,
    pdus_document,
    topology_document,
)
from nodewarden.api.effects import not_capped, wait_for_cap, wait_for_duty
from nodewarden.api.explain import explanation
from nodewarden.api.gpu_names import gpus_named
from nodewarden.api.host_details import host_document
from nodewarden.api.node import Node, Who
from nodewarden.api.status import rfc3339, status_document
from nodewarden.api.view import View
from nodewarden.errors import RefusedError
from nodewarden.gpuhelper.wire import ReleaseOutcome
from nodewarden.sources.topology import topology_of

MAX_FOR_S = 7 * 86400.0
_Reason = Annotated[str, Meta(max_length=500)]
_ForS = Annotated[float, Meta(ge=1, le=MAX_FOR_S)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Call(msgspec.Struct, frozen=True):
    """One request: of whom, by whom."""

    node: Node
    who: Who


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reason for the journal."""

    reason: _Reason = ""


class EventsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """since_s: how far back; after_id: only newer entries."""

    since_s: Annotated[float, Meta(ge=0, le=366 * 86400)] = 3600.0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    after_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class ExplainParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """gpu: index, uuid, "all", or None for whatever is not simply fine."""

    gpu: _Name | None = None


class CapParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manual cap; for_s None = until released."""

    gpu: _Name
    w: Annotated[float, Meta(gt=0, le=10_000)]
    for_s: _ForS | None = None
    reason: _Reason = ""


class ReleaseParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End manual caps."""

    gpu: _Name = "all"
    reason: _Reason = ""


class ThrottleParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """duty: share of time that the job runs; 1 = no throttle."""

    job: _Name
    duty: Annotated[float, Meta(ge=0.05, le=1)]
    for_s: _ForS = 600.0
    reason: _Reason = ""


class CheckpointParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which job is to save."""

    job: _Name
    reason: _Reason = ""


class RestoreParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """force: protective caps too."""

    gpu: _Name = "all"
    force: bool = False
    reason: _Reason = ""


class GpusReleaseParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let go of GPUs; they are taken up again after for_s, or when they were set up anew."""

    gpu: _Name
    for_s: Annotated[float, Meta(ge=1, le=86400)] = 600.0
    reason: _Reason = ""


class XidClearParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which GPUs are well, whatever Xids they had."""

    gpu: _Name
    reason: _Reason = ""


class GpusResumeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which released GPUs are taken up again."""

    gpu: _Name = "all"
    reason: _Reason = ""


class Verb(msgspec.Struct, frozen=True):
    """One row: what it does, who may, and what it takes."""

    handler: Callable[[Call, Any], Awaitable[Any]]
    access: Literal["read", "control"]
    params: type[msgspec.Struct]


def _showing(document: Callable[[View], Any]) -> Verb:
    """A verb that reads one document off the newest view."""

    async def show(call: Call, _: Nothing) -> Any:
        return document(call.node.view())

    return Verb(show, "read", Nothing)


async def _events(call: Call, params: EventsParams) -> Any:
    entries = await call.node.events(since_s=params.since_s, limit=params.limit, after_id=params.after_id)
    return {"schema": 1, "events": [entry | {"time": rfc3339(entry["time"])} for entry in entries]}


async def _explain(call: Call, params: ExplainParams) -> Any:
    view = call.node.view()
    return explanation(view, gpus_named(view, params.gpu) if params.gpu is not None else None)


async def _topology(call: Call, _: Nothing) -> Any:
    view = call.node.view()
    return topology_document(view, await asyncio.to_thread(topology_of, view.snapshot))


async def _arm(call: Call, _: Why) -> Any:
    was = call.node.view().armed
    await call.node.arm(call.who)
    return {"armed": True, "was": was}


async def _disarm(call: Call, _: Why) -> Any:
    was = call.node.view().armed
    await call.node.disarm(call.who)
    return {"armed": False, "was": was}


async def _cap(call: Call, params: CapParams) -> Any:
    view = call.node.view()
    uuids = gpus_named(view, params.gpu)
    gone = [uuid for uuid in uuids if view.snapshot.gpus[uuid].health != "ok"] if params.gpu == "all" else []
    asked = [uuid for uuid in uuids if uuid not in gone] or uuids  # "all" is every GPU that answers
    _check_cap(view, asked, params.w)
    await call.node.set_manual_cap(asked, params.w, params.for_s, call.who)
    effects = await wait_for_cap(call.node, asked, params.w, asked_at_s=view.now_s)
    skipped = [not_capped(view, uuid) for uuid in gone]
    return {"w": params.w, "for_s": params.for_s, "gpus": [*effects, *skipped]}


def _check_cap(view: View, uuids: list[str], w: float) -> None:
    """All or nothing (F29): every GPU that cannot have this cap is named."""
    refused = []
    for uuid in uuids:
        name, gpu, limits = view.snapshot.gpu_name(uuid), view.snapshot.gpus[uuid], view.limits.gpus.get(uuid)
        if gpu.health != "ok":
            refused.append(f"power cap refused for {name}: it is {gpu.health}")
        elif limits is None:
            refused.append(f"power cap refused for {name}: its allowed range is not known, it was not read yet")
        elif not limits.min_w <= w <= limits.max_w:
            allowed = f"{limits.min_w:g} to {limits.max_w:g} W"
            refused.append(f"power cap {w:g} W refused for {name}: allowed {allowed}")
    if refused:
        raise RefusedError("; ".join(refused), "out_of_range")


async def _release(call: Call, params: ReleaseParams) -> Any:
    view = call.node.view()
    uuids = gpus_named(view, params.gpu)
    held = [uuid for uuid in uuids if uuid in view.limits.manual]
    await call.node.release(uuids, call.who)
    try:
        async with asyncio.timeout(2.0):
            view = await call.node.next_view()
    except TimeoutError:  # the control loop is late; it is released all the same
        view = call.node.view()
    entries = {entry.uuid: entry for entry in view.ledger}
    gpus = []
    for uuid in held:
        setpoint, gpu = view.setpoints.caps.get(uuid), view.snapshot.gpus.get(uuid)
        gpus.append(
            {
                "uuid": uuid,
                "index": gpu.index if gpu else None,
                "cause": str(setpoint.cause) if setpoint else "none",
                "w": setpoint.w if setpoint else None,
                "prior_w": entries[uuid].prior_w if uuid in entries else None,
            }
        )
    return {"released": gpus}


async def _throttle(call: Call, params: ThrottleParams) -> Any:
    _check_job(call, params.job, "throttle")
    jobs = await call.node.throttle(params.job, params.duty, params.for_s, call.who)
    return {"duty": params.duty, "for_s": params.for_s, "jobs": await wait_for_duty(call.node, jobs, params.duty)}


async def _checkpoint(call: Call, params: CheckpointParams) -> Any:
    _check_job(call, params.job, "checkpoint")
    return {"job": params.job, "requests": await call.node.checkpoint(params.job, call.who)}


def _check_job(call: Call, name: str, capability: str) -> None:
    jobs = call.node.view().snapshot.jobs
    named = [job for job in jobs if name in {"all", job.id}]
    if not named:
        known = ", ".join(job.id for job in jobs) or "none is connected"
        raise RefusedError(f'no job "{name}" on this node; known: {known}', "unknown_job")
    if not any(capability in job.capabilities for job in named):
        can = ", ".join(named[0].capabilities) or "nothing"
        raise RefusedError(f"{name} cannot {capability} on request; it said that it can: {can}", "not_supported")


async def _restore(call: Call, params: RestoreParams) -> Any:
    view = call.node.view()
    uuids = gpus_named(view, params.gpu) if params.gpu != "all" else []
    outcomes = await call.node.restore(uuids, call.who, force=params.force)
    known = view.snapshot.gpus
    return {
        "armed": False,
        "gpus": [
            {"index": known[o.uuid].index if o.uuid in known else None} | msgspec.structs.asdict(o) for o in outcomes
        ],
    }


async def _gpus_release(call: Call, params: GpusReleaseParams) -> Any:
    uuids = gpus_named(call.node.view(), params.gpu)
    return _released(call, await call.node.release_gpus(uuids, params.for_s, call.who))


async def _gpus_resume(call: Call, params: GpusResumeParams) -> Any:
    uuids = gpus_named(call.node.view(), params.gpu)
    return _released(call, await call.node.resume_gpus(uuids, call.who))


async def _xid_clear(call: Call, params: XidClearParams) -> Any:
    view = call.node.view()
    uuids = list(view.snapshot.xids) if params.gpu == "all" else _with_xids(view, params.gpu)
    cleared = await call.node.clear_xids(uuids, call.who)
    known = view.snapshot.gpus
    return {
        "gpus": [
            {"uuid": uuid, "index": known[uuid].index if uuid in known else None, "xids": codes}
            for uuid, codes in cleared.items()
        ]
    }


def _with_xids(view: View, name: str) -> list[str]:
    """As other GPUs are named, or the PCI address of one that was never seen."""
    unseen = [uuid for uuid in view.snapshot.xids if uuid in {name, f"pci-{name}"}]
    return unseen or gpus_named(view, name)


def _released(call: Call, outcomes: list[ReleaseOutcome]) -> Any:
    view = call.node.view()
    gpus = []
    for outcome in outcomes:
        gpu = view.snapshot.gpus.get(outcome.uuid)
        gpus.append(
            {
                "uuid": outcome.uuid,
                "index": gpu.index if gpu else None,
                "pci_bus_id": gpu.pci_bus_id if gpu else "",
                "released_until": None if outcome.until_s is None else rfc3339(view.unix_s(outcome.until_s)),
                "text": outcome.text,
            }
        )
    return {"gpus": sorted(gpus, key=lambda gpu: (gpu["index"] is None, gpu["index"]))}


VERBS: dict[str, Verb] = {
    "status": _showing(status_document),
    "gpus": _showing(gpus_document),
    "gpu_capabilities": _showing(capabilities_document),
    "pdus": _showing(pdus_document),
    "jobs": _showing(jobs_document),
    "caps": _showing(caps_document),
    "events": Verb(_events, "read", EventsParams),
    "explain": Verb(_explain, "read", ExplainParams),
    "host": _showing(host_document),
    "bmc": _showing(bmc_document),
    "topology": Verb(_topology, "read", Nothing),
    "agent": _showing(agent_document),
    "arm": Verb(_arm, "control", Why),
    "disarm": Verb(_disarm, "control", Why),
    "cap": Verb(_cap, "control", CapParams),
    "release": Verb(_release, "control", ReleaseParams),
    "throttle": Verb(_throttle, "control", ThrottleParams),
    "checkpoint": Verb(_checkpoint, "control", CheckpointParams),
    "restore": Verb(_restore, "control", RestoreParams),
    "gpus_release": Verb(_gpus_release, "control", GpusReleaseParams),
    "xid_clear": Verb(_xid_clear, "control", XidClearParams),
    "gpus_resume": Verb(_gpus_resume, "control", GpusResumeParams),
}
