"""A checkpoint from the request to its end, with the real client in a real process."""

import json

import pytest

from jobs.rig import WELCOME, Peer, Trainer, node, other_agent
from nodewarden.errors import RefusedError
from support.wait import wait_for_async


async def test_a_checkpoint_is_staged_then_persisted_and_training_goes_on():
    async with node() as it:
        with Trainer(it.socket, it.dir) as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="thermal")
            await it.request_state(request_id, "persisted")
            (save,) = trainer.told("save")
            await trainer.telling("step", count=len(trainer.told("step")) + 2)
            saved = json.loads((it.dir / "checkpoint.json").read_text())
            job = await it.when(lambda job: job.state == "running", "the job to run on")
    assert save["reason"] == {"cause": "thermal"}
    assert save["req"] == request_id
    assert saved["step"] == save["step"]
    assert job.last_checkpoint_path == str(it.dir / "checkpoint.json")
    assert job.ckpt_s is not None
    codes = [code for code in it.tape.codes() if code.startswith("checkpoint")]
    assert codes == ["checkpoint_requested", "checkpoint_staged", "checkpoint_persisted"]
    assert f"step {save['step']}" in it.tape.text("checkpoint_persisted")


async def test_an_asynchronous_save_is_acknowledged_from_another_thread_while_training_goes_on():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="async", save_s=0.5) as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(request_id, "staged")
            assert it.job().state == "checkpointing"
            steps = len(trainer.told("step"))
            await it.request_state(request_id, "persisted")
            assert len(trainer.told("step")) > steps
            request = it.server.request(request_id)
            assert request.dur_s == pytest.approx(0.5, abs=0.4)


async def test_a_job_that_is_told_to_stop_ends_after_its_save_and_resumes_as_if_nothing_had_happened():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="async", save_s=0.2) as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy", then="stop")
            assert await trainer.exited() == 0
            (stopped,), (saved,) = trainer.told("stopped"), trainer.told("save")
            assert it.server.request(request_id).state == "persisted"
        assert stopped["step"] == saved["step"]
        await wait_for_async(lambda: it.server.jobs() == (), 5, "the job to leave")
        assert it.tape.codes()[-1] == "job_left"
        last = saved["step"] + 200
        with Trainer(it.socket, it.dir, last=last, step_s=0) as resumed:
            assert await resumed.exited() == 0
            (began,), (end,) = resumed.told("began"), resumed.told("ended")
        (it.dir / "checkpoint.json").unlink()
        with Trainer(it.socket, it.dir, last=last, step_s=0) as uninterrupted:
            assert await uninterrupted.exited() == 0
            (expected,) = uninterrupted.told("ended")
    assert began["first"] == saved["step"] + 1
    assert end["state"] == expected["state"]


async def test_a_save_that_raises_is_reported_and_training_goes_on():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="raise") as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy", then="stop")
            await it.request_state(request_id, "failed")
            await trainer.telling("step", count=len(trainer.told("step")) + 2)
            assert trainer.told("stopped") == []
    assert "no space left on device" in it.tape.text("checkpoint_failed")


async def test_a_save_that_never_says_persisted_expires_and_never_counts_as_success():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="never") as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=1, cause="manual", job="toy", then="stop")
            await it.request_state(request_id, "expired")
            await trainer.telling("step", count=len(trainer.told("step")) + 2)
            assert trainer.told("stopped") == []
            assert it.job().last_checkpoint_at_s is None
            (again,) = it.server.request_checkpoint(deadline_s=1, cause="manual", job="toy")
            assert again != request_id
            await it.request_state(again, "expired")


async def test_a_job_that_needs_longer_than_the_deadline_refuses_instead_of_saving_half():
    async with node() as it:
        with Trainer(it.socket, it.dir, env={"NODEWARDEN_CHECKPOINT_S": "95"}) as trainer:
            await it.joined()
            with pytest.raises(RefusedError, match="takes about 95 s to save, 30 s were given") as refused:
                it.server.request_checkpoint(deadline_s=30, cause="thermal", job="toy")
            assert refused.value.code == "deadline"
            assert it.server.request_checkpoint(deadline_s=30, cause="thermal") == []
            await it.when(lambda job: job.ckpt_s == 95, "the declared duration")
            assert trainer.told("save") == []
    assert "95 s" in it.tape.text("checkpoint_refused")


async def test_a_refusal_by_the_clients_own_estimate_ends_the_request_with_both_numbers():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        (request_id,) = it.server.request_checkpoint(deadline_s=30, cause="manual", job="toy")
        prepare = await peer.hear("prepare")
        assert prepare["params"]["deadline_s"] == 30
        peer.send("vote", req=request_id, round=0, ok=False, reason="deadline", need_s=95)
        await it.request_state(request_id, "refused")
        await peer.close()
    assert "takes about 95 s, 30 s were given" in it.tape.text("checkpoint_refused")


async def test_a_job_of_several_ranks_is_refused_in_clear_words_and_nothing_is_saved():
    async with node() as it:
        ranks = [{"job": "toy", "rank": rank, "world": 2} for rank in range(2)]
        with Trainer(it.socket, it.dir, connect=ranks[0]) as one, Trainer(it.socket, it.dir, connect=ranks[1]) as two:
            await it.when(lambda job: job.ranks == 2, "both ranks")
            with pytest.raises(RefusedError, match="2 ranks, which must first agree") as refused:
                it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            assert refused.value.code == "no_agreement"
            assert it.server.throttle(0.5, ttl_s=15, cause="manual", job="toy") == ["toy"]
            await it.when(lambda job: job.state == "throttled", "both ranks to be throttled")
            assert one.told("save") + two.told("save") == []


async def test_a_rank_of_several_votes_no_even_when_an_agent_asks_it_alone():
    """The client's own guard: a partial save leaves the other ranks in a collective."""
    votes = []

    async def agent(peer: Peer) -> None:
        await peer.hear("hello")
        peer.say(WELCOME)
        prepare = {"req": "r1", "round": 0, "step": 1, "kind": "checkpoint", "then": "continue", "deadline_s": 20}
        peer.send("prepare", **prepare, reason={})
        votes.append(await peer.hear("vote"))
        await peer.reader.read()

    async with node() as it:
        path = it.dir / "other.sock"
        async with other_agent(path, agent):
            with Trainer(path, it.dir, connect={"job": "toy", "rank": 1, "world": 2}) as trainer:
                await wait_for_async(lambda: votes, 10, "the vote")
                await trainer.telling("step", count=5)
                assert trainer.told("save") == []
    assert (votes[0]["params"]["ok"], votes[0]["params"]["reason"]) == (False, "no_agreement")


async def test_one_open_request_per_job_and_asking_again_returns_it():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="async", save_s=0.5):
            await it.joined()
            first = it.server.request_checkpoint(deadline_s=20, cause="thermal")
            again = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            assert first == again
            await it.request_state(first[0], "persisted")
            assert it.server.request_checkpoint(deadline_s=20, cause="thermal") == []  # asked a moment ago
            assert it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy") != first


async def test_a_job_without_a_save_function_can_be_throttled_but_not_asked_to_save():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="none"):
            await it.joined()
            with pytest.raises(RefusedError, match="no save function") as refused:
                it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            assert refused.value.code == "unsupported"
            assert it.server.throttle(0.5, ttl_s=5, cause="manual") == ["toy"]


async def test_a_checkpoint_of_an_unknown_job_names_the_known_ones():
    async with node() as it:
        with Trainer(it.socket, it.dir):
            await it.joined()
            with pytest.raises(RefusedError, match="no job 'other' on this node; known: toy"):
                it.server.request_checkpoint(deadline_s=20, cause="manual", job="other")


async def test_a_cancelled_request_saves_nothing_stops_nothing_and_the_next_one_works():
    """F60: cancel between the prepare and the step at which it would happen."""
    async with node() as it:
        with Trainer(it.socket, it.dir, step_s=0.8) as trainer:
            await it.joined()
            await trainer.telling("step")
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy", then="stop")
            await it.request_state(request_id, "voted")
            assert it.server.cancel(request_id)
            await it.request_state(request_id, "cancelled")
            await trainer.telling("step", count=len(trainer.told("step")) + 2)
            assert trainer.told("save") == []
            (again,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(again, "persisted")
            assert it.server.request(request_id).state == "cancelled"
            assert trainer.told("stopped") == []


async def test_a_cancel_after_the_save_began_is_refused_and_the_save_is_reported_as_what_it_is():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="async", save_s=0.5):
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            await it.request_state(request_id, "staged")
            assert not it.server.cancel(request_id)
            await it.request_state(request_id, "persisted")


@pytest.mark.parametrize("save", ["async", "sync"])
async def test_an_expired_request_never_triggers_the_stop_although_the_save_completes_later(save):
    """F60: the persisted of a request that has expired is late, and nothing follows from it."""
    async with node() as it:
        with Trainer(it.socket, it.dir, save=save, save_s=2.5) as trainer:
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=0.6, cause="manual", job="toy", then="stop")
            await it.request_state(request_id, "expired")
            await trainer.telling("persisted")
            await trainer.telling("step", count=len(trainer.told("step")) + 2)
            assert trainer.told("stopped") == []
            assert it.server.request(request_id).state == "expired"
            assert it.job().last_checkpoint_at_s is None


async def test_a_request_of_a_job_that_dies_ends_as_failed_not_as_done():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
        await peer.hear("prepare")
        peer.send("bye")
        await it.request_state(request_id, "failed")
        assert it.job() is None
        await peer.close()
