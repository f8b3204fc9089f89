"""`nodectl restore`: gives back the power limits from before. Through the agent, else the helper, else on its own.

The last way works with everything of ours dead, as long as the ledger and the driver are there.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from nodewarden import paths
from nodewarden.cli.connection import ask
from nodewarden.cli.exits import DEGRADED, NO_RIGHTS, NOT_ANSWERING, NOT_RUNNING, OK, CliError
from nodewarden.cli.output import clean, emit, emit_json, say, screen
from nodewarden.cli.params import json_option, reason_option, runtime_of
from nodewarden.cli.words import gpu_name

_OWN_S = 60.0  # it looks for the GPUs for 30 s, and gives their restores 10 s
_OUTCOME = re.compile(
    r"(?P<uuid>\S+) (?P<outcome>restored|kept|pending|none)(?: (?P<w>[\d.]+) W)?"
    r"(?:: (?P<text>.*?))?(?:; --force lifts it)?"
)
_TIMEOUT_S = 10.0  # the helper gives each GPU 3 s, and answers after that


@click.command()
@click.argument("gpu", metavar="[GPU]", default="all")
@click.option("--force", is_flag=True, help="Caps that protect a GPU or the breaker too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.05, 600), default=_TIMEOUT_S, show_default=True, metavar="S"
)
@json_option
@reason_option
@click.pass_context
def restore(ctx: click.Context, gpu: str, force: bool, yes: bool, timeout_s: float, as_json: bool, reason: str) -> int:
    """Disarm, then give back the power limits from before. As root.

    Works without the agent and without the helper. Caps that protect something stay, unless --force.

    \b
    Examples:
      nodectl restore
      nodectl restore --force --reason "cooling is back"
      nodectl restore 5
    """
    if not yes and sys.stdin.isatty():
        what = "ALL caps, protective ones too" if force else "caps"
        click.confirm(
            f"Disarm this node and lift {what} on {'all GPUs' if gpu == 'all' else f'GPU {gpu}'}?", abort=True
        )
    runtime = runtime_of(ctx)
    try:
        result = ask(runtime, "restore", {"gpu": gpu, "force": force, "reason": reason}, timeout_s)
        way = "agent"
    except CliError as error:
        if error.code not in {NOT_RUNNING, NOT_ANSWERING}:
            raise
        if os.geteuid() != 0 and not os.access(runtime, os.W_OK):
            raise CliError(f"{error}; without the agent only root may restore (try sudo)", NO_RIGHTS) from None
        say(f"nodectl: {error}; going on without it")
        result, way = _without_agent(runtime, gpu, force=force, timeout_s=timeout_s, is_gone=error.code == NOT_RUNNING)
    return _report(result["gpus"], way, as_json=as_json)


def _without_agent(
    runtime: Path, gpu: str, *, force: bool, timeout_s: float, is_gone: bool
) -> tuple[dict[str, Any], str]:
    from nodewarden.errors import HelperError, HelperGoneError  # noqa: PLC0415 -- only without an agent

    if is_gone:
        _disarm_on_disk(runtime)
    try:
        return {"gpus": asyncio.run(_through_helper(runtime, gpu, force=force, timeout_s=timeout_s))}, "helper"
    except HelperGoneError as error:
        say(f"nodectl: {error}; going on without it")
    except HelperError as error:
        raise CliError(f"the GPU helper refused: {error}", DEGRADED) from None
    if gpu != "all":
        raise CliError("without the helper only all GPUs can be restored: nodectl restore", DEGRADED)
    return {"gpus": _on_its_own(runtime, force=force)}, "nodewarden-gpu"


async def _through_helper(runtime: Path, gpu: str, *, force: bool, timeout_s: float) -> list[dict[str, Any]]:
    import msgspec  # noqa: PLC0415

    from nodewarden.clock import BootClock  # noqa: PLC0415
    from nodewarden.errors import HelperGoneError  # noqa: PLC0415
    from nodewarden.gpuhelper.client import HelperClient  # noqa: PLC0415

    client = HelperClient(paths.gpu_socket(runtime), BootClock())
    try:
        async with asyncio.timeout(timeout_s):
            await client.connect()
            uuids: list[str] = []
            if gpu != "all":
                held = [entry.uuid for entry in await client.ledger()]
                uuids = [uuid for uuid in held if uuid.lower().startswith(gpu.lower())]
                if len(uuids) != 1:
                    raise CliError(f'"{gpu}" is not one of the capped GPUs: {", ".join(held) or "none"}', DEGRADED)
            outcomes = await client.restore(uuids, force=force)
    except TimeoutError:
        raise HelperGoneError(f"the GPU helper does not answer within {timeout_s:g} s") from None
    finally:
        await client.close()
    return [msgspec.to_builtins(outcome) for outcome in outcomes]


def _on_its_own(runtime: Path, *, force: bool) -> list[dict[str, Any]]:
    """Run `nodewarden-gpu --restore` and read what it says of each cap in the ledger."""
    from nodewarden.gpuhelper.ledger import read_ledger  # noqa: PLC0415

    before = read_ledger(paths.ledger_file(runtime))
    if not before:
        return []
    command = [sys.executable, "-m", "nodewarden.gpuhelper.main", "--restore", "--runtime-dir", str(runtime)]
    command += ["--force"] if force else []
    if lock_dir := os.environ.get("NODEWARDEN_LOCK_DIR"):
        command += ["--lock-dir", lock_dir]
    try:
        done = subprocess.run(command, timeout=_OWN_S, check=False, stdout=subprocess.PIPE, text=True)
    except subprocess.TimeoutExpired:
        said = "nodewarden-gpu --restore did not end: the driver hangs; caps end with a reboot"
        raise CliError(said, DEGRADED) from None
    told = {match["uuid"]: match for line in done.stdout.splitlines() if (match := _OUTCOME.fullmatch(line))}
    if not told:
        raise CliError(f"nodewarden-gpu --restore: {done.stdout.strip() or f'exit code {done.returncode}'}", DEGRADED)
    outcomes = []
    for entry in before:
        match = told.get(entry.uuid)
        watts = float(match["w"]) if match and match["w"] else entry.w
        outcome = match["outcome"] if match else "pending"
        outcomes.append(
            {"uuid": entry.uuid, "outcome": outcome, "w": watts, "text": match["text"] or "" if match else ""}
        )
    return outcomes


def _disarm_on_disk(runtime: Path) -> None:
    """So that the next agent starts disarmed. Written in place: the file must stay the agent's."""
    path = paths.state_dir_of(runtime) / "state.json"
    try:
        with path.open("r+", encoding="utf-8") as file:
            state = json.load(file)
            if state.get("armed"):
                file.seek(0)
                json.dump(state | {"armed": False}, file)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
    except FileNotFoundError:
        return  # never armed
    except (OSError, ValueError, AttributeError) as error:
        say(f"nodectl: {path} cannot be changed ({error}); the next agent may start armed")


def _report(outcomes: list[dict[str, Any]], way: str, *, as_json: bool) -> int:
    if as_json:
        emit_json({"armed": False, "way": way, "gpus": outcomes})
    else:
        where = screen()
        words = {"restored": "restored to", "kept": "kept at", "pending": "not restored yet, still at"}
        held = [outcome for outcome in outcomes if outcome["outcome"] != "none"]
        for outcome in held:
            watts = f" {outcome['w']:.0f} W" if outcome.get("w") is not None else ""
            text = f" ({outcome['text']})" if outcome.get("text") else ""
            emit(where.fit(clean(f"{gpu_name(outcome)}: {words[outcome['outcome']]}{watts}{text}")))
        if not held:
            emit("no cap of ours was in force")
        if any(outcome["outcome"] == "kept" for outcome in held):
            emit("what is kept protects a GPU or the breaker; lift it with --force")
        emit("the node is disarmed; undo: nodectl arm")
    return OK if all(outcome["outcome"] in {"restored", "none"} for outcome in outcomes) else DEGRADED
