"""A peer counts for a GPU once the driver lists its process there; what it says of itself counts for nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.rig import Peer, Trainer, node
from nodewarden.jobs.verify import Verifier


class Proc:
    """A /proc tree: pid -> (parent, cgroup)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, parent: int, cgroup: str = "0::/") -> None:
        directory = self.root / str(pid)
        directory.mkdir()
        (directory / "stat").write_text(f"{pid} (a) b) (c) S {parent} {pid} {pid} 0 -1 4194304")
        (directory / "cgroup").write_text(cgroup + "\n")


@pytest.fixture
def proc(tmp_path):
    tree = Proc(tmp_path)
    tree.add(1, 0, "0::/init.scope")
    tree.add(100, 1, "0::/slurm/job_7")  # launcher
    tree.add(101, 100, "0::/slurm/job_7")  # rank
    tree.add(102, 101, "0::/slurm/job_7/inner")  # its child
    tree.add(200, 1, "0::/slurm/job_8")  # somebody else
    tree.add(300, 1)  # in the root cgroup, as everything is where cgroups are not used
    tree.add(301, 1)
    tree.add(400, 1, "1:name=systemd:/user.slice/session-3.scope")
    tree.add(401, 1, "1:name=systemd:/user.slice/session-3.scope")
    return tree


@pytest.mark.parametrize(
    ("peer", "at_work", "counts"),
    [
        (101, {101}, True),  # itself
        (101, {102}, True),  # its child
        (101, {100}, True),  # its launcher
        (102, {101}, True),
        (101, {200}, False),  # another job
        (200, {100, 101, 102}, False),
        (101, {1}, False),  # init is everybody's ancestor
        (101, set(), False),
        (300, {301}, False),  # the root cgroup says nothing
        (400, {401}, True),  # cgroup v1: the same session scope
        (0, {101}, False),  # a pid namespace that we cannot see
        (999, {101}, False),  # has just died
        (101, {999}, False),
    ],
)
def test_a_pid_counts_where_it_its_family_or_its_cgroup_is_at_work(proc, peer, at_work, counts):
    verifier = Verifier("gpu-process", lambda _: frozenset(at_work), proc.root)
    assert verifier.confirmed(peer, ["GPU-1"]) == (frozenset({"GPU-1"}) if counts else frozenset())


def test_a_gpu_whose_driver_says_nothing_confirms_nobody(proc):
    assert Verifier("gpu-process", lambda _: None, proc.root).confirmed(101, ["GPU-1"]) == frozenset()


def test_mode_none_believes_everybody(proc):
    assert Verifier("none", lambda _: None, proc.root).confirmed(0, ["GPU-1"]) == frozenset({"GPU-1"})


def test_a_real_child_process_is_found_in_the_real_proc():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        verifier = Verifier("gpu-process", lambda uuid: frozenset({child.pid} if uuid == "GPU-1" else ()))
        assert verifier.confirmed(os.getpid(), ["GPU-1", "GPU-2"]) == frozenset({"GPU-1"})
        child.communicate(b"\n")


async def test_acknowledgements_of_a_process_that_is_on_no_gpu_are_shown_but_not_counted():
    at_work: dict[str, frozenset[int]] = {}
    async with node(verify="gpu-process", pids_of=at_work.get) as it:
        with Trainer(it.socket, it.dir, connect={"job": "toy", "gpus": ["GPU-1"]}) as trainer:
            await it.joined()
            assert (it.job().verified, it.job().gpus) == (False, ("GPU-1",))
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(request_id, "persisted")
            assert not it.server.request(request_id).verified
            assert (it.job().last_checkpoint_at_s, it.job().ckpt_s) == (None, None)
            assert "not confirmed on the job's GPUs" in it.tape.text("checkpoint_persisted")

            at_work["GPU-1"] = frozenset({trainer.pid})  # its CUDA context comes up
            await it.when(lambda job: job.verified, "the job to be verified")
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(request_id, "persisted")
            assert it.server.request(request_id).verified
            assert it.job().last_checkpoint_at_s is not None


async def test_claiming_one_gpu_too_many_is_not_verified_and_only_the_confirmed_one_is_its():
    async with node(verify="gpu-process", pids_of={"GPU-1": frozenset({os.getpid()})}.get) as it:
        peer = await Peer.connect(it.socket)
        answer = await peer.hello(gpus=["GPU-1", "GPU-2"])
        assert answer["result"]["verified"] is False
        assert it.job().gpus == ("GPU-1",)
        await peer.close()


async def test_a_pid_in_the_message_is_ignored():
    async with node(verify="gpu-process", pids_of={"GPU-1": frozenset({4711})}.get) as it:
        peer = await Peer.connect(it.socket)
        answer = await peer.hello(gpus=["GPU-1"], pid=4711)
        assert answer["result"]["verified"] is False
        assert it.job().pids == (os.getpid(),)
        await peer.close()


async def test_a_job_that_names_no_gpu_is_not_verified():
    async with node(verify="gpu-process", pids_of=lambda _: frozenset({os.getpid()})) as it:
        peer = await Peer.connect(it.socket)
        assert (await peer.hello())["result"]["verified"] is False
        await peer.close()
