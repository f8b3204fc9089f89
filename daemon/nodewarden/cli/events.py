"""`nodectl events`: what happened and what was decided, from the agent, or from the journal file when there is none."""

import time
from pathlib import Path
from typing import Any

import click

from nodewarden import paths
from nodewarden.cli.connection import ask
from nodewarden.cli.exits import NOT_RUNNING, OK, CliError
from nodewarden.cli.output import clean, emit, emit_json, say, screen
from nodewarden.cli.params import Duration, json_option, runtime_of, timeout_option
from nodewarden.cli.words import clock

_LOOK_EVERY_S = 1.0
_DRY_RUN = "dry run: "  # as `control` writes it
_STYLES = {"action": "info", "decision": "dim"}


@click.command()
@click.option(
    "--since", "since_s", type=Duration(1, 366 * 86400), default="1h", show_default=True, help="How far back."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True, help="The newest so many.")
@click.option("--follow", "-f", is_flag=True, help="Go on and print what comes, until Ctrl-C.")
@json_option
@timeout_option
@click.pass_context
def events(ctx: click.Context, since_s: float, limit: int, follow: bool, as_json: bool, timeout_s: float) -> int:
    """What happened, who asked for what, what was decided. A "dry run" was decided while disarmed: nothing was done.

    \b
    Examples:
      nodectl events --since 10m
      nodectl events --follow
      nodectl events --since 1d --json | jq '.events[] | select(.code == "gpu_capped")'
    """
    runtime = runtime_of(ctx)
    try:
        found = ask(runtime, "events", {"since_s": since_s, "limit": limit}, timeout_s)["events"]
    except CliError as error:
        if error.code != NOT_RUNNING:
            raise
        _show(_from_file(runtime, since_s, limit), as_json=as_json, follow=False)
        say(f"nodectl: {error}; read from the journal file")
        return NOT_RUNNING
    _show(found, as_json=as_json, follow=follow)
    while follow:
        time.sleep(_LOOK_EVERY_S)
        last_id = max((entry["id"] for entry in found), default=0)
        asked = {"since_s": since_s, "limit": 1000, "after_id": last_id}
        found = ask(runtime, "events", asked, timeout_s)["events"] or found[-1:]
        new = [entry for entry in found if entry["id"] > last_id]
        if new:
            _show(new, as_json=as_json, follow=True)
    return OK


def _show(found: list[dict[str, Any]], *, as_json: bool, follow: bool) -> None:
    if as_json and not follow:
        emit_json({"schema": 1, "events": found})
        return
    if as_json:
        import json  # noqa: PLC0415

        for entry in found:
            emit(json.dumps(entry))
        return
    where = screen()
    for entry in found:
        who = entry["data"] if entry.get("kind") == "action" and isinstance(entry.get("data"), dict) else {}
        by = f" (uid {who['uid']}, pid {who.get('pid')})" if "uid" in who else ""
        why = f": {who['reason']}" if who.get("reason") else ""
        said = str(entry["text"])
        is_dry = said.startswith(_DRY_RUN)  # decided while disarmed: its code would sound as if it had been done
        head = f"{clock(entry['time'])}  {_DRY_RUN.rstrip(': ') if is_dry else entry['code']}"
        text = where.fit(clean(f"{said.removeprefix(_DRY_RUN)}{by}{why}"))
        emit(f"{where.paint(where.fit(clean(head)), _STYLES.get(entry.get('kind', ''), 'bold'))}  {text}")
    if not found and not follow:
        emit("Nothing happened in this time; --since 1d looks further back.")


def _from_file(runtime: Path, since_s: float, limit: int) -> list[dict[str, Any]]:
    from nodewarden.api.status import rfc3339  # noqa: PLC0415 -- only without an agent
    from nodewarden.journal import read_entries  # noqa: PLC0415

    entries = read_entries(
        paths.journal_file(paths.state_dir_of(runtime)), since_wall_s=time.time() - since_s, limit=limit
    )
    return [
        {
            "id": number,
            "time": rfc3339(entry.wall_s),
            "kind": entry.kind,
            "code": entry.code,
            "uuid": entry.uuid,
            "text": entry.text,
            "data": entry.data,
        }
        for number, entry in entries
    ]
