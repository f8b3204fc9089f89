"""What the daemon does not load: memory on every node of a fleet, and time at every start."""

import subprocess
import sys


def loaded_by(module: str) -> set[str]:
    """Top-level packages in a fresh interpreter after an import."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_agent_loads_neither_terminal_nor_device_libraries() -> None:
    loaded = loaded_by("nodewarden.agent")
    assert {"structlog", "msgspec", "uvicorn"} <= loaded
    assert not loaded & {"rich", "pygments", "pysnmp", "pynvml", "numpy", "aiohttp"}


def test_the_helper_loads_no_network_and_no_event_loop() -> None:
    loaded = loaded_by("nodewarden.gpuhelper.main")
    assert "pynvml" not in loaded, "opened when the driver is looked for"
    assert not loaded & {"asyncio", "uvicorn", "starlette", "pysnmp", "structlog", "rich", "click", "sqlite3"}


def test_rich_can_still_be_imported_after_the_agent() -> None:
    code = "import nodewarden.agent, rich.console; print(rich.console.Console.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Console\n"
