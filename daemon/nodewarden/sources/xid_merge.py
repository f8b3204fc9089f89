"""One event told by two sources counts once: what is matched with what, and how much of it is new. Pure.

Two reports of the same error of the same GPU are one event when they come from different sources within `WINDOW_S` of
each other; each report is matched with one of the other source at most, the oldest first. Reports of one source come in
the order of time, the two sources in any order.
"""

from typing import Literal

import msgspec

WINDOW_S = 5.0
"""Both sources are read within a second; the driver's own queue may hold an event back while the library is opened
again. Two events of one kind within this time, each told by one source only, count as one."""
NOTICE_WINDOW_S = 60.0
"""The words "fallen off the bus" without a number are printed at every try to reach the GPU."""
MAX_OPEN = 64

Source = Literal["nvml", "kernel", "notice"]
Key = tuple[str, int]


class Reported(msgspec.Struct):
    """Events, from first to last, that these sources have told so far."""

    first_s: float
    last_s: float
    count: int
    sources: list[Source]


class Merge:
    """The reports that may still find their counterpart. `open` may be kept and given back after a restart."""

    def __init__(self) -> None:
        self.open: dict[Key, list[Reported]] = {}

    def add(self, key: Key, source: Source, first_s: float, last_s: float, count: int = 1) -> int:
        """How many of these events are new; the others were told by another source before."""
        reported = self.open.setdefault(key, [])
        window_s = NOTICE_WINDOW_S if source == "notice" else WINDOW_S
        left = count
        for each in list(reported):
            if first_s - each.last_s > window_s or each.first_s - last_s > window_s:
                continue
            if source == "notice":
                return 0
            if source in each.sources or not left:
                continue
            matched = min(left, each.count)
            left -= matched
            if matched < each.count:  # the rest still waits
                each.count -= matched
                both = Reported(each.first_s, each.last_s, matched, [*each.sources, source])
                reported.insert(reported.index(each), both)
            else:
                each.sources = [*each.sources, source]
        if left:
            reported.append(Reported(first_s, last_s, left, [source]))
        del reported[:-MAX_OPEN]
        return left

    def forget_before(self, at_s: float) -> None:
        """Drop what is too old to find a counterpart."""
        for key, reported in list(self.open.items()):
            reported[:] = [each for each in reported if each.last_s >= at_s]
            if not reported:
                del self.open[key]
