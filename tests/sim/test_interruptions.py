"""kill -9 and SIGSTOP of the agent while a fault develops: forked from the plant at that second."""

import pytest

from nodewarden.sim.closed_loop import ClosedLoop
from nodewarden.sim.interruptions import FAULTS, FROZEN_S, KILLED_S, interrupt
from nodewarden.sim.scenario import load_scenario


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_moment_nothing_reaches_slowdown_and_the_new_agent_raises_nothing_for_ten_seconds(fault) -> None:
    found = interrupt(fault, range(0, 120, 8), for_s=KILLED_S)
    assert len(found) == 15
    assert [one for one in found if not one.safe] == []


@pytest.mark.parametrize("fault", ["pump-stop", "all-fans"])
def test_frozen_until_the_watchdog_ends_it_the_helpers_failsafe_cap_keeps_the_boards_below_slowdown(fault) -> None:
    found = interrupt(fault, range(0, 120, 24), for_s=FROZEN_S, failsafe_w=200.0)
    assert [one for one in found if not one.safe] == []


def test_without_a_failsafe_cap_a_long_silence_in_a_stopped_pump_is_seen_to_be_unsafe() -> None:
    (found,) = interrupt("pump-stop", [1], for_s=FROZEN_S)
    assert found.slowdown_samples > 0
    assert not found.safe


def test_a_fork_goes_on_as_the_original_would_have() -> None:
    loop = ClosedLoop(load_scenario("pump"))
    for _ in range(60):
        loop.tick()
    fork = loop.fork()
    for _ in range(20):
        loop.tick()
    assert fork.plant.now_s < loop.plant.now_s
    for _ in range(20):
        fork.tick()
    assert fork.finish().decisions_sha256 == loop.finish().decisions_sha256
    assert fork.outcome.lowest_margin_c == loop.outcome.lowest_margin_c
