"""Where the recordings of hosts are."""

import os
from pathlib import Path

from support.real import REPOSITORY, require


def recorded_host() -> Path:
    """A tree of /sys put together from several real hosts."""
    root = REPOSITORY.parent / "shared" / "sysfs" / "procfs_fixtures"
    if "NODEWARDEN_RECORDINGS" in os.environ:  # that of the PDUs is beside it
        root = Path(os.environ["NODEWARDEN_RECORDINGS"]).parent / "sysfs" / "procfs_fixtures"
    require(root.is_dir(), f"the recorded host {root}")
    return root
