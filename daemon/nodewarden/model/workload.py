"""Who is on a GPU: its compute processes, and the jobs that they belong to. Pure data and the rule who names a job."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

JobSource = Literal["client", "slurm", "prolog", "kubernetes"]

SOURCES: Final[tuple[JobSource, ...]] = ("client", "slurm", "prolog", "kubernetes")
"""Who names a job, the most certain first: the job itself, the cgroup of its processes, files, the kubelet."""

MAX_JOBS_PER_GPU: Final = 8


class GpuProcess(msgspec.Struct, frozen=True):
    """A compute process as it was when it was looked at.

    Attributes:
        pid: of the host.
        started_s: CLOCK_BOOTTIME seconds; with the pid it names one process for ever. None = hidden or gone.
        name: as the kernel calls it, at most 15 characters.
    """

    pid: int
    started_s: float | None = None
    name: str = ""


class GpuJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on a GPU; `id` is how it is called everywhere: "slurm-4711", "NAMESPACE/POD"."""

    id: str
    source: JobSource
    namespace: str = ""
    pod: str = ""
    container: str = ""


class Workload(msgspec.Struct, frozen=True):
    """What was found on one GPU at `taken_at_s`."""

    taken_at_s: float
    processes: tuple[GpuProcess, ...] = ()
    jobs: tuple[GpuJob, ...] = ()


def merged(jobs: Iterable[GpuJob]) -> tuple[GpuJob, ...]:
    """Each job once, by its most certain source; a pod that only its cgroup names gives way to the kubelet's name."""
    first: dict[str, GpuJob] = {}
    for job in sorted(jobs, key=lambda job: (SOURCES.index(job.source), not job.pod)):
        first.setdefault(job.id, job)
    named = any(job.pod for job in first.values())
    kept = [job for job in first.values() if not (named and job.source == "kubernetes" and not job.pod)]
    return tuple(kept[:MAX_JOBS_PER_GPU])
