"""The verbs that change something: arm, disarm, cap, release, throttle, checkpoint. Each prints what came of it."""

from typing import Any

import click

from nodewarden.cli.connection import ask
from nodewarden.cli.exits import DEGRADED, OK
from nodewarden.cli.output import clean, emit, emit_json, screen
from nodewarden.cli.params import (
    Duration,
    Percent,
    Watts,
    change_options,
    runtime_of,
)
from nodewarden.cli.words import age, cause, gpu_name

_WEEK_S = 7 * 86400.0


def _say(*lines: str) -> None:
    where = screen()
    emit("\n".join(where.fit(clean(line)) for line in lines))


@click.command()
@change_options
@click.pass_context
def arm(ctx: click.Context, as_json: bool, timeout_s: float, reason: str) -> None:
    """Let decisions reach the hardware and the jobs. Stays so over restarts.

    \b
    Examples:
      nodectl arm --reason "after the fan was changed"
    """
    result = ask(runtime_of(ctx), "arm", {"reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    else:
        _say("armed" if not result["was"] else "armed already", "undo: nodectl disarm")


@click.command()
@change_options
@click.pass_context
def disarm(ctx: click.Context, as_json: bool, timeout_s: float, reason: str) -> None:
    """Only watch from now on: automatic caps are lifted step by step, none is started. Manual caps stay.

    \b
    Examples:
      nodectl disarm --reason "bench run"
    """
    result = ask(runtime_of(ctx), "disarm", {"reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    else:
        said = "disarmed; automatic caps are lifted step by step" if result["was"] else "disarmed already"
        _say(said, "undo: nodectl arm")


@click.command()
@click.argument("gpu", metavar="GPU")
@click.argument("w", metavar="W", type=Watts())
@click.option("--for", "for_s", type=Duration(1, _WEEK_S), help="How long; without it until released.")
@change_options
@click.pass_context
def cap(
    ctx: click.Context, gpu: str, w: float, for_s: float | None, as_json: bool, timeout_s: float, reason: str
) -> int:
    """Cap the power of a GPU and say what came of it.

    GPU is an index, a uuid (or its beginning), or all; W is watts. The lowest cap wins: a manual one never lifts
    one that protects. Works while disarmed as well.

    \b
    Examples:
      nodectl cap 5 540 --for 10m
      nodectl cap all 600 --reason "guests in the rack"
    """
    result = ask(runtime_of(ctx), "cap", {"gpu": gpu, "w": w, "for_s": for_s, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    else:
        until = f" for {age(for_s)}" if for_s is not None else " until released"
        ends = {"in_force": until}
        _say(*(f"{effect['text']}{ends.get(effect['state'], '')}" for effect in result["gpus"]))
        _say(f"undo: nodectl release {gpu}")
    return OK if all(effect["state"] == "in_force" for effect in result["gpus"]) else DEGRADED


@click.command()
@click.argument("gpu", metavar="[GPU]", default="all")
@change_options
@click.pass_context
def release(ctx: click.Context, gpu: str, as_json: bool, timeout_s: float, reason: str) -> None:
    """End manual caps, without GPU all of them; caps that protect something stay.

    \b
    Examples:
      nodectl release 5
      nodectl release all
    """
    result = ask(runtime_of(ctx), "release", {"gpu": gpu, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    elif not result["released"]:
        _say("no manual cap was in force there")
    else:
        _say(*(_released(each) for each in result["released"]))


def _released(each: dict[str, Any]) -> str:
    name = gpu_name(each)
    if each["cause"] not in {"none", "manual", "lease"}:
        return f"{name}: manual cap released; still capped at {each['w']:.0f} W: {cause(each)}"
    goal = f" to {each['prior_w']:.0f} W" if each["prior_w"] is not None else ""
    return f"{name}: manual cap released; its limit rises step by step{goal}"


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("duty", metavar="PERCENT", type=Percent())
@click.option("--for", "for_s", type=Duration(1, _WEEK_S), default="10m", show_default=True, help="How long.")
@change_options
@click.pass_context
def throttle(
    ctx: click.Context, job: str, duty: float, for_s: float, as_json: bool, timeout_s: float, reason: str
) -> int:
    """Have a job run only PERCENT of the time, for a while, and say what came of it.

    JOB is an id of nodectl jobs, or all.

    \b
    Examples:
      nodectl throttle slurm-4711 80 --for 10m
      nodectl throttle slurm-4711 100            back to full speed
    """
    result = ask(runtime_of(ctx), "throttle", {"job": job, "duty": duty, "for_s": for_s, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    else:
        until = f" for {age(for_s)}" if duty < 1 else ""
        for effect in result["jobs"]:
            _say(f"{effect['text']}{until if effect['state'] == 'in_force' else ''}")
        if duty < 1:
            _say(f"undo: nodectl throttle {job} 100")
    return OK if all(effect["state"] == "in_force" for effect in result["jobs"]) else DEGRADED


@click.command()
@click.argument("job", metavar="JOB")
@change_options
@click.pass_context
def checkpoint(ctx: click.Context, job: str, as_json: bool, timeout_s: float, reason: str) -> int:
    """Ask a job to save now and go on.

    JOB is an id of nodectl jobs, or all.

    \b
    Examples:
      nodectl checkpoint slurm-4711
    """
    result = ask(runtime_of(ctx), "checkpoint", {"job": job, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    elif not result["requests"]:
        _say(f"{job} was not asked: it does not answer")
    else:
        _say(f"{job}: asked to save (request {', '.join(result['requests'])}); nodectl jobs shows when it has")
    return OK if result["requests"] else DEGRADED
