"""How often people are told of the same error: a first time at once, then as a number, so that a storm is few lines."""

from collections.abc import Callable, Iterator

import msgspec

SAME_S = 60.0
"""After a line about an error of a GPU, the next about the same comes so much later at the earliest."""
MAX_LINES, MAX_LINES_S = 20, 60.0
"""Lines about all errors together."""

Key = tuple[str, int]


class _Untold(msgspec.Struct):
    count: int = 0
    next_s: float = 0.0
    told_before: bool = False
    words: str = ""


class Telling:
    """Collects events and gives them out as few lines."""

    def __init__(self) -> None:
        self._keys: dict[Key, _Untold] = {}
        self._lines: list[float] = []

    def add(self, key: Key, count: int, words: str) -> None:
        """`count` more of an error; `words` is what the newest line of the kernel says, "" for nothing new."""
        untold = self._keys.setdefault(key, _Untold())
        untold.count += count
        untold.words = words or untold.words

    def due(self, now_s: float, line: Callable[[Key, int, bool, str], str]) -> Iterator[tuple[Key, str]]:
        """The lines to write now; `line` makes one of key, how many, whether it was told of lately, and words."""
        self._lines = [at_s for at_s in self._lines if now_s - at_s < MAX_LINES_S]
        for key, untold in list(self._keys.items()):
            if now_s < untold.next_s:
                continue
            if not untold.count:
                del self._keys[key]  # quiet for long
            elif len(self._lines) < MAX_LINES:
                self._lines.append(now_s)
                text = line(key, untold.count, untold.told_before, untold.words)
                self._keys[key] = _Untold(next_s=now_s + SAME_S, told_before=True)
                yield key, text
