"""`nodectl status`: asks the agent, or reads the ledger when there is none; its exit code is the health."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import click

from nodewarden import paths
from nodewarden.cli.connection import ask
from nodewarden.cli.exits import CRITICAL, DEGRADED, FOR_HELP, NOT_ANSWERING, NOT_RUNNING, OK, CliError
from nodewarden.cli.output import emit, emit_json, say, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option
from nodewarden.clock import boot_now_s

_CODES = {"ok": OK, "degraded": DEGRADED, "critical": CRITICAL}
_KEYS = ("node", "time", "armed", "health", "ladder", "gpus", "pdus", "jobs", "problems")


@click.command(epilog=FOR_HELP)
@json_option
@timeout_option
@click.pass_context
def status(ctx: click.Context, as_json: bool, timeout_s: float) -> int:
    """What is wrong, what was done about it, what to do.

    \b
    Examples:
      nodectl status
      nodectl status --json | jq .health
      watch -n 2 nodectl status
    """
    runtime = runtime_of(ctx)
    try:
        document = ask(runtime, "status", timeout_s=timeout_s)
    except CliError as error:
        if error.code != NOT_RUNNING:
            raise
        return _without_agent(runtime, error, as_json=as_json)
    if not isinstance(document, dict) or any(key not in document for key in _KEYS):
        raise CliError("the agent's status is not complete", NOT_ANSWERING)
    if as_json:
        emit_json(document)
    else:
        from nodewarden.cli.status_screen import status_lines  # noqa: PLC0415

        emit("\n".join(status_lines(document, screen())))
    return _CODES.get(document["health"], NOT_ANSWERING)


def _without_agent(runtime: Path, error: CliError, *, as_json: bool) -> int:
    """What the ledger knows when nobody answers."""
    document = ledger_document(runtime)
    if as_json:
        emit_json(document)
        say(f"nodectl: {error}")
    else:
        from nodewarden.cli.status_screen import stopped_lines  # noqa: PLC0415

        emit("\n".join(stopped_lines(document, str(error), screen())))
    return NOT_RUNNING


def ledger_document(runtime: Path) -> dict[str, Any]:
    """The status document made from the ledger alone."""
    import msgspec  # noqa: PLC0415 -- only needed without an agent

    from nodewarden.api.status import status_without_agent  # noqa: PLC0415
    from nodewarden.gpuhelper.ledger import read_ledger  # noqa: PLC0415

    entries = read_ledger(paths.ledger_file(runtime))
    document = status_without_agent(
        socket.gethostname().partition(".")[0] or os.uname().nodename,
        time.time(),
        boot_now_s(),
        entries,
    )
    plain: dict[str, Any] = msgspec.to_builtins(document)
    return plain
