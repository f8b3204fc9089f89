"""Measures the control law on the twin: `bench/control/run [--quick | --full] [PART...]`."""

import argparse
import sys
import time
from collections.abc import Callable

from compare import compare

from nodewarden.sim import trials
from nodewarden.sim.closed_loop import Outcome
from nodewarden.sim.interruptions import FAULTS, FROZEN_S, KILLED_S, Interruption, interrupt
from nodewarden.sim.random_faults import DURATION_S


def show_gates(title: str, found: trials.Summary, began_s: float) -> None:
    print(f"\n{title}: {found.runs} runs in {time.monotonic() - began_s:.0f} s")
    rows = [
        ("runs with a sample >= slowdown", f"{found.unsafe}", "gate: 0"),
        ("  such samples (0.1 s)", f"{found.slowdown_samples}", ""),
        ("GPUs lost", f"{found.boards_lost}", "gate: 0"),
        ("runs above max-operating", f"{found.runs_above_max_op}", f"{found.above_max_op_s:.1f} GPU-seconds"),
        ("lowest margin to max-operating, C", f"{found.lowest_margin_c:.2f}", ""),
        ("throughput lost, mean", f"{100 * found.lost_mean:.2f} %", ""),
        ("throughput lost, p95", f"{100 * found.lost_p95:.2f} %", ""),
        ("speed reversals > 5 %, mean", f"{found.reversals_mean:.2f}", ""),
        ("cap writes per GPU and minute", f"{found.writes_per_gpu_minute:.2f}", ""),
        ("  in the last minute", f"{found.late_writes_per_gpu_minute:.2f}", ""),
        ("slowest/fastest clock, p5", f"{found.least_spread_p5:.3f}", ""),
    ]
    for what, value, note in rows:
        print(f"  {what:<36}{value:>10}  {note}".rstrip())
    print(f"  decision log sha256 {found.decisions_sha256}", flush=True)


def by_kind(results: list[trials.Trial]) -> None:
    kinds: dict[str, list[Outcome]] = {}
    for trial in results:
        kinds.setdefault(trial.name, []).append(trial.outcome)
    print(f"  {'fault':<24}{'runs':>5}{'unsafe':>7}{'worst C':>9}{'> max-op s':>11}{'lost %':>8}{'reversals':>10}")
    for name, outcomes in sorted(kinds.items()):
        print(
            f"  {name:<24}{len(outcomes):>5}{sum(o.slowdown_samples > 0 or o.boards_lost > 0 for o in outcomes):>7}"
            f"{min(o.lowest_margin_c for o in outcomes):>9.2f}{sum(o.above_max_op_s for o in outcomes):>11.1f}"
            f"{100 * sum(o.lost or 0 for o in outcomes) / len(outcomes):>8.2f}"
            f"{sum(o.reversals for o in outcomes) / len(outcomes):>10.2f}"
        )


def faults(
    options: argparse.Namespace,
    run: Callable[[tuple[int, int]], trials.Trial] = trials.run_random,
    title: str = "Random faults",
) -> bool:
    began_s = time.monotonic()
    results = trials.run_all(run, [(options.seed, n) for n in range(options.count)], processes=options.jobs)
    show_gates(title, trials.summary(results, minutes=DURATION_S / 60), began_s)
    by_kind(results)
    for line in trials.unsafe_words(results)[:20]:
        print(f"  UNSAFE {line}")
    return all(trial.safe for trial in results)


def r_ds(options: argparse.Namespace) -> bool:
    return faults(options, trials.run_random_r_ds, "Random faults, R_ds x U(0.8, 1.2)")


def lies(options: argparse.Namespace) -> bool:
    return faults(options, trials.run_lie, "Sensor lies")


def interruptions(options: argparse.Namespace) -> bool:
    every = 1 if options.count >= 1000 else 6
    jobs = [(fault, every, frozen) for fault in FAULTS for frozen in (False, True)]
    print(f"\nAgent killed ({KILLED_S} s) or frozen ({FROZEN_S} s, failsafe_w 200) at every {every}. of 120 seconds")
    results = trials.run_all(run_interruptions, jobs, processes=options.jobs)
    for (fault, _, frozen), found in zip(jobs, results, strict=True):
        bad = [one for one in found if not one.safe]
        print(f"  {fault:<14}{'frozen' if frozen else 'killed'}  {len(found):>4} times, {len(bad)} unsafe")
        for one in bad[:5]:
            print(f"    UNSAFE {one}")
    return all(one.safe for found in results for one in found)


def run_interruptions(job: tuple[str, int, bool]) -> list[Interruption]:
    fault, every, frozen = job
    seconds = range(0, 120, every)
    return interrupt(fault, seconds, for_s=FROZEN_S if frozen else KILLED_S, failsafe_w=200.0 if frozen else None)


PARTS = {"faults": faults, "r_ds": r_ds, "lies": lies, "kill": interruptions, "rivals": compare}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/control/run", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", dest="count", const=100, help="100 runs each (default)")
    size.add_argument("--full", action="store_const", dest="count", const=1000, help="1,000 runs each")
    size.add_argument("--count", type=int, dest="count", help="so many runs each")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--jobs", type=int, help="processes; default one per core")
    parser.set_defaults(count=100)
    options = parser.parse_args()
    options.training = 13 if options.count < 1000 else 39
    options.held_out = min(options.count, 260)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    print(f"Python {sys.version.split()[0]}, seed {options.seed}, plant sha256 {trials.plant_sha256()}")
    passed = [PARTS[part](options) for part in options.parts or PARTS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
