"""`nodectl jobs`: connected jobs, and those that only a scheduler knows."""

import json

import pytest
from msgspec.structs import replace

from nodewarden.api.view import View
from nodewarden.cli.main import main
from nodewarden.model.workload import GpuJob, Workload
from support.fake_node import served
from support.node_views import NOW_S, calm, uuid_of


def with_work(view: View, jobs: dict[int, tuple[GpuJob, ...]], *, verified: bool) -> View:
    workloads = {uuid_of(index): Workload(NOW_S, (), held) for index, held in jobs.items()}
    linked = tuple(replace(job, verified=verified) for job in view.snapshot.jobs)
    return replace(view, snapshot=replace(view.snapshot, workloads=workloads, jobs=linked))


SLURM = GpuJob(id="slurm-4712", source="slurm")
POD = GpuJob(id="ml/infer-0", source="kubernetes", namespace="ml", pod="infer-0")
MIXED = {0: (SLURM,), 1: (SLURM, POD)}


def test_jobs_that_only_the_scheduler_knows_are_listed_with_their_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    view = with_work(replace(calm(), snapshot=replace(calm().snapshot, jobs=())), MIXED, verified=False)
    with served(view) as there:
        assert main(["--runtime-dir", str(there.runtime), "jobs"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "No job is connected.",
            "",
            "Not connected, so nothing can be asked of them:",
            "slurm-4712 on 2 GPUs, known by slurm",
            "ml/infer-0 on 1 GPU, known by kubernetes",
        ]
        assert main(["--runtime-dir", str(there.runtime), "jobs", "--json"]) == 0
        unlinked = json.loads(capsys.readouterr().out)["unlinked"]
    assert [(job["id"], job["gpus"]) for job in unlinked] == [
        ("slurm-4712", [uuid_of(0), uuid_of(1)]),
        ("ml/infer-0", [uuid_of(1)]),
    ]


@pytest.mark.parametrize("verified", [False, True])
def test_a_gpu_of_a_verified_connected_job_is_not_told_twice(
    capsys: pytest.CaptureFixture[str], verified: bool
) -> None:
    """calm()'s job says that it holds all eight GPUs; said is not shown until a process of it was seen there."""
    with served(with_work(calm(), MIXED, verified=verified)) as there:
        assert main(["--runtime-dir", str(there.runtime), "jobs"]) == 0
    assert ("Not connected" in capsys.readouterr().out) is not verified
