"""`nodectl pdu discover`: asks one PDU what it is and what it measures, without an agent."""

import asyncio
from pathlib import Path
from typing import Any

import click

from nodewarden.cli.exits import DEGRADED, NOT_ANSWERING, CliError
from nodewarden.cli.output import emit, emit_json, screen
from nodewarden.cli.params import json_option
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH, number

Document = dict[str, Any]


class Address(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """`HOST`, `HOST:PORT`, `[IPV6]:PORT`."""

    name = "HOST[:PORT]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Host and port; 161 when none is given."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        host, port = text, "161"
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif text.count(":") == 1:
            host, port = text.split(":")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535:
            self.fail(f"{text!r} is no address; allowed: HOST, HOST:PORT or [IPV6]:PORT", param, ctx)
        return host, int(port)


@click.group()
def pdu() -> None:
    """Rack PDUs, asked directly."""


@pdu.command()
@click.argument("address", metavar="HOST[:PORT]", type=Address())
@click.option("--community", metavar="C", help="Community in the clear; it shows in the process list.")
@click.option("--community-file", type=click.Path(path_type=Path), metavar="F", help="File with the community.")
@click.option("--version", type=click.Choice(["1", "2c"]), default="2c", show_default=True, help="Of SNMP.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, metavar="S")
@json_option
def discover(
    address: tuple[str, int],
    community: str | None,
    community_file: Path | None,
    version: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Find out what a PDU is and what it measures, and how to write it into the configuration.

    \b
    Examples:
      nodectl pdu discover 192.0.2.10 --community-file /etc/nodewarden/pdu/community
      nodectl pdu discover 192.0.2.10:1161 --community public --json
    """
    from nodewarden.errors import DeviceError  # noqa: PLC0415 -- pysnmp takes half a second to load
    from nodewarden.sources.pdu.discovery import discover as ask_pdu  # noqa: PLC0415

    secret = _community(community, community_file)
    host, port = address
    try:
        found = asyncio.run(
            ask_pdu(host, port, version="1" if version == "1" else "2c", community=secret, timeout_s=timeout_s)
        )
    except DeviceError as error:
        code = NOT_ANSWERING if error.reason in {"timeout", "unreachable"} else DEGRADED
        raise CliError(str(error), code) from None  # it names the device
    if as_json:
        emit_json([found])
        return
    emit("\n".join(_lines(found, host, port)))


def _community(community: str | None, file: Path | None) -> str:
    if (community is None) == (file is None):
        raise click.UsageError("give either --community or --community-file")
    if community is not None:
        return community
    assert file is not None
    try:
        text = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise click.UsageError(f"{file} cannot be read: {said}") from None
    if not text:
        raise click.UsageError(f"{file} is empty")
    return text


def _lines(found: Document, host: str, port: int) -> list[str]:
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
            [Cell(str(o["index"])), Cell(o.get("name") or ""), Cell(o.get("state") or DASH), *_three(o)]
            for o in outlets
        ]
        lines += ["", *table_lines(where, columns, rows)]
    if suspect := found.get("suspect"):
        lines += ["", where.paint(f"contradicts itself in: {', '.join(suspect)}", "warning")]
    lines += ["", "for the configuration (add this node's outlets and their limit):", "[[pdu]]", 'name = "..."']
    lines += [f'host = "{host}"', *([f"port = {port}"] if port != 161 else []), 'community_file = "..."']
    return [where.fit(line) for line in lines]


def _three(row: Document) -> list[Cell]:
    return [
        Cell(number(row.get("voltage_v"), "")),
        Cell(number(row.get("current_a"), "", 2)),
        Cell(number(row.get("power_w"), "")),
    ]
