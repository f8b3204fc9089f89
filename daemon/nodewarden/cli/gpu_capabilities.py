"""`nodectl gpus --capabilities`: which quantity comes from which call, and why one is missing."""

from typing import Any

from nodewarden.cli.output import Screen
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH

STATES = {
    "available": ("available", "good"),
    "not_on_board": ("not on this board", ""),
    "not_in_driver": ("not in this driver", "warning"),
    "no_permission": ("no permission", "warning"),
    "off": ("switched off", ""),
    "not_read": ("not read yet", ""),
    "no_link": ("no active link", ""),
    "failed": ("failed", "critical"),
}


def capability_lines(screen: Screen, document: dict[str, Any]) -> list[str]:
    """One line per quantity, more where GPUs differ."""
    names = {gpu["uuid"]: _name(gpu) for gpu in document["gpus"]}
    columns = [
        Column("QUANTITY"),
        Column("STATE"),
        Column("GPUS", rank=1, shrink=True),
        Column("READ", rank=3),
        Column("CALL", rank=2, shrink=True),
    ]
    rows = [_row(quantity, answer, names) for quantity in document["quantities"] for answer in quantity["answers"]]
    return table_lines(screen, columns, rows)


def _row(quantity: dict[str, Any], answer: dict[str, Any], names: dict[str, str]) -> list[Cell]:
    words, style = STATES.get(answer["state"], (answer["state"], ""))
    if answer["state"] == "failed" and answer["reason"]:
        words = f"failed: {answer['reason'].replace('_', ' ')}"
    everybody = len(answer["gpus"]) == len(names)
    return [
        Cell(quantity["name"], "bold" if answer["state"] == "available" else ""),
        Cell(words, style),
        Cell("all" if everybody else ", ".join(names.get(uuid, uuid) for uuid in answer["gpus"])),
        Cell(quantity["every"]),
        Cell(answer["call"] or (DASH if answer["state"] == "available" else quantity["source"])),
    ]


def _name(gpu: dict[str, Any]) -> str:
    return str(gpu["uuid"]) if gpu["index"] is None else str(gpu["index"])
