"""The record of what was decided and why: SQLite in its own thread, so that a slow or full disk never stops a loop.

Every entry is one row of `entries`; `kind` is "event" (something happened), "decision" (setpoints changed, with the
readings they came from) or "action" (a person's request, with uid, pid and reason). Commits follow each batch: kill -9
loses nothing committed, power loss may lose the last second. When the disk is full the journal is degraded, keeps the
newest entries in memory and tries again; a damaged file is moved aside, never deleted, and a new one is begun.
"""

import contextlib
import json
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from nodewarden.model.events import Event

log = structlog.get_logger("nodewarden.journal")
events = structlog.get_logger("nodewarden.events")

Kind = Literal["event", "decision", "action"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    wall_s REAL NOT NULL,
    boot_s REAL NOT NULL,
    kind TEXT NOT NULL,
    code TEXT NOT NULL,
    uuid TEXT,
    text TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_wall ON entries (wall_s);
"""
_COLUMNS = "id, wall_s, boot_s, kind, code, uuid, text, data"
_WAITING_MAX = 10_000  # entries kept in memory while the disk refuses; the oldest go first
_RETRY_S = 10.0
_PRUNE_EVERY = 1_000


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `wall_s` is Unix time, `boot_s` CLOCK_BOOTTIME; `data` is a plain dict of facts."""

    wall_s: float
    boot_s: float
    kind: Kind
    code: str
    uuid: str | None
    text: str
    data: dict[str, Any] = {}


class Journal:
    """Append from the event loop, never waits; a thread writes.

    Args:
        path: the database file; its directory exists.
        max_age_s: older entries are pruned.
        max_entries: beyond these the oldest are pruned.
        on_problem: called from the writer thread when the journal becomes degraded (a reason) or well again (None).
    """

    def __init__(
        self,
        path: Path,
        *,
        max_age_s: float = 90 * 86400,
        max_entries: int = 200_000,
        on_problem: Callable[[str | None], None] | None = None,
    ) -> None:
        self.path = path
        self.problem: str | None = None
        self.dropped = 0
        self._max_age_s = max_age_s
        self._max_entries = max_entries
        self._on_problem = on_problem
        self._queue: queue.SimpleQueue[Entry | threading.Event | None] = queue.SimpleQueue()
        self._waiting: deque[Entry] = deque()
        self._recent: deque[Entry] = deque(maxlen=500)
        self._written = 0
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, entry: Entry) -> None:
        """Hand one entry to the writer; returns at once."""
        self._recent.append(entry)
        self._queue.put(entry)

    def recent(self) -> list[Entry]:
        """The newest entries of this process, oldest first, whatever the disk says."""
        return list(self._recent)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until everything appended so far was tried; True when the journal is well. Not for the event loop."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s) and self.problem is None

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting and stop the thread; gives up after `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    # The writer thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_at_s = 0.0
        while True:
            try:
                item = self._queue.get(timeout=_RETRY_S if self._waiting else None)
            except queue.Empty:
                item = threading.Event()  # nothing new: only try again
            batch = [item]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            for thing in batch:
                if isinstance(thing, Entry):
                    if len(self._waiting) >= _WAITING_MAX:
                        self._waiting.popleft()
                        self.dropped += 1
                    self._waiting.append(thing)
            stopping = None in batch
            if self._waiting and (stopping or self.problem is None or time.monotonic() >= retry_at_s):
                try:
                    self._write()
                except Exception as error:  # noqa: BLE001 - this thread is the journal: nothing may end it
                    retry_at_s = time.monotonic() + _RETRY_S
                    self._failed(error)
                else:
                    self._set_problem(None)
            for thing in batch:
                if isinstance(thing, threading.Event):
                    thing.set()
            if stopping:
                self._close()
                return

    def _write(self) -> None:
        if self._db is not None and _file_of(self.path) != self._file:
            self._close()  # somebody removed or replaced the file: what is written to the open one is lost
        db = self._db if self._db is not None else self._open()
        rows = [_row(entry) for entry in self._waiting]
        with db:
            db.executemany(
                "INSERT INTO entries (wall_s, boot_s, kind, code, uuid, text, data) VALUES (?, ?, ?, ?, ?, ?, ?)", rows
            )
        self._waiting.clear()
        self._written += len(rows)
        if self._written >= _PRUNE_EVERY:
            self._written = 0
            self._prune(db)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=2.0)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(_SCHEMA)
            db.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY id DESC LIMIT 1").fetchall()  # noqa: S608
            self._prune(db)
        except BaseException:
            db.close()
            raise
        self._db, self._file = db, _file_of(self.path)
        return db

    def _prune(self, db: sqlite3.Connection) -> None:
        with db:
            db.execute("DELETE FROM entries WHERE wall_s < ?", (time.time() - self._max_age_s,))
            db.execute(
                "DELETE FROM entries WHERE id <= (SELECT max(id) FROM entries) - ?",
                (self._max_entries,),
            )

    def _failed(self, error: Exception) -> None:
        self._close()
        text = f"{self.path}: {error}"
        if isinstance(error, sqlite3.DatabaseError) and _is_damage(error):
            aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
            try:
                self.path.rename(aside)
                for suffix in ("-wal", "-shm"):
                    extra = self.path.with_name(self.path.name + suffix)
                    if extra.exists():
                        extra.rename(aside.with_name(aside.name + suffix))
                self._write()
            except (sqlite3.Error, OSError) as second:
                text = f"{text}; moving it aside failed: {second}"
            else:
                log.warning("journal_replaced", damaged=str(aside), reason=str(error))
                return
        self._set_problem(text)

    def _set_problem(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        if problem is None:
            log.info("journal_recovered", path=str(self.path))
        elif self.problem is None:
            log.warning("journal_degraded", reason=problem)
        self.problem = problem
        if self._on_problem is not None:
            self._on_problem(problem)

    def _close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _row(entry: Entry) -> tuple[float, float, str, str, str | None, str, str]:
    """What SQLite takes, whatever a part of the agent has put into the entry: one odd text must not stop the others."""
    try:
        data = json.dumps(entry.data, allow_nan=False, default=str)
    except (TypeError, ValueError):
        data = json.dumps({"not_json": repr(entry.data)})
    uuid = None if entry.uuid is None else _storable(entry.uuid)
    return entry.wall_s, entry.boot_s, entry.kind, _storable(entry.code), uuid, _storable(entry.text), data


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """True when the file itself is broken, not the disk full, locked or read-only."""
    code = getattr(error, "sqlite_errorcode", None)
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or (
        code == sqlite3.SQLITE_ERROR and "no such column" in str(error)
    )


def read_entries(
    path: Path,
    *,
    since_wall_s: float = 0.0,
    limit: int = 200,
    kinds: tuple[Kind, ...] = ("event", "action"),
    after_id: int = 0,
) -> list[tuple[int, Entry]]:
    """The newest entries of a journal file, oldest first, with their ids; read-only, also while the daemon is down.

    A missing or unreadable file gives an empty list. Blocking: call it in a thread from the event loop.
    """
    if not path.exists():
        return []
    marks = ",".join("?" for _ in kinds)
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM entries WHERE wall_s >= ? AND id > ? AND kind IN ({marks})"  # noqa: S608
                " ORDER BY id DESC LIMIT ?",
                (since_wall_s, after_id, *kinds, limit),
            ).fetchall()
    except sqlite3.Error as error:
        log.warning("journal_unreadable", path=str(path), reason=str(error))
        return []
    return [(row[0], _entry(row)) for row in reversed(rows)]


def _entry(row: tuple[Any, ...]) -> Entry:
    try:
        data = json.loads(row[7])
    except (TypeError, ValueError):  # a damaged page
        data = {"damaged": str(row[7])}
    return Entry(wall_s=row[1], boot_s=row[2], kind=row[3], code=row[4], uuid=row[5], text=row[6], data=data)


class Recorder:
    """Turns what happens into journal entries and log lines, with both clocks.

    Args:
        journal: where entries go.
        now_s, wall_s: CLOCK_BOOTTIME and Unix seconds.

    Attributes:
        listeners: told of each event as well; must not block or raise.
    """

    def __init__(self, journal: Journal, now_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._journal = journal
        self._now_s = now_s
        self._wall_s = wall_s
        self.listeners: list[Callable[[Event], None]] = []

    def event(self, event: Event) -> None:
        """Something happened."""
        events.info(event.code, uuid=event.uuid, detail=event.text)
        for listener in self.listeners:
            listener(event)
        self._append("event", event.code, event.uuid, event.text, {})

    def decision(self, text: str, data: dict[str, Any]) -> None:
        """Setpoints changed; `data` holds them and the readings they came from."""
        self._append("decision", "setpoints_changed", None, text, data)

    def action(self, verb: str, text: str, *, uid: int, pid: int, reason: str, data: dict[str, Any]) -> None:
        """A person asked for a change."""
        events.info("action", verb=verb, uid=uid, pid=pid, reason=reason, detail=text)
        self._append("action", verb, None, text, {"uid": uid, "pid": pid, "reason": reason, **data})

    def _append(self, kind: Kind, code: str, uuid: str | None, text: str, data: dict[str, Any]) -> None:
        self._journal.append(
            Entry(wall_s=self._wall_s(), boot_s=self._now_s(), kind=kind, code=code, uuid=uuid, text=text, data=data)
        )
