"""`nodectl doctor`: looks at everything Nodewarden needs on this machine, and says what to do about each finding."""

from typing import Any

import click

from nodewarden import paths
from nodewarden.cli.connection import ask
from nodewarden.cli.doctor_checks import Finding, Machine, run_checks
from nodewarden.cli.exits import CRITICAL, DEGRADED, OK, CliError
from nodewarden.cli.output import emit, emit_json, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option

_STYLES = {"ok": "good", "note": "info", "warning": "warning", "problem": "critical"}
_SIGNS = {"ok": "ok", "note": "note", "warning": "warn", "problem": "FAIL"}


@click.command()
@json_option
@timeout_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, timeout_s: float) -> int:
    """Check sockets, helper, driver, rights, configuration, disk, PDUs, clock and HTTP port.

    Exit code 0: nothing to do; 1: warnings; 2: something does not work.

    \b
    Examples:
      nodectl doctor
      nodectl doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    runtime = runtime_of(ctx)
    agent: dict[str, Any] | None = None
    error: CliError | None = None
    try:
        agent = ask(runtime, "agent", timeout_s=timeout_s)
    except CliError as failed:
        error = failed
    state = paths.state_dir_of(runtime)
    machine = Machine(runtime=runtime, state=state, config=paths.config_path(), agent=agent, error=error)
    findings = run_checks(machine)
    states = {finding.state for finding in findings}
    code = CRITICAL if "problem" in states else DEGRADED if "warning" in states else OK
    if as_json:
        emit_json({"schema": 1, "ok": code == OK, "checks": [finding.plain() for finding in findings]})
    else:
        emit("\n".join(_lines(findings)))
    return code


def _lines(findings: list[Finding]) -> list[str]:
    where = screen()
    lines = []
    for finding in findings:
        sign = where.paint(f"{_SIGNS[finding.state]:<4}", _STYLES[finding.state])
        body = where.wrap(f"{finding.check}: {finding.text}", "     ", "     ")
        lines.append(f"{sign} {where.fit(body[0][5:])}")
        lines += [where.fit(line) for line in body[1:]]
        if finding.advice:
            lines += [where.fit(line) for line in where.wrap(finding.advice, "     → ", "       ")]
    return lines
