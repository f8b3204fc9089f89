"""Many closed-loop runs over processes, and what they come to: the gates that a controller must pass."""

import hashlib
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from typing import Final, TypeVar

import msgspec

from nodewarden.sim.closed_loop import ClosedLoop, Outcome
from nodewarden.sim.random_faults import Case, lying_case, random_case

PLANT_FILES: Final = (
    "boards.py",
    "cooling.py",
    "firmware.py",
    "lies.py",
    "plant.py",
    "job_model.py",
    "random_faults.py",
)


Job = TypeVar("Job")
Result = TypeVar("Result")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run and its outcome (without its events)."""

    number: int
    name: str
    outcome: Outcome

    @property
    def safe(self) -> bool:
        """No sample at or above slowdown, no board lost."""
        return self.outcome.slowdown_samples == 0 and self.outcome.boards_lost == 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a set of runs comes to. Shares are of the healthy node's steps; seconds are board-seconds."""

    runs: int
    unsafe: int
    boards_lost: int
    slowdown_samples: int
    runs_above_max_op: int
    above_max_op_s: float
    lowest_margin_c: float
    lost_mean: float
    lost_p95: float
    reversals_mean: float
    writes_per_gpu_minute: float
    late_writes_per_gpu_minute: float
    least_spread_p5: float
    decisions_sha256: str


def plant_sha256() -> str:
    """Digest of the files that are the plant: it must not change once controllers are tuned on it."""
    folder = resources.files("nodewarden.sim")
    digest = hashlib.sha256()
    for name in PLANT_FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def run_case(case: Case) -> Outcome:
    """One case under the policy, without its events."""
    outcome = ClosedLoop(case.scenario, seed=case.seed).run()
    outcome.events = []
    return outcome


def run_random(job: tuple[int, int]) -> Trial:
    """Random fault `job` = (seed, number) under the policy."""
    case = random_case(*job)
    return Trial(number=job[1], name=case.name, outcome=run_case(case))


def run_random_r_ds(job: tuple[int, int]) -> Trial:
    """The same with another resistance from die to sink than the law assumes."""
    case = random_case(*job, r_ds_factor=True)
    return Trial(number=job[1], name=case.name, outcome=run_case(case))


def run_lie(job: tuple[int, int]) -> Trial:
    """Lying sensor `job` = (seed, number) under the policy."""
    case = lying_case(*job)
    return Trial(number=job[1], name=case.name, outcome=run_case(case))


def run_all(run: Callable[[Job], Result], jobs: Sequence[Job], *, processes: int | None = None) -> list[Result]:
    """`run` of every job, over processes; results in the order of the jobs, whoever finished first."""
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    if processes <= 1:
        return [run(job) for job in jobs]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(run, jobs, chunksize=max(1, len(jobs) // (processes * 8))))


def summary(trials: Sequence[Trial], *, minutes: float) -> Summary:
    """What these runs come to; `minutes` is how long one lasts."""
    outcomes = [trial.outcome for trial in trials]
    digest = hashlib.sha256()
    for trial in trials:
        digest.update(f"{trial.number} {trial.outcome.decisions_sha256}\n".encode())
    lost = sorted(outcome.lost if outcome.lost is not None else 0.0 for outcome in outcomes)
    runs = len(outcomes)
    return Summary(
        runs=runs,
        unsafe=sum(not trial.safe for trial in trials),
        boards_lost=sum(outcome.boards_lost for outcome in outcomes),
        slowdown_samples=sum(outcome.slowdown_samples for outcome in outcomes),
        runs_above_max_op=sum(outcome.above_max_op_s > 0 for outcome in outcomes),
        above_max_op_s=math.fsum(outcome.above_max_op_s for outcome in outcomes),
        lowest_margin_c=min(outcome.lowest_margin_c for outcome in outcomes),
        lost_mean=math.fsum(lost) / runs,
        lost_p95=percentile(lost, 0.95),
        reversals_mean=sum(outcome.reversals for outcome in outcomes) / runs,
        writes_per_gpu_minute=sum(outcome.cap_writes for outcome in outcomes) / (runs * 8 * minutes),
        late_writes_per_gpu_minute=sum(outcome.late_writes for outcome in outcomes) / (runs * 8),
        least_spread_p5=percentile(sorted(outcome.least_spread for outcome in outcomes), 0.05),
        decisions_sha256=digest.hexdigest(),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def unsafe_words(trials: Iterable[Trial]) -> list[str]:
    """One line for each run that was not safe: which, and how bad."""
    return [
        f"{trial.number} {trial.name}: {trial.outcome.slowdown_samples} samples at slowdown, "
        f"hottest {trial.outcome.hottest_c:.2f} °C, {trial.outcome.boards_lost} boards lost"
        for trial in trials
        if not trial.safe
    ]
