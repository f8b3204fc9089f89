"""Where things lie on the machine: fixed names, and the environment variables that move them."""

import contextlib
import os
from pathlib import Path

RUNTIME_DIR_VARIABLE = "NODEWARDEN_RUNTIME_DIR"
STATE_DIR_VARIABLE = "NODEWARDEN_STATE_DIR"
CONFIG_VARIABLE = "NODEWARDEN_CONFIG"
HOST_ROOT_VARIABLE = "NODEWARDEN_HOST_ROOT"

DEFAULT_RUNTIME_DIR = "/run/nodewarden"
DEFAULT_STATE_DIR = "/var/lib/nodewarden"
DEFAULT_CONFIG = "/etc/nodewarden/nodewarden.toml"


def runtime_dir() -> Path:
    """Sockets and the ledger."""
    return Path(os.environ.get(RUNTIME_DIR_VARIABLE) or DEFAULT_RUNTIME_DIR)


def state_dir() -> Path:
    """What survives a reboot: the journal, the armed state."""
    return Path(os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR)


def host_root() -> Path:
    """Where this node's /sys and /proc are read; a container mounts them elsewhere, such as below /host."""
    return Path(os.environ.get(HOST_ROOT_VARIABLE) or "/")


def state_link(runtime: Path) -> Path:
    """A link that the agent sets to its state directory, so that others find it when the agent is gone."""
    return runtime / "control" / "state"


def state_dir_of(runtime: Path) -> Path:
    """State directory of the agent that uses this runtime directory: from the environment, else as the agent said."""
    if not os.environ.get(STATE_DIR_VARIABLE):
        with contextlib.suppress(OSError):
            return state_link(runtime).readlink()
    return state_dir()


def config_path() -> Path:
    """The configuration file."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)


def control_socket(runtime: Path) -> Path:
    """Where `nodectl` talks to the agent."""
    return runtime / "control" / "control.sock"


def job_socket(runtime: Path) -> Path:
    """Where training processes talk to the agent."""
    return runtime / "job" / "job.sock"


def gpu_socket(runtime: Path) -> Path:
    """Where the agent talks to the GPU helper."""
    return runtime / "gpu.sock"


def ledger_file(runtime: Path) -> Path:
    """The caps in force and the limits before them."""
    return runtime / "gpu-ledger"


def journal_file(state: Path) -> Path:
    """What was decided and why."""
    return state / "journal.db"
