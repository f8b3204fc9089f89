"""The gates of the control law on a seeded sample of the bench (`bench/control/run --full` runs 1,000 of each)."""

import pytest

from nodewarden.sim import trials
from nodewarden.sim.closed_loop import ClosedLoop
from nodewarden.sim.random_faults import AIR, LIQUID, lying_case, random_case

SEED = 2026

pytestmark = pytest.mark.timeout(600)


def test_no_sample_at_slowdown_and_no_gpu_lost_in_any_of_100_random_faults() -> None:
    results = trials.run_all(trials.run_random, [(SEED, number) for number in range(100)], processes=2)
    assert trials.unsafe_words(results) == []
    assert len({trial.name for trial in results}) == len(AIR) + len(LIQUID)
    found = trials.summary(results, minutes=10.0)
    assert found.lost_mean < 0.08
    assert found.runs_above_max_op <= 10


def test_random_faults_are_those_that_a_node_without_control_does_not_survive_unharmed() -> None:
    cases = [random_case(SEED, number) for number in (1, 2, 3, 8, 9)]
    alone = [ClosedLoop(case.scenario, seed=case.seed, armed=False).run() for case in cases]
    assert sum(outcome.slowdown_samples > 0 for outcome in alone) >= 4


def test_a_case_is_the_same_each_time_and_another_for_another_seed() -> None:
    assert random_case(SEED, 7) == random_case(SEED, 7) != random_case(SEED + 1, 7)
    assert lying_case(SEED, 7) == lying_case(SEED, 7) != lying_case(SEED + 1, 7)
    assert all(not lying_case(SEED, number).scenario.problems() for number in range(30))


@pytest.mark.parametrize("kind", ["frozen", "high", "low", "nan", "swapped"])
def test_sensor_lies_alone_and_with_a_fault_of_one_gpu_bring_none_to_slowdown(
    kind: str, request: pytest.FixtureRequest
) -> None:
    if kind in {"frozen", "low"}:
        request.applymarker(pytest.mark.xfail(reason="the policy believes a cool sensor while HBM is hot", strict=True))
    numbers = [number for number in range(30) if lying_case(SEED, number).scenario.lie[0].kind == kind]
    results = [trials.run_lie((SEED, number)) for number in numbers]
    assert trials.unsafe_words(results) == []
