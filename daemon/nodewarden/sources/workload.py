"""Who is on which GPU: the driver's process list, the kernel's word on each process, and what schedulers wrote down.

The kernel is asked twice about a process, so that a pid that was used again in between is not taken for the one that
the driver meant. Whatever cannot be read is left out; nothing here waits for a scheduler.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from nodewarden.clock import Clock
from nodewarden.errors import DeviceError
from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.model.workload import GpuJob, GpuProcess, Workload, merged
from nodewarden.sources import pod_resources
from nodewarden.sources.job_marks import job_of_cgroup, jobs_of_prolog
from nodewarden.store import SnapshotStore

PROC = Path("/proc")
MAX_PROCESSES = 256
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Found = dict[str, tuple[GpuJob, ...]]


class WorkloadSource:
    """Reads after the slow set of the GPUs.

    Args:
        prolog_dir: files of a scheduler's prolog, None = none.
        kubelet: socket of the kubelet's pod-resources service, None = not asked.
    """

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        *,
        period_s: float,
        prolog_dir: Path | None = None,
        kubelet: str | None = None,
        proc: Path = PROC,
    ) -> None:
        self._store = store
        self._clock = clock
        self._stale_s = max(3 * period_s, 3.0)
        self._prolog_dir = prolog_dir
        self._kubelet = kubelet
        self._proc = proc
        self._looking: asyncio.Future[tuple[dict[str, Workload], OSError | None]] | None = None

    async def read(self) -> None:
        """One look. A folder on a file system that hangs keeps its thread, and is not asked again meanwhile."""
        if self._looking is None:
            gpus = dict(self._store.gpus)
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._look, gpus))
        pods = await self._ask_kubelet()
        done, _ = await asyncio.wait({self._looking}, timeout=self._clock.real_s(2.0))
        record = self._store.record("workload", self._stale_s)
        if not done:
            record.failed(self._clock.now_s(), "timeout", f"{self._prolog_dir or self._proc} does not answer")
            return
        workloads, error = self._looking.result()
        self._looking = None
        if error is None:
            record.succeeded(self._clock.now_s(), 0.0)
        else:
            record.failed(self._clock.now_s(), "unreadable", str(error))
        self._store.workloads = {
            uuid: Workload(found.taken_at_s, found.processes, merged((*found.jobs, *pods.get(uuid, ()))))
            for uuid, found in workloads.items()
        }

    async def _ask_kubelet(self) -> Found:
        if self._kubelet is None:
            return {}
        record = self._store.record("kubelet", self._stale_s)
        began_s = self._clock.now_s()
        try:
            held = await pod_resources.pods(self._kubelet)
        except DeviceError as error:
            record.failed(self._clock.now_s(), error.reason, str(error))
            return {}
        record.succeeded(self._clock.now_s(), self._clock.now_s() - began_s)
        return _by_gpu(held, self._store.gpus)

    def _look(self, gpus: Mapping[str, GpuSnapshot]) -> tuple[dict[str, Workload], OSError | None]:
        """Blocking; in a thread of its own."""
        prolog: Found = {}
        problem: OSError | None = None
        if self._prolog_dir is not None:
            try:
                prolog = jobs_of_prolog(self._prolog_dir)
            except OSError as error:
                problem = error
        found: dict[str, Workload] = {}
        for uuid, gpu in gpus.items():
            if not isinstance(gpu.pids, Reading):
                pids: tuple[int, ...] = ()
                listed_s = self._clock.now_s()
            else:
                pids, listed_s = gpu.pids.value[:MAX_PROCESSES], gpu.pids.taken_at_s
            looks = [look_at(self._proc, pid, listed_s) for pid in pids]
            jobs = [job for _, job in looks if job is not None]
            for name in (uuid, str(gpu.index)):
                jobs += prolog.get(name, ())
            found[uuid] = Workload(self._clock.now_s(), tuple(process for process, _ in looks), merged(jobs))
        return found, problem


def look_at(proc: Path, pid: int, listed_s: float) -> tuple[GpuProcess, GpuJob | None]:
    """The process that had `pid` at `listed_s` (CLOCK_BOOTTIME), and its job; nothing of a later one with that pid."""
    before = _stat(proc, pid)
    try:
        cgroup = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cgroup = ""
    if before is None or before != _stat(proc, pid) or before[1] > listed_s + 1 / _TICKS_PER_S:
        return GpuProcess(pid), None
    name, started_s = before
    return GpuProcess(pid, started_s, name), job_of_cgroup(cgroup)


def _stat(proc: Path, pid: int) -> tuple[str, float] | None:
    """Name and start (field 22 of stat, ticks since boot); the name may hold blanks and brackets."""
    try:
        text = (proc / str(pid) / "stat").read_bytes().decode("utf-8", "replace")
        head, _, rest = text.rpartition(")")
        return head.partition("(")[2], int(rest.split()[19]) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return None


def _by_gpu(held: Found, gpus: Mapping[str, GpuSnapshot]) -> Found:
    """Pods by the physical GPU: a MIG instance counts for the GPU that it is a part of."""
    parents = {labels[0]: uuid for uuid, gpu in gpus.items() for labels in gpu.series("mig_info") if labels}
    found: Found = {}
    for device, jobs in held.items():
        uuid = parents.get(device, device)
        found[uuid] = found.get(uuid, ()) + jobs
    return found
