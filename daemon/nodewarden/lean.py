"""Imports structlog without rich, for the daemon: 4 MB and 30 ms that only tracebacks on a terminal would need."""

import sys


def import_structlog() -> None:
    """Import it now, unless rich is there already. Afterwards rich can be imported as ever."""
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # structlog takes this for "not installed"
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        del sys.modules["rich"]


import_structlog()
