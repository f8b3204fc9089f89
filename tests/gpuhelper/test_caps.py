"""Setting and undoing power caps on the stand-in: ranges, rights, prior limits, what stays, what is somebody else's."""

import os
import signal
import time

import pytest

from gpuhelper.rig import Rig, boottime_s, collect_events, eventually, rig_of
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.ledger import Ledger, Record
from standin.standin import GPU_IS_LOST, INVALID_ARGUMENT
from support.processes import Program
from support.wait import wait_for


def refused(reply: wire.Reply) -> wire.ErrorReply:
    assert isinstance(reply, wire.ErrorReply), reply
    return reply


def test_a_cap_is_in_the_ledger_before_the_board_hears_of_it(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    uuid = rig.uuids[4]
    rig.standin.fault("nvmlDeviceSetPowerManagementLimit", gpu=4, latency_s=0.5)
    request = wire.SetCap(id=peer.next_id(), uuid=uuid, w=350, keep_w=400, protects="gpu", cause="thermal")
    peer.send(request)
    eventually(rig.entries, "the ledger entry")
    assert rig.standin.limits_w[4] == 700
    entry = rig.entries()[uuid]
    assert (entry.prior_w, entry.w, entry.keep_w, entry.protects, entry.cause) == (700, 350, 400, "gpu", "thermal")
    reply = peer.reply_to(request.id)
    assert isinstance(reply, wire.CapReply)
    assert (reply.w, reply.enforced_w) == (350, 350)
    assert rig.standin.limits_w == [700] * 4 + [350] + [700] * 3


def test_a_cap_out_of_range_is_refused_by_name_and_nothing_is_written(rig: Rig) -> None:
    """F29"""
    rig.start()
    peer = rig.agent()
    assert refused(peer.set_cap(rig.uuids[3], 750)).text == "power cap 750 W refused for GPU 3: allowed 200-700 W"
    for w in (750.0, 199.999, 50.0, 700.001):
        assert refused(peer.set_cap(rig.uuids[3], w)).code == "out_of_range"
    assert refused(peer.set_cap(rig.uuids[3], 400, keep_w=100)).code == "out_of_range"
    for w in (0.0, -5.0, float("nan"), float("inf"), 1e12):
        assert refused(peer.set_cap(rig.uuids[3], w)).code == "bad_request"
    assert rig.standin.writes() == []
    assert rig.entries() == {}
    assert peer.cap(rig.uuids[3], 200).w == 200


def test_each_board_is_checked_against_its_own_range() -> None:
    """F29: mixed boards; the one that refuses leaves the others as they are."""
    with rig_of(["h100", "a100", "h100"]) as rig:
        rig.start()
        peer = rig.agent()
        replies = [peer.set_cap(uuid, 150) for uuid in rig.uuids]
        assert [type(reply).__name__ for reply in replies] == ["ErrorReply", "CapReply", "ErrorReply"]
        assert rig.standin.limits_w == [700, 150, 700]
        for uuid in rig.uuids:
            assert refused(peer.set_cap(uuid, 50)).code == "out_of_range"
        assert rig.standin.limits_w == [700, 150, 700]


def test_a_restore_goes_back_to_what_was_found_and_not_to_the_default(rig: Rig) -> None:
    """F27"""
    for gpu in rig.standin.gpus[:4]:
        gpu.limit_w = 500
    rig.start()
    peer = rig.agent()
    for uuid in rig.uuids:
        peer.cap(uuid, 400)
        peer.cap(uuid, 350)
    outcomes = peer.restore()
    assert {outcome.outcome for outcome in outcomes.values()} == {"restored"}
    assert rig.standin.limits_w == [500] * 4 + [700] * 4
    assert rig.entries() == {}


def test_a_marker_is_never_taken_for_the_limit_to_go_back_to(rig: Rig) -> None:
    """What a board shows when it has no answer cannot be restored: the GPU would stay capped for ever."""
    rig.start()
    peer = rig.agent()
    gpu = rig.standin.gpus[0]
    for marker_mw in (0, 2**32 - 1, 2**31 - 1, 5_000_001):
        gpu._state.limit_mw = marker_mw
        assert refused(peer.set_cap(rig.uuids[0], 400)).code == "failed"
        assert rig.entries() == {}
    gpu.limit_w = 900  # above what the board itself allows
    assert peer.cap(rig.uuids[0], 400).w == 400
    assert rig.entries()[rig.uuids[0]].prior_w == 700
    assert peer.restore()[rig.uuids[0]].outcome == "restored"
    assert gpu.limit_w == 700
    for field in ("min_mw", "max_mw"):
        was, marker = getattr(gpu._state, field), 2**32 - 1
        setattr(gpu._state, field, marker)
        assert refused(peer.set_cap(rig.uuids[0], 400)).code == "failed"
        setattr(gpu._state, field, was)
    assert rig.standin.limits_w == [700] * 8


def test_a_restore_ends_where_the_board_now_allows_it(rig: Rig) -> None:
    """The range has changed since the cap: the nearest limit is better than a restore that is refused for ever."""
    rig.start()
    peer = rig.agent()
    gpu = rig.standin.gpus[0]
    peer.cap(rig.uuids[0], 400)
    gpu._state.max_mw = 600_000
    assert peer.restore()[rig.uuids[0]].outcome == "restored"
    assert gpu.limit_w == 600
    assert rig.entries() == {}
    peer.cap(rig.uuids[0], 250, keep_w=300, protects="gpu")
    gpu._state.min_mw = 320_000
    assert peer.restore()[rig.uuids[0]].outcome == "kept"
    assert gpu.limit_w == 320
    assert peer.restore(force=True)[rig.uuids[0]].outcome == "restored"
    assert gpu.limit_w == 600


def test_no_cap_is_ever_above_the_limit_found(rig: Rig) -> None:
    """F27"""
    rig.standin.gpus[0].limit_w = 500
    rig.start()
    peer = rig.agent()
    assert peer.cap(rig.uuids[0], 650).w == 500
    assert rig.standin.writes() == []
    assert peer.cap(rig.uuids[0], 300).w == 300
    assert peer.cap(rig.uuids[0], 650).w == 500
    assert rig.standin.limits_w[0] == 500
    assert rig.entries() == {}


def test_a_restore_keeps_what_protects_and_force_lifts_it(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300, keep_w=450, protects="none", cause="manual")
    peer.cap(rig.uuids[1], 400, keep_w=400, protects="gpu", cause="thermal")
    outcomes = peer.restore()
    assert [(outcomes[uuid].outcome, outcomes[uuid].w) for uuid in rig.uuids[:2]] == [("kept", 450), ("kept", 400)]
    assert rig.standin.limits_w[:2] == [450, 400]
    outcomes = peer.restore(force=True)
    assert {outcome.outcome for outcome in outcomes.values()} == {"restored"}
    assert rig.standin.limits_w == [700] * 8
    assert rig.entries() == {}


def test_a_board_that_ignores_a_cap_is_tried_three_more_times_and_then_reported(rig: Rig) -> None:
    rig.standin.gpus[0].ignores_set = 1
    rig.start()
    peer = rig.agent()
    error = refused(peer.set_cap(rig.uuids[0], 300))
    assert error.code == "failed"
    assert error.text == "GPU 0: the driver takes 300 W and ignores it: the board shows 700 W"
    assert len(rig.standin.writes(gpu=0)) == 4
    assert rig.entries() == {}
    assert peer.cap(rig.uuids[1], 300).w == 300


def test_a_limiter_beside_nvml_shows_as_the_enforced_limit(rig: Rig) -> None:
    rig.standin.gpus[0].oob_limit_w = 250
    rig.start()
    reply = rig.agent().cap(rig.uuids[0], 400)
    assert (reply.w, reply.enforced_w) == (400, 250)


def test_a_refused_write_is_told_at_once_and_not_tried_again(rig: Rig) -> None:
    """F30: reads work, the first write has no permission."""
    rig.standin.write_right = "denied"
    rig.start()
    peer = rig.agent()
    assert refused(peer.set_cap(rig.uuids[0], 300)).code == "no_permission"
    for _ in range(20):
        assert refused(peer.set_cap(rig.uuids[0], 300)).code == "no_permission"
    assert len(rig.standin.writes(gpu=0)) == 1
    assert rig.entries() == {}
    gpus = {gpu.uuid: gpu for gpu in peer.adopt().gpus}
    assert (gpus[rig.uuids[0]].can_write, gpus[rig.uuids[0]].write_reason) == (False, "no_permission")
    assert isinstance(peer.fast(rig.uuids[0])[rig.uuids[0]], wire.FastReply)


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping a capability needs it first")
@pytest.mark.parametrize("right", ["capability", "allowed"])
def test_rights_are_known_before_the_first_cap(rig: Rig, right: str) -> None:
    """F30: probed at the start, without changing anything; what the library says counts."""
    rig.standin.write_right = right
    rig.standin.gpus[0].limit_w = 500
    program = rig.start(ready=False)
    program.stop()
    words = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", *program.command]
    with Program(words, env={**rig.standin.env(), "NOTIFY_SOCKET": None}) as limited:
        rig.wait_ready(limited)
        peer = rig.peer()
        gpus = peer.adopt().gpus
        expected = (False, "no_permission") if right == "capability" else (True, None)
        assert {(gpu.can_write, gpu.write_reason) for gpu in gpus} == {expected}
        assert rig.standin.limits_w == [500] + [700] * 7
        assert rig.entries() == {}
        assert isinstance(peer.set_cap(rig.uuids[0], 300), wire.CapReply) == (right == "allowed")


def test_one_failed_restore_does_not_block_the_others_and_is_tried_again(rig: Rig) -> None:
    """F26: GPU 2 refuses, GPU 4 is lost, GPU 6 hangs; five come back, three stay listed as pending."""
    rig.start()
    peer = rig.agent()
    for uuid in rig.uuids:
        peer.cap(uuid, 350)
    rig.standin.fault("nvmlDeviceSetPowerManagementLimit", gpu=2, error=INVALID_ARGUMENT)
    rig.standin.gpus[4].lost = GPU_IS_LOST
    rig.standin.fault("nvmlDeviceSetPowerManagementLimit", gpu=6, latency_s=6)
    outcomes = peer.restore()
    pending = {rig.uuids.index(uuid) for uuid, outcome in outcomes.items() if outcome.outcome == "pending"}
    assert pending == {2, 4, 6}
    limits = rig.standin.limits_w
    assert [limits[number] for number in (0, 1, 3, 5, 7)] == [700] * 5
    assert {rig.uuids.index(uuid) for uuid, entry in rig.entries().items() if entry.pending} == {2, 4, 6}
    rig.standin.gpus[4].lost = 0
    rig.standin.clear()
    eventually(lambda: rig.entries() == {}, "the three to be restored", 25)
    assert rig.standin.limits_w == [700] * 8


def test_a_cap_needs_a_hello_first_and_restore_does_not(rig: Rig) -> None:
    rig.start()
    stranger = rig.peer()
    assert refused(stranger.set_cap(rig.uuids[0], 300)).code == "not_adopted"
    rig.agent().cap(rig.uuids[0], 300)
    assert refused(stranger.set_cap(rig.uuids[1], 300)).code == "foreign"
    assert stranger.restore()[rig.uuids[0]].outcome == "restored"


def test_an_unknown_gpu_is_named(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    error = refused(peer.set_cap("GPU-nobody", 300))
    assert (error.code, error.uuid) == ("unknown_gpu", "GPU-nobody")
    assert peer.restore("GPU-nobody")["GPU-nobody"].outcome == "none"


def test_a_ledger_that_cannot_be_written_stops_new_caps_but_not_reading(rig: Rig) -> None:
    rig.runtime_dir.mkdir()
    rig.ledger_path.mkdir()
    rig.start()
    peer = rig.agent()
    assert not peer.adopt().ledger_ok
    assert refused(peer.set_cap(rig.uuids[0], 300)).code == "ledger_failed"
    assert rig.standin.writes() == []
    assert isinstance(peer.fast(rig.uuids[0])[rig.uuids[0]], wire.FastReply)
    rig.ledger_path.rmdir()
    eventually(lambda: peer.adopt().ledger_ok, "the ledger to be made")
    assert peer.cap(rig.uuids[0], 300).w == 300


def test_with_a_failed_ledger_an_owned_cap_may_only_go_lower(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 400)
    rig.ledger_path.unlink()
    rig.ledger_path.mkdir()
    eventually(lambda: not peer.adopt().ledger_ok, "the helper to notice")
    assert refused(peer.set_cap(rig.uuids[0], 500)).code == "ledger_failed"
    assert rig.standin.limits_w[0] == 400
    assert peer.cap(rig.uuids[0], 300).w == 300
    assert refused(peer.set_cap(rig.uuids[1], 300)).code == "ledger_failed"
    assert peer.restore()[rig.uuids[0]].outcome == "restored"
    assert rig.standin.limits_w[0] == 700


def test_a_removed_ledger_is_made_again_with_the_caps_in_force(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 400)
    rig.ledger_path.unlink()
    eventually(lambda: rig.uuids[0] in rig.entries(), "the ledger to be made again")
    assert rig.entries()[rig.uuids[0]].prior_w == 700


def test_sigterm_restores_all_that_protects_nothing_and_keeps_the_rest(rig: Rig) -> None:
    """F24, F25: the helper stopped in any orderly way restores at once."""
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300)
    peer.cap(rig.uuids[1], 400, keep_w=400, protects="gpu", cause="thermal")
    peer.cap(rig.uuids[2], 250, keep_w=500, protects="none", cause="manual")
    assert program.stop() == 0
    assert rig.standin.limits_w == [700, 400, 500] + [700] * 5
    left = rig.entries()
    assert {uuid: (entry.w, entry.prior_w) for uuid, entry in left.items()} == {
        rig.uuids[1]: (400, 700),
        rig.uuids[2]: (500, 700),
    }
    status, output = rig.run("--restore")
    assert (status, rig.standin.limits_w[:3]) == (1, [700, 400, 500])
    assert "--force" in output
    status, _ = rig.run("--restore", "--force")
    assert (status, rig.standin.limits_w) == (0, [700] * 8)
    assert rig.entries() == {}


def test_the_restore_command_undoes_what_a_killed_helper_left(rig: Rig) -> None:
    """F24: a stand-alone restore works without any daemon."""
    rig.standin.gpus[0].limit_w = 500
    program = rig.start()
    rig.agent().cap(rig.uuids[0], 300)
    program.process.kill()
    program.process.wait()
    assert rig.standin.limits_w[0] == 300
    status, output = rig.run("--restore")
    assert (status, rig.standin.limits_w[0]) == (0, 500), output
    assert rig.entries() == {}
    assert rig.run("--restore")[0] == 0


def test_the_restore_command_leaves_a_living_helper_alone(rig: Rig) -> None:
    program = rig.start()
    rig.agent().cap(rig.uuids[0], 300)
    status, output = rig.run("--restore")
    assert status == 75
    assert str(program.pid) in output
    assert rig.standin.limits_w[0] == 300


def test_a_helper_that_was_frozen_goes_on(rig: Rig) -> None:
    """A debugger, a cgroup freezer or a suspended machine is no reason to stop, still less to restore."""
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300)
    for _ in range(2):
        program.signal(signal.SIGSTOP)
        thaw_s = time.monotonic() + 1.5  # longer than the helper ever sleeps at a time
        wait_for(lambda thaw_s=thaw_s: time.monotonic() > thaw_s, 5, "the wait to be over while it is frozen")
        program.signal(signal.SIGCONT)
        assert peer.ledger()[rig.uuids[0]].w == 300
    peer.hello()
    assert program.running
    assert "signal_caught" not in program.output
    assert rig.standin.limits_w[0] == 300


def test_a_second_helper_whose_lock_was_removed_touches_nothing(rig: Rig) -> None:
    first = rig.start()
    rig.agent().cap(rig.uuids[0], 300)
    writes = len(rig.standin.writes())
    for lock in [*rig.lock_dir.iterdir(), rig.runtime_dir / "gpu-helper.lock"]:
        lock.unlink()
    second = rig.start(ready=False)
    assert second.wait_exit(15) == 75
    assert "somebody listens" in second.output
    assert first.running
    assert len(rig.standin.writes()) == writes
    assert rig.entries()[rig.uuids[0]].w == 300


def test_what_is_undone_is_tried_as_soon_as_rights_are_back(rig: Rig) -> None:
    """Missing rights are not asked about again and again, but a cap must not stay for that."""
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300)
    rig.standin.write_right = "denied"
    assert refused(peer.set_cap(rig.uuids[0], 250)).code == "no_permission"
    asked = rig.standin.calls("nvmlDeviceSetPowerManagementLimit")
    assert refused(peer.set_cap(rig.uuids[0], 250)).code == "no_permission"
    assert rig.standin.calls("nvmlDeviceSetPowerManagementLimit") == asked
    rig.standin.write_right = "allowed"
    assert refused(peer.set_cap(rig.uuids[0], 250)).code == "no_permission"  # a minute long
    assert peer.cap(rig.uuids[0], 700).w == 700
    assert rig.entries() == {}
    assert peer.cap(rig.uuids[0], 300).w == 300


def test_a_helper_that_was_killed_holds_its_caps_when_it_is_back(rig: Rig) -> None:
    """F24: same boot, and the board shows our last request."""
    program = rig.start()
    rig.agent().cap(rig.uuids[0], 300, expires_at_s=boottime_s() + 300)
    program.process.kill()
    program.process.wait()
    writes = len(rig.standin.writes())
    rig.start()
    peer = rig.agent()
    entry = peer.ledger()[rig.uuids[0]]
    assert (entry.w, entry.prior_w, entry.state) == (300, 700, "owned")
    assert rig.standin.limits_w[0] == 300
    assert len(rig.standin.writes()) == writes
    peer.restore()
    assert rig.standin.limits_w[0] == 700


def test_caps_that_vanished_while_the_helper_was_dead_are_set_again_only_if_they_protect(rig: Rig) -> None:
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300)
    peer.cap(rig.uuids[1], 350, keep_w=400, protects="gpu", cause="thermal")
    program.process.kill()
    program.process.wait()
    rig.standin.reload_driver()
    rig.start()
    peer = rig.peer()
    events = peer.adopt().events
    eventually(lambda: collect_events(peer, rig.uuids, events).count("cap_vanished") == 2, "two events")
    assert rig.standin.limits_w[:2] == [700, 400]
    assert {uuid: entry.w for uuid, entry in rig.entries().items()} == {rig.uuids[1]: 400}


def test_a_cap_that_vanishes_under_a_living_helper_is_answered_the_same_way(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300)
    peer.cap(rig.uuids[1], 350, keep_w=350, protects="gpu", cause="thermal")
    for gpu in rig.standin.gpus[:2]:
        gpu.reset()
    events: list[wire.HelperEvent] = []
    eventually(lambda: collect_events(peer, rig.uuids, events).count("cap_vanished") == 2, "two events")
    eventually(lambda: rig.standin.limits_w[:2] == [700, 350], "the protective cap")
    assert set(rig.entries()) == {rig.uuids[1]}


def test_a_gpu_that_comes_back_after_a_reset_has_its_protective_cap_again(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[3], 350, keep_w=350, protects="gpu", cause="thermal")
    rig.standin.gpus[3].lost = GPU_IS_LOST
    assert isinstance(peer.fast(rig.uuids[3])[rig.uuids[3]], wire.ErrorReply)
    rig.standin.gpus[3].reset()
    rig.standin.gpus[3].lost = 0
    eventually(lambda: rig.standin.limits_w[3] == 350, "the cap", 20)


def test_somebody_elses_limit_is_named_contested_three_times_and_then_left_alone(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    uuid, gpu = rig.uuids[0], rig.standin.gpus[0]
    peer.cap(uuid, 400, keep_w=400, protects="gpu", cause="thermal")
    events: list[wire.HelperEvent] = []
    for _ in range(3):
        gpu.limit_w = 450

        def is_ours_again() -> bool:
            collect_events(peer, rig.uuids, events)
            return gpu.limit_w == 400

        eventually(is_ours_again, "the cap to be set again")
    gpu.limit_w = 450

    def is_reported() -> bool:
        collect_events(peer, rig.uuids, events)
        return rig.entries()[uuid].state == "foreign"

    eventually(is_reported, "the state foreign")
    writes = len(rig.standin.writes(gpu=0))
    for _ in range(5):
        collect_events(peer, rig.uuids, events)
        assert "foreign_cap" in refused(peer.set_cap(uuid, 380, keep_w=380, protects="gpu")).text
    assert len(rig.standin.writes(gpu=0)) == writes
    assert gpu.limit_w == 450
    assert "450" in next(event.text for event in events if event.code == "foreign_cap")
    assert peer.restore(force=True)[uuid].outcome == "none"
    assert gpu.limit_w == 450
    assert rig.entries() == {}


def test_an_agent_that_wants_nothing_any_more_gives_a_contested_gpu_up(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 400)
    rig.standin.gpus[0].limit_w = 450
    assert peer.cap(rig.uuids[0], 700).w == 450
    assert rig.standin.limits_w[0] == 450
    assert peer.ledger() == {}


def test_no_restore_overwrites_somebody_elses_limit(rig: Rig) -> None:
    program = rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[0], 400)
    program.process.kill()
    program.process.wait()
    rig.standin.gpus[0].limit_w = 450
    writes = len(rig.standin.writes())
    status, _ = rig.run("--restore")
    assert (status, rig.standin.limits_w[0]) == (0, 450)
    assert len(rig.standin.writes()) == writes
    assert rig.entries() == {}


def test_entries_of_another_boot_are_closed_and_logged(rig: Rig) -> None:
    """F24: power loss; the caps ended with the boot that set them."""
    rig.runtime_dir.mkdir()
    ledger = Ledger(rig.ledger_path, boot="the-boot-before")
    ledger.open()
    entry = wire.LedgerEntry(uuid=rig.uuids[0], prior_w=600, w=300)
    ledger.write(entry.uuid, Record(entry=entry, confirmed=True))
    program = rig.start()
    peer = rig.agent()
    assert peer.ledger() == {}
    assert rig.standin.writes() == []
    assert "another boot" in program.output


def test_a_cap_left_between_ledger_and_board_is_finished_at_the_next_start(rig: Rig) -> None:
    """F24: killed after the ledger was written and before the board was."""
    rig.standin.gpus[0].limit_w = 500
    rig.runtime_dir.mkdir()
    ledger = Ledger(rig.ledger_path)
    ledger.open()
    for uuid, rest in {
        rig.uuids[0]: {"w": 300, "previous_w": 500, "prior_w": 600},  # lower was asked for: done
        rig.uuids[1]: {"w": 650, "previous_w": 620, "prior_w": 700},  # higher was asked for: not done
        rig.uuids[2]: {"w": 300, "prior_w": 700},  # the first one, protecting nothing: forgotten
        rig.uuids[3]: {"w": 300, "prior_w": 700, "keep_w": 350, "protects": "gpu"},  # protecting: kept
    }.items():
        entry = wire.LedgerEntry(uuid=uuid, written_at_s=boottime_s(), **rest)  # type: ignore[arg-type]
        ledger.write(uuid, Record(entry=entry))
    rig.standin.gpus[1].limit_w = 620
    rig.start()
    eventually(lambda: rig.standin.limits_w[:4] == [300, 620, 700, 350], "the four limits")
    eventually(lambda: set(rig.entries()) == {rig.uuids[0], rig.uuids[1], rig.uuids[3]}, "three entries")


def test_a_gpu_locked_by_another_helper_is_only_read(rig: Rig) -> None:
    first = rig.start()
    other = Rig.__new__(Rig)
    other.__dict__.update(rig.__dict__)
    other.runtime_dir = rig.folder / "run2"
    other.socket_path = other.runtime_dir / "gpu.sock"
    other.ledger_path = other.runtime_dir / "gpu-ledger"
    other.start()
    peer = other.agent()
    gpus = peer.adopt().gpus
    assert {(gpu.can_write, gpu.write_reason) for gpu in gpus} == {(False, f"locked by pid {first.pid}")}
    error = refused(peer.set_cap(rig.uuids[0], 300))
    assert (error.code, str(first.pid) in error.text) == ("locked", True)
    assert isinstance(peer.fast(rig.uuids[0])[rig.uuids[0]], wire.FastReply)
    first.process.kill()
    first.process.wait()
    eventually(lambda: all(gpu.can_write for gpu in peer.adopt().gpus), "the locks to be taken over")
    assert peer.cap(rig.uuids[0], 300).w == 300
