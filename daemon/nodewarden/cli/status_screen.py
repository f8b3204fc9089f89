"""The one screen of `nodectl status`, from the status document alone: words first, then GPUs, PDUs, jobs, problems.

Every value may be null, every name may hold anything, every screen may be narrow.
"""

import re
from datetime import datetime
from typing import Any

from nodewarden.cli.output import Screen, clean, shorten
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.cli.words import DASH, age, cause, number

Document = dict[str, Any]

_LADDER = ("nothing to do", "near a limit", "power capped", "job slowed", "job saves", "job paused", "draining")
_LADDER_DISARMED = ("", "near a limit", "would cap power", "would slow the job", "would have the job save",
    "would pause the job", "would drain")  # fmt: skip
_SIGNS = {"critical": "✖", "warning": "▲", "info": "●"}
_GPU = re.compile(r"GPU (\d+)")
_MANY = 3  # from so many on, problems that are alike are told together
_STALE_S = 3.0  # seconds from which the age of a GPU's reading is worth saying


def status_lines(document: Document, screen: Screen) -> list[str]:
    """The whole screen."""
    problems = grouped(worst_first(document["problems"]))
    lines = [*_headline(document, screen), ""]
    if problems and problems[0].get("severity") != "info":
        lines += [*_problem(problems[0], screen), ""]
    lines += _gpus(document["gpus"], screen)
    if document["pdus"]:
        lines += ["", *_pdus(document["pdus"], screen)]
    if document["jobs"]:
        lines += ["", *_jobs(document["jobs"], screen)]
    rest = problems[1:] if problems and problems[0].get("severity") != "info" else problems
    if rest:
        lines += ["", screen.paint("ALSO" if len(rest) < len(problems) else "NOTES", "head")]
        for problem in rest:
            lines += _problem(problem, screen)
    return lines


def stopped_lines(document: Document, why: str, screen: Screen) -> list[str]:
    """What can be said without an agent."""
    lines = [f"{screen.paint(clean(document['node']), 'bold')}  {screen.paint('NOT RUNNING', 'critical')}"]
    lines += _fit(screen, screen.wrap(why, "", ""))
    problems = document["problems"]
    if not problems:
        return [*lines, "", "No cap of ours is in force."]
    lines += ["", f"{len(problems)} cap{'s' if len(problems) > 1 else ''} of ours still in force:"]
    for problem in problems:
        lines += _problem(problem, screen, advice=False)
    lines += _fit(
        screen, screen.wrap("start the agent, which takes them over, or: sudo nodectl restore", "  → ", "    ")
    )
    return lines


def _headline(document: Document, screen: Screen) -> list[str]:
    health = document["health"]
    level = document["ladder"]
    word = {"ok": "OK", "degraded": "DEGRADED", "critical": "CRITICAL"}.get(health, "UNKNOWN")
    style = {"ok": "ok", "degraded": "degraded"}.get(health, "critical")
    armed = "armed" if document["armed"] else "disarmed: only watching"
    parts = [clean(document["node"]), word, armed]
    if isinstance(level, int) and 0 < level < len(_LADDER):
        parts.append(f"ladder {level}: {(_LADDER if document['armed'] else _LADDER_DISARMED)[level]}")
    elif health == "ok":
        parts[1] = "OK: within all limits"
    clock = _clock(document["time"])
    shown = [screen.paint(parts[0], "bold"), screen.paint(parts[1], style), *parts[2:]]
    plain = "  ".join(parts)
    if len(plain) + len(clock) + 2 <= screen.width:
        return ["  ".join(shown) + " " * (screen.width - len(plain) - len(clock)) + screen.paint(clock, "dim")]
    if len(plain) <= screen.width:
        return ["  ".join(shown)]
    return ["  ".join(shown[:2]), *(shorten(f"  {part}", screen.width) for part in parts[2:])]


def _problem(problem: Document, screen: Screen, *, advice: bool = True) -> list[str]:
    severity = problem.get("severity", "warning")
    sign = screen.fit(_SIGNS.get(severity, "▲"))
    lines = _fit(screen, screen.wrap(str(problem.get("text", "")), f"{sign} ", "  "))
    painted = [screen.paint(line, severity) for line in lines]
    if advice and problem.get("advice"):
        painted += _fit(screen, screen.wrap(str(problem["advice"]), "  → ", "    "))
    return painted


def _gpus(gpus: list[Document], screen: Screen) -> list[str]:
    if not gpus:
        return [screen.paint("No GPU is known.", "warning")]
    columns = [
        Column("GPU", right=True),
        Column("JUNC", right=True),
        Column("HBM", right=True, rank=6),
        Column("MARGIN", right=True, rank=2),
        Column("POWER", right=True, rank=3),
        Column("CAP", right=True, rank=4),
        Column("USE", right=True, rank=7),
        Column("STATE", rank=1),
        Column("WHY CAPPED", rank=5, shrink=True),
        Column("SLOWED BY", rank=8, shrink=True),
    ]
    return table_lines(screen, columns, [_gpu_row(gpu) for gpu in gpus])


def _gpu_row(gpu: Document) -> list[Cell]:
    state, age_s = gpu["state"], gpu["age_s"]
    style = "" if state == "ok" else "warning" if state == "released" else "critical"
    said = "" if state == "ok" else state
    if age_s is not None and age_s > _STALE_S:
        said = f"{said or 'no news'} {age(age_s)}"
        style = style or "warning"
    if not said and gpu["junction_c"] is None:
        said, style = "no temperature", "warning"
    margin = gpu["margin_to_max_op_c"]
    margin_style = style if margin is None or margin > 4 else "warning" if margin > 0 else "critical"
    cap = gpu["cap"]
    because = ""
    if cap:
        lifts = f", until {cap['lifts_when']}" if cap["lifts_when"] else ""
        because = cause(cap) if cap.get("paced_by") else f"{cause(cap)}{lifts}"
    slow = [reason for reason in gpu["slow"] or [] if reason != "idle"]
    return [
        Cell(str(gpu["index"]) if gpu["index"] is not None else "?", style or "bold"),
        Cell(number(gpu["junction_c"], "°C"), style),
        Cell(number(gpu["hbm_c"], "°C"), style),
        Cell(number(margin, "°C"), margin_style),
        Cell(number(gpu["power_w"], " W"), style),
        Cell(number(gpu["cap_w"], " W"), "warning" if cap else style),
        Cell(number(None if gpu["utilisation"] is None else gpu["utilisation"] * 100, "%"), style),
        Cell(said, style),
        Cell(because, "warning"),
        Cell(", ".join(slow).replace("_", " "), "warning"),
    ]


def _pdus(pdus: list[Document], screen: Screen) -> list[str]:
    columns = [
        Column("PDU", shrink=True),
        Column("ALL", right=True, rank=2),
        Column("THIS NODE", right=True),
        Column("LIMIT", right=True, rank=1),
        Column("AGE", right=True, rank=4),
        Column("STATE", rank=3),
    ]
    rows = []
    for pdu in pdus:
        near = pdu["limit_w"] and pdu["outlets_w"] and pdu["outlets_w"] > 0.95 * pdu["limit_w"]
        rows.append([
            Cell(pdu["name"], "bold" if pdu["up"] else "warning"),
            Cell(number(pdu["power_w"], " W")),
            Cell(number(pdu["outlets_w"], " W"), "warning" if near else ""),
            Cell(number(pdu["limit_w"], " W")),
            Cell(age(pdu["age_s"])),
            Cell("" if pdu["up"] else "does not answer", "warning"),
        ])  # fmt: skip
    return table_lines(screen, columns, rows)


def _jobs(jobs: list[Document], screen: Screen) -> list[str]:
    columns = [
        Column("JOB", shrink=True),
        Column("STATE"),
        Column("STEP", right=True, rank=2),
        Column("STEPS/S", right=True, rank=3),
        Column("RANKS", right=True, rank=4),
        Column("LAST SAVE", rank=1),
    ]
    rows = []
    for job in jobs:
        state = job["state"]
        slowed = f" to {job['duty'] * 100:.0f}%" if job["duty"] is not None and job["duty"] < 1 else ""
        saved = job["last_checkpoint_age_s"]
        rows.append([
            Cell(job["id"], "bold"),
            Cell(f"{state}{slowed}", "" if state == "running" else "warning"),
            Cell(str(job["step"]) if job["step"] is not None else DASH),
            Cell(f"{job['steps_per_s']:.3g}" if job["steps_per_s"] is not None else DASH),
            Cell(str(job["ranks"])),
            Cell(f"{age(saved)} ago" if saved is not None else "none seen"),
        ])  # fmt: skip
    return table_lines(screen, columns, rows)


def worst_first(problems: list[Document]) -> list[Document]:
    """Critical ones first, otherwise as they come."""
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(problems, key=lambda problem: order.get(problem.get("severity", ""), 1))


def grouped(problems: list[Document]) -> list[Document]:
    """Problems that differ only in their GPU become one."""
    groups: dict[tuple[str, str], list[Document]] = {}
    for problem in problems:
        text = str(problem.get("text", ""))
        groups.setdefault((problem.get("code", ""), _GPU.sub("", text, count=1)), []).append(problem)
    merged = []
    for (_, text), alike in groups.items():
        indices = sorted(int(match[1]) for problem in alike if (match := _GPU.match(str(problem.get("text", "")))))
        if len(alike) < _MANY or len(indices) < len(alike):
            merged += alike
            continue
        names = f"GPUs {', '.join(map(str, indices))}"
        if indices == list(range(indices[0], indices[-1] + 1)):
            names = f"GPUs {indices[0]} to {indices[-1]}"
        advice = re.sub(rf"(nodectl \w+) (?:{'|'.join(map(str, indices))})\b", r"\1 GPU", alike[0].get("advice", ""))
        merged.append(alike[0] | {"text": f"{names}{text}", "advice": advice})
    return merged


def _clock(time: str) -> str:
    """The document's time as this machine's wall clock shows it."""
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%H:%M:%S")
    except (ValueError, TypeError, OverflowError):
        return str(time)


def _fit(screen: Screen, lines: list[str]) -> list[str]:
    return [screen.fit(line) for line in lines]
