"""Whose processes are on a GPU: cgroups, prolog files, a kubelet; pids that were used again, and garbage everywhere."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.clock import BootClock
from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import GpuSnapshot, JobSnapshot
from nodewarden.model.workload import SOURCES, GpuJob, Workload, merged
from nodewarden.sources.job_marks import job_of_cgroup, jobs_of_prolog
from nodewarden.sources.pod_resources import LIST, messages
from nodewarden.sources.workload import WorkloadSource, look_at
from nodewarden.store import SnapshotStore

UID = "0a1b2c3d-1111-4222-8333-0123456789ab"
UNDERSCORED = UID.replace("-", "_")
CGROUPS = {
    "4:memory:/slurm/uid_1000/job_4711/step_0/task_0\n": "slurm-4711",
    "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n": "slurm-4711",
    "0::/system.slice/gpu-node-07_slurmstepd.scope/job_8/step_extern\n": "slurm-8",
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-c-77.scope\n": (
        f"pod-{UID}"
    ),
    f"11:devices:/kubepods/besteffort/pod{UID}/4e5f\n0::/\n": f"pod-{UID}",
    f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice\n": f"pod-{UID}",
    "0::/user.slice/user-1000.slice/session-3.scope\n": None,
    "0::/home/job_12/work\n": None,
    "0::/slurm/job_12x/step_0\n": None,
    "0::/kubepods.slice/kubepods-podhello.slice\n": None,
    "": None,
}


@pytest.mark.parametrize(("text", "job"), CGROUPS.items())
def test_a_cgroup_names_the_job_of_slurm_or_the_pod_and_nothing_else_does(text: str, job: str | None) -> None:
    found = job_of_cgroup(text)
    assert (found.id if found else None) == job


@given(st.text())
def test_any_text_as_a_cgroup_is_read_without_an_error(text: str) -> None:
    found = job_of_cgroup(text)
    assert found is None or found.id.startswith(("slurm-", "pod-"))


def test_prolog_files_name_jobs_by_index_or_uuid_and_all_else_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711\n4712\n")
    (tmp_path / "1.7").write_text("15\n")
    (tmp_path / "GPU-abc").write_text("train-vision\n")
    (tmp_path / "README").write_text("99\n")
    (tmp_path / "2").mkdir()
    (tmp_path / "3").write_bytes(b"\xff\xfe\x00" * 5000)
    (tmp_path / "4").write_text("")
    (tmp_path / "5").write_text("bad id; rm -rf\n  77  \n")
    ids = {name: [job.id for job in jobs] for name, jobs in jobs_of_prolog(tmp_path).items()}
    assert ids == {"0": ["slurm-4711", "slurm-4712"], "1": ["slurm-15"], "GPU-abc": ["train-vision"], "5": ["slurm-77"]}


@given(
    st.lists(
        st.builds(GpuJob, id=st.sampled_from("abc"), source=st.sampled_from(SOURCES), pod=st.sampled_from(["", "p"]))
    )
)
def test_each_job_is_named_once_by_its_most_certain_source(jobs: list[GpuJob]) -> None:
    found = merged(jobs)
    assert len({job.id for job in found}) == len(found)
    for job in found:
        assert SOURCES.index(job.source) == min(SOURCES.index(one.source) for one in jobs if one.id == job.id)


def fake_process(proc: Path, pid: int, *, start_ticks: int, name: str = "python", cgroup: str = "0::/\n") -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["S", "1", *["0"] * 17, str(start_ticks), *["0"] * 10]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (proc / str(pid) / "cgroup").write_text(cgroup)


def test_a_pid_that_was_used_again_since_it_was_listed_is_another_process(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    cgroup = "0::/slurm/job_5/step_0\n"
    fake_process(tmp_path, 10, start_ticks=100 * ticks, name="a) (b", cgroup=cgroup)
    process, job = look_at(tmp_path, 10, listed_s=150.0)
    assert (process.name, process.started_s, job and job.id) == ("a) (b", 100.0, "slurm-5")
    fake_process(tmp_path, 10, start_ticks=160 * ticks, cgroup=cgroup)
    assert look_at(tmp_path, 10, listed_s=150.0)[1] is None
    assert look_at(tmp_path, 11, listed_s=150.0) == (
        msgspec.structs.replace(process, pid=11, started_s=None, name=""),
        None,
    )


def test_a_real_process_is_found_with_its_start_and_name() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process, _ = look_at(Path("/proc"), child.pid, BootClock().now_s() + 1)
        child.communicate(b"\n")
    assert process.started_s is not None
    assert 0 < BootClock().now_s() - process.started_s < 60
    assert process.name


def node(pids: tuple[int, ...] = (), jobs: Callable[[], tuple[JobSnapshot, ...]] = tuple) -> SnapshotStore:
    store = SnapshotStore(BootClock(), jobs)
    now_s = BootClock().now_s()
    mig = {("MIG-1", "7", "0", "1g.10gb"): Reading(1.0, now_s)}
    store.gpus["GPU-0"] = GpuSnapshot(uuid="GPU-0", index=0, pids=Reading(pids, now_s), more={"mig_info": mig})
    store.gpus["GPU-1"] = GpuSnapshot(uuid="GPU-1", index=1)
    return store


def ids_on(store: SnapshotStore, uuid: str) -> list[tuple[str, str]]:
    return [(job.id, job.source) for job in store.snapshot().workloads[uuid].jobs]


async def test_all_sources_together_and_the_job_itself_first(tmp_path: Path) -> None:
    fake_process(tmp_path / "proc", 10, start_ticks=1, cgroup="0::/slurmstepd.scope/job_5/step_0\n")
    (tmp_path / "prolog").mkdir()
    (tmp_path / "prolog" / "0").write_text("5\n6\n")
    store = node((10,), lambda: (JobSnapshot(id="slurm-5", gpus=("GPU-0",)),))
    source = WorkloadSource(store, BootClock(), period_s=10, prolog_dir=tmp_path / "prolog", proc=tmp_path / "proc")
    await source.read()
    assert ids_on(store, "GPU-0") == [("slurm-5", "client"), ("slurm-6", "prolog")]
    assert ids_on(store, "GPU-1") == []
    assert store.snapshot().sources["workload"].up


async def test_a_prolog_folder_that_is_gone_costs_its_jobs_only_and_is_said(tmp_path: Path) -> None:
    fake_process(tmp_path / "proc", 10, start_ticks=1, cgroup="0::/slurmstepd.scope/job_5/step_0\n")
    store = node((10,))
    source = WorkloadSource(store, BootClock(), period_s=10, prolog_dir=tmp_path / "gone", proc=tmp_path / "proc")
    await source.read()
    assert ids_on(store, "GPU-0") == [("slurm-5", "slurm")]
    assert store.snapshot().sources["workload"].reason == "unreadable"


async def test_a_prolog_file_that_hangs_does_not_hold_the_loop(tmp_path: Path) -> None:
    """A FIFO that nobody writes to hangs whoever opens it, as a dead network file system does."""
    os.mkfifo(tmp_path / "0")
    assert stat.S_ISFIFO((tmp_path / "0").stat().st_mode)
    store = node()
    source = WorkloadSource(store, BootClock(), period_s=10, prolog_dir=tmp_path, proc=tmp_path)
    await source.read()
    assert store.snapshot().sources["workload"].reason == "timeout"
    with (tmp_path / "0").open("wb") as writer:  # lets the hanging thread go
        writer.write(b"8\n")
    await source.read()
    assert ids_on(store, "GPU-0") == [("slurm-8", "prolog")]


def test_what_is_old_is_not_shown() -> None:
    store = node()
    store.workloads["GPU-0"] = Workload(BootClock().now_s() - 61, (), (GpuJob(id="x", source="slurm"),))
    assert ids_on(store, "GPU-0") == []


@asynccontextmanager
async def kubelet(path: Path, answer: Callable[[], object]) -> AsyncIterator[None]:
    """A real gRPC server with the kubelet's one method."""

    async def listing(_request: bytes, _context: object) -> object:
        found = answer()
        if isinstance(found, float):
            await asyncio.sleep(found)
        return found

    method = grpc.unary_unary_rpc_method_handler(
        listing, response_serializer=lambda found: found if isinstance(found, bytes) else found.SerializeToString()
    )
    service, name = LIST.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def pods_on(**devices: str) -> object:
    answer = messages()["ListPodResourcesResponse"]()
    for pod, device in devices.items():
        held = answer.pod_resources.add(name=pod, namespace="ml").containers.add(name="main")
        held.devices.add(resource_name="nvidia.com/gpu", device_ids=[device.replace("_", "-")])
        held.devices.add(resource_name="example.com/nic", device_ids=["GPU-1"])
    return answer


async def test_the_kubelet_names_pods_by_gpu_by_instance_and_by_share(tmp_path: Path) -> None:
    store = node()
    path = tmp_path / "kubelet.sock"
    source = WorkloadSource(store, BootClock(), period_s=10, kubelet=str(path), proc=tmp_path)
    async with kubelet(path, lambda: pods_on(whole="GPU-1", part="MIG-1", shared="GPU-0::3")):
        await source.read()
    assert [job.id for job in store.snapshot().workloads["GPU-0"].jobs] == ["ml/part", "ml/shared"]
    (job,) = store.snapshot().workloads["GPU-1"].jobs
    assert (job.id, job.namespace, job.pod, job.container) == ("ml/whole", "ml", "whole", "main")


async def test_a_kubelet_that_is_absent_or_answers_garbage_costs_its_pods_only(tmp_path: Path) -> None:
    store = node()
    path = tmp_path / "kubelet.sock"
    source = WorkloadSource(store, BootClock(), period_s=10, kubelet=str(path), proc=tmp_path)
    await source.read()
    assert store.snapshot().sources["kubelet"].reason == "no_answer"
    async with kubelet(path, lambda: b"\xff\xff\xff"):
        await source.read()
    assert not store.snapshot().sources["kubelet"].up
    assert store.snapshot().sources["workload"].up
    async with kubelet(path, lambda: pods_on(whole="GPU-1")):
        await source.read()
    assert ids_on(store, "GPU-1") == [("ml/whole", "kubernetes")]


async def test_a_kubelet_that_hangs_is_given_up_after_its_time(tmp_path: Path) -> None:
    store = node()
    path = tmp_path / "kubelet.sock"
    source = WorkloadSource(store, BootClock(), period_s=10, kubelet=str(path), proc=tmp_path)
    async with kubelet(path, lambda: 30.0):
        await source.read()
    assert store.snapshot().sources["kubelet"].reason == "timeout"
