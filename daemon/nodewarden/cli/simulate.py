"""`nodectl simulate`: a scenario on the simulated node at full speed; the verdict, and a picture of it."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from nodewarden.cli.exits import DEGRADED, OK
from nodewarden.cli.output import emit, emit_json, screen


@click.command(
    epilog="""\b
Examples:
  nodectl simulate --list                  what can be tried
  nodectl simulate pump-stop --out plots   the verdict, and plots/pump-stop.svg
  nodectl simulate mine.toml --json        your own scenario, for a script
  nodectl simulate fan-bank --disarmed     what the hardware does without help

\b
Exit code: 0 when no GPU reached its slowdown temperature, 1 when one did."""
)
@click.argument("scenario", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the scenarios that come with nodectl.")
@click.option("--disarmed", is_flag=True, help="Decide nothing: what the hardware does by itself.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the parts' spread and noise.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Write the picture (SVG) into this folder."
)
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def simulate(
    *, scenario: str | None, as_list: bool, disarmed: bool, seed: int, out: Path | None, as_json: bool
) -> None:
    """Try an incident: SCENARIO is a name or a .toml file.

    Plant and policy run in lockstep, without an agent, hardware or waiting; the same seed gives the same run, bit by
    bit. The policy is the one that the agent runs. Each scenario also runs without control, to compare.
    """
    import msgspec  # noqa: PLC0415 - no other command pays for the simulator

    from nodewarden.sim.plots import draw  # noqa: PLC0415
    from nodewarden.sim.scenario import load_scenario, scenario_names  # noqa: PLC0415
    from nodewarden.sim.simulate import in_words, run_scenario, verdict_of  # noqa: PLC0415

    if as_list:
        named = {name: load_scenario(name) for name in scenario_names()}
        if as_json:
            emit_json([{"name": name, "title": one.title} for name, one in named.items()])
            return
        wide = max(len(name) for name in named)
        for name, one in named.items():
            emit(f"{name:<{wide}}  {one.title} ({one.plant}, {one.board.upper()}, {one.duration_s:.0f} s)")
        return
    if scenario is None:
        raise click.UsageError("give a SCENARIO: `nodectl simulate --list` lists them, or a .toml file")
    what = load_scenario(scenario)
    name = Path(scenario).stem if scenario.endswith(".toml") else scenario
    run = run_scenario(what, seed=seed, armed=not disarmed, progress=_progress(quiet=as_json))
    alone = None if disarmed else run_scenario(what, seed=seed, armed=False)
    verdict = verdict_of(name, what, run)
    alone_verdict = verdict_of(name, what, alone) if alone is not None else None
    picture: Path | None = None
    if out is not None:
        picture = out / f"{name}{'-disarmed' if disarmed else ''}.svg"
        try:
            out.mkdir(parents=True, exist_ok=True)
            picture.write_text(draw(what, run, alone), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"--out {out}: cannot be written: {error.strerror}") from error
    if as_json:
        document = msgspec.to_builtins(verdict)
        document["alone"] = msgspec.to_builtins(alone_verdict)
        document["picture"] = str(picture) if picture else None
        emit_json(document)
    else:
        lines = in_words(verdict, alone_verdict)
        if picture is not None:
            lines += ["", f"  picture: {picture}"]
        emit(screen().fit("\n".join(lines)))
    click.get_current_context().exit(OK if verdict.safe else DEGRADED)


def _progress(*, quiet: bool) -> Callable[[float], None] | None:
    """Shows how far it is, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None
    shown = -1

    def progress(share: float) -> None:
        nonlocal shown
        percent = int(100 * share)
        if percent != shown:
            shown = percent
            sys.stderr.write(f"\rsimulating {percent:3d} %" if percent < 100 else "\r" + " " * 16 + "\r")
            sys.stderr.flush()

    return progress
