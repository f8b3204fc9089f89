"""Locks, and a helper stuck in the kernel: nobody touches a GPU until the kernel lets go."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuhelper.rig import Rig, eventually
from nodewarden.errors import AlreadyRunningError
from nodewarden.file_lock import FileLock, LockFailedError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.locks import gpu_lock, is_stuck, stuck_holder
from support.processes import Program
from support.real import REPOSITORY, require


def test_wrong_usage_is_64_which_the_service_is_not_restarted_for(rig: Rig) -> None:
    status, output = rig.run("--no-such-option")
    assert (status, "usage: nodewarden-gpu" in output) == (64, True)
    assert rig.run("--force")[0] == 64


def test_a_lock_has_one_holder_and_names_it(tmp_path: Path) -> None:
    first, second = gpu_lock(tmp_path / "locks", "GPU-1"), gpu_lock(tmp_path / "locks", "GPU-1")
    first.acquire()
    first.acquire()
    with pytest.raises(AlreadyRunningError, match=f"locked by pid {os.getpid()}") as refused:
        second.acquire()
    assert refused.value.pid == os.getpid()
    first.release()
    second.acquire()
    assert second.held
    second.release()


def test_a_lock_without_its_directory_or_behind_a_link_fails(tmp_path: Path) -> None:
    with pytest.raises(LockFailedError):
        FileLock(tmp_path / "nowhere" / "x.lock").acquire()
    (tmp_path / "x.lock").symlink_to(tmp_path / "target")
    with pytest.raises(LockFailedError):
        FileLock(tmp_path / "x.lock").acquire()
    assert not (tmp_path / "target").exists()


def test_a_uuid_cannot_leave_the_lock_directory(tmp_path: Path) -> None:
    lock = gpu_lock(tmp_path, "../../etc/GPU")
    assert lock.path.parent == tmp_path


def test_a_living_holder_is_not_stuck(tmp_path: Path) -> None:
    lock = gpu_lock(tmp_path, "GPU-1")
    lock.acquire()
    assert not is_stuck(os.getpid())
    assert stuck_holder(tmp_path) is None
    lock.release()


@pytest.fixture
def deaf_folder(tmp_path: Path) -> Iterator[tuple[Path, Program]]:
    """A file system that never answers: who looks into it waits uninterruptibly."""
    require(os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK), "root and /dev/fuse")
    program, folder = tmp_path / "deaf_fs", tmp_path / "deaf"
    folder.mkdir()
    subprocess.run(["gcc", "-O1", "-o", program, REPOSITORY / "tests/support/deaf_fs.c"], check=True)
    deaf = Program([program, folder])
    try:
        deaf.wait_for_output("deaf")
        yield folder, deaf
    finally:
        deaf.stop()
        subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


@pytest.mark.real
def test_a_helper_stuck_in_the_kernel_is_waited_for_and_no_gpu_is_touched(
    rig: Rig, deaf_folder: tuple[Path, Program]
) -> None:
    """F02, variant B: killed, and yet alive with its locks and its socket."""
    folder, deaf = deaf_folder
    first = rig.start()
    agent = rig.agent()
    agent.cap(rig.uuids[0], 300)
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=2, hang_path=folder / "name")
    agent.send(wire.ReadFast(id=agent.next_id(), uuids=[rig.uuids[2]]))
    eventually(lambda: rig.standin.calls("nvmlDeviceGetTemperature*", gpu=2), "the call that hangs")
    first.process.kill()
    eventually(lambda: is_stuck(first.pid), "the killed helper to be stuck")
    assert first.running
    assert stuck_holder(rig.lock_dir) == first.pid
    rig.standin.clear()
    calls = rig.standin.calls()
    second = rig.start(ready=False)
    second.wait_for_output(f"waiting for pid {first.pid}")
    status, output = rig.run("--restore", "--force")
    assert (status, str(first.pid) in output) == (75, True)
    elsewhere = Program(
        [*second.command[:3], "--runtime-dir", rig.folder / "run3", "--lock-dir", rig.lock_dir],
        env={**rig.standin.env(), "NOTIFY_SOCKET": None},
    )
    rig.programs.append(elsewhere)
    elsewhere.wait_for_output(f"waiting for pid {first.pid}")
    assert elsewhere.stop() == 0
    assert rig.standin.calls() == calls
    assert rig.standin.limits_w[0] == 300
    deaf.stop()
    second.wait_for_output("gpu_found")  # until then, the old socket accepts
    rig.wait_ready(second)
    agent = rig.agent()
    assert agent.ledger()[rig.uuids[0]].w == 300
    assert agent.restore()[rig.uuids[0]].outcome == "restored"
