"""The entry of `nodectl`: the list of verbs, and how every ending becomes an exit code. Verbs are loaded when used."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nodewarden import __version__, paths
from nodewarden.cli.exits import CONFIG, FOR_HELP, INTERNAL, INTERRUPTED, OK, USAGE, CliError
from nodewarden.cli.output import leave_quietly, say
from nodewarden.errors import ConfigError, NodewardenError

# name -> (module, function, what it is for). The order is the order of the help.
_VERBS = {
    "status": ("status", "status", "What is wrong, what was done, what to do; one screen."),
    "explain": ("explain", "explain", "Why a GPU is capped, what would lift it, how to undo it."),
    "gpus": ("show", "gpus", "Every GPU in detail; let go of one for a reset (gpus release)."),
    "pdus": ("show", "pdus", "Every PDU in detail."),
    "jobs": ("show", "jobs", "The training jobs on this node."),
    "caps": ("show", "caps", "Power caps in force, with cause and end."),
    "host": ("host", "host", "The host: processors, drives, network ports, sensors."),
    "bmc": ("bmc", "bmc", "The server as its BMC sees it (bmc show); find out what a BMC is (bmc discover)."),
    "topology": ("topology", "topology", "How near GPUs and network cards are to each other."),
    "events": ("events", "events", "What happened and what was decided."),
    "doctor": ("doctor", "doctor", "Check the installation and say what to do."),
    "xid": ("xid", "xid", "What an Xid means and what to do; say that a GPU is well (xid clear)."),
    "arm": ("change", "arm", "Let decisions reach the hardware."),
    "disarm": ("change", "disarm", "Only watch: lift automatic caps, start none."),
    "cap": ("change", "cap", "Cap the power of a GPU."),
    "release": ("change", "release", "End manual caps."),
    "throttle": ("change", "throttle", "Slow a job down for a while."),
    "checkpoint": ("change", "checkpoint", "Ask a job to save now."),
    "restore": ("restore", "restore", "Give back the power limits from before, agent or not."),
    "config": ("config", "config", "Check or show the configuration."),
    "pdu": ("pdu", "pdu", "Find out what a PDU is, which outlets are this node's; record one."),
    "demo": ("demo", "demo", "Two minutes of a cooling failure, simulated."),
    "simulate": ("simulate", "simulate", "Try an incident on a simulated node; verdict and picture."),
    "completion": ("completion", "completion", "Shell completion for bash, zsh, fish."),
}


class LazyGroup(click.Group):
    """Knows its verbs by name and imports one only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        del ctx
        return self.commands_by_name()

    def commands_by_name(self) -> list[str]:
        """Names of all verbs."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        del ctx
        if cmd_name not in _VERBS:
            return None
        module, function, _ = _VERBS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"nodewarden.cli.{module}"), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With a suggestion for a mistyped verb."""
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 -- only for a mistake

            near = difflib.get_close_matches(args[0], _VERBS, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else "; nodectl --help lists them"
            raise click.UsageError(f'no verb "{args[0]}"{hint}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing anything."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=FOR_HELP)
@click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Where the sockets are [env {paths.RUNTIME_DIR_VARIABLE}; default {paths.DEFAULT_RUNTIME_DIR}].",
)
@click.version_option(__version__, prog_name="nodectl")
@click.pass_context
def nodectl(ctx: click.Context, runtime_dir: Path | None) -> None:
    """Watch and steer the power and temperature of this node's GPUs.

    \b
    Examples:
      nodectl status                 what is wrong, what was done, what to do
      nodectl explain 5              why GPU 5 is capped and how to undo it
      nodectl cap 5 540 --for 10m    cap GPU 5 at 540 W for ten minutes
      nodectl status --json          the same for programs

    Shell completion: nodectl completion --help
    """
    ctx.obj = runtime_dir or paths.runtime_dir()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        outcome: Any = nodectl.main(args=arguments, prog_name="nodectl", standalone_mode=False)
        return outcome if isinstance(outcome, int) else OK
    except CliError as error:
        say(f"nodectl: {error}")
        return error.code
    except ConfigError as error:
        say(str(error))
        return CONFIG
    except click.UsageError as error:
        context = error.ctx.command_path if error.ctx else "nodectl"
        said = error.format_message()
        is_help = said.startswith("Usage:")  # a group without a verb
        say(said if is_help else f"{context}: {said}\nTry: {context} --help")
        return USAGE
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        leave_quietly()
        return OK
    except click.ClickException as error:
        say(f"nodectl: {error.format_message()}")
        return USAGE
    except NodewardenError as error:
        say(f"nodectl: {error}")
        return 1
    except Exception as error:  # noqa: BLE001 -- the last line: a short message instead of a traceback
        say(f"nodectl: internal error: {type(error).__name__}: {error} ({_place(error)}); please report it")
        return INTERNAL


def _place(error: Exception) -> str:
    """File and line where it happened."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "?"


if __name__ == "__main__":
    sys.exit(main())
