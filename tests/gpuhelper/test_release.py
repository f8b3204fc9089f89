"""Letting go of a GPU, so that it can be reset or set up anew, and taking it up again."""

import shutil
import signal
import time
from pathlib import Path

import pytest

from gpuhelper.rig import Peer, Rig, eventually
from nodewarden.gpuhelper import wire


def release(peer: Peer, *uuids: str, for_s: float = 600.0) -> dict[str, wire.ReleaseOutcome]:
    reply = peer.ask(wire.ReleaseDevice(id=peer.next_id(), uuids=list(uuids), for_s=for_s))
    assert isinstance(reply, wire.ReleaseReply), reply
    return {outcome.uuid: outcome for outcome in reply.gpus}


def resume(peer: Peer, *uuids: str) -> dict[str, wire.ReleaseOutcome]:
    reply = peer.ask(wire.Resume(id=peer.next_id(), uuids=list(uuids)))
    assert isinstance(reply, wire.ReleaseReply), reply
    return {outcome.uuid: outcome for outcome in reply.gpus}


def kernel_list(rig: Rig) -> Path:
    """A /proc/driver/nvidia that lists the boards as the kernel spells their addresses."""
    for gpu in rig.standin.gpus:
        (rig.folder / "proc" / "gpus" / gpu.bus_id.lower()[4:]).mkdir(parents=True)
    return rig.folder / "proc"


def states(peer: Peer) -> list[str]:
    return [gpu.state for gpu in peer.adopt().gpus]


def reads(peer: Peer, uuid: str) -> bool:
    return isinstance(peer.fast(uuid)[uuid], wire.FastReply)


def test_a_released_gpu_has_no_device_file_open_and_the_others_are_read_on(rig: Rig) -> None:
    """F08: the driver refuses a reset while anybody holds the device."""
    program = rig.start()
    peer = rig.agent()
    five = rig.standin.gpus[5]
    assert program.pid in five.held_by
    outcome = release(peer, rig.uuids[5])
    assert list(outcome) == [rig.uuids[5]]
    assert "GPU 5 is released for 600 s" in outcome[rig.uuids[5]].text
    assert program.pid not in five.held_by
    assert all(program.pid in gpu.held_by for gpu in rig.standin.gpus if gpu is not five)
    error = peer.fast(rig.uuids[5])[rig.uuids[5]]
    assert isinstance(error, wire.ErrorReply)
    assert (error.code, "nodectl gpus resume" in error.text) == ("released", True)
    assert all(reads(peer, uuid) for uuid in rig.uuids if uuid != rig.uuids[5])
    assert states(peer) == ["ok"] * 5 + ["released"] + ["ok"] * 2
    touched = rig.standin.calls(gpu=5)
    five.reset()
    five.minor = 12
    (rig.standin.dev / "nvidia12").touch()
    assert rig.standin.calls(gpu=5) == touched
    assert list(resume(peer, rig.uuids[5])) == [rig.uuids[5]]
    assert reads(peer, rig.uuids[5])
    assert program.pid in five.held_by
    assert peer.adopt().gpus[5].index == 5


def test_a_cap_that_protects_nothing_is_restored_before_and_one_that_protects_is_reconciled_after(rig: Rig) -> None:
    """F08: the state of the caps is kept, and compared with the board when it comes back."""
    rig.start()
    peer = rig.agent()
    rig.standin.gpus[1].limit_w = 600
    peer.cap(rig.uuids[1], 350)
    peer.cap(rig.uuids[2], 400, keep_w=450, protects="breaker")
    release(peer, rig.uuids[1], rig.uuids[2])
    assert rig.standin.limits_w[1:3] == [600, 450]
    assert set(peer.ledger()) == {rig.uuids[2]}
    refused = peer.set_cap(rig.uuids[1], 300)
    assert isinstance(refused, wire.ErrorReply)
    assert refused.code == "released"
    for gpu in rig.standin.gpus[1:3]:
        gpu.reset()
    resume(peer)
    eventually(lambda: rig.standin.limits_w[2] == 450, "what protects to be set again")
    assert rig.standin.limits_w[1] == 700
    assert peer.ledger()[rig.uuids[2]].prior_w == 700


def test_a_release_ends_with_its_time(rig: Rig) -> None:
    """F08: nobody has to remember it."""
    helper = rig.start_quick(60)
    peer = rig.agent()
    asked_s = helper.clock.now_s()
    release(peer, rig.uuids[3], for_s=600)
    eventually(lambda: reads(peer, rig.uuids[3]), "the end of the ten minutes", 40)
    assert helper.clock.now_s() - asked_s >= 600
    eventually(lambda: "its time is over" in helper.program.output, "the helper to say so")


def test_a_gpu_that_was_set_up_anew_is_taken_up_again_by_itself(rig: Rig) -> None:
    """F08: the kernel's entry of the GPU is another one after a driver reload, an unbind, or new MIG instances."""
    kernel_dir = kernel_list(rig)
    helper = rig.start_quick(5, kernel_dir)
    peer = rig.agent()
    release(peer, rig.uuids[2], for_s=80000)
    entry = kernel_dir / "gpus" / rig.standin.gpus[2].bus_id.lower()[4:]
    kept = entry.rename(kernel_dir / "old")  # so that the new one has another inode
    assert states(peer)[2] == "released"
    entry.mkdir()
    eventually(lambda: reads(peer, rig.uuids[2]), "it to be taken up again", 30)
    eventually(lambda: "set it up anew" in helper.program.output, "the helper to say so")
    shutil.rmtree(kept)


def test_with_every_gpu_released_nothing_of_the_driver_is_open_until_the_driver_was_exchanged(rig: Rig) -> None:
    """F06, F08: a kernel module can be unloaded only when nobody has any of its files open."""
    rig.standin.install("550")
    rig.standin.load_module("550")
    program = rig.start()
    peer = rig.agent()
    release(peer, *rig.uuids)
    assert program.pid not in rig.standin.holders("*")
    assert states(peer) == ["released"] * 8
    assert peer.adopt().driver == "released"
    rig.standin.install("590")
    rig.standin.load_module("590")
    rig.standin.reload_driver()
    resume(peer)
    eventually(lambda: states(peer) == ["ok"] * 8, "the new library to be loaded")
    eventually(lambda: "library_loaded_anew" in program.output, "the helper to say so")
    assert all(reads(peer, uuid) for uuid in rig.uuids)


def test_a_library_upgraded_under_a_loaded_module_is_a_state_with_words_and_no_end_of_the_helper(rig: Rig) -> None:
    """F06: what an unattended package upgrade leaves until the module is loaded anew."""
    rig.standin.install("590")
    rig.standin.load_module("550")
    program = rig.start()
    peer = rig.agent()
    hello = peer.adopt()
    assert hello.driver == "version_mismatch"
    assert "reload the module or reboot" in hello.driver_text
    rig.standin.load_module("590")
    eventually(lambda: len(peer.adopt().gpus) == 8, "the GPUs to be found", 30)
    assert peer.adopt().driver == "ok"
    assert program.running


def test_a_helper_started_anew_leaves_released_gpus_alone(rig: Rig) -> None:
    """F08: a crash in the middle of a reset must not take the GPU."""
    kernel_dir = kernel_list(rig)
    first = rig.start_quick(1, kernel_dir).program
    release(rig.agent(), rig.uuids[4])
    first.process.kill()
    first.process.wait()
    touched = rig.standin.calls(gpu=4)
    second = rig.start_quick(1, kernel_dir).program
    peer = rig.agent()
    eventually(lambda: len(states(peer)) == 8, "the others to be found")
    assert {gpu.uuid: gpu.state for gpu in peer.adopt().gpus} == dict.fromkeys(rig.uuids, "ok") | {
        rig.uuids[4]: "released"
    }
    assert rig.standin.calls(gpu=4) == touched
    assert second.pid not in rig.standin.gpus[4].held_by
    resume(peer, rig.uuids[4])
    assert states(peer) == ["ok"] * 8
    assert not (rig.runtime_dir / "gpu-released").exists()


def test_a_lost_gpu_can_be_released_reset_and_resumed(rig: Rig) -> None:
    """F04, F08: the very case that a release is for."""
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[6], 300)
    rig.standin.gpus[6].lost = 16
    assert not reads(peer, rig.uuids[6])
    lost = peer.adopt().gpus[6]
    assert (lost.state, lost.why) == ("lost", "it needs a reset (NVML 16)")
    outcome = release(peer, rig.uuids[6])[rig.uuids[6]]
    assert "could not be restored" in outcome.text
    assert program.pid not in rig.standin.gpus[6].held_by
    rig.standin.gpus[6].reset()
    rig.standin.gpus[6].lost = 0
    resume(peer, rig.uuids[6])
    assert reads(peer, rig.uuids[6])
    eventually(lambda: peer.ledger() == {}, "the cap that went with the reset to be closed")
    assert rig.standin.limits_w[6] == 700


def test_while_a_driver_call_hangs_nothing_can_be_let_go_and_that_is_said(rig: Rig) -> None:
    """F02, F08."""
    program = rig.start()
    peer = rig.agent()
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, hang=True)
    peer.send(wire.ReadFast(id=peer.next_id(), uuids=[rig.uuids[5]]))
    eventually(lambda: states(peer)[5] == "unresponsive", "the verdict")
    refused = peer.ask(wire.ReleaseDevice(id=peer.next_id(), uuids=[rig.uuids[5]], for_s=60))
    assert isinstance(refused, wire.ErrorReply)
    assert (refused.code, "a driver call hangs" in refused.text) == ("busy", True)
    assert states(peer)[5] == "unresponsive"
    began_s = time.monotonic()
    program.signal(signal.SIGTERM)
    assert program.wait_exit() == 0
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    ("uuid", "for_s", "code"), [("GPU-none", 60, "unknown_gpu"), (None, 0, "bad_request"), (None, 1e9, "bad_request")]
)
def test_an_odd_release_is_refused_and_changes_nothing(rig: Rig, uuid: str | None, for_s: float, code: str) -> None:
    rig.start()
    peer = rig.agent()
    inits = rig.standin.calls("nvmlInit*")
    refused = peer.ask(wire.ReleaseDevice(id=peer.next_id(), uuids=[uuid or rig.uuids[0]], for_s=for_s))
    assert isinstance(refused, wire.ErrorReply)
    assert refused.code == code
    assert rig.standin.calls("nvmlInit*") == inits
    assert states(peer) == ["ok"] * 8


def test_a_stop_in_the_middle_of_a_release_touches_the_gpu_no_more(rig: Rig) -> None:
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 400, keep_w=450, protects="gpu")
    release(peer, rig.uuids[0])
    touched = rig.standin.calls(gpu=0)
    assert program.stop() == 0
    assert rig.standin.calls(gpu=0) == touched
    assert rig.entries()[rig.uuids[0]].w == 450
    assert Path(rig.runtime_dir / "gpu-released").exists()
