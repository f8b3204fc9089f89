"""The same seed gives the same decisions on another version of Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nodewarden.sim import trials

DAEMON = Path(trials.__file__).parents[2]
PROGRAM = """
import json, sys
from nodewarden.sim import trials
print(json.dumps([trials.run_random((2026, n)).outcome.decisions_sha256 for n in (3, 9)]))
"""


def other_python() -> str:
    """Another version that has msgspec; `NODEWARDEN_OTHER_PYTHON` names one that is not found on the path."""
    for minor in (14, 13, 12):
        found = shutil.which(f"python3.{minor}")
        if found is None or minor == sys.version_info.minor:
            continue
        done = subprocess.run(
            [found, "-c", "import nodewarden.sim.trials"],
            env={"PYTHONPATH": str(DAEMON)},
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return found
    pytest.skip("no other version of Python here that has msgspec")


def test_another_version_of_python_decides_the_same_to_the_bit() -> None:
    python = os.environ.get("NODEWARDEN_OTHER_PYTHON") or other_python()
    done = subprocess.run(
        [python, "-c", PROGRAM], env={"PYTHONPATH": str(DAEMON)}, capture_output=True, check=True, text=True
    )
    here = [trials.run_random((2026, number)).outcome.decisions_sha256 for number in (3, 9)]
    assert json.loads(done.stdout) == here
