"""What all threads of the helper share about caps: the ledger under one lock, and the events nobody has seen yet."""

import contextlib
import logging
import threading
from collections import deque

import msgspec

from nodewarden.clock import Clock
from nodewarden.gpuhelper.ledger import AGENT_KEY, Ledger, LedgerError, Record
from nodewarden.gpuhelper.wire import HelperEvent, LedgerEntry

log = logging.getLogger("nodewarden.gpu")

MAX_EVENTS = 128


class EventLog:
    """Events since the agent last took them, bounded; each is logged as it happens, so none is lost to the journal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[HelperEvent] = deque(maxlen=MAX_EVENTS)

    def add(self, code: str, uuid: str | None, text: str) -> None:
        """Something that the helper did or saw by itself."""
        log.warning("%s uuid=%s text=%r", code, uuid, text)
        self._events.append(HelperEvent(code=code, uuid=uuid, text=text[:400], at_s=self._clock.now_s()))

    def take(self) -> list[HelperEvent]:
        """All since the last call."""
        events = []
        with contextlib.suppress(IndexError):  # another thread may take them at the same time
            while True:
                events.append(self._events.popleft())
        return events


class News:
    """Counts what has changed in the answer to a hello, so that it need not be asked for again and again. Any thread.

    What only time changes (a call that begins to hang) is not counted.
    """

    def __init__(self) -> None:
        self.number = 1

    def add(self) -> None:
        """Something is different; two at once may count as one."""
        self.number += 1


class Book:
    """The ledger, for any thread. Records are handed out as copies and put back whole."""

    def __init__(self, ledger: Ledger, clock: Clock, events: EventLog, news: News) -> None:
        self._ledger = ledger
        self._clock = clock
        self._events = events
        self._news = news
        self._lock = threading.Lock()
        self.problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the last write reached the file."""
        return self.problem is None

    def open(self) -> list[LedgerEntry]:
        """Open the file, or note why not. Returns the entries of other boots, which are closed now."""
        with self._lock:
            try:
                self._ledger.open()
            except LedgerError as error:
                self._note(str(error))
            else:
                self._note(None)
            closed, self._ledger.of_other_boots = self._ledger.of_other_boots, []
            return closed

    def close(self) -> None:
        """Close the file, at the end."""
        with self._lock:
            self._ledger.close()

    def repair(self) -> None:
        """Make the file again when it is gone, was replaced, or could not be written."""
        with self._lock:
            in_place = self._ledger.is_in_place()
        if in_place and self.ok:
            return
        with self._lock:
            self._ledger.close()
        self.open()

    def _note(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            log.error("ledger_failed text=%r", problem)
        elif problem is None and self.problem is not None:
            log.warning("ledger_back")
        self.problem = problem
        self._news.add()

    def get(self, uuid: str) -> Record | None:
        """A copy of one open record."""
        with self._lock:
            record = self._ledger.records.get(uuid)
            return None if record is None else _copy(record)

    def put(self, uuid: str, record: Record) -> None:
        """Keep a record, in memory in any case. Raises LedgerError when the file could not be written."""
        with self._lock:
            try:
                self._ledger.write(uuid, _copy(record))
            except LedgerError as error:
                self._note(str(error))
                raise
            self._note(None)

    def put_anyway(self, uuid: str, record: Record) -> None:
        """Keep a record whose hardware write needs no new promise; a failing file is noted, not raised."""
        try:
            self.put(uuid, record)
        except LedgerError:
            log.debug("ledger_write_skipped uuid=%s", uuid)

    def forget(self, uuid: str) -> None:
        """Drop a record that was never backed by the file or the board."""
        with self._lock:
            self._ledger.records.pop(uuid, None)
        self._news.add()

    def close_entry(self, uuid: str) -> None:
        """Nothing of ours is in force on this GPU any more."""
        record = self.get(uuid)
        if record is not None:
            record.entry.written_at_s = self._clock.now_s()
            record.is_open = False
            self.put_anyway(uuid, record)

    def entries(self) -> list[LedgerEntry]:
        """Copies of all open entries of GPUs."""
        with self._lock:
            return [
                msgspec.structs.replace(record.entry)
                for key, record in self._ledger.records.items()
                if key != AGENT_KEY
            ]


def _copy(record: Record) -> Record:
    return msgspec.structs.replace(record, entry=msgspec.structs.replace(record.entry))
