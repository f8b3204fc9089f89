"""Duty cycle: slower while it is asked for, full speed again by itself."""

import itertools
import signal

import pytest

from jobs.rig import Agent, Peer, Trainer, node, short_dir
from nodewarden.clock import BootClock, ScaledClock
from nodewarden.errors import RefusedError
from support.wait import wait_for_async


async def test_a_throttled_job_runs_slower_and_is_released():
    async with node() as it:
        with Trainer(it.socket, it.dir, step_s=0.01):
            full = await it.when(lambda job: (job.steps_per_s or 0) > 10, "a step rate")
            assert it.server.throttle(0.2, ttl_s=60, cause="thermal", gpu="GPU-5") == ["toy"]
            assert it.job().duty == 0.2
            assert it.job().state == "throttled"
            slow = await it.when(
                lambda job: job.steps_per_s < 0.6 * full.steps_per_s, "the rate to fall below 60 %", timeout_s=20
            )
            assert slow.steps_per_s > 0
            it.server.throttle(1.0, ttl_s=0, cause="thermal")
            assert it.job().duty == 1.0
            await it.when(lambda job: job.steps_per_s > 1.2 * slow.steps_per_s, "the rate to rise", timeout_s=20)
    assert not [code for code in it.tape.codes() if "throttle" in code], "who orders a throttle records it"


async def test_a_throttle_that_nobody_renews_ends_at_its_own_ttl():
    async with node() as it:
        with Trainer(it.socket, it.dir):
            await it.joined()
            it.server.throttle(0.3, ttl_s=1.0, cause="manual", job="toy")
            assert it.job().duty == 0.3
            await it.when(lambda job: job.duty == 1.0, "the order to run out")
    assert it.tape.text("throttle_lapsed") == "job toy runs at full duty again: its throttle (manual) was not renewed"


async def test_the_lowest_order_wins_and_the_other_remains_when_it_ends():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        it.server.throttle(0.8, ttl_s=60, cause="thermal")
        it.server.throttle(0.4, ttl_s=60, cause="manual", job="toy")
        assert it.job().duty == 0.4
        it.server.throttle(1, ttl_s=0, cause="manual", job="toy")
        assert it.job().duty == 0.8
        heard = [(await peer.hear("throttle"))["params"] for _ in range(3)]
        await peer.close()
    assert [one["duty"] for one in heard] == [0.8, 0.4, 0.8]
    assert [one["reason"]["cause"] for one in heard] == ["thermal", "manual", "thermal"]
    assert all(one["ttl_s"] == 15 for one in heard)


async def test_a_job_that_joins_later_is_throttled_too():
    async with node() as it:
        it.server.throttle(0.5, ttl_s=60, cause="thermal")
        peer = await Peer.connect(it.socket)
        await peer.hello()
        assert (await peer.hear("throttle"))["params"]["duty"] == 0.5
        await peer.close()


async def test_the_server_renews_a_long_throttle_long_before_the_jobs_ttl():
    async with node(clock=ScaledClock(20, BootClock().now_s())) as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        it.server.throttle(0.5, ttl_s=600, cause="thermal")
        first, second = await peer.hear("throttle"), await peer.hear("throttle")
        await peer.close()
    assert first["params"] == second["params"]


@pytest.mark.parametrize("duties", [[0.5], [0.5, 0.49, 0.51]])
async def test_the_share_of_time_is_what_was_asked_for_even_when_the_duty_changes_all_the_time(duties):
    """A step of 0.4 s at half duty takes 0.8 s, although the order changes four times in between."""
    async with node() as it:
        with Trainer(it.socket, it.dir, step_s=0.4) as trainer:
            await it.joined()
            turns = 0

            def throttled_steps() -> list[float]:
                nonlocal turns
                it.server.throttle(duties[turns // 5 % len(duties)], ttl_s=60, cause="thermal")
                turns += 1
                at = [fact["at"] for fact in trainer.told("step")]
                return [later - earlier for earlier, later in itertools.pairwise(at)]

            await wait_for_async(lambda: len([took for took in throttled_steps() if took > 0.6]) >= 3, 20, "slow steps")
            slow = [took for took in throttled_steps() if took > 0.6]
    assert min(slow) == pytest.approx(0.8, abs=0.15)


async def test_a_duty_out_of_range_is_refused_with_the_range():
    async with node() as it:
        with pytest.raises(RefusedError, match=r"duty 0 refused: allowed 0\.05 to 1"):
            it.server.throttle(0, ttl_s=5, cause="manual")
        with pytest.raises(RefusedError, match="no job 'nobody'"):
            it.server.throttle(0.5, ttl_s=5, cause="manual", job="nobody")


async def test_a_killed_agent_leaves_no_job_slow():
    """F67: the job's own dead-man, with a ttl that the test can wait for."""
    with short_dir() as directory:
        socket = directory / "job.sock"
        with Agent(socket) as agent, Trainer(socket, directory, step_s=0.01) as trainer:
            await agent.telling("job_joined")
            agent.do("throttle", duty=0.05, ttl_s=2.5, cause="thermal")
            await agent.answered(["toy"])
            agent.signal(signal.SIGKILL)
            await _full_speed(trainer)


async def test_a_frozen_agent_leaves_no_job_slow():
    with short_dir() as directory:
        socket = directory / "job.sock"
        with Agent(socket) as agent, Trainer(socket, directory, step_s=0.01) as trainer:
            await agent.telling("job_joined")
            agent.do("throttle", duty=0.05, ttl_s=2.5, cause="thermal")
            await agent.answered(["toy"])
            agent.signal(signal.SIGSTOP)
            await _full_speed(trainer)


async def _full_speed(trainer: Trainer) -> None:
    """Throttled to 5 %, a step of 10 ms takes 200 ms; then ten in a row take under 50 ms each again."""

    def steps() -> list[tuple[int, float]]:
        return [(fact["step"], fact["at"]) for fact in trainer.told("step")]

    def paces(points: list[tuple[int, float]]) -> list[float]:
        return [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in itertools.pairwise(points)]

    await wait_for_async(lambda: any(pace > 0.1 for pace in paces(steps())), 10, "the job to be slow")
    await wait_for_async(lambda: all(pace < 0.05 for pace in paces(steps()[-10:])), 15, "full speed again")
