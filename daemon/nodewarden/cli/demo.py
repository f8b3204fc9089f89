"""`nodectl demo`: a simulated node, real software, two minutes. The simulator is imported here and nowhere else."""

from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  nodectl demo                          two minutes, live
  nodectl demo --disarmed               the same failure, and nobody does anything
  nodectl demo --fast --json | jq .caps
  nodectl demo --scenario pump          a liquid-cooled node loses its pump"""
)
@click.option("--fast", is_flag=True, help="Run the whole demo in seconds.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the parts' spread and noise.")
@click.option("--disarmed", is_flag=True, help="Only watch: see what the hardware does without help.")
@click.option("--json", "as_json", is_flag=True, help="Print only the final story, as JSON.")
@click.option("--scenario", default="fan-bank", show_default=True, help="A scenario's name, or a .toml file.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), hidden=True, help="Write an SVG picture.")
def demo(*, fast: bool, seed: int, disarmed: bool, as_json: bool, scenario: str, picture: Path | None) -> None:
    """Show what Nodewarden does, on a simulated node.

    Eight H100 boards and their cooling are simulated; the agent, the GPU helper, the PDU's SNMP and the training job
    are real. The cooling fails, and you watch what is done about it. Needs no hardware, no root and no network;
    Ctrl-C ends it at any moment and leaves nothing behind.
    """
    from nodewarden.sim.demo_screen import run_demo  # noqa: PLC0415 - no other command pays for the simulator

    run_demo(fast=fast, seed=seed, armed=not disarmed, as_document=as_json, scenario=scenario, picture=picture)
