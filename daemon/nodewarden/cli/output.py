"""How text leaves `nodectl`: colour only where it is wanted, symbols only where they can be shown, no noise in pipes.

No library is needed for a table, and `nodectl status` must start fast.
"""

import contextlib
import json
import os
import shutil
import sys
import textwrap
import unicodedata
from typing import Any

from nodewarden.cli.exits import INTERNAL, CliError

_STYLES = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "warning": "33",
    "critical": "1;31",
    "info": "36",
    "head": "1;2",
    "ok": "1;32",
    "degraded": "1;33",
}
_ASCII = str.maketrans("\u2013\u2026\u2192\u2716\u25b2\u25cf\u00b7", "-~>x!*-", "\u00b0")  # and no degree sign
_PIPE_WIDTH = 100


class Screen:
    """Where text goes, and what can be shown there.

    Attributes:
        width: columns.
        colour: escape sequences are welcome.
        unicode: more than ASCII can be shown.
    """

    def __init__(self, *, width: int, colour: bool, unicode: bool) -> None:
        self.width = max(20, width)
        self.colour = colour
        self.unicode = unicode

    def paint(self, text: str, style: str) -> str:
        """The text in a style of `_STYLES`, or as it is."""
        return f"\033[{_STYLES[style]}m{text}\033[0m" if self.colour and style and text else text

    def fit(self, text: str) -> str:
        """Only symbols that can be shown."""
        if self.unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode()

    def wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """Paragraph lines of at most `width` columns."""
        return textwrap.wrap(
            clean(text), self.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        )


def screen() -> Screen:
    """What stdout is."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    term = os.environ.get("TERM", "")
    colour = is_terminal and term not in {"", "dumb"} and not os.environ.get("NO_COLOR")
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() and int(columns) > 0 else 0
    if not width:
        width = shutil.get_terminal_size((80, 24)).columns if is_terminal else _PIPE_WIDTH
    ctype = os.environ.get("LC_CTYPE", "")
    if ctype == "C.UTF-8" and not os.environ.get("LANG", "").upper().endswith("UTF-8"):
        ctype = ""  # put there by Python itself where the locale was C
    locale = os.environ.get("LC_ALL") or ctype or os.environ.get("LANG") or "C"
    shows = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "") == "utf8"
    return Screen(width=width, colour=colour, unicode=shows and locale not in {"C", "POSIX"})


def emit(text: str) -> None:
    """Print to stdout; a reader that has left is no error, and neither is a stdout that was closed from the start."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        leave_quietly()
    except OSError as error:
        leave_quietly()
        raise CliError(f"the output cannot be written: {error.strerror}", INTERNAL) from None


def emit_json(document: Any) -> None:
    """Print one JSON document (ASCII, so that no locale can break it)."""
    emit(json.dumps(document, indent=2))


def say(text: str) -> None:
    """A message for the person, on stderr."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed stderr is None
        sys.stderr.write(clean(text, keep_newlines=True).encode("ascii", "replace").decode() + "\n")
        sys.stderr.flush()


def leave_quietly() -> None:
    """After a broken pipe nothing more can be said; what Python flushes at exit goes nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """Names from jobs and devices may hold anything; escape sequences must not reach the terminal."""
    return "".join(c if c.isprintable() or (keep_newlines and c == "\n") else "?" for c in text)


def columns_of(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, width: int) -> str:
    """At most `width` columns, with a sign that something is missing."""
    if columns_of(text) <= width:
        return text
    out, used = "", 0
    for character in text:
        used += columns_of(character)
        if used > width - 1:
            break
        out += character
    return out + "…" if width > 0 else ""
