"""`nodectl host`: the host's processors, drives, network ports, sensors and pressure on one screen."""

from typing import Any

import click

from nodewarden.cli.connection import ask
from nodewarden.cli.output import Screen, emit, emit_json, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH, age, number

Document = dict[str, Any]
_UNITS = {"temperature": " °C", "fan": " rpm", "power": " W"}
_NEAR_C = 5.0
"""So near to a critical threshold a temperature is shown in colour."""
_LOUD_SHARE = 0.1
_REASONS = {
    "helper_missing": "the GPU helper, which reads it, is not running",
    "helper_unresponsive": "the GPU helper, which reads it, does not answer",
    "helper_too_old": "the GPU helper, which reads it, is of an older version: restart it",
    "helper_busy": "the read before has not come back",
    "helper_timeout": "the GPU helper, which reads it, does not answer",
    "no_permission": "the GPU helper, which reads it, is not root",
    "not_supported": "this machine has none (a virtual machine, or the driver intel_rapl is not loaded)",
    "first_reading": "it is known after a second reading",
}


@click.command()
@json_option
@timeout_option
@click.pass_context
def host(ctx: click.Context, as_json: bool, timeout_s: float) -> None:
    """The host: processors, drives, InfiniBand and RoCE ports, sensors, pressure.

    \b
    Examples:
      nodectl host
      nodectl host --json | jq '.ports[] | select(.active | not)'
    """
    document = ask(runtime_of(ctx), "host", timeout_s=timeout_s)
    if as_json:
        emit_json(document)
    else:
        emit("\n".join(host_lines(screen(), document)))


def host_lines(to: Screen, host: Document) -> list[str]:
    """The screen; parts that this host does not have are left out."""
    if not host["on"]:
        return ["The host is not read: sampling.host_s is 0 in the configuration."]
    if host["age_s"] is None:
        return ["The host was not read yet."]
    parts = [
        _processors(to, host),
        _table(to, _PORT_COLUMNS, [_port_row(port) for port in host["ports"]]),
        _table(to, _DRIVE_COLUMNS, [_drive_row(drive) for drive in host["drives"]]),
        _table(to, _SENSOR_COLUMNS, _sensor_rows(host["sensors"])),
        _table(to, _PRESSURE_COLUMNS, [_pressure_row(each) for each in host["pressure"]]),
    ]
    notes = [f"read {age(host['age_s'])} ago, too old to rely on"] if host["stale"] else []
    notes += [f"{path} does not answer" for path in host["hung"]]
    notes += [f"{host['dropped']} more sensors, drives or ports are left out"] if host["dropped"] else []
    if any(parts):
        parts.append([to.paint(to.fit(line), "warning") for note in notes for line in to.wrap(note)])
    else:
        parts = [["This host shows no sensors, drives, network ports or pressure.", *notes]]
    lines: list[str] = []
    for part in parts:
        lines += ["", *part] if part and lines else part
    return lines


def _table(to: Screen, columns: list[Column], rows: list[list[Cell]]) -> list[str]:
    return table_lines(to, columns, rows) if rows else []


def _processors(to: Screen, host: Document) -> list[str]:
    columns = [
        Column("CPU"),
        Column("TEMP", right=True),
        Column("CRITICAL", right=True, rank=3),
        Column("POWER", right=True),
        Column("DRAM", right=True, rank=2),
        Column("THROTTLED SINCE BOOT", rank=1, shrink=True),
    ]
    lines = _table(to, columns, [_processor_row(cpu) for cpu in host["processors"]])
    reason = host["power_reason"]
    if lines and reason is not None:
        text = f"CPU power: {_REASONS.get(reason, reason.replace('_', ' '))}"
        lines += [to.paint(to.fit(line), "dim") for line in to.wrap(text)]
    return lines


def _processor_row(cpu: Document) -> list[Cell]:
    cores, package, lately = cpu["core_throttles"], cpu["package_throttles"], cpu["throttles_lately"]
    if cores is None and package is None:
        throttled = "not counted"
    elif not cores and not package:
        throttled = "never"
    else:
        counts = [f"cores {cores:.0f}"] if cores is not None else []
        counts += [f"package {package:.0f}"] if package is not None else []
        throttled = ", ".join(counts) + (f"; {lately:.0f} in the last minute" if lately else "")
    return [
        Cell(str(cpu["package"]), "bold"),
        _temperature(cpu["temperature_c"], cpu["critical_c"]),
        Cell(number(cpu["critical_c"], " °C")),
        Cell(number(cpu["power_w"], " W")),
        Cell(number(cpu["dram_w"], " W")),
        Cell(throttled, "warning" if lately else ""),
    ]


_PORT_COLUMNS = [
    Column("PORT", shrink=True),
    Column("STATE"),
    Column("RATE", right=True, rank=2),
    Column("LINK", rank=3),
    Column("SENT / RECEIVED", right=True, rank=5),
    Column("MODULE", right=True, rank=4),
    Column("BOARD", rank=6, shrink=True),
    Column("NOTE", rank=1),
]


def _port_row(port: Document) -> list[Cell]:
    is_down = port["active"] is not True and port["was_active"]
    notes = [f"{port['errors_lately']:.0f} errors/5 min"] if port["errors_lately"] else []
    notes += [f"{port['flaps_lately']:.0f} downs/10 min"] if port["flaps_lately"] else []
    state = (port["state"] or port["reason"] or DASH).lower().replace("_", " ")
    if port["active"] is False and not port["was_active"]:
        state = "never active"
    elif port["down_for_s"] is not None:
        physical = port["physical_state"]
        state += f" for {age(port['down_for_s'])}" + (f" ({physical.lower()})" if physical else "")
    rate = port["rate_bytes_per_s"]
    link = port["link_layer"] if port["link_layer"] != "Ethernet" else f"RoCE {port['netdev'] or ''}".strip()
    return [
        Cell(f"{port['device']}/{port['port']}", "warning" if is_down else "bold"),
        Cell(state, "warning" if is_down else "" if port["active"] else "dim"),
        Cell(DASH if rate is None else f"{rate * 8 / 1e9:g} Gb/s"),
        Cell(link),
        Cell(f"{_size(port['transmit_bytes'])} / {_size(port['receive_bytes'])}"),
        Cell(number(port["module_c"], " °C")),
        Cell(port["board"]),
        Cell(", ".join(notes), "warning"),
    ]


def _size(count: float | None) -> str:
    if count is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} PB"


_DRIVE_COLUMNS = [
    Column("DRIVE"),
    Column("TEMP", right=True),
    Column("SLOWS FROM", right=True, rank=1),
    Column("STOPS FROM", right=True, rank=3),
    Column("MODEL", rank=4, shrink=True),
    Column("NOTE", rank=1, shrink=True),
]


def _drive_row(drive: Document) -> list[Cell]:
    notes = ["warns of its temperature"] if drive["alarm"] else []
    notes += [drive["state"]] if drive["state"] not in {"", "live"} else []
    notes += [drive["reason"].replace("_", " ")] if drive["reason"] not in {None, "not_supported"} else []
    return [
        Cell(drive["name"], "bold"),
        _temperature(drive["composite_c"], drive["warning_c"]),
        Cell(number(drive["warning_c"], " °C")),
        Cell(number(drive["critical_c"], " °C")),
        Cell(drive["model"]),
        Cell("; ".join(notes), "warning"),
    ]


_SENSOR_COLUMNS = [
    Column("SENSORS", shrink=True),
    Column("READING", right=True),
    Column("CRITICAL", right=True, rank=2),
    Column("WHICH", rank=3, shrink=True),
    Column("NOTE", rank=1),
]


def _sensor_rows(sensors: list[Document]) -> list[list[Cell]]:
    """One row per chip and kind, with the one to worry about first; --json has them all."""
    groups: dict[tuple[str, str], list[Document]] = {}
    for sensor in sensors:
        groups.setdefault((sensor["chip"], sensor["kind"]), []).append(sensor)
    rows = []
    for (chip, kind), group in groups.items():
        known = [sensor for sensor in group if sensor["value"] is not None]
        silent = [sensor for sensor in group if sensor["reason"] not in {None, "never_turned", "not_supported"}]
        if not known and not silent:
            continue
        extreme, word = (min, "slowest") if kind == "fan" else (max, "hottest" if kind == "temperature" else "highest")
        top = extreme(known, key=lambda sensor: float(sensor["value"])) if known else None
        value, critical = (top["value"], top["critical_c"]) if top else (None, None)
        which = "" if top is None else top["name"] if len(known) == 1 else f"{top['name']}, {word} of {len(known)}"
        reading = _temperature(value, critical) if kind == "temperature" else Cell(number(value, _UNITS[kind]))
        said = {sensor["reason"].replace("_", " ") for sensor in silent}
        note = f"{len(silent)} of {len(group)} not read ({', '.join(sorted(said))})" if silent else ""
        rows.append([Cell(chip), reading, Cell(number(critical, " °C")), Cell(which), Cell(note, "warning")])
    return rows


_PRESSURE_COLUMNS = [
    Column("WAITING FOR"),
    Column("WHO"),
    Column("10 S", right=True, rank=1),
    Column("1 MIN", right=True),
    Column("5 MIN", right=True, rank=2),
]


def _pressure_row(pressure: Document) -> list[Cell]:
    shares = [pressure.get(f"share_{window_s}s") for window_s in (10, 60, 300)]
    return [
        Cell(pressure["resource"], "bold"),
        Cell("some tasks" if pressure["kind"] == "some" else "all tasks"),
        *(
            Cell(
                DASH if share is None else f"{share:.1%}",
                "warning" if pressure["kind"] == "full" and share and share >= _LOUD_SHARE else "",
            )
            for share in shares
        ),
    ]


def _temperature(value: float | None, limit: float | None) -> Cell:
    style = ""
    if value is not None and limit is not None and value >= limit - _NEAR_C:
        style = "critical" if value >= limit else "warning"
    return Cell(number(value, " °C"), style)
