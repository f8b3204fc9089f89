"""Logging: structlog to journald with fields where systemd runs us, otherwise one readable line per event on stderr.

Events are past tense with facts as keys: `log.warning("source_lost", source="pdu/a", reason="timeout")`. Secrets never
get here: the configuration hands them on as objects that print as "***".
"""

import logging
import os
import socket
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

_JOURNAL = "/run/systemd/journal/socket"
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for a process of ours.

    Args:
        level: the lowest level that is written.
        stream: where lines go when journald does not take them; stderr by default.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    out = stream if stream is not None else sys.stderr
    writer = _Journal(out) if _under_journald(out) else _Lines(out)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.UnicodeDecoder(),
            writer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Named,
        cache_logger_on_first_use=True,
    )
    handler = _Bridge(writer)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _under_journald(out: TextIO) -> bool:
    """True when systemd connected this stream to the journal (its device:inode is in $JOURNAL_STREAM)."""
    wanted = os.environ.get("JOURNAL_STREAM", "")
    try:
        stat = os.fstat(out.fileno())
    except (OSError, ValueError):
        return False
    return wanted == f"{stat.st_dev}:{stat.st_ino}"


class _Named:
    """The bound logger's innermost object: nothing to do, the last processor writes."""

    def __init__(self, name: str = "nodewarden") -> None:
        self.name = name

    def _written(self, _message: object = None) -> None:
        return None

    debug = info = warning = error = critical = exception = msg = _written


class _Lines:
    """One line per event: `warning source_lost source=pdu/a reason=timeout`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
        level, name = event.pop("level", "info"), event.pop("event", "")
        trace = event.pop("exception", None)
        facts = " ".join(f"{key}={_quoted(value)}" for key, value in event.items() if value not in {None, ""})
        line = f"{level:<7} {getattr(logger, 'name', 'nodewarden')}: {name} {facts}".rstrip()
        text = line if trace is None else f"{line}\n{trace}"
        try:
            self._out.write(text + "\n")
            self._out.flush()
        except (OSError, ValueError):  # a closed or full stderr must never stop a loop
            return ""
        return ""


class _Journal:
    """journald's native protocol: one datagram per event, every fact a field of its own."""

    def __init__(self, out: TextIO) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._fallback = _Lines(out)

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        kept = dict(event)
        level, name = event.pop("level", "info"), str(event.pop("event", ""))
        trace = event.pop("exception", None)
        facts = " ".join(f"{key}={_quoted(value)}" for key, value in event.items() if value not in {None, ""})
        fields = {
            "MESSAGE": f"{name} {facts}".rstrip() if trace is None else f"{name} {facts}\n{trace}",
            "PRIORITY": str(_PRIORITY.get(str(level), 6)),
            "SYSLOG_IDENTIFIER": "nodewarden",
            "NODEWARDEN_EVENT": name,
            "NODEWARDEN_LOGGER": getattr(logger, "name", "nodewarden"),
            **{f"NODEWARDEN_{_field(key)}": str(value) for key, value in event.items() if value is not None},
        }
        try:
            self._socket.sendto(b"".join(_encoded(key, value) for key, value in fields.items()), _JOURNAL)
        except OSError:  # journald restarting or full: the line still reaches stderr
            return self._fallback(logger, method, kept)
        return ""


def _field(key: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in key.upper())


def _encoded(key: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if b"\n" in data:
        return key.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return key.encode() + b"=" + data + b"\n"


def _quoted(value: Any) -> str:
    text = str(value)
    return repr(text) if any(letter.isspace() for letter in text) else text


class _Bridge(logging.Handler):
    """Lines of libraries that use the standard library's logging, through the same writer."""

    def __init__(self, writer: _Lines | _Journal) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record on."""
        event: dict[str, Any] = {"event": record.getMessage(), "level": record.levelname.lower()}
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = logging.Formatter().formatException(record.exc_info)
        self._writer(_Named(record.name), record.levelname.lower(), event)
