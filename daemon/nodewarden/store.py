"""The newest readings and the account of every source. Written by sources, read by all others, all on the event loop.

What a source says of itself (up, age, duration, errors by reason) is recorded here, not by the author of the source.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec
import structlog

from nodewarden.clock import Clock
from nodewarden.model.bmc import BmcSnapshot
from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.host import HostSnapshot
from nodewarden.model.readings import Absent
from nodewarden.model.snapshot import (
    GpuSnapshot,
    HelperStatus,
    JobSnapshot,
    NodeSnapshot,
    Number,
    PduSnapshot,
    SourceStatus,
)
from nodewarden.model.workload import GpuJob, Workload, merged
from nodewarden.model.xids import GpuXids, SwitchErrors

log = structlog.get_logger("nodewarden.sources")

WORKLOAD_STALE_S = 60.0


class SourceRecord:
    """The account of one source: up, last success, duration, errors by reason. Logs once when lost, once when back."""

    def __init__(self, name: str, *, stale_after_s: float, now_s: float) -> None:
        self.name = name
        self.stale_after_s = stale_after_s
        self.up = False
        self.since_s = now_s
        self.last_success_s: float | None = None
        self.duration_s: float | None = None
        self.reason: str | None = None
        self.errors: dict[str, int] = {}
        self.rejected: dict[str, int] = {}
        self.skipped = 0
        self._reported_lost = False

    def succeeded(self, now_s: float, duration_s: float) -> None:
        """The read was answered in time."""
        if not self.up:
            if self._reported_lost:
                log.info("source_back", source=self.name, after_s=round(now_s - self.since_s, 1))
            self.up, self.since_s, self._reported_lost = True, now_s, False
        self.last_success_s, self.duration_s, self.reason = now_s, duration_s, None

    def failed(self, now_s: float, reason: str, text: str = "") -> None:
        """The read failed or came too late; `reason` is from a small fixed set."""
        self.errors[reason] = self.errors.get(reason, 0) + 1
        if self.up or self.reason is None:
            self.since_s = now_s
        if not self._reported_lost:
            log.warning("source_lost", source=self.name, reason=reason, detail=text)
            self._reported_lost = True
        self.up, self.reason = False, reason

    def reject(self, field: str) -> None:
        """A value outside what the physics allows was dropped (F10)."""
        self.rejected[field] = self.rejected.get(field, 0) + 1

    def is_stale(self, now_s: float) -> bool:
        """True when it never answered or its last answer is too old to trust."""
        return self.last_success_s is None or now_s - self.last_success_s > self.stale_after_s

    def status(self) -> SourceStatus:
        """A frozen copy for the snapshot."""
        return SourceStatus(
            name=self.name,
            up=self.up,
            since_s=self.since_s,
            last_success_s=self.last_success_s,
            duration_s=self.duration_s,
            errors=dict(self.errors),
            rejected=dict(self.rejected),
            skipped=self.skipped,
            stale_after_s=self.stale_after_s,
            reason=self.reason,
        )


class SnapshotStore:
    """The newest reading of everything. Written by sources, read by all others, all on the event loop."""

    def __init__(self, clock: Clock, jobs: Callable[[], tuple[JobSnapshot, ...]]) -> None:
        self._clock = clock
        self._jobs = jobs
        self.gpus: dict[str, GpuSnapshot] = {}
        self.pdus: dict[str, PduSnapshot] = {}
        self.feeds: dict[str, FeedSnapshot] = {}
        self.xids: dict[str, GpuXids] = {}
        self.switches: dict[str, SwitchErrors] = {}
        self.host = HostSnapshot()
        self.bmc = BmcSnapshot()
        self.workloads: dict[str, Workload] = {}
        self.records: dict[str, SourceRecord] = {}
        self.helper = HelperStatus(since_s=clock.now_s())
        self._swept = asyncio.Event()

    def record(self, name: str, stale_after_s: float) -> SourceRecord:
        """The account of a source, made at first use."""
        record = self.records.get(name)
        if record is None:
            record = SourceRecord(name, stale_after_s=stale_after_s, now_s=self._clock.now_s())
            self.records[name] = record
        return record

    def forget(self, names: Iterable[str]) -> None:
        """Drop the accounts of sources that the configuration no longer has."""
        for name in names:
            self.records.pop(name, None)

    def gpus_swept(self) -> None:
        """Every GPU that answers has been read: the control loop need not wait any longer."""
        self._swept.set()

    async def wait_for_sweep(self, deadline_s: float) -> None:
        """Return after the next sweep of the GPUs, or at `deadline_s` when it does not come."""
        try:
            async with asyncio.timeout(max(0.0, self._clock.real_s(deadline_s - self._clock.now_s()))):
                await self._swept.wait()
        except TimeoutError:
            pass
        self._swept.clear()

    def snapshot(self) -> NodeSnapshot:
        """Everything as it is now. A PDU whose outlets cannot be summed is still named in `outlets`, as missing."""
        now_s = self._clock.now_s()
        outlets: dict[str, Number] = {}
        for name, pdu in self.pdus.items():
            if pdu.limit_w is not None:
                outlets[name] = Absent("suspect") if "outlets_w" in pdu.suspect else pdu.outlets_w
        jobs = self._jobs()
        return NodeSnapshot(
            taken_at_s=now_s,
            gpus={uuid: self._as_of(now_s, gpu) for uuid, gpu in self.gpus.items()},
            pdus=dict(self.pdus),
            host=self.host,
            bmc=self.bmc,
            outlets=outlets,
            feeds=dict(self.feeds),
            xids=dict(self.xids),
            switches=dict(self.switches),
            jobs=jobs,
            workloads=self._workloads(now_s, jobs),
            sources={name: record.status() for name, record in self.records.items()},
            helper=self.helper,
        )

    def _as_of(self, now_s: float, gpu: GpuSnapshot) -> GpuSnapshot:
        """A GPU whose readings have become stale is not "ok", whether or not its source has had time to say so."""
        record = self.records.get(f"gpu/{gpu.uuid}")
        if gpu.health != "ok" or record is None or record.last_success_s is None or not record.is_stale(now_s):
            return gpu
        return msgspec.structs.replace(gpu, health="unresponsive", health_since_s=record.last_success_s)

    def _workloads(self, now_s: float, jobs: tuple[JobSnapshot, ...]) -> dict[str, Workload]:
        """What was found on each GPU, with the jobs that say themselves that they are there; nothing that is old."""
        linked: dict[str, list[GpuJob]] = {}
        for job in jobs:
            for uuid in job.gpus:
                linked.setdefault(uuid, []).append(GpuJob(id=job.id, source="client"))
        found = {}
        for uuid in self.gpus:
            seen = self.workloads.get(uuid, Workload(now_s))
            if now_s - seen.taken_at_s > WORKLOAD_STALE_S:
                seen = Workload(now_s)
            found[uuid] = Workload(seen.taken_at_s, seen.processes, merged((*linked.get(uuid, ()), *seen.jobs)))
        return found
