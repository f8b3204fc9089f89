"""SNMP agents that misbehave on demand, and that remember what they were asked. Everything over real UDP."""

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

from nodewarden.sim.snmp_agent import GET_BULK, TOO_BIG, Oid, SnmpAgent, Typed

_TAGS = {"2": 0x02, "4": 0x04, "5": 0x05, "6": 0x06, "65": 0x41, "66": 0x42, "67": 0x43, "70": 0x46}


def load_recording(path: Path) -> dict[Oid, Typed]:
    """A .snmprec file as the objects of an agent."""
    objects: dict[Oid, Typed] = {}
    for line in path.read_text().splitlines():
        oid, tag, value = line.split("|", 2)
        number = _TAGS[tag]
        content: int | bytes | Oid | None
        if tag == "4":
            content = value.encode()
        elif tag == "5":
            content = None
        elif tag == "6":
            content = parse(value)
        else:
            content = int(value)
        objects[parse(oid)] = Typed((number, content))
    return objects


def parse(oid: str) -> Oid:
    return tuple(int(part) for part in oid.split("."))


class Agent(SnmpAgent):
    """An agent on `objects` (changed by the test as it likes) with faults.

    Attributes:
        asked: (PDU type, number of objects) of every request.
        silent: answers nothing.
        delay_s: before each answer.
        garbage: sent instead of an answer; called with the answer.
        largest: GETBULK answers are cut to so many objects.
        too_big_from: requests for so many objects or more get tooBig.
        wrong_index: error index of every error.
    """

    def __init__(self, objects: Mapping[Oid, Typed], *, community: str = "public") -> None:
        super().__init__(lambda: self.objects, community=community)
        self.objects = dict(objects)
        self.asked: list[tuple[int, int]] = []
        self.silent = False
        self.delay_s = 0.0
        self.garbage: Callable[[bytes], Iterable[bytes]] | None = None
        self.largest: int | None = None
        self.too_big_from: int | None = None
        self.wrong_index: int | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.close()

    def set(self, oid: str, tag: int, value: int | bytes) -> None:
        self.objects = {**self.objects, parse(oid): Typed((tag, value))}

    def answers(self, datagram: bytes) -> Iterable[bytes]:
        replies = list(super().answers(datagram))
        if self.delay_s:
            self._ended.wait(self.delay_s)
        if self.silent:
            return ()
        if self.garbage is not None:
            return [bad for reply in replies for bad in self.garbage(reply)]
        return replies

    def respond(
        self, kind: int, version: int, oids: list[Oid], non_repeaters: int, repetitions: int
    ) -> tuple[int, int, list[tuple[Oid, Typed]]]:
        self.asked.append((kind, len(oids)))
        size = len(oids) * (repetitions if kind == GET_BULK else 1)
        if self.too_big_from is not None and size >= self.too_big_from:
            return TOO_BIG, 0, []
        status, index, pairs = super().respond(kind, version, oids, non_repeaters, repetitions)
        if kind == GET_BULK and self.largest is not None:
            pairs = pairs[: self.largest]
        if status and self.wrong_index is not None:
            index = self.wrong_index
        return status, index, pairs
