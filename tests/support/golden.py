"""Files that a change to what people see must change too: compared here, rewritten with NODEWARDEN_UPDATE_GOLDEN=1."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def assert_golden(name: str, text: str) -> None:
    """`text` is what tests/golden/`name` holds."""
    path = FOLDER / name
    if os.environ.get("NODEWARDEN_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "run with NODEWARDEN_UPDATE_GOLDEN=1 and look at the difference"
