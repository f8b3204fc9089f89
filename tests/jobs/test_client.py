"""The client inside a training process: it costs nothing, never raises, and leaves nothing behind."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nodewarden_client
from jobs.rig import NO_LAUNCHER, WELCOME, Peer, Trainer, node, other_agent, short_dir
from nodewarden_client import client
from support.processes import Program
from support.real import require
from support.wait import wait_for, wait_for_async

CLIENT = Path(client.__file__)


@pytest.fixture
def nowhere(monkeypatch):
    for name in NO_LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    with short_dir() as directory:
        monkeypatch.setenv("NODEWARDEN_JOB_SOCKET", str(directory / "job.sock"))
        yield directory


def started(code, socket, *, interactive=False):
    env = {**NO_LAUNCHER, "NODEWARDEN_JOB_SOCKET": str(socket)}
    return Program([sys.executable, "-c", code], env=env, interactive=interactive)


def identity(**given):
    empty = {"job": None, "rank": None, "world": None, "gpus": None, "framework": "torch"}
    return client._identity(**{**empty, **given})


def pythons_3_8():
    """Interpreters of that version on this machine that really start."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.8"), *(str(path) for path in root.glob("versions/3.8*/bin/python"))]
    version = ["-c", "import sys; sys.exit(sys.version_info[:2] != (3, 8))"]
    return [
        one
        for one in found
        if one and subprocess.run([one, *version], check=False, capture_output=True).returncode == 0
    ]


def test_the_file_is_python_3_8():
    ast.parse(CLIENT.read_text(), feature_version=(3, 8))


def test_it_runs_on_python_3_8():
    if not pythons_3_8():
        pytest.skip("no Python 3.8 here; its grammar is checked without one")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import client\n"
        "guard = client.connect(save=print); assert guard.step(1) == 'continue'; guard.close(); print('fine')"
    )
    env = {**os.environ, "NODEWARDEN_JOB_SOCKET": "/nonexistent/job.sock"}
    for old in pythons_3_8():
        command = [old, "-c", code, str(CLIENT.parent)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.stdout == "fine\n", done.stderr


def test_it_brings_nothing_but_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import nodewarden_client\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['nodewarden_client']\n"


def test_without_an_agent_training_runs_and_nothing_is_printed(nowhere, capfd):
    guard = nodewarden_client.connect(save=print)
    assert {guard.step(step) for step in range(1000)} == {"continue"}
    guard.close()
    guard.close()
    assert guard.step(1001) == "continue"
    assert not any(thread.name == "nodewarden" for thread in threading.enumerate())
    assert capfd.readouterr() == ("", "")


def test_connect_does_not_raise_whatever_it_is_given(nowhere, monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "many")
    monkeypatch.setenv("NODEWARDEN_PG_TIMEOUT_S", "soon")
    guard = nodewarden_client.connect(rank="first", gpus=object())
    assert guard.step(1) == "continue"
    guard.close()
    assert [record.message for record in caplog.records if "detached" in record.message] != []


def test_a_step_that_is_no_number_detaches_once_and_training_goes_on(nowhere, caplog):
    guard = nodewarden_client.connect()
    for _ in range(3):
        assert guard.step(None) == "continue"
        assert guard.step("7") == "continue"
    assert guard.step(8) == "continue"
    guard.close()
    assert sum("detached" in record.message for record in caplog.records) == 1


def test_a_path_that_cannot_be_a_socket_is_survived(nowhere, monkeypatch, caplog):
    monkeypatch.setenv("NODEWARDEN_JOB_SOCKET", "/" + "x" * 300)
    guard = nodewarden_client.connect()
    assert guard.step(1) == "continue"
    guard.close()
    assert guard.step(2) == "continue"


def test_the_launcher_says_who_we_are(nowhere, monkeypatch):
    assert identity()["job"] == f"pid-{os.getpid()}"
    assert (identity()["rank"], identity()["world"]) == (0, 1)
    for name, value in {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "exp 1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    found = identity()
    assert (found["job"], found["rank"], found["world"], found["run"]) == ("torchrun-exp-1", 5, 16, 3)
    assert (found["local_rank"], found["local_world"], found["gpus"]) == (1, 2, ["GPU-b"])
    assert identity(job="mine", rank=0, world=1, gpus=["GPU-x"]) == {
        **found,
        "job": "mine",
        "rank": 0,
        "world": 1,
        "gpus": ["GPU-x"],
    }
    assert identity(gpus="GPU-x, GPU y\n")["gpus"] == ["GPU-x", "GPU-y"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert identity()["gpus"] == []


def test_a_slurm_step_is_a_job_of_ranks_but_its_batch_script_is_not(nowhere, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    assert (identity()["job"], identity()["rank"], identity()["world"]) == ("slurm-4711", 0, 1)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert (identity()["rank"], identity()["world"]) == (3, 8)


async def test_a_forked_worker_lets_go_of_the_connection():
    code = """
import os, sys, time, nodewarden_client
guard = nodewarden_client.connect(job="toy")
for step in range(100): guard.step(step); time.sleep(0.01)
child = os.fork()
if child == 0:
    sockets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
               and os.path.lexists(f"/proc/self/fd/{fd}")]
    assert guard.step(5) == "continue"
    guard.close()
    print("child", sum(name.startswith("socket:") for name in sockets), flush=True)
    sys.stdin.read()
    sys.exit(0)
print("parent", os.getpid(), flush=True)
step = 100
while True: guard.step(step); step += 1; time.sleep(0.01)
"""
    async with node() as it:
        with started(code, it.socket, interactive=True) as program:
            await it.when(lambda job: job.step and job.step > 110, "the parent to go on after the fork")
            assert it.job().pids == (program.pid,)
            await wait_for_async(lambda: program.output.count("\n") == 2, 5, "both to speak")
            program.signal(signal.SIGKILL)
            # The child still lives and would hold the connection open if it had kept it.
            await it.when(lambda job: job.state == "lost", "the parent's end to be seen")
            assert sorted(program.output.split("\n")[:2]) == ["child 0", f"parent {program.pid}"]


async def test_an_exit_without_close_does_not_hang_and_is_no_loss():
    code = """
import nodewarden_client, time
guard = nodewarden_client.connect(job="toy")
for step in range(60): guard.step(step); time.sleep(0.01)
"""
    async with node() as it:
        with started(code, it.socket) as program:
            await wait_for_async(lambda: not program.running, 10, "the process to end")
            assert program.wait_exit() == 0
            await wait_for_async(lambda: it.server.jobs() == (), 5, "the job to have left")
    assert it.tape.codes() == ["job_joined", "job_left"]


async def test_connecting_again_in_the_same_process_replaces_the_first_without_a_quarrel():
    code = """
import nodewarden_client, time
first = nodewarden_client.connect(job="toy")
while not first._link._welcomed: first.step(0)
second = nodewarden_client.connect(job="toy")
for step in range(10**6): first.step(0); second.step(step); time.sleep(0.01)
"""
    async with node() as it:
        with started(code, it.socket):
            await it.when(lambda job: job.step and job.step > 150, "the second to step for a while")
    assert it.tape.codes().count("job_joined") <= 2
    assert "job_lost" not in it.tape.codes()[:-1]


async def test_an_idle_step_makes_no_system_call():
    """In strict seccomp mode the kernel kills a thread that makes any system call but read, write and exit."""
    code = """
import ctypes, os, nodewarden_client
guard = nodewarden_client.connect(job="toy")
while not guard._link._welcomed: pass
step, write, libc = guard.step, os.write, ctypes.CDLL(None)
for _ in range(1000): step(7)
strict = libc.prctl(22, 1, 0, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_STRICT
if strict == 0:
    for _ in range(20000): step(7)
write(1, b"done" if strict == 0 else b"unavailable")
libc.getpid()
write(1, b", and getpid was not noticed")
"""

    async def agent(peer: Peer) -> None:
        await peer.hear("hello")
        peer.say(WELCOME)
        await peer.reader.read()  # and no ping ever, so that the client's thread sleeps

    with short_dir() as directory:
        socket = directory / "job.sock"
        async with other_agent(socket, agent):
            with started(code, socket) as program:
                await wait_for_async(lambda: program.output or not program.running, 10, "the steps to be done")
                require(program.output != "unavailable", "seccomp")
                assert program.output == "done"


def test_signals_are_left_to_the_training_thread(nowhere):
    guard = nodewarden_client.connect()

    def blocked() -> int:
        task = next(t for t in threading.enumerate() if t.name == "nodewarden").native_id
        status = Path(f"/proc/self/task/{task}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)

    usr1 = 1 << (10 - 1)
    wait_for(lambda: blocked() & usr1, 5, "SIGUSR1 to be blocked in the background thread")
    guard.close()
    assert threading.main_thread().is_alive()


async def test_a_step_counter_of_a_numeric_library_is_fine():
    code = """
import nodewarden_client, time
class Int64:
    def __init__(self, value): self.value = value
    def __int__(self): return self.value
    def __lt__(self, other): return self.value < other
def save(step, request): request.persisted(b"/made/of/bytes")
guard = nodewarden_client.connect(save=save, job="toy")
for step in range(10**6): guard.step(Int64(step)); time.sleep(0.01)
"""
    async with node() as it:
        with started(code, it.socket):
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(request_id, "persisted")
    assert it.server.request(request_id).path == "/made/of/bytes"


async def test_the_state_of_a_resumed_job_is_told_with_what_it_took():
    async with node() as it:
        with Trainer(it.socket, it.dir, save_s=0.3) as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(request_id, "persisted")
            for session in list(it.server._sessions):
                session.close()
            await wait_for_async(lambda: "job_returned" in it.tape.codes(), 10, "the rank to be back")
            hello = next(iter(it.server._sessions)).hello
            assert trainer.running
    assert hello.ckpt_s.persisted == pytest.approx(0.3, abs=0.3)
    assert hello.last_ckpt.path == str(it.dir / "checkpoint.json")
    assert json.dumps(hello.caps) == '["throttle", "checkpoint", "stop"]'
