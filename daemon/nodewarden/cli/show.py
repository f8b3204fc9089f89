"""`nodectl gpus`, `pdus`, `jobs`, `caps`: the long lists, as tables or JSON."""

from collections.abc import Callable
from typing import Any

import click

from nodewarden.cli import gpus_release
from nodewarden.cli.connection import ask
from nodewarden.cli.gpu_capabilities import capability_lines
from nodewarden.cli.output import emit, emit_json, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH, age, cause, clock, number

Document = dict[str, Any]


@click.group(invoke_without_command=True)
@click.option("--capabilities", is_flag=True, help="Which quantities the boards give, by which call, or why not.")
@json_option
@timeout_option
@click.pass_context
def gpus(ctx: click.Context, capabilities: bool, as_json: bool, timeout_s: float) -> None:
    """Every GPU: clocks, memory, links, limits, processes, and what needs attention.

    \b
    Examples:
      nodectl gpus
      nodectl gpus --json | jq '.gpus[] | {uuid, power_w}'
      nodectl gpus --capabilities
      nodectl gpus release 5 --for 10m
    """
    if ctx.invoked_subcommand is not None:
        return
    if capabilities:
        document = ask(runtime_of(ctx), "gpu_capabilities", timeout_s=timeout_s)
        if as_json:
            emit_json(document)
        elif not document["gpus"]:
            emit("No GPU is known.")
        else:
            emit("\n".join(capability_lines(screen(), document)))
        return
    columns = [
        Column("GPU", right=True),
        Column("STATE"),
        Column("UUID", rank=3),
        Column("MODEL", rank=5, shrink=True),
        Column("POWER", right=True, rank=2),
        Column("CAP", right=True, rank=2),
        Column("RANGE", rank=4),
        Column("SM CLOCK", right=True, rank=6),
        Column("MEMORY", right=True, rank=7),
        Column("LINKS", right=True, rank=8),
        Column("PROCESSES", right=True, rank=9),
        Column("MIG", rank=4, shrink=True),
        Column("ATTENTION", rank=1, shrink=True, least=24),
        Column("XIDS", rank=1),
        Column("NOTE", rank=1, shrink=True, least=24),
    ]
    _list(ctx, "gpus", columns, _gpu_row, "No GPU is known.", as_json=as_json, timeout_s=timeout_s)


gpus.add_command(gpus_release.release)
gpus.add_command(gpus_release.resume)


def _gpu_row(gpu: Document) -> list[Cell]:
    limits = gpu["limits"]
    used, whole = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    missing = ", ".join(f"no {name}: {reason}".replace("_", " ") for name, reason in gpu["missing"].items())
    style = "" if gpu["state"] == "ok" else "warning" if gpu["state"] == "released" else "critical"
    state = gpu["state"]
    if gpu["released_until"] and state == "released":
        state += f" until {clock(gpu['released_until'])}"
    return [
        Cell("?" if gpu["index"] is None else str(gpu["index"]), style or "bold"),
        Cell(state, style),
        Cell(gpu["uuid"], style),
        Cell(gpu["model"].removeprefix("NVIDIA ")),
        Cell(number(gpu["power_w"], " W")),
        Cell(number(gpu["cap_w"], " W"), "warning" if gpu["cap"] else ""),
        Cell(f"{limits['min_w']:g}-{limits['max_w']:g} W" if limits else DASH),
        Cell(number(None if gpu["sm_clock_hz"] is None else gpu["sm_clock_hz"] / 1e6, " MHz")),
        Cell(DASH if used is None or whole is None else f"{used / 1e9:.0f}/{whole / 1e9:.0f} GB"),
        Cell(DASH if gpu["links"] is None else f"{gpu['links_active']}/{gpu['links']}"),
        Cell(DASH if gpu["pids"] is None else str(len(gpu["pids"]))),
        Cell(", ".join(instance["profile"] or "?" for instance in gpu["mig"])),
        Cell("; ".join(gpu["attention"]), "warning"),
        Cell(*_open_xids(gpu)),
        Cell(gpu["refused"] or _sick(gpu) or missing, "warning"),
    ]


def _open_xids(gpu: Document) -> tuple[str, str]:
    """Those that are not over, such as "79, 31 x4"."""
    found = gpu["xids"]["open"]
    times = {each["xid"]: f" x{each['count']}" if each["count"] > 1 else "" for each in found}
    text = ", ".join(f"{code}{many}" for code, many in times.items())
    style = {"critical": "critical", "warning": "warning"}.get(found[0]["severity"], "") if found else ""
    return text, style


def _sick(gpu: Document) -> str:
    """Why it is not well, or at least since when: that nothing of it is read goes without saying."""
    if gpu["state"] == "ok":
        return ""
    since = f"since {clock(gpu['state_since'])}" if gpu["state_since"] else ""
    return ", ".join(words for words in (gpu["state_why"], since) if words)


@click.command()
@json_option
@timeout_option
@click.pass_context
def pdus(ctx: click.Context, as_json: bool, timeout_s: float) -> None:
    """Every PDU with this node's outlets.

    \b
    Examples:
      nodectl pdus
      nodectl pdus --json | jq '.pdus[].outlets'
    """
    columns = [
        Column("PDU", shrink=True),
        Column("MODEL", rank=4, shrink=True),
        Column("ALL", right=True, rank=2),
        Column("THIS NODE", right=True),
        Column("LIMIT", right=True, rank=1),
        Column("OUTLETS", rank=3, shrink=True),
        Column("PHASES", rank=6, shrink=True),
        Column("AGE", right=True, rank=5),
        Column("NOTE", rank=1, shrink=True, least=28),
    ]
    _list(ctx, "pdus", columns, _pdu_row, "No PDU is configured.", as_json=as_json, timeout_s=timeout_s, foot=_feeds)


def _feeds(document: Document) -> list[str]:
    """One line for each feed: what it carries, and what it would carry alone."""
    lines = []
    where = screen()
    for feed in document.get("feeds", []):
        words = [f"feed {feed['name']}: {number(feed['power_w'], ' W')}, this node {number(feed['outlets_w'], ' W')}"]
        if feed["after_loss_w"] is not None:
            words.append(f"alone {number(feed['after_loss_w'], ' W')}")
        if feed["total_after_loss_w"] is not None:
            words.append(f"all of it alone at most {number(feed['total_after_loss_w'], ' W')}")
        if feed["rated_w"] is not None:
            words.append(f"rated {number(feed['rated_w'], ' W')}")
        line = ", ".join(words)
        if feed["lost"]:
            line = where.paint(f"{line}; WITHOUT POWER: {feed['evidence']}", "critical")
        lines.append(where.fit(line))
    return ["", *lines] if lines else []


def _pdu_row(pdu: Document) -> list[Cell]:
    mine = set(pdu["mapped_outlets"])
    powers = {outlet["index"]: outlet["power_w"] for outlet in pdu["outlets"]}
    notes = [] if pdu["up"] else [f"does not answer ({pdu['reason'] or 'no reason known'})"]
    notes += [f"contradicts itself in {', '.join(pdu['suspect'])}"] if pdu["suspect"] else []
    phases = [f"{phase['id']} {number(phase['current_a'], ' A', 1)}" for phase in pdu["phases"]]
    return [
        Cell(pdu["name"], "bold" if pdu["up"] else "warning"),
        Cell(f"{pdu['vendor']} {pdu['model']}".strip()),
        Cell(number(pdu["power_w"], " W")),
        Cell(number(pdu["outlets_w"], " W")),
        Cell(number(pdu["limit_w"], " W")),
        Cell(", ".join(f"{index}: {number(powers.get(index), ' W')}" for index in sorted(mine))),
        Cell(", ".join(phases)),
        Cell(age(pdu["age_s"])),
        Cell("; ".join(notes), "warning"),
    ]


@click.command()
@json_option
@timeout_option
@click.pass_context
def jobs(ctx: click.Context, as_json: bool, timeout_s: float) -> None:
    """The training jobs that are connected, then those that only the scheduler knows.

    \b
    Examples:
      nodectl jobs
      nodectl jobs --json | jq '.jobs[].id'
    """
    columns = [
        Column("JOB", shrink=True),
        Column("STATE"),
        Column("STEP", right=True, rank=2),
        Column("STEPS/S", right=True, rank=3),
        Column("RANKS", right=True, rank=4),
        Column("GPUS", right=True, rank=5),
        Column("LAST SAVE", rank=1),
        Column("TAKES", right=True, rank=6),
        Column("CAN", rank=7, shrink=True),
        Column("VERIFIED", rank=8),
    ]
    nothing = "No job is connected."
    _list(ctx, "jobs", columns, _job_row, nothing, as_json=as_json, timeout_s=timeout_s, foot=_unlinked)


def _unlinked(document: Document) -> list[str]:
    where = screen()
    lines = []
    for job in document["unlinked"]:
        held = f"{len(job['gpus'])} GPU{'s' if len(job['gpus']) > 1 else ''}"
        lines += where.wrap(f"{job['id']} on {held}, known by {job['source']}", rest="  ")
    head = where.wrap("Not connected, so nothing can be asked of them:")
    return ["", *(where.fit(line) for line in (*head, *lines))] if lines else []


def _job_row(job: Document) -> list[Cell]:
    saved = job["last_checkpoint_age_s"]
    slowed = f" to {job['duty'] * 100:.0f}%" if job["duty"] < 1 else ""
    return [
        Cell(job["id"], "bold"),
        Cell(f"{job['state']}{slowed}", "" if job["state"] == "running" else "warning"),
        Cell(DASH if job["step"] is None else str(job["step"])),
        Cell(DASH if job["steps_per_s"] is None else f"{job['steps_per_s']:.3g}"),
        Cell(str(job["ranks"])),
        Cell(str(len(job["gpus"]))),
        Cell(f"{age(saved)} ago" if saved is not None else "none seen"),
        Cell(number(job["checkpoint_takes_s"], " s")),
        Cell(", ".join(job["capabilities"])),
        Cell("yes" if job["verified"] else "no", "" if job["verified"] else "warning"),
    ]


@click.command()
@json_option
@timeout_option
@click.pass_context
def caps(ctx: click.Context, as_json: bool, timeout_s: float) -> None:
    """Power caps: why, since when, until when, and the limit before.

    \b
    Examples:
      nodectl caps
      nodectl caps --json | jq '.caps[] | {index, w, cause}'
    """
    columns = [
        Column("GPU"),
        Column("IN FORCE", right=True),
        Column("ASKED", right=True, rank=3),
        Column("BEFORE", right=True, rank=2),
        Column("CAUSE"),
        Column("PROTECTS", rank=5),
        Column("SINCE", rank=4),
        Column("ENDS", rank=1, shrink=True),
        Column("NOTE", rank=1, shrink=True),
    ]
    _list(ctx, "caps", columns, _cap_row, "No cap is in force.", as_json=as_json, timeout_s=timeout_s)


def _cap_row(cap: Document) -> list[Cell]:
    ends = (
        f"at {clock(cap['expires'])}" if cap["expires"] else f"when {cap['lifts_when']}" if cap["lifts_when"] else DASH
    )
    if cap.get("paced_by"):
        ends = f"with {cap['paced_by']}"
    notes = [] if cap["in_force"] or cap["refused"] else ["not written yet" if cap["armed"] else "disarmed: not set"]
    notes += [f"restore failed: {cap['pending']}"] if cap["pending"] else []
    notes += [f"refused: {cap['refused']}"] if cap["refused"] else []
    notes += [f"{cap['state']}"] if cap["state"] not in {None, "owned"} else []
    return [
        Cell(str(cap["index"]) if cap["index"] is not None else cap["uuid"], "bold"),
        Cell(number(cap["cap_w"], " W")),
        Cell(number(cap["w"], " W"), "warning" if cap["in_force"] else ""),
        Cell(number(cap["prior_w"], " W")),
        Cell(cause(cap)),
        Cell(cap["protects"] or DASH),
        Cell(clock(cap["since"]) if cap["since"] else DASH),
        Cell(ends),
        Cell("; ".join(notes), "warning"),
    ]


def _list(
    ctx: click.Context,
    verb: str,
    columns: list[Column],
    row: Callable[[Document], list[Cell]],
    nothing: str,
    *,
    as_json: bool,
    timeout_s: float,
    foot: Callable[[Document], list[str]] = lambda _: [],
) -> None:
    document = ask(runtime_of(ctx), verb, timeout_s=timeout_s)
    if as_json:
        emit_json(document)
    else:
        rows = [row({"armed": document.get("armed")} | thing) for thing in document[verb]]
        emit("\n".join([*(table_lines(screen(), columns, rows) if rows else [nothing]), *foot(document)]))
