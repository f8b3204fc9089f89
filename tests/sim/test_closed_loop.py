"""What the policy makes of each scenario, against the same scenario left alone. Lockstep, no processes."""

import msgspec
import pytest

from nodewarden.sim.closed_loop import ClosedLoop, Outcome
from nodewarden.sim.scenario import load_scenario

STORIES = ("fan-bank", "hot-aisle", "pump")  # those that come with words, for the demo


def outcome(name: str, *, armed: bool, seed: int = 1) -> Outcome:
    return ClosedLoop(load_scenario(name), seed=seed, armed=armed).run()


@pytest.mark.parametrize("name", STORIES)
def test_disarmed_the_hardware_has_to_slow_itself_down(name: str) -> None:
    found = outcome(name, armed=False)
    assert found.hw_slowdown_s > 10.0
    assert found.lowest_margin_c < -2.0
    assert found.cap_writes == 0
    assert found.caps_at_end_w == [700.0] * 8


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", STORIES)
def test_armed_no_board_comes_near_hardware_slowdown_and_all_caps_are_lifted_again(name: str, seed: int) -> None:
    found = outcome(name, armed=True, seed=seed)
    assert found.hw_slowdown_s == 0.0
    assert found.lowest_margin_c > -1.0, "above max-operating by more than a degree"
    assert found.boards_lost == 0
    assert found.lowest_cap_w < 600.0
    assert found.caps_at_end_w == [700.0] * 8


def test_the_demos_scenario_walks_up_to_a_checkpoint_and_back_to_normal() -> None:
    loop = ClosedLoop(load_scenario("fan-bank"))
    found = loop.run()
    assert found.top_level == 4
    assert found.lowest_duty < 1.0
    assert found.checkpoint_step is not None
    assert int(loop.setpoints.level) == 0
    assert loop.setpoints.job.duty == 1.0
    codes = [event.code for _, event in found.events]
    for code in ("gpu_capped", "checkpoint_wanted", "checkpoint_done", "gpu_uncapped"):
        assert code in codes


def test_the_same_seed_gives_the_same_decisions_to_the_bit_and_another_seed_does_not() -> None:
    short = msgspec.structs.replace(load_scenario("fan-bank"), duration_s=90.0)
    digests = [ClosedLoop(short, seed=seed).run().decisions_sha256 for seed in (5, 5, 6)]
    assert digests[0] == digests[1] != digests[2]


def test_arming_changes_nothing_before_the_fault() -> None:
    healthy = msgspec.structs.replace(load_scenario("fan-bank"), duration_s=39.0)
    found = ClosedLoop(healthy).run()
    assert found.cap_writes == 0
    assert found.top_level == 0
    assert found.lowest_margin_c > 5.0
