"""What driver and kernel said of GPU errors, kept until the agent has taken it: bounded, and no event uncounted.

The same complaint again is one more on the entry before, as long as nobody has taken that, so that a storm costs one
entry per GPU and code. Entries stay for a while after they were taken: an agent that died before it noted them takes
them again.
"""

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from nodewarden.gpuhelper.wire import EventsReply, GpuError, Listening

MAX_ENTRIES = 512
MAX_REPLY = 256
TOGETHER_S = 5.0
"""So long a burst is one entry; beyond half of `MAX_ENTRIES` it may be longer, at the cost of its times."""

Key = tuple[str, str, int]


class ErrorFeed:
    """Filled by the watchers, emptied by the verb `events`. Any thread.

    Args:
        on_news: called when there is something to take, once until it is taken.
        uuid_at: uuid of the GPU at a PCI address, "" when none is known there.

    Attributes:
        revision: another number whenever there is something to take.
    """

    def __init__(self, on_news: Callable[[], None], uuid_at: Callable[[str], str]) -> None:
        self._on_news = on_news
        self._uuid_at = uuid_at
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, GpuError] = OrderedDict()
        self._open: dict[Key, int] = {}  # entries that nobody has taken yet, by what they say
        self._numbers = itertools.count(1)
        self._told = False
        self._dropped = 0
        self.epoch = os.urandom(6).hex()
        self.revision = 0
        self.driver = Listening(reason="starting")
        self.kernel = Listening(reason="starting")

    def add(self, error: GpuError) -> None:
        """One more complaint, or `error.count` of them."""
        key = (error.source, error.uuid or error.bus_id, error.code)
        with self._lock:
            self.revision += 1
            number = self._open.get(key)
            before = self._entries.get(number) if number is not None else None
            crowded = len(self._entries) > MAX_ENTRIES // 2
            if before is not None and (crowded or error.first_s - before.first_s <= TOGETHER_S):
                before.count += error.count
                before.last_s = max(before.last_s, error.last_s)
                before.kernel_number = error.kernel_number
            else:
                error.number = next(self._numbers)
                self._entries[error.number] = error
                self._open[key] = error.number
                if len(self._entries) > MAX_ENTRIES:
                    number, oldest = self._entries.popitem(last=False)
                    self._dropped += oldest.count if number in self._open.values() else 0
                    self._open = {known: place for known, place in self._open.items() if place != number}
            is_first, self._told = not self._told, True
        if is_first:
            self._on_news()

    def changed(self) -> None:
        """Somebody listens, or no longer does: the agent should know."""
        with self._lock:
            self.revision += 1
        self._on_news()

    def take(self, request_id: int, epoch: str, after: int, kernel_after: int) -> EventsReply:
        """What came after entry `after` of this `epoch`; of another epoch, all but kernel lines up to `kernel_after`.

        At most `MAX_REPLY` entries: when `more` is set, there are others.
        """
        with self._lock:
            known = after if epoch == self.epoch else 0
            found = [
                entry
                for number, entry in self._entries.items()
                if number > known and (entry.source != "kernel" or entry.kernel_number > kernel_after)
            ]
            given = found[:MAX_REPLY]
            for entry in given:
                entry.uuid = entry.uuid or self._uuid_at(entry.bus_id)
            last = given[-1].number if given else max(known, next(reversed(self._entries), 0))
            self._open = {key: number for key, number in self._open.items() if number > last}
            more = len(found) > len(given)
            self._told = more
            return EventsReply(
                id=request_id,
                epoch=self.epoch,
                errors=given,
                last=last,
                more=more,
                dropped=self._dropped,
                driver=self.driver,
                kernel=self.kernel,
            )
