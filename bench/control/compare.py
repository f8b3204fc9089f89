"""Tunes the rivals on a training set, prints the grids, and compares all on held-out faults."""

import argparse
import time
from typing import NamedTuple

import rivals
from msgspec import structs

from nodewarden.sim import trials
from nodewarden.sim.closed_loop import ClosedLoop
from nodewarden.sim.random_faults import DURATION_S, random_case

TRAINING_SEED = 1


class Job(NamedTuple):
    """One run: who controls, with which settings, against which fault."""

    who: str
    settings: tuple[tuple[str, float], ...]
    seed: int
    number: int


def run(job: Job) -> trials.Trial:
    case = random_case(job.seed, job.number)
    if job.who == "ours":
        return trials.run_random((job.seed, job.number))
    if job.who == "clairvoyant":
        loop: ClosedLoop = rivals.Clairvoyant(case.scenario, case.seed, {})
    elif job.who in rivals.RIVALS:
        loop = rivals.RIVALS[job.who](case.scenario, case.seed, dict(job.settings))
    else:
        loop = ClosedLoop(structs.replace(case.scenario, sw_thermal=DRIVERS[job.who]), seed=case.seed, armed=False)
    outcome = loop.run()
    outcome.events = []
    return trials.Trial(number=job.number, name=case.name, outcome=outcome)


DRIVERS = {"no control": "none", "driver's loop, ideal": "ideal", "driver's loop, coarse": "coarse"}


def tune(options: argparse.Namespace) -> dict[str, tuple[tuple[str, float], ...]]:
    """The best settings of each rival: first no sample at slowdown, then few above max-operating, then throughput."""
    best = {}
    count = options.training
    for who, kind in rivals.RIVALS.items():
        began_s = time.monotonic()
        grid = [tuple(sorted(settings.items())) for settings in kind.GRID]
        jobs = [Job(who, settings, TRAINING_SEED, n) for settings in grid for n in range(count)]
        results = trials.run_all(run, jobs, processes=options.jobs)
        rows = []
        for i, settings in enumerate(grid):
            found = trials.summary(results[i * count : (i + 1) * count], minutes=DURATION_S / 60)
            rows.append((found.unsafe, found.runs_above_max_op, found.lost_mean, settings))
        best[who] = min(rows)[3]
        print(f"\n### {who}: grid on {count} training faults (seed {TRAINING_SEED})\n")
        print("| settings | runs with >= slowdown | runs > max-operating | lost, mean |\n|---|---|---|---|")
        for unsafe, above, lost, settings in rows:
            words = ", ".join(f"{name} {value:g}" for name, value in settings)
            bold = "**" if settings == best[who] else ""
            print(f"| {bold}{words}{bold} | {unsafe} | {above} | {100 * lost:.2f} % |")
        print(f"\n{time.monotonic() - began_s:.0f} s", flush=True)
    return best


def compare(options: argparse.Namespace) -> bool:
    """The table on held-out faults; True when ours is safe and beats every rival that is as safe."""
    best = tune(options)
    count = options.held_out
    print(f"\n### {count} held-out faults (seed {options.seed}), none of them used for tuning\n")
    print(
        "| controller | GPUs lost | faults with >= slowdown | > max-operating | GPU-s above | worst margin, °C "
        "| lost, mean | lost, p95 | reversals | writes/GPU/min | decision log |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    table = {}
    for who in (*DRIVERS, *rivals.RIVALS, "ours", "clairvoyant"):
        jobs = [Job(who, best.get(who, ()), options.seed, n) for n in range(count)]
        found = trials.summary(trials.run_all(run, jobs, processes=options.jobs), minutes=DURATION_S / 60)
        table[who] = found
        bold = "**" if who == "ours" else ""
        print(
            f"| {bold}{who}{bold} | {found.boards_lost} | {found.unsafe} | {found.runs_above_max_op} "
            f"| {found.above_max_op_s:.1f} | {found.lowest_margin_c:.2f} | {100 * found.lost_mean:.2f} % "
            f"| {100 * found.lost_p95:.2f} % | {found.reversals_mean:.2f} | {found.writes_per_gpu_minute:.2f} "
            f"| `{found.decisions_sha256[:16]}` |",
            flush=True,
        )
    ours, bound = table["ours"], table["clairvoyant"]
    as_safe = [who for who in rivals.RIVALS if table[who].unsafe <= ours.unsafe]
    print(f"\nAs safe as ours: {', '.join(as_safe) or 'none'}.")
    print(
        f"Above the clairvoyant: {100 * (ours.lost_mean - bound.lost_mean):.2f} points mean, "
        f"{100 * (ours.lost_p95 - bound.lost_p95):.2f} points p95."
    )
    print(f"Decision log of ours: sha256 `{ours.decisions_sha256}`.", flush=True)
    beaten = all(ours.lost_mean <= table[who].lost_mean and ours.lost_p95 <= table[who].lost_p95 for who in as_safe)
    return ours.unsafe == 0 and beaten
