"""Less memory for the helper: imports without what its libraries import for others. Imported before msgspec is.

A fifth of its memory would be typing_extensions (and with it inspect, ast, dis) and what ctypes.util needs to look for
compilers; and the C library would keep an arena of its own for each thread.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import ModuleType

_M_ARENA_MAX = -8  # malloc.h


@contextlib.contextmanager
def without(name: str, instead: ModuleType | None = None) -> Iterator[None]:
    """Whoever imports this module meanwhile gets `instead`, or finds none; no effect where it is there already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = instead  # type: ignore[assignment]  # None: Python takes it for "not installed"
    try:
        yield
    finally:
        del sys.modules[name]


def one_arena() -> None:
    """One arena for all threads; before they are started. Only where the C library has it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


with without("typing_extensions"):
    import msgspec  # noqa: F401
