"""Marks that schedulers leave on a job: the cgroup of its processes, and the files of a prolog. Pure parsing.

Slurm's cgroup plugins put a job's processes below `job_ID` (v1: /slurm/uid_U/job_ID/step_S; v2:
/system.slice/slurmstepd.scope/job_ID/step_S, with or without the node's name before slurmstepd). The kubelet's paths
hold the pod's uid, with `_` for `-` where systemd makes them.
"""

import re
from pathlib import Path

from nodewarden.model.workload import GpuJob

MAX_FILE_BYTES = 4096
MAX_FILES = 256
_SLURM = re.compile(r"/job_([0-9]{1,10})(?:/|$)")
_POD = re.compile(
    r"[/-]pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)"
)
_JOB_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._\[\]+-]{0,63}$")


def job_of_cgroup(text: str) -> GpuJob | None:
    """The job that /proc/PID/cgroup names; None where it names none."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if "slurm" in path and (found := _SLURM.search(path)):
            return GpuJob(id=f"slurm-{int(found[1])}", source="slurm")
        if "kubepods" in path and (found := _POD.search(path)):
            return GpuJob(id=f"pod-{found[1].replace('_', '-')}", source="kubernetes")
    return None


def jobs_of_prolog(folder: Path) -> dict[str, tuple[GpuJob, ...]]:
    """What a scheduler's prolog wrote down: a file per GPU, named by its index or uuid, with one job id per line.

    The convention of dcgm-exporter's job mapping; a MIG instance's file is `INDEX.INSTANCE` and counts for its GPU.
    Anything else in the folder, and lines that are no job id, are left alone. Raises OSError where the folder cannot be
    listed.
    """
    found: dict[str, tuple[GpuJob, ...]] = {}
    for file in sorted(folder.iterdir())[:MAX_FILES]:
        name = file.name
        index, dot, instance = name.partition(".")
        if dot and index.isascii() and index.isdigit() and instance.isascii() and instance.isdigit():
            name = index
        if not (name.startswith("GPU-") or (name.isascii() and name.isdigit())):
            continue
        try:
            with file.open("rb") as opened:
                text = opened.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue  # gone, a folder, or not for us
        ids = [line.strip() for line in text.splitlines() if _JOB_ID.match(line.strip())]
        jobs = tuple(GpuJob(id=f"slurm-{each}" if each.isdigit() else each, source="prolog") for each in ids)
        if jobs:
            found[name] = found.get(name, ()) + jobs
    return found
