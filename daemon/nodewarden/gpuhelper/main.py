"""The command `nodewarden-gpu`: the privileged GPU helper on the real library."""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from nodewarden.gpuhelper import lean  # isort: skip - before anything that imports msgspec
from nodewarden.clock import BootClock
from nodewarden.devices.kernel_log import KERNEL_LOG
from nodewarden.devices.nvml import NvmlLibrary
from nodewarden.gpuhelper.locks import DEFAULT_LOCK_DIR
from nodewarden.gpuhelper.restore import restore_once
from nodewarden.gpuhelper.server import serve

DEFAULT_RUNTIME_DIR = Path("/run/nodewarden")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Usage errors end with 64, as for the other commands: the service is not restarted for them."""
        self.print_usage(sys.stderr)
        self.exit(os.EX_USAGE, f"{self.prog}: {message}\n")


def _arguments() -> argparse.Namespace:
    parser = _Parser(
        prog="nodewarden-gpu",
        description="Reads GPUs and holds their power caps for the nodewarden agent. Without --restore it serves "
        "gpu.sock in the runtime directory until it is stopped, and restores every cap then.",
    )
    runtime_dir = os.environ.get("NODEWARDEN_RUNTIME_DIR") or DEFAULT_RUNTIME_DIR
    parser.add_argument("--runtime-dir", type=Path, default=Path(runtime_dir), help="default: %(default)s")
    parser.add_argument("--lock-dir", type=Path, default=DEFAULT_LOCK_DIR, help="default: %(default)s")
    parser.add_argument(
        "--kernel-log",
        type=Path,
        default=Path(os.environ.get("NODEWARDEN_KERNEL_LOG") or KERNEL_LOG),
        help="where the kernel's messages are read; default: %(default)s",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path(os.environ.get("NODEWARDEN_HOST_ROOT") or "/"),
        help="where /sys is found, for the energy counters of the processors; default: %(default)s",
    )
    parser.add_argument(
        "--service",
        action="store_true",
        default=bool(os.environ.get("NOTIFY_SOCKET")),
        help="stay without an agent, and serve the user nodewarden (default under a service manager)",
    )
    parser.add_argument("--restore", action="store_true", help="restore all caps in the ledger, if no helper lives")
    parser.add_argument("--force", action="store_true", help="with --restore: also caps that protect something")
    arguments = parser.parse_args()
    if arguments.force and not arguments.restore:
        parser.error("--force goes with --restore")
    return arguments


def main() -> int:
    """Run the helper; the process ends here, even when a thread hangs in the driver."""
    arguments = _arguments()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    lean.one_arena()
    library = NvmlLibrary()
    if arguments.restore:
        status = restore_once(
            library,
            runtime_dir=arguments.runtime_dir,
            lock_dir=arguments.lock_dir,
            clock=BootClock(),
            force=arguments.force,
        )
    else:
        try:
            status = serve(
                library,
                runtime_dir=arguments.runtime_dir,
                lock_dir=arguments.lock_dir,
                clock=BootClock(),
                service=arguments.service,
                kernel_log=arguments.kernel_log,
                host_root=arguments.host_root,
            )
        except OSError as error:
            print(f"nodewarden-gpu: {error}", file=sys.stderr)  # noqa: T201 - there may be no log yet
            status = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
