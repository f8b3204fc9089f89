"""`nodectl` as a real process, as a shell would start it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

COMMAND = (sys.executable, "-m", "nodewarden.cli.main")


def nodectl(
    runtime: Path | None, *words: str, env: Mapping[str, str | None] | None = None, timeout_s: float = 30, **options
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; a None in `env` removes a name."""
    where = ["--runtime-dir", str(runtime)] if runtime is not None else []
    merged: dict[str, str | None] = {**os.environ, "PYTHONWARNINGS": None, **(env or {})}
    return subprocess.run(
        [*COMMAND, *where, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in merged.items() if value is not None},
        **options,
    )
