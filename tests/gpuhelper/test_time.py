"""What the helper does by itself as time passes: expiry, silence, goodbye, and its own end. Time runs fast here."""

import pytest

from gpuhelper.rig import Peer, QuickHelper, Rig, eventually
from nodewarden.gpuhelper import wire

SPEED = 20.0  # silence after 0.15 s, a goodbye lasts 1 s
MINUTES_SPEED = 300.0  # ten minutes in 2 s


def now_s(helper: QuickHelper) -> float:
    return helper.clock.now_s()


def wait_until(helper: QuickHelper, at_s: float, peer: Peer | None = None) -> None:
    """Until the helper's clock shows `at_s`; with an agent that gives signs of life meanwhile."""

    def is_time() -> bool:
        if peer is not None:
            peer.ledger()
        return helper.clock.now_s() >= at_s

    eventually(is_time, "the time to pass", 20)


def test_an_unprotected_cap_ends_at_its_expiry_and_a_protective_one_does_not(rig: Rig) -> None:
    """F24: no lease outlives its time, even when the agent says nothing more."""
    helper = rig.start_quick(SPEED)
    peer = rig.agent(armed=False)
    ends_s = now_s(helper) + 20
    peer.cap(rig.uuids[0], 300, expires_at_s=ends_s)
    peer.cap(rig.uuids[1], 300, keep_w=300, protects="gpu", expires_at_s=ends_s)
    peer.cap(rig.uuids[2], 300, keep_w=450, cause="manual", expires_at_s=ends_s)
    peer.close()
    eventually(lambda: rig.standin.limits_w[:3] == [700, 300, 450], "the first and third cap to end")
    clock = helper.clock
    ends = [write.at_s for write in rig.standin.writes() if write.w in {700, 450}]
    assert all(clock.origin_s + (at_s - clock.origin_s) * clock.speed >= ends_s for at_s in ends)
    entries = rig.entries()
    assert set(entries) == set(rig.uuids[1:3])
    assert (entries[rig.uuids[2]].w, entries[rig.uuids[2]].protects) == (450, "gpu")
    again = rig.peer()
    codes = [event.code for event in again.adopt().events]
    assert codes.count("cap_expired") == 2


def test_a_renewal_moves_the_expiry_without_writing_to_the_board(rig: Rig) -> None:
    helper = rig.start_quick(SPEED)
    peer = rig.agent(armed=False)
    began_s = now_s(helper)
    peer.cap(rig.uuids[0], 300, expires_at_s=began_s + 10)
    for _ in range(3):
        peer.cap(rig.uuids[0], 300, expires_at_s=now_s(helper) + 30)
    wait_until(helper, began_s + 20, peer)
    assert rig.standin.limits_w[0] == 300
    assert len(rig.standin.writes()) == 1
    eventually(lambda: rig.standin.limits_w[0] == 700, "the end")


def test_a_cap_without_an_expiry_ends_ten_minutes_after_its_last_renewal(rig: Rig) -> None:
    helper = rig.start_quick(MINUTES_SPEED)
    peer = rig.agent(armed=False)
    began_s = now_s(helper)
    peer.cap(rig.uuids[0], 300)
    wait_until(helper, began_s + 400, peer)
    assert rig.standin.limits_w[0] == 300
    wait_until(helper, began_s + 900, peer)
    eventually(lambda: rig.standin.limits_w[0] == 700, "the end")


def test_after_a_goodbye_caps_stay_for_the_next_agent(rig: Rig) -> None:
    """F25: a restart of the agent changes nothing."""
    helper = rig.start_quick(SPEED)
    peer = rig.agent()
    peer.cap(rig.uuids[0], 300, expires_at_s=now_s(helper) + 3000)
    peer.hello(leaving=True)
    left_s = now_s(helper)
    peer.close()
    wait_until(helper, left_s + 10)
    successor = rig.agent()
    wait_until(helper, left_s + 40, successor)
    assert rig.standin.limits_w[0] == 300
    assert len(rig.standin.writes()) == 1
    assert successor.ledger()[rig.uuids[0]].state == "owned"


def test_twenty_seconds_after_a_goodbye_everything_unprotected_is_restored(rig: Rig) -> None:
    """F25: a stop is no restart."""
    helper = rig.start_quick(SPEED)
    peer = rig.agent(failsafe_w=250)
    peer.cap(rig.uuids[0], 300, expires_at_s=now_s(helper) + 3000)
    peer.cap(rig.uuids[1], 400, keep_w=400, protects="gpu", cause="thermal")
    peer.cap(rig.uuids[2], 300, keep_w=500, expires_at_s=now_s(helper) + 3000)
    peer.hello(leaving=True)
    left_s = now_s(helper)
    peer.close()
    eventually(lambda: rig.standin.limits_w[:3] == [700, 400, 500], "the restore")
    restored_s = now_s(helper)
    assert restored_s - left_s >= 20
    eventually(lambda: {entry.state for entry in rig.entries().values()} == {"kept"}, "two kept entries")
    assert set(rig.entries()) == set(rig.uuids[1:3])
    codes = [event.code for event in rig.peer().adopt().events]
    assert codes.count("cap_kept") == 2
    assert rig.standin.limits_w == [700, 400, 500] + [700] * 5


@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_a_silent_armed_agent_leaves_every_gpu_at_the_failsafe_or_lower(rig: Rig, way: str) -> None:
    helper = rig.start_quick(SPEED)
    peer = rig.agent(armed=True, failsafe_w=350)
    peer.cap(rig.uuids[0], 500, keep_w=500, protects="breaker", cause="node_power")
    peer.cap(rig.uuids[1], 300, keep_w=300, protects="gpu", cause="thermal")
    peer.cap(rig.uuids[2], 250, expires_at_s=now_s(helper) + 30, cause="manual")
    if way == "killed":
        peer.close()
    eventually(lambda: rig.standin.limits_w == [350, 300, 250] + [350] * 5, "the fail-safe")
    eventually(lambda: rig.standin.limits_w == [350, 300, 350] + [350] * 5, "the manual cap to expire")
    entries = rig.entries()
    assert len(entries) == 8
    assert {entry.prior_w for entry in entries.values()} == {700}
    assert entries[rig.uuids[7]].cause == "failsafe"
    if way == "killed":
        peer = rig.agent(armed=True, failsafe_w=350)
    assert len(peer.ledger()) == 8
    peer.cap(rig.uuids[7], 600, keep_w=600, protects="breaker", cause="node_power")
    assert rig.standin.limits_w[7] == 600


def test_a_silent_agent_without_a_failsafe_leaves_caps_as_they_are(rig: Rig) -> None:
    helper = rig.start_quick(SPEED)
    peer = rig.agent(armed=True)
    peer.cap(rig.uuids[0], 500, keep_w=500, protects="breaker", cause="node_power")
    peer.close()
    wait_until(helper, now_s(helper) + 60)
    assert rig.standin.limits_w == [500] + [700] * 7


def test_a_silent_disarmed_agent_triggers_no_failsafe(rig: Rig) -> None:
    helper = rig.start_quick(SPEED)
    rig.agent(armed=False, failsafe_w=350).close()
    wait_until(helper, now_s(helper) + 30)
    assert rig.standin.writes() == []


def test_a_failsafe_below_the_boards_minimum_is_the_minimum(rig: Rig) -> None:
    rig.start_quick(SPEED)
    rig.agent(armed=True, failsafe_w=50).close()
    eventually(lambda: rig.standin.limits_w == [200] * 8, "the fail-safe")


def test_a_helper_killed_together_with_its_agent_still_answers_the_silence(rig: Rig) -> None:
    first = rig.start_quick(SPEED)
    peer = rig.agent(armed=True, failsafe_w=350)
    peer.cap(rig.uuids[0], 500, keep_w=500, protects="breaker", cause="node_power")
    first.program.process.kill()
    first.program.process.wait()
    peer.close()
    assert rig.standin.limits_w[0] == 500
    rig.start_quick(SPEED)
    eventually(lambda: rig.standin.limits_w == [350] * 8, "the fail-safe")


def test_a_helper_started_by_hand_ends_after_ten_minutes_without_an_agent(rig: Rig) -> None:
    helper = rig.start_quick(MINUTES_SPEED)
    peer = rig.agent(armed=False)
    peer.cap(rig.uuids[0], 300, expires_at_s=now_s(helper) + 10_000)
    peer.cap(rig.uuids[1], 400, keep_w=400, protects="gpu", cause="thermal")
    wait_until(helper, now_s(helper) + 900, peer)
    assert helper.program.running
    peer.close()
    assert helper.program.wait_exit() == 0
    assert rig.standin.limits_w[:2] == [700, 400]
    assert not rig.socket_path.exists()


def test_an_agent_of_the_same_user_adopts_what_a_killed_agent_left(rig: Rig) -> None:
    rig.start_quick(SPEED)
    first = rig.agent()
    first.cap(rig.uuids[0], 300, keep_w=300, protects="gpu", cause="thermal")
    first.close()
    hello = rig.peer().adopt()
    assert [(entry.uuid, entry.w, entry.prior_w) for entry in hello.ledger] == [(rig.uuids[0], 300, 700)]
    assert rig.standin.limits_w[0] == 300


def test_a_restore_that_cannot_be_done_is_tried_until_it_can(rig: Rig) -> None:
    """F26: with back-off."""
    rig.start_quick(SPEED)
    peer = rig.agent(armed=False)
    peer.cap(rig.uuids[0], 300)
    rig.standin.fault("nvmlDeviceSetPowerManagementLimit", gpu=0, error=999)
    assert peer.restore()[rig.uuids[0]].outcome == "pending"
    eventually(lambda: len(rig.standin.writes(gpu=0)) >= 9, "two more tries")
    assert isinstance(peer.ledger()[rig.uuids[0]], wire.LedgerEntry)
    rig.standin.clear()
    eventually(lambda: rig.standin.limits_w[0] == 700, "the restore")
    assert peer.ledger() == {}
