"""`nodectl xid`: what an error number of the driver means, without an agent; and saying that a GPU is well."""

import tomllib
from pathlib import Path
from typing import Any

import click

from nodewarden import paths
from nodewarden.cli.connection import ask
from nodewarden.cli.exits import CONFIG, OK, CliError
from nodewarden.cli.output import clean, emit, emit_json, screen
from nodewarden.cli.params import change_options, json_option, runtime_of
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.xid_table import MAX_CODE, TableError, XidRow, XidTable, load_table

_STYLES = {"critical": "critical", "warning": "warning"}
_SEVERITIES = {
    "application": "the job's own doing, or a follow-up of another Xid; the GPU is not blamed",
    "warning": "somebody should look",
    "critical": "the GPU cannot be relied upon",
}


class _ByNumber(click.Group):
    """A number is a verb of its own: it is explained."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """As of any group, or the explanation of a code."""
        if cmd_name.isascii() and cmd_name.isdigit() and 1 <= int(cmd_name[:9]) <= MAX_CODE:
            return _explaining(int(cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With what is allowed."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(f'"{args[0]}" is no Xid; allowed: a number from 1 to {MAX_CODE}, or clear GPU', ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_ByNumber, invoke_without_command=True, subcommand_metavar="[CODE | clear GPU]")
@click.option(
    "--table",
    "table_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rows that go over those of the package [default: as the configuration says].",
)
@json_option
@click.pass_context
def xid(ctx: click.Context, table_path: Path | None, as_json: bool) -> None:
    """What an Xid (an error number of the NVIDIA driver) means and what to do; without CODE, all that are known.

    \b
    Examples:
      nodectl xid
      nodectl xid 79
      nodectl xid clear 3 --reason "board was reseated and tested"
    """
    if ctx.invoked_subcommand == "clear":
        return
    try:
        table = load_table(table_path or _configured())
    except TableError as error:
        raise CliError(str(error), CONFIG) from None
    ctx.meta["table"] = table
    if ctx.invoked_subcommand is None:
        _list(table, as_json=as_json)


def _configured() -> Path | None:
    """The table that the configuration names, if that can be read here."""
    path = paths.config_path()
    try:
        named = tomllib.loads(path.read_text(encoding="utf-8")).get("xid", {}).get("table")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return path.parent / named if isinstance(named, str) else None


def _explaining(code: int) -> click.Command:
    @click.command(str(code), help=f"What Xid {code} means and what to do.")
    @json_option
    @click.pass_context
    def explain(ctx: click.Context, as_json: bool) -> int:
        table: XidTable = ctx.meta["table"]
        row, is_known = table.row(code), str(code) in table.xid
        if as_json:
            emit_json({"schema": 1, "table": table.version, "known": is_known, **_plain(code, row)})
            return OK
        where = screen()
        emit(where.paint(where.fit(clean(f"Xid {code}: {row.name}")), _STYLES.get(row.severity, "bold")))
        severity = f"{row.severity}, {_SEVERITIES[row.severity]}"
        for label, text in (
            ("severity", severity),
            ("meaning", row.meaning),
            ("do", row.advice),
            ("over", _over(row)),
        ):
            emit("\n".join(where.wrap(clean(text), f"  {label}: ", "    ")))
        return OK

    return explain


def _over(row: XidRow) -> str:
    if row.over_after_s is None:
        return "after a reset of the GPU, a reload of the driver or a reboot, or by nodectl xid clear GPU"
    return f"after {row.over_after_s / 60:g} minutes without another one, or by nodectl xid clear GPU"


def _plain(code: int, row: XidRow) -> dict[str, Any]:
    return {
        "xid": code,
        "name": row.name,
        "severity": row.severity,
        "clears": row.clears,
        "over_after_s": row.over_after_s,
        "meaning": row.meaning,
        "advice": row.advice,
    }


def _list(table: XidTable, *, as_json: bool) -> None:
    if as_json:
        emit_json({"schema": 1, "table": table.version, "xids": [_plain(c, table.row(c)) for c in table.codes]})
        return
    columns = [
        Column("XID", right=True),
        Column("SEVERITY"),
        Column("NAME", shrink=True),
        Column("OVER AFTER", rank=2),
        Column("WHAT TO DO", rank=1, shrink=True),
    ]
    rows = []
    for code in table.codes:
        row = table.row(code)
        over = "reset" if row.over_after_s is None else f"{row.over_after_s / 60:g} min"
        style = _STYLES.get(row.severity, "")
        rows.append([Cell(str(code), "bold"), Cell(row.severity, style), Cell(row.name), Cell(over), Cell(row.advice)])
    emit("\n".join(table_lines(screen(), columns, rows)))


@xid.command()
@click.argument("gpu", metavar="GPU")
@change_options
@click.pass_context
def clear(ctx: click.Context, gpu: str, as_json: bool, timeout_s: float, reason: str) -> int:
    """Say that a GPU is well: none of its Xids is open any more. The counts stay.

    GPU is an index, a uuid (or its beginning), the PCI address of one that cannot be seen, or all.

    \b
    Examples:
      nodectl xid clear 3 --reason "board was reseated and tested"
    """
    result = ask(runtime_of(ctx), "xid_clear", {"gpu": gpu, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
        return OK
    where = screen()
    cleared = [each for each in result["gpus"] if each["xids"]]
    for each in cleared:
        name = each["uuid"] if each["index"] is None else f"GPU {each['index']}"
        emit(where.fit(clean(f"{name}: Xid {', '.join(map(str, each['xids']))} cleared")))
    if not cleared:
        emit("no Xid was open there")
    return OK
