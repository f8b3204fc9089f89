"""`nodectl pdu`: asks PDUs directly, without an agent; here `discover`, what one is and what it measures."""

import asyncio
from typing import Any

import click

from nodewarden.cli.exits import DEGRADED, NOT_ANSWERING, CliError
from nodewarden.cli.output import emit, emit_json, screen
from nodewarden.cli.params import json_option
from nodewarden.cli.pdu_access import Address, access_from, access_options, stanza
from nodewarden.cli.pdu_learn import learn
from nodewarden.cli.pdu_record import record
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH, number

Document = dict[str, Any]


@click.group()
def pdu() -> None:
    """Rack PDUs, asked directly."""


@pdu.command()
@click.argument("address", metavar="HOST[:PORT]", type=Address())
@access_options
@json_option
def discover(address: tuple[str, int], as_json: bool, timeout_s: float, **access: Any) -> None:
    """Find out what a PDU is and what it measures, and how to write it into the configuration.

    \b
    Examples:
      nodectl pdu discover 192.0.2.10 --community-file /etc/nodewarden/pdu/community
      nodectl pdu discover 192.0.2.10:1161 --community public --json
      nodectl pdu discover 192.0.2.10 --user monitor --auth-protocol sha256 --auth-file a.txt --priv-file p.txt
    """
    from nodewarden.errors import DeviceError  # noqa: PLC0415 -- pysnmp takes half a second to load
    from nodewarden.sources.pdu.discovery import discover as ask_pdu  # noqa: PLC0415

    credentials = access_from(access)
    host, port = address
    try:
        found = asyncio.run(ask_pdu(host, port, access=credentials, timeout_s=timeout_s))
    except DeviceError as error:
        code = NOT_ANSWERING if error.reason in {"timeout", "unreachable"} else DEGRADED
        raise CliError(str(error), code) from None  # it names the device
    if as_json:
        emit_json([found])
        return
    emit("\n".join(_lines(found, stanza(access, address))))


pdu.add_command(record)
pdu.add_command(learn)


def _lines(found: Document, reached: list[str]) -> list[str]:
    where = screen()
    head = f"{found.get('vendor') or 'unknown vendor'} {found.get('model') or ''}".strip()
    lines = [where.paint(where.fit(head), "bold"), f"total {number(found.get('total_power_w'), ' W')}"]
    if phases := found.get("phases"):
        columns = [Column("PHASE"), Column("V", right=True), Column("A", right=True), Column("W", right=True)]
        rows = [[Cell(str(p["id"])), *_three(p)] for p in phases]
        lines += ["", *table_lines(where, columns, rows)]
    if outlets := found.get("outlets"):
        columns = [
            Column("OUTLET", right=True),
            Column("NAME", rank=1, shrink=True),
            Column("STATE", rank=2),
            Column("V", right=True, rank=3),
            Column("A", right=True),
            Column("W", right=True),
        ]
        rows = [
            [
                Cell(str(o.get("number", o["index"]))),
                Cell(o.get("name") or ""),
                Cell(o.get("state") or DASH),
                *_three(o),
            ]
            for o in outlets
        ]
        lines += ["", *table_lines(where, columns, rows)]
    if suspect := found.get("suspect"):
        lines += ["", where.paint(f"contradicts itself in: {', '.join(suspect)}", "warning")]
    lines += ["", "for the configuration (add this node's outlets and their limit):", "[[pdu]]", 'name = "..."']
    lines += reached
    return [where.fit(line) for line in lines]


def _three(row: Document) -> list[Cell]:
    return [
        Cell(number(row.get("voltage_v"), "")),
        Cell(number(row.get("current_a"), "", 2)),
        Cell(number(row.get("power_w"), "")),
    ]
