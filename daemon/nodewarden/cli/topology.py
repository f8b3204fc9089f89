"""`nodectl topology`: how near GPUs and network cards are to each other, as a matrix that a person can read."""

from typing import Any

import click

from nodewarden.cli.connection import ask
from nodewarden.cli.output import Screen, emit, emit_json, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH

Document = dict[str, Any]
_STYLES = {"PIX": "good", "PXB": "good", "SYS": "warning", "?": "warning"}


@click.command()
@json_option
@timeout_option
@click.pass_context
def topology(ctx: click.Context, as_json: bool, timeout_s: float) -> None:
    """How near GPUs and network cards are: NVLinks, PCIe switches, NUMA nodes, CPUs.

    \b
    Examples:
      nodectl topology
      nodectl topology --json | jq '.gpus[] | {index, nearest_nics}'
    """
    document = ask(runtime_of(ctx), "topology", timeout_s=timeout_s)
    if as_json:
        emit_json(document)
    elif not document["gpus"]:
        emit("No GPU is known.")
    else:
        emit("\n".join(topology_lines(screen(), document)))


def topology_lines(where: Screen, document: Document) -> list[str]:
    """The matrix of GPUs, that of the network cards if there are any, and what the words in them mean."""
    gpus, nics = document["gpus"], document["nics"]
    names = ["?" if gpu["index"] is None else str(gpu["index"]) for gpu in gpus]
    columns = [
        Column("GPU", right=True),
        *(Column(name, right=True) for name in names),
        Column("NUMA", right=True, rank=1),
        Column("CPUS", rank=3, shrink=True),
        Column("NEAREST NIC", rank=2, shrink=True),
    ]
    rows = [
        [
            Cell(name, "bold"),
            *(_cell(way) for way in gpu["to_gpus"]),
            Cell(DASH if gpu["numa"] is None else str(gpu["numa"])),
            Cell(gpu["cpus"] or DASH),
            Cell(", ".join(gpu["nearest_nics"]) or DASH),
        ]
        for name, gpu in zip(names, gpus, strict=True)
    ]
    lines = table_lines(where, columns, rows)
    if nics:
        columns = [
            Column("NIC", shrink=True),
            Column("PORTS", rank=1, shrink=True),
            *(Column(name, right=True) for name in names),
            Column("NUMA", right=True, rank=2),
        ]
        rows = [
            [
                Cell(nic["name"], "bold"),
                Cell(", ".join(nic["ports"]) or DASH),
                *(_cell(gpu["to_nics"][n]) for gpu in gpus),
                Cell(DASH if nic["numa"] is None else str(nic["numa"])),
            ]
            for n, nic in enumerate(nics)
        ]
        lines += ["", *table_lines(where, columns, rows)]
    used = {way for gpu in gpus for way in (*gpu["to_gpus"], *gpu["to_nics"])}
    lines.append("")
    for word, meaning in document["meaning"].items():
        if word in used or (word == "NVn" and any(way.startswith("NV") for way in used)):
            lines += where.wrap(meaning, f"  {word:<5} ", " " * 8)
    return lines


def _cell(way: str) -> Cell:
    return Cell(way, "dim" if way == "X" else "good" if way.startswith("NV") else _STYLES.get(way, ""))
