"""The composition root: reads the configuration, builds everything once, runs the loops, answers signals.

Decides nothing. Ready means: configuration valid, Unix sockets up, each source tried once; no device is needed (F07).
Exit codes: 0 stopped, 64 usage, 70 a bug, 75 another agent is running, 78 the configuration has mistakes.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from nodewarden import lean  # noqa: F401 - first, so that structlog comes without rich

# isort: split
import structlog

from nodewarden import __version__, logs, paths
from nodewarden.clock import BootClock, Clock
from nodewarden.config import Config, load_config
from nodewarden.errors import AlreadyRunningError, ConfigError, NodewardenError
from nodewarden.runtime import Agent, prepare_folders
from nodewarden.spawn import HelperProcess, helper_answers
from nodewarden.state import StateFile

log = structlog.get_logger("nodewarden.agent")

EX_USAGE, EX_SOFTWARE, EX_TEMPFAIL, EX_CONFIG = 64, 70, 75, 78


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Usage errors end with 64, as for nodectl."""
        self.print_usage(sys.stderr)
        self.exit(EX_USAGE, f"{self.prog}: {message}\n")


THREADS_S = 1.0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nodewarden",
        description="The Nodewarden agent: samples GPUs and PDUs, holds the node inside its limits, serves metrics.",
        epilog="Example: nodewarden --config nodewarden.toml --runtime-dir run --state-dir state --helper spawn",
    )
    parser.add_argument("--config", type=Path, default=None, help=f"default {paths.DEFAULT_CONFIG}")
    parser.add_argument("--runtime-dir", type=Path, default=None, help=f"default {paths.DEFAULT_RUNTIME_DIR}")
    parser.add_argument("--state-dir", type=Path, default=None, help=f"default {paths.DEFAULT_STATE_DIR}")
    parser.add_argument(
        "--helper",
        choices=("auto", "connect", "spawn"),
        default="auto",
        help="auto: connect if gpu.sock answers, else start one (default)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--version", action="version", version=f"nodewarden {__version__}")
    return parser


def main(argv: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run the agent until SIGTERM or SIGINT; the exit code.

    Args:
        argv: command line without the program name.
        clock: another clock for the twin; the machine's own by default.
    """
    args = _parser().parse_args(argv)
    logs.configure(args.log_level)
    config_path = args.config if args.config is not None else paths.config_path()
    try:
        config = load_config(config_path)
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(problem + "\n")
        log.error("config_rejected", path=str(config_path), mistakes=len(error.problems))
        return EX_CONFIG
    for warning in config.warnings:
        log.warning("config_warning", detail=warning)
    runtime_dir = args.runtime_dir if args.runtime_dir is not None else paths.runtime_dir()
    state = StateFile(args.state_dir if args.state_dir is not None else paths.state_dir())
    try:
        state.lock()
        prepare_folders(runtime_dir)
        state.read()
        return asyncio.run(_serve(config, config_path, runtime_dir, state, args.helper, clock or BootClock()))
    except AlreadyRunningError as error:
        log.error("already_running", detail=str(error))
        return EX_TEMPFAIL
    except (NodewardenError, OSError) as error:
        log.error("start_failed", detail=str(error))
        return EX_SOFTWARE


async def _serve(
    config: Config, config_path: Path, runtime_dir: Path, state: StateFile, helper_mode: str, clock: Clock
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(config, config_path, runtime_dir, state, clock)
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    await agent.open_sockets()
    helper: HelperProcess | None = None
    try:
        await agent.wait_out_start_delay(stop)
        if helper_mode == "spawn" or (helper_mode == "auto" and not helper_answers(paths.gpu_socket(runtime_dir))):
            helper = HelperProcess(runtime_dir, clock)
        await _run_until(stop, agent, helper)
    finally:
        await agent.close()
        if helper is not None:
            await helper.stop()
        state.lived()
    await _leave_hanging_threads()
    return 0


async def _leave_hanging_threads() -> None:
    """End here if a thread hangs, in a name lookup or a TLS handshake: `asyncio.run` would wait for it."""
    closing = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait({closing}, timeout=THREADS_S)
    if not closing.done():
        log.info("threads_left_behind")
        sys.stderr.flush()
        os._exit(0)


async def _run_until(stop: asyncio.Event, agent: Agent, helper: HelperProcess | None) -> None:
    """All loops; a loop that ends by itself is a bug and ends the agent, so that systemd starts a fresh one."""
    if stop.is_set():
        return
    tasks = [] if helper is None else [asyncio.create_task(helper.keep_running(), name="helper process")]
    tasks.append(asyncio.create_task(agent.run(helper_expected=helper is not None), name="agent"))
    stopped = asyncio.create_task(stop.wait(), name="stop")
    done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, stopped):
        task.cancel()
    await asyncio.gather(*tasks, stopped, return_exceptions=True)
    for task in done - {stopped}:
        task.result()  # raises what ended it


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    os._exit(130)
