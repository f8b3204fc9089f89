"""`nodectl gpus release` and `nodectl gpus resume`: let go of GPUs, so that they can be reset or have MIG switched."""

import click

from nodewarden.cli.connection import ask
from nodewarden.cli.exits import DEGRADED, OK
from nodewarden.cli.output import clean, emit, emit_json, screen
from nodewarden.cli.params import Duration, json_option, reason_option, runtime_of, timeout_option_of, yes_option
from nodewarden.cli.words import clock

_DAY_S = 86400.0
_TIMEOUT_S = 30.0  # the library is closed and opened again


@click.command()
@click.argument("gpu", metavar="GPU")
@click.option(
    "--for", "for_s", type=Duration(1, _DAY_S), default="10m", show_default=True, help="Take it up again after so long."
)
@json_option
@timeout_option_of(_TIMEOUT_S)
@reason_option
@yes_option
@click.pass_context
def release(ctx: click.Context, gpu: str, for_s: float, as_json: bool, timeout_s: float, reason: str) -> int:
    """Let go of a GPU, so that it can be reset or have MIG switched.

    GPU is an index, a uuid (or its beginning), or all; with all, the driver itself can be exchanged. A manual cap is
    given back before and comes again afterwards; a cap that protects something stays and is compared with the board.
    The GPU is taken up again when its time is over, when the kernel shows that it was set up anew, or by resume.
    Persistence mode holds a GPU as well: switch it off, or stop nvidia-persistenced, for the time.

    \b
    Examples:
      nodectl gpus release 5 && nvidia-smi --gpu-reset -i 5; nodectl gpus resume 5
      nodectl gpus release all --for 1h --reason "driver upgrade"
    """
    result = ask(runtime_of(ctx), "gpus_release", {"gpu": gpu, "for_s": for_s, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
        return OK
    where = screen()
    for each in result["gpus"]:
        emit(where.fit(clean(f"{each['text']}, until {clock(each['released_until'])}")))
    emit(f"undo: nodectl gpus resume {gpu}")
    return OK


@click.command()
@click.argument("gpu", metavar="[GPU]", default="all")
@json_option
@timeout_option_of(_TIMEOUT_S)
@reason_option
@yes_option
@click.pass_context
def resume(ctx: click.Context, gpu: str, as_json: bool, timeout_s: float, reason: str) -> int:
    """Take released GPUs up again now, without GPU all of them.

    \b
    Examples:
      nodectl gpus resume 5
    """
    result = ask(runtime_of(ctx), "gpus_resume", {"gpu": gpu, "reason": reason}, timeout_s)
    if as_json:
        emit_json(result)
    elif not result["gpus"]:
        emit("no GPU was released there")
    else:
        where = screen()
        for each in result["gpus"]:
            emit(where.fit(clean(each["text"])))
    return DEGRADED if any("not yet" in each["text"] for each in result["gpus"]) else OK
