"""What a test may need from the machine: skipped where it is missing, a failure where all must be there."""

import os
import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def strict() -> bool:
    """NODEWARDEN_STRICT=1: nothing may be missing."""
    return os.environ.get("NODEWARDEN_STRICT") == "1"


def require(present: object, what: str) -> None:
    """Skips the test when `present` is false, and fails it instead with NODEWARDEN_STRICT=1."""
    if present:
        return
    if strict():
        pytest.fail(f"{what} is missing, and NODEWARDEN_STRICT=1 allows nothing to be missing", pytrace=False)
    pytest.skip(f"{what} is missing")


def require_program(name: str) -> str:
    """The path of a program, looked for in PATH and where Debian keeps programs for root."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    require(path, f"the program {name} (scripts/test installs it)")
    assert path is not None
    return path


def require_root() -> None:
    """For what only root can start, such as a container."""
    require(os.geteuid() == 0, "root")


def recordings_dir() -> Path:
    """The folder with the recordings of real PDUs."""
    folder = Path(os.environ.get("NODEWARDEN_RECORDINGS", REPOSITORY.parent / "shared" / "snmp"))
    require((folder / "ORACLE.json").is_file(), f"{folder}/ORACLE.json (NODEWARDEN_RECORDINGS names the folder)")
    return folder
