"""Calls that do not come back, of one GPU and of the whole driver, and a stop in the middle of it."""

import os
import random
import signal
import time

from gpuhelper.rig import Peer, Rig, eventually
from nodewarden.gpuhelper import wire
from standin.standin import GPU_IS_LOST
from support.wait import wait_for


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208


def answers_within_a_second(peer: Peer, uuids: list[str]) -> None:
    began_s = time.monotonic()
    replies = peer.fast(*uuids)
    assert all(isinstance(reply, wire.FastReply) for reply in replies.values())
    assert time.monotonic() - began_s < 1


def test_a_slow_call_of_one_gpu_costs_only_that_gpu(rig: Rig) -> None:
    """F02, variant A: one call takes long and comes back."""
    rig.start()
    peer = rig.agent()
    others = [uuid for number, uuid in enumerate(rig.uuids) if number != 5]
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, latency_s=4)
    hung = peer.send(wire.ReadFast(id=peer.next_id(), uuids=[rig.uuids[5]]))
    for _ in range(5):
        answers_within_a_second(peer, others)
    state = {gpu.uuid: gpu.state for gpu in peer.adopt().gpus}
    assert state[rig.uuids[5]] == "ok"
    wait_for(lambda: peer.adopt().gpus[5].state == "unresponsive", 5, "the verdict")
    error = peer.fast(rig.uuids[5])[rig.uuids[5]]
    assert isinstance(error, wire.ErrorReply)
    assert error.code == "busy"
    rig.standin.clear()
    late = peer.reply_to(hung)
    assert isinstance(late, wire.FastReply)
    assert peer.adopt().gpus[5].state == "ok"
    answers_within_a_second(peer, rig.uuids)


def test_a_call_that_never_returns_costs_one_thread_and_not_the_stop(rig: Rig) -> None:
    """F02, variant B."""
    program = rig.start()
    peer = rig.agent()
    answers_within_a_second(peer, rig.uuids)
    others = [uuid for number, uuid in enumerate(rig.uuids) if number != 5]
    peer.cap(rig.uuids[1], 350)
    threads = threads_of(program.pid)
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, hang=True)
    for _ in range(10):
        peer.send(wire.ReadFast(id=peer.next_id(), uuids=[rig.uuids[5]]))
        answers_within_a_second(peer, others)
    assert threads_of(program.pid) == threads + 1  # the one that hangs; another reads the others
    assert peer.cap(rig.uuids[5], 400).w == 400  # the writer of the same GPU goes on
    began_s = time.monotonic()
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0
    assert time.monotonic() - began_s < 5
    assert rig.standin.limits_w == [700] * 8


def test_a_lost_gpu_beside_a_hung_one_costs_the_others_nothing(rig: Rig) -> None:
    """F02, F04: to look for a lost GPU the library must be opened again, which must wait for the hung call alone."""
    program = rig.start()
    peer = rig.agent()
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, hang=True)
    peer.send(wire.ReadFast(id=peer.next_id(), uuids=[rig.uuids[5]]))
    wait_for(lambda: peer.adopt().gpus[5].state == "unresponsive", 5, "the verdict on the hung GPU")
    rig.standin.gpus[3].lost = GPU_IS_LOST
    assert isinstance(peer.fast(rig.uuids[3])[rig.uuids[3]], wire.ErrorReply)
    others = [uuid for number, uuid in enumerate(rig.uuids) if number not in {3, 5}]

    def put_off() -> bool:
        answers_within_a_second(peer, others)
        return program.output.count("reopen_put_off") >= 2

    wait_for(put_off, 30, "two attempts to open the library again")


def test_a_hung_writer_does_not_hold_up_the_stop_and_is_listed_as_pending(rig: Rig) -> None:
    """F02, F26: each writer has three seconds."""
    program = rig.start()
    peer = rig.agent()
    for uuid in rig.uuids:
        peer.cap(uuid, 350)
    rig.standin.fault("nvmlDeviceSetPowerManagementLimit", gpu=6, hang=True)
    began_s = time.monotonic()
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0
    assert time.monotonic() - began_s < 5
    assert rig.standin.limits_w == [700] * 6 + [350, 700]
    entries = rig.entries()
    assert set(entries) == {rig.uuids[6]}
    assert entries[rig.uuids[6]].pending
    rig.standin.clear()
    rig.start()
    eventually(lambda: rig.standin.limits_w[6] == 700, "the next helper to finish the restore")
    eventually(lambda: rig.entries() == {}, "the entry to be closed")


def test_when_the_driver_hangs_as_a_whole_the_helper_still_answers_and_stops(rig: Rig) -> None:
    """F02, one-lock mode: one hung call stops every call of the node."""
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 350)
    rig.standin.one_lock = True
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, hang=True)
    peer.send(wire.ReadFast(id=peer.next_id(), uuids=[rig.uuids[5]]))
    eventually(lambda: rig.standin.calls("nvmlDeviceGetTemperature*", gpu=5), "the call that hangs")
    peer.send(wire.ReadFast(id=peer.next_id(), uuids=rig.uuids))
    eventually(lambda: {gpu.state for gpu in peer.adopt().gpus} == {"unresponsive"}, "all to be unresponsive")
    eventually(lambda: peer.adopt().driver == "unresponsive", "the library's own thread to be noticed")
    assert set(peer.ledger()) == {rig.uuids[0]}
    peer.send(wire.SetCap(id=peer.next_id(), uuid=rig.uuids[1], w=300))
    assert peer.restore()[rig.uuids[0]].outcome == "pending"
    began_s = time.monotonic()
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0
    assert time.monotonic() - began_s < 5
    assert rig.entries()[rig.uuids[0]].pending
    assert rig.standin.calls("nvmlShutdown") == 0  # never under a call


def test_a_cap_that_waited_behind_a_hung_call_is_not_written_late(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    rig.standin.fault("nvmlDeviceSetPowerManagementLimit", gpu=0, latency_s=7, times=1)
    first = peer.send(wire.SetCap(id=peer.next_id(), uuid=rig.uuids[0], w=400))
    second = peer.send(wire.SetCap(id=peer.next_id(), uuid=rig.uuids[0], w=600))
    assert isinstance(peer.reply_to(first), wire.CapReply)
    late = peer.reply_to(second)
    assert isinstance(late, wire.ErrorReply)
    assert late.code == "busy"
    assert rig.standin.limits_w[0] == 400


def test_sigterm_at_any_moment_ends_in_time_and_shuts_the_library_down() -> None:
    """F54: an abrupt death of a client can freeze a GPU, so every orderly stop shuts down, with nothing in flight."""
    dice = random.Random(54)
    rig = Rig()
    try:
        for round_number in range(10):
            program = rig.start()
            peer = rig.agent()
            inits = rig.standin.calls("nvmlInitWithFlags")
            peer.cap(rig.uuids[round_number % 8], 350)
            rig.standin.fault("nvmlDeviceGetUtilizationRates", latency_s=0.05)
            peer.send(wire.ReadFast(id=peer.next_id(), uuids=rig.uuids))
            deadline_s = time.monotonic() + dice.uniform(0, 0.15)
            wait_for(lambda until_s=deadline_s: time.monotonic() >= until_s, 1, "a random moment")
            program.signal(signal.SIGTERM)
            began_s = time.monotonic()
            assert program.wait_exit() == 0
            assert time.monotonic() - began_s < 4
            assert rig.standin.calls("nvmlShutdown") == rig.standin.calls("nvmlInitWithFlags") == inits
            assert rig.standin.limits_w == [700] * 8
            peer.close()
    finally:
        rig.close()


def test_every_caps_story_survives_kill_9_at_any_moment() -> None:
    """F24, F54: whatever the instant, the board shows the prior limit or what the ledger explains."""
    dice = random.Random(24)
    rig = Rig(["h100"] * 3)
    try:
        rig.standin.gpus[0].limit_w = 600
        prior = [600.0, 700.0, 700.0]
        rig.standin.fault("nvmlDeviceSetPowerManagementLimit", latency_s=0.002)
        for _ in range(30):
            program = rig.start()
            peer = rig.agent()
            deadline_s = time.monotonic() + dice.uniform(0, 0.12)
            unread = 0
            while time.monotonic() < deadline_s:
                gpu = dice.randrange(3)
                if dice.random() < 0.2:
                    peer.send(wire.Restore(id=peer.next_id(), uuids=[rig.uuids[gpu]], force=True))
                else:
                    w = float(dice.randrange(200, 590))
                    keep_w = dice.choice([None, w])
                    protects = "none" if keep_w is None else "gpu"
                    peer.send(
                        wire.SetCap(id=peer.next_id(), uuid=rig.uuids[gpu], w=w, keep_w=keep_w, protects=protects)
                    )
                unread += 1
                if dice.random() < 0.5 or unread > 64:  # who never reads its answers is cut off
                    peer.receive()
                    unread -= 1
            program.process.kill()
            program.process.wait()
            peer.close()
            entries = rig.entries()
            for uuid, found_w, prior_w in zip(rig.uuids, rig.standin.limits_w, prior, strict=True):
                entry = entries.get(uuid)
                explained = {prior_w} if entry is None else {prior_w, entry.w, entry.previous_w}
                assert found_w in explained, (uuid, found_w, entry)
                assert entry is None or entry.prior_w == prior_w
        status, output = rig.run("--restore", "--force")
        assert (status, rig.standin.limits_w) == (0, prior), output
    finally:
        rig.close()
