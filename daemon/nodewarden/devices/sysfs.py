"""The one door to sysfs and procfs: small files read by path below a root, so that none can hold up anything else.

A file of sysfs is a call into a driver: it can fail alone, hang for ever, or vanish. Each is read by itself; one whose
read hangs is left to its thread, and is not asked again until that comes back.
"""

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from nodewarden.model.readings import Absent, Failed, Reading

Number = Reading[float] | Absent | Failed

MAX_FILE_BYTES = 4096
MAX_ENTRIES = 4096
MAX_HUNG_IN_GROUP = 2
"""Past this a whole chip, card or processor is left alone: each file that hangs costs a thread."""
MAX_COUNT = 2.0**62
"""No counter gets there; what is near 2^63 or 2^64 says "blank" (F10)."""
_GROUP_DEPTH = 5
_DIGITS = re.compile(r"(\d+)", re.ASCII)
# What a channel answers that is not there, or not now: no trouble, and no value.
_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENODATA, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTDIR}
)


class AbandonedError(Exception):
    """The reader was given up for hung while it read this; whoever read must end here and touch nothing."""


class Sysfs:
    """Files below `root`, for one thread at a time; `abandon` gives the thread up and lets another go on.

    Attributes:
        troubles: since when a file fails, by path.
        rejected: how often a value was not believed, by what it is.
        hung: paths whose read has not come back.
        calls: how many reads were begun.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = str(root).rstrip("/")
        self.troubles: dict[str, float] = {}
        self.rejected: dict[str, int] = {}
        self.hung: set[str] = set()
        self.calls = 0
        self._lock = threading.Lock()
        self._owner = 0
        self._at: str | None = None

    def begin(self) -> None:
        """The calling thread reads from now on."""
        with self._lock:
            self._owner, self._at = threading.get_ident(), None

    def abandon(self) -> str | None:
        """Give up the thread that reads now; the path that holds it, or None where it was between two."""
        with self._lock:
            path, self._owner, self._at = self._at, 0, None
            if path is not None:
                self.hung.add(path)
            return path

    def _call(self, path: str, call: Callable[[str], str | list[str]]) -> str | list[str]:
        me = threading.get_ident()
        with self._lock:
            if self._owner != me:
                raise AbandonedError(path)
            if self._refuses(path):
                raise TimeoutError(errno.ETIMEDOUT, "the read before has not come back", path)
            self._at = path
            self.calls += 1
        found: str | list[str] = ""
        failed: OSError | None = None
        try:
            found = call(self.root + path)
        except OSError as error:
            failed = error
        with self._lock:
            if self._owner != me:
                self.hung.discard(path)
                raise AbandonedError(path)
            self._at = None
        if failed is not None:
            raise failed
        return found

    def is_hung(self, path: str) -> bool:
        """Whether a read of this file, or of too much of its chip or card, has not come back."""
        with self._lock:
            return self._refuses(path)

    def _refuses(self, path: str) -> bool:
        if not self.hung:
            return False
        group = _group(path)
        return path in self.hung or sum(_group(hung) == group for hung in self.hung) >= MAX_HUNG_IN_GROUP

    def text(self, path: str) -> str:
        """What the file holds, without the white space around it. Raises OSError."""
        found = self._call(path, _read)
        assert isinstance(found, str)
        return found

    def text_or(self, path: str, otherwise: str = "") -> str:
        """The same; `otherwise` where it cannot be read or is empty."""
        try:
            return self.text(path) or otherwise
        except OSError:
            return otherwise

    def names(self, path: str) -> list[str]:
        """Names in a folder, in the order of their numbers; empty where there is none that can be read."""
        try:
            found = self._call(path, _list)
        except OSError:
            return []
        assert isinstance(found, list)
        return sorted(found, key=natural)

    def target(self, path: str) -> str:
        """Where a path leads once all links are followed, below the root; itself where they lead in a circle."""
        try:
            found = self._call(path, os.path.realpath)
        except OSError:
            return path
        assert isinstance(found, str)
        top = os.path.realpath(self.root or "/").rstrip("/")
        return found.removeprefix(top) if found.startswith(f"{top}/") else path

    def number(
        self, path: str, what: str, now_s: float, *, per: float = 1.0, low: float = 0.0, high: float = MAX_COUNT
    ) -> Number:
        """The number that a file holds, divided by `per`, or why there is none.

        Args:
            path: below the root.
            what: what the value is, for the count of those that are not believed.
            now_s: the time it is stamped with.
            per: how many of the file's units make one of the quantity's.
            low: the least that is believed, in the unit of the quantity.
            high: the most; anything beyond is a marker, dropped and counted (F10, F20).
        """
        try:
            text = self.text(path)
            if text.startswith("N/A"):  # such as "N/A (no PMA)"
                return Absent("not_supported")
            value = _integer(text) / per
        except OSError as error:
            return self._missing(path, error, now_s)
        except ValueError:
            self.rejected[what] = self.rejected.get(what, 0) + 1
            return Failed("not_understood", self.troubles.setdefault(path, now_s))
        if not low <= value <= high:
            self.rejected[what] = self.rejected.get(what, 0) + 1
            return Failed("implausible", self.troubles.setdefault(path, now_s))
        self.troubles.pop(path, None)
        return Reading(value, now_s)

    def _missing(self, path: str, error: OSError, now_s: float) -> Number:
        if error.errno in {errno.EACCES, errno.EPERM}:
            return Absent("no_permission")
        if error.errno in _NOT_THERE:
            self.troubles.pop(path, None)
            return Absent("not_supported")
        reason = "hung" if isinstance(error, TimeoutError) else "io_error"
        return Failed(reason, self.troubles.setdefault(path, now_s))


def _group(path: str) -> str:
    """The chip, card or processor that a file belongs to, such as "/sys/class/hwmon/hwmon3"."""
    return "/".join(path.split("/")[:_GROUP_DEPTH])


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts "cpu10" after "cpu9"."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part[:18]), "") if n % 2 else (1, 0, part) for n, part in enumerate(parts))


def _integer(text: str) -> int:
    """An integer as sysfs writes them: ASCII digits, maybe a sign; nothing else that Python would take."""
    if not text.isascii() or "_" in text or len(text) > 24:
        raise ValueError(text[:24])
    return int(text)


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        return os.read(descriptor, MAX_FILE_BYTES).decode("utf-8", "replace").strip()
    finally:
        os.close(descriptor)


def _list(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)]
