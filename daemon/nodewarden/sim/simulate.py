"""Runs a scenario at full speed, keeps what is to be drawn, and says in plain words what came of it."""

from collections.abc import Callable
from typing import Final

import msgspec

from nodewarden.sim.closed_loop import ClosedLoop, Outcome
from nodewarden.sim.scenario import Scenario
from nodewarden.units import kwh_from_joules

LADDER: Final = ("normal", "notify", "cap", "throttle", "checkpoint", "pause", "drain")


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a run, from the plant's truth. Lists are per GPU; speed is that of the job, 1 = full clock."""

    at_s: float
    margins_c: tuple[float, ...]
    caps_w: tuple[float, ...]
    powers_w: tuple[float, ...]
    speed: float
    duty: float
    level: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    armed: bool
    outcome: Outcome
    ticks: tuple[Tick, ...]
    first_slowdown_s: float | None
    first_lost_s: float | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed, and what `--json` gives.

    Attributes:
        safe: no board reached the temperature at which it slows itself down, and none was lost.
        worst_margin_c: to max-operating, of the hottest board at the hottest moment; negative above it.
        lost_percent: training steps that the healthy node would have done and this one did not.
        events: scenario second and what the agent said.
    """

    scenario: str
    title: str
    armed: bool
    safe: bool
    board: str
    cooling: str
    duration_s: float
    worst_margin_c: float
    above_max_op_s: float
    slowdown_s: float
    first_slowdown_s: float | None
    boards_lost: int
    lowest_cap_w: float | None
    cap_writes: int
    top_level: int
    lowest_duty: float
    paused_s: float
    checkpoint_step: int | None
    steps: int
    lost_percent: float | None
    energy_kwh: float
    decisions_sha256: str
    events: list[tuple[float, str, str]]


def run_scenario(
    scenario: Scenario, *, seed: int = 1, armed: bool = True, progress: Callable[[float], None] | None = None
) -> Run:
    """Run it; `progress` is told the share that is done, once per simulated second."""
    loop = ClosedLoop(scenario, seed=seed, armed=armed)
    ticks: list[Tick] = []
    first_slowdown_s = first_lost_s = None
    while loop.plant.scenario_s < scenario.duration_s - 1e-6:
        loop.tick()
        plant = loop.plant
        moving = not loop.job.paused and not any(gpu.off for gpu in plant.gpus)
        ticks.append(
            Tick(
                at_s=round(plant.scenario_s, 3),
                margins_c=tuple(gpu.margin_c for gpu in plant.gpus),
                caps_w=tuple(gpu.cap_w for gpu in plant.gpus),
                powers_w=tuple(gpu.mean_w for gpu in plant.gpus),
                speed=loop.job.step_speed if moving else 0.0,
                duty=loop.job.duty,
                level=int(loop.setpoints.level),
            )
        )
        if first_slowdown_s is None and loop.outcome.slowdown_samples:
            first_slowdown_s = ticks[-1].at_s
        if first_lost_s is None and any(gpu.off for gpu in plant.gpus):
            first_lost_s = ticks[-1].at_s
        if progress is not None:
            progress(min(1.0, plant.scenario_s / scenario.duration_s))
    return Run(
        armed=armed,
        outcome=loop.finish(),
        ticks=tuple(ticks),
        first_slowdown_s=first_slowdown_s,
        first_lost_s=first_lost_s,
    )


def verdict_of(name: str, scenario: Scenario, run: Run) -> Verdict:
    """The run in numbers."""
    found = run.outcome
    return Verdict(
        scenario=name,
        title=scenario.title,
        armed=run.armed,
        safe=found.slowdown_samples == 0 and found.boards_lost == 0,
        board=scenario.board,
        cooling=scenario.plant,
        duration_s=scenario.duration_s,
        worst_margin_c=round(found.lowest_margin_c, 2),
        above_max_op_s=round(found.above_max_op_s, 1),
        slowdown_s=round(found.hw_slowdown_s, 1),
        first_slowdown_s=run.first_slowdown_s,
        boards_lost=found.boards_lost,
        lowest_cap_w=round(found.lowest_cap_w) if found.cap_writes else None,
        cap_writes=found.cap_writes,
        top_level=found.top_level if run.armed else 0,
        lowest_duty=round(found.lowest_duty, 3),
        paused_s=round(found.paused_s, 1),
        checkpoint_step=found.checkpoint_step,
        steps=found.steps,
        lost_percent=round(100 * found.lost, 1) if found.lost is not None else None,
        energy_kwh=round(kwh_from_joules(found.energy_j), 3),
        decisions_sha256=found.decisions_sha256,
        events=[(round(at_s, 1), event.code, event.text) for at_s, event in found.events] if run.armed else [],
    )


def in_words(verdict: Verdict, alone: Verdict | None = None) -> list[str]:
    """The verdict as lines for a terminal; `alone` is the same scenario without control, to compare with."""
    cooling = {"air": "air-cooled", "liquid": "liquid-cooled"}[verdict.cooling]
    lines = [f"{verdict.title}: 8 x {verdict.board.upper()}, {cooling}, {verdict.duration_s:.0f} s", ""]
    if verdict.safe:
        lines.append("SAFE: no GPU reached the temperature at which it slows itself down")
    elif verdict.boards_lost:
        lines.append(f"NOT SAFE: {verdict.boards_lost} of 8 GPUs switched themselves off")
    else:
        lines.append(f"NOT SAFE: hardware slowdown from second {verdict.first_slowdown_s:.0f} on")
    rows = [
        (
            "nearest to max-operating",
            f"{_margin(verdict.worst_margin_c)}, {verdict.above_max_op_s:g} GPU-seconds above",
        ),
        ("hardware slowdown", f"{verdict.slowdown_s:g} GPU-seconds" if verdict.slowdown_s else "none"),
    ]
    if verdict.armed:
        caps = "none" if verdict.lowest_cap_w is None else f"{verdict.lowest_cap_w:.0f} W, {verdict.cap_writes} writes"
        rows += [
            ("lowest cap", caps),
            (
                "ladder",
                f"up to {LADDER[verdict.top_level]} ({verdict.top_level}), duty {verdict.lowest_duty:.0%} at least",
            ),
        ]
        if verdict.checkpoint_step is not None:
            rows.append(("checkpoint", f"saved at step {verdict.checkpoint_step}"))
        if verdict.paused_s:
            rows.append(("job paused", f"{verdict.paused_s:g} s"))
    lost = "" if verdict.lost_percent is None else f", {verdict.lost_percent:g} % fewer than a healthy node"
    rows += [("training", f"{verdict.steps} steps{lost}"), ("GPU energy", f"{verdict.energy_kwh:g} kWh")]
    lines += [f"  {what:<26}{text}" for what, text in rows]
    if alone is not None:
        lines += ["", f"  left alone                {_alone(alone)}"]
    if verdict.events:
        lines.append("")
        lines += [f"  {at_s:6.0f} s  {text}" for at_s, _, text in verdict.events]
    return lines


def _margin(margin_c: float) -> str:
    return f"{margin_c:.1f} °C below" if margin_c >= 0 else f"{-margin_c:.1f} °C above it"


def _alone(alone: Verdict) -> str:
    if alone.boards_lost:
        what = f"{alone.boards_lost} of 8 GPUs switch themselves off"
    elif alone.first_slowdown_s is not None:
        what = (
            f"hardware slowdown from second {alone.first_slowdown_s:.0f} on, {alone.slowdown_s:.0f} GPU-seconds of it"
        )
    else:
        what = f"at the nearest {_margin(alone.worst_margin_c)} max-operating"
    lost = "" if alone.lost_percent is None else f"; {alone.lost_percent:g} % of the steps lost"
    return what + lost
