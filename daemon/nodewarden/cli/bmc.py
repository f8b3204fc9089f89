"""`nodectl bmc`: the server's management controller, through the agent (`show`) or asked directly (`discover`)."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import click

from nodewarden.cli.connection import ask
from nodewarden.cli.exits import DEGRADED, NOT_ANSWERING, CliError
from nodewarden.cli.output import Screen, emit, emit_json, say, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option
from nodewarden.cli.pdu_access import secret_in
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH, age, number

Document = dict[str, Any]
_FILE = click.Path(path_type=Path)
_SICK = frozenset({"warning", "critical"})
_FIRST = ("inlet", "exhaust", "gpu", "gpu_memory", "nvswitch", "cpu", "memory")


@click.group()
def bmc() -> None:
    """The server's management controller: power, supplies, temperatures, fans, leaks."""


@bmc.command()
@json_option
@timeout_option
@click.pass_context
def show(ctx: click.Context, as_json: bool, timeout_s: float) -> None:
    """What the agent last read from the BMC.

    \b
    Examples:
      nodectl bmc show
      nodectl bmc show --json | jq '.psus[] | {name, input_w, health}'
    """
    document = ask(runtime_of(ctx), "bmc", timeout_s=timeout_s)
    if as_json:
        emit_json(document)
    elif not document["on"]:
        emit("No BMC is configured: nodectl bmc discover https://HOST prints the lines for it.")
    elif document["age_s"] is None:
        emit(f"The BMC was not read yet ({document['reason'] or 'its first answers take a while'}).")
    else:
        where = screen()
        late = "" if document["up"] else f", does not answer now ({document['reason']})"
        emit("\n".join([*bmc_lines(where, document), "", f"read {age(document['age_s'])} ago{late}"]))


@bmc.command()
@click.argument("url", metavar="https://HOST[:PORT]")
@click.option("--user", default="", metavar="U", help="Account of the BMC; read-only is enough.")
@click.option("--password-file", type=_FILE, metavar="F", help="File with its password.")
@click.option("--ca-file", type=_FILE, metavar="F", help="Authority that signed the BMC's certificate.")
@click.option("--fingerprint", metavar="HEX", help="SHA-256 of the BMC's own certificate.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(1, 600), default=30.0, show_default=True, metavar="S",
              help="Of one request; a walk takes many.")  # fmt: skip
@json_option
def discover(
    url: str,
    user: str,
    password_file: Path | None,
    ca_file: Path | None,
    fingerprint: str | None,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Find out what a BMC tells by Redfish, and how to write it into the configuration.

    \b
    Examples:
      nodectl bmc discover https://192.0.2.20 --user monitor --password-file /etc/nodewarden/bmc.password
      nodectl bmc discover https://bmc-07 --user monitor --password-file p.txt --fingerprint AB:CD:...
    """
    from nodewarden.api.bmc_details import measured  # noqa: PLC0415
    from nodewarden.errors import DeviceError  # noqa: PLC0415 -- an HTTP client takes a moment to load
    from nodewarden.sources.bmc.discovery import discover as walk  # noqa: PLC0415

    if bool(user) != (password_file is not None):
        raise click.UsageError("--user and --password-file belong together")
    password = secret_in(password_file) if password_file is not None else ""
    try:
        told = asyncio.run(
            walk(
                url, user, password, ca=str(ca_file or ""), fingerprint=fingerprint or "", timeout_s=timeout_s,
                on_progress=lambda text: say(text) if not as_json else None,
            )
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except DeviceError as error:
        code = NOT_ANSWERING if error.reason in {"timeout", "unreachable", "busy"} else DEGRADED
        raise CliError(str(error), code) from None
    found = measured(told)
    if as_json:
        emit_json(found)
        return
    lines = ["", "for the configuration:", "[bmc]", f'url = "{url.rstrip("/")}"']
    lines += [f'user = "{user}"', f'password_file = "{password_file}"'] if user else []
    lines += [f'ca_file = "{ca_file}"'] if ca_file else []
    lines += [f'fingerprint = "{fingerprint}"'] if fingerprint else []
    emit("\n".join([*bmc_lines(screen(), found), *lines]))


def bmc_lines(where: Screen, found: Document) -> list[str]:
    """The screen; parts that the machine does not have are left out."""
    head = " ".join(part for part in (found["vendor"] or "unknown vendor", found["model"]) if part)
    lines = [where.paint(where.fit(head), "bold"), where.fit(f"BMC {found['bmc'] or 'of unknown firmware'}")]
    doubt = " (contradicts the supplies)" if "chassis_power_w" in found["suspect"] else ""
    lines.append(where.fit(f"whole machine {number(found['chassis_power_w'], ' W')}{doubt}"))
    lines += _supplies(where, found)
    lines += _temperatures(where, found)
    lines += _fans(where, found)
    for detector in found["leak"]:
        wet = (detector["state"] or "").lower() not in {"ok", ""}
        text = f"leak detector {detector['name']}: {detector['state'] or DASH}"
        lines += _prose(where, text, "critical" if wet else "")
    for flow in found["flow"]:
        text = f"coolant {flow['name']}: {number(flow['flow_lpm'], ' l/min', 1)}, {number(flow['supply_c'], ' °C')} in"
        lines += _prose(where, f"{text}, {number(flow['return_c'], ' °C')} out")
    return lines


def _supplies(where: Screen, found: Document) -> list[str]:
    if not found["psus"]:
        return []
    columns = [
        Column("SUPPLY", shrink=True),
        Column("IN", right=True),
        Column("OUT", right=True, rank=1),
        Column("OF", right=True, rank=3),
        Column("V", right=True, rank=2),
        Column("STATE"),
    ]
    rows = []
    for psu in found["psus"]:
        there = {True: psu["health"] or "not said", False: "absent", None: "not known"}[psu["present"]]
        style = "critical" if there.lower() in _SICK else ""
        rows.append([
            Cell(psu["name"]), Cell(number(psu["input_w"], " W")), Cell(number(psu["output_w"], " W")),
            Cell(number(psu["capacity_w"], " W")), Cell(number(psu["line_v"], "")), Cell(there, style),
        ])  # fmt: skip
    lines = ["", *table_lines(where, columns, rows)]
    for group in found["redundancy"]:
        name = group["name"] or "redundancy"
        counts = f"{group['members']} members, {number(group['min_needed'], '')} needed"
        said = group["health"] or "not said"
        lines += _prose(where, f"{name}: {said} ({counts})", "critical" if said.lower() in _SICK else "")
    return lines


def _temperatures(where: Screen, found: Document) -> list[str]:
    """The hottest of each place; the rest is in --json."""
    hottest: dict[str, Document] = {}
    for each in found["temperatures"]:
        if each["location"] not in hottest or each["value_c"] > hottest[each["location"]]["value_c"]:
            hottest[each["location"]] = each
    if not hottest:
        return []
    count = Counter(each["location"] for each in found["temperatures"])
    order = sorted(hottest, key=lambda place: (_FIRST.index(place) if place in _FIRST else 99, place))
    columns = [
        Column("HOTTEST"),
        Column("OF", right=True, rank=1),
        Column("°C", right=True),
        Column("LIMIT", right=True, rank=2),
        Column("SENSOR", shrink=True),
    ]
    rows = []
    for place in order:
        each = hottest[place]
        limit_c = each["upper_critical_c"]
        style = "critical" if limit_c is not None and each["value_c"] >= limit_c else ""
        rows.append([
            Cell(place.replace("_", " ")), Cell(str(count[place])), Cell(number(each["value_c"], ""), style),
            Cell(number(limit_c, "")), Cell(each["name"]),
        ])  # fmt: skip
    return ["", *table_lines(where, columns, rows)]


def _fans(where: Screen, found: Document) -> list[str]:
    there = [fan for fan in found["fans"] if fan["present"]]
    if not there:
        return []
    sick = [fan["name"] for fan in there if (fan["health"] or "").lower() in _SICK]
    rpms = [fan["rpm"] for fan in there if fan["rpm"] is not None]
    percents = [fan["percent"] for fan in there if fan["percent"] is not None]
    speed = f", {min(rpms):.0f} to {max(rpms):.0f} rpm" if rpms else ""
    speed += f", {min(percents):.0f} to {max(percents):.0f} %" if percents else ""
    lines = ["", *_prose(where, f"{len(there)} fans{speed}")]
    if sick:
        lines += _prose(where, f"not well: {', '.join(sick)}", "critical")
    return lines


def _prose(where: Screen, text: str, style: str = "") -> list[str]:
    return [where.paint(where.fit(line), style) if style else where.fit(line) for line in where.wrap(text, rest="  ")]
