"""Joining, losing each other, finding each other again: either side may die, freeze or talk nonsense at any moment."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys

import pytest

from jobs.rig import WELCOME, Agent, Peer, Trainer, node, other_agent, short_dir
from nodewarden.clock import BootClock, ScaledClock
from nodewarden.errors import RefusedError
from support.wait import wait_for_async


async def test_a_job_is_shown_with_who_it_is_and_how_fast_it_steps():
    async with node() as it:
        connect = {"job": "toy 7", "gpus": ["GPU-1", "GPU-2"], "framework": "numpy"}
        with Trainer(it.socket, it.dir, connect=connect, env={"NODEWARDEN_PG_TIMEOUT_S": "600"}) as trainer:
            job = await it.when(lambda job: job.steps_per_s, "a step rate", name="toy-7")
    assert (job.ranks, job.world, job.framework, job.gpus) == (1, 1, "numpy", ("GPU-1", "GPU-2"))
    assert job.pids == (trainer.pid,)
    assert job.capabilities == ("throttle", "checkpoint", "stop")
    assert job.pg_timeout_s == 600
    assert 20 < job.steps_per_s < 250
    assert (job.state, job.duty, job.ckpt_s, job.last_checkpoint_at_s) == ("running", 1.0, None, None)


async def test_a_clean_end_is_no_loss():
    async with node() as it:
        with Trainer(it.socket, it.dir, last=100) as trainer:
            await it.joined()
            assert await trainer.exited() == 0
            assert trainer.told("ended")[0]["threads"] == ["MainThread"]
            await wait_for_async(lambda: it.server.jobs() == (), 5, "the job to leave")
    assert it.tape.codes() == ["job_joined", "job_left"]


async def test_a_killed_job_is_lost_then_gone_and_its_request_has_failed(monkeypatch):
    monkeypatch.setattr("nodewarden.jobs.server.LOST_KEPT_S", 1.5)
    async with node() as it:
        with Trainer(it.socket, it.dir, step_s=30) as trainer:
            await it.when(lambda job: job.ranks == 1, "the job")
            (request_id,) = it.server.request_checkpoint(deadline_s=80_000, cause="manual", job="toy")
            await it.request_state(request_id, "voted")
            trainer.signal(signal.SIGKILL)
            lost = await it.when(lambda job: job.state == "lost", "the job to be lost")
            with pytest.raises(RefusedError, match="its process has gone"):
                it.server.request_checkpoint(deadline_s=1, cause="manual", job="toy", then="stop")
            await it.request_state(request_id, "failed")
    assert (lost.ranks, lost.pids) == (0, (trainer.pid,))
    assert it.tape.codes()[-2:] == ["checkpoint_failed", "job_left"]


async def test_lost_jobs_are_forgotten_after_a_minute(monkeypatch):
    monkeypatch.setattr("nodewarden.jobs.server.LOST_KEPT_S", 0.5)
    async with node() as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        await peer.close()
        await it.when(lambda job: job.state == "lost", "the job to be lost")
        await wait_for_async(lambda: it.server.jobs() == (), 5, "it to be forgotten")
    assert it.tape.codes() == ["job_joined", "job_lost", "job_left"]


async def test_a_rank_that_never_answers_pings_is_shown_as_lost_and_dropped_in_the_end(monkeypatch):
    monkeypatch.setattr("nodewarden.jobs.server.SILENT_AFTER_S", 0.5)
    monkeypatch.setattr("nodewarden.jobs.server.DROP_AFTER_S", 1.5)
    async with node() as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        assert it.job().state == "running"
        await it.when(lambda job: job.state == "lost" and job.ranks == 1, "the silent rank to be shown as lost")
        heard = await peer.ended()
        assert heard[-1]["error"]["data"]["code"] == "silent"
        await peer.close()


async def test_a_connection_that_breaks_in_the_middle_of_a_request_changes_nothing_but_a_moment():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="async", save_s=1.0) as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=30, cause="manual", job="toy")
            await it.request_state(request_id, "staged")
            for session in list(it.server._sessions):
                session.close()
            await it.request_state(request_id, "persisted", 20)
            assert it.job().pids == (trainer.pid,)
    assert "job_lost" in it.tape.codes()
    assert "job_returned" in it.tape.codes()


async def test_an_agent_killed_in_the_middle_of_a_request_is_told_by_the_job_what_it_saved():
    with short_dir() as directory:
        socket = directory / "job.sock"
        with Trainer(socket, directory, save="async", save_s=0.5) as trainer:
            with Agent(socket) as agent:
                await agent.telling("job_joined")
                agent.do("checkpoint", deadline_s=30, cause="thermal")
                await agent.telling("checkpoint_staged")
                agent.signal(signal.SIGKILL)
            (saved,) = await trainer.telling("persisted")
            assert socket.is_socket(), "a killed agent leaves its socket file"
            async with node() as other:
                # The next agent, on the dead one's socket path.
                with contextlib.closing(_Moved(other.socket, socket)):
                    job = await other.when(lambda job: job.step is not None, "the job to come to the new agent")
                    assert job.last_checkpoint_path == str(directory / "checkpoint.json")
                    (request_id,) = other.server.request_checkpoint(deadline_s=30, cause="manual", job="toy")
                    await other.request_state(request_id, "persisted")
            assert saved["req"] != request_id
            assert trainer.running


async def test_an_agent_killed_and_started_again_finds_its_jobs_and_they_never_notice():
    with short_dir() as directory:
        socket = directory / "job.sock"
        with Trainer(socket, directory, step_s=0.01) as trainer:
            for _ in range(2):
                with Agent(socket) as agent:
                    await agent.telling("job_joined")
                    agent.signal(signal.SIGKILL)
            steps = trainer.told("step")
        assert max(later["at"] - earlier["at"] for earlier, later in itertools.pairwise(steps)) < 1.0


async def test_training_goes_on_whatever_an_agent_answers():
    answers = [
        b"garbage\n",
        b"\x00" * 200_000,
        b"[]\n",
        b'{"jsonrpc":"2.0","id":1,"result":7}\n',
        b'{"jsonrpc":"2.0","id":1,"error":7}\n',
        b'{"jsonrpc":"2.0","method":"prepare","params":{}}\n',
        b"[" * 60_000 + b"\n",
        b"",
    ]
    answers += [
        WELCOME + json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"
        for method, params in [
            ("ping", {}),
            ("ping", {"seq": "x"}),
            ("throttle", {"duty": 0, "ttl_s": 15}),
            ("throttle", {"duty": "NaN", "ttl_s": 15}),
            ("throttle", {"duty": 0.5, "ttl_s": 1e12}),
            ("prepare", {"req": "r", "round": 0, "step": "x", "kind": "checkpoint", "deadline_s": 5}),
            ("prepare", {"req": "r", "round": 0, "step": 1, "kind": "pause", "then": "continue", "deadline_s": 5}),
            ("decide", {"req": "r", "value": "abort"}),
            ("decide", []),
            ("unheard_of", {"x": 1}),
        ]
    ]
    served = 0

    async def agent(peer: Peer) -> None:
        nonlocal served
        await peer.hear("hello")
        peer.say(answers[served % len(answers)])
        served += 1
        await peer.writer.drain()

    with short_dir() as directory:
        socket = directory / "job.sock"
        env = {"PYTHONPATH": str(_patched_backoff(directory))}
        async with other_agent(socket, agent):
            with Trainer(socket, directory, env=env) as trainer:
                await wait_for_async(lambda: served > len(answers), 30, "every kind of nonsense to be served")
                await trainer.telling("step", count=len(trainer.told("step")) + 3)
                assert trainer.told("save") == []
                assert "detached" not in trainer.output
                assert "Traceback" not in trainer.output
                assert trainer.output.count("not understood from the agent") < 17, "each is logged once"


async def test_the_same_name_of_another_user_is_another_job():
    if os.geteuid() != 0:
        pytest.skip("only root can connect as somebody else")
    async with node() as it:
        it.dir.chmod(0o755)
        with Trainer(it.socket, it.dir):
            await it.joined()
            code = (
                "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
                's.sendall(b\'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"proto":[1],"job":"toy","step":1}}\\n\');'
                "print(s.recv(100)); sys.stdin.read()"
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, str(it.socket), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            other = await it.when(lambda job: job.ranks == 1, "the other user's job", name="toy@65534")
            assert other.pids == (process.pid,)
            assert it.job().ranks == 1
            with pytest.raises(RefusedError, match="toy@65534 did not say that it can be throttled"):
                it.server.throttle(0.5, ttl_s=5, cause="manual", job="toy@65534")
            assert it.server.throttle(0.5, ttl_s=5, cause="manual") == ["toy"]
            await process.communicate(b"")


async def test_durations_and_deadlines_follow_the_injected_clock_towards_people_and_real_time_towards_peers():
    """On a clock at 60 times the speed a request of 120 s has 2 real seconds, and a save of 0.1 real s took 6 s."""
    async with node(clock=ScaledClock(60, BootClock().now_s())) as it:
        peer = await Peer.connect(it.socket)
        answer = await peer.hello()
        assert answer["result"]["ping_s"] == pytest.approx(0.05)
        (request_id,) = it.server.request_checkpoint(deadline_s=120, cause="manual", job="toy")
        assert (await peer.hear("prepare"))["params"]["deadline_s"] == 2
        peer.send("state", req=request_id, state="persisted", step=1, dur_s=0.1)
        await it.request_state(request_id, "persisted")
        assert it.job().ckpt_s == pytest.approx(6)
        it.server.throttle(0.5, ttl_s=60, cause="thermal")
        assert (await peer.hear("throttle"))["params"]["ttl_s"] == pytest.approx(1, abs=0.1)
        await peer.close()


async def test_the_ping_loop_shows_its_progress():
    async with node() as it:
        before = it.server.progress_s
        await wait_for_async(lambda: it.server.progress_s > before + 0.4, 5, "another turn")


async def test_a_restarted_rank_counts_its_steps_anew():
    async with node() as it:
        for first in (1000, 10):
            peer = await Peer.connect(it.socket)
            await peer.hello(step=first)
            peer.send("pong", seq=1, step=first + 1)
            await it.when(lambda job, step=first + 1: job.step == step, "the step")
            assert (it.job().steps_per_s or 0) >= 0
            await peer.close()
            await it.when(lambda job: job.state == "lost", "the rank to be lost")


class _Moved:
    """A socket file under another name, taken back at the end."""

    def __init__(self, source, target) -> None:
        target.unlink()
        target.symlink_to(source)
        self._target = target

    def close(self) -> None:
        self._target.unlink()


def _patched_backoff(directory):
    """A sitecustomize that makes reconnecting fast, so that a test can serve many sessions."""
    path = directory / "site"
    path.mkdir()
    text = "import nodewarden_client.client as c\nc.FIRST_BACKOFF_S = c.LAST_BACKOFF_S = c.REFUSED_BACKOFF_S = 0.02\n"
    (path / "sitecustomize.py").write_text(text)
    return path
