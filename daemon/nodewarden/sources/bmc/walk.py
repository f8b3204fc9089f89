"""The walk over a BMC's Redfish tree: by its links only, what may be slow last, one request at a time.

What a link leads to is told by the name of the link; paths are never built, because every vendor has others.
"""

import heapq
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from nodewarden.clock import Clock
from nodewarden.errors import DeviceError
from nodewarden.sources.bmc.tree import Document, Resource, Tree, linked, part, rows

Get = Callable[[str], Awaitable[Document]]

ROOT: Final = "/redfish/v1"
MAX_RESOURCES: Final = 2_000
MAX_MEMBERS: Final = 512
MAX_PAGES: Final = 32  # of one collection
GIVE_UP_AFTER: Final = 3  # time-outs in a row: it hangs, and each of hundreds would wait as long
EXPAND: Final = "?$expand=.($levels=1)"

# kind -> link -> kind of what is there; "+" = a collection of them.
_FOLLOW: Final[dict[str, dict[str, str]]] = {
    "root": {"Chassis": "chassis+", "Systems": "system+", "Managers": "manager+", "ThermalEquipment": "equipment"},
    "chassis": {
        "Power": "power",
        "Thermal": "thermal",
        "PowerSubsystem": "power_subsystem",
        "ThermalSubsystem": "thermal_subsystem",
        "EnvironmentMetrics": "environment",
        "LeakDetectors": "leak_detector+",
        "Sensors": "sensor+",
    },
    "power_subsystem": {"PowerSupplies": "supply+"},
    "supply": {"Metrics": "supply_metrics"},
    "thermal_subsystem": {
        "Fans": "fan+",
        "LeakDetection": "leak_detection",
        "CoolantConnectors": "coolant+",
    },
    "leak_detection": {"LeakDetectors": "leak_detector+"},
    "equipment": {"CDUs": "cdu+", "CoolingLoops": "loop+"},
    "cdu": {
        "PrimaryCoolantConnectors": "coolant+",
        "SecondaryCoolantConnectors": "coolant+",
        "LeakDetection": "leak_detection",
        "Sensors": "sensor+",
    },
    "loop": {"PrimaryCoolantConnectors": "coolant+", "SecondaryCoolantConnectors": "coolant+"},
}
_PARTS: Final = frozenset({"chassis", "cdu", "loop"})
# What is read first: the totals of every chassis before any single sensor.
_ORDER: Final = (
    *("root", "chassis", "power", "thermal", "system", "manager", "power_subsystem", "thermal_subsystem", "equipment"),
    *("leak_detection", "leak_detector", "cdu", "loop", "coolant", "environment", "supply", "supply_metrics", "fan"),
    "sensor",
)
_RANK: Final = {kind: rank for rank, kind in enumerate(_ORDER)}


class Walk:
    """One pass over everything that a BMC offers, resource by resource.

    Args:
        get: reads one resource; raises DeviceError.
        clock: for the time of each reading.
        on_slow: called once, when all is read but the single sensors.

    Attributes:
        tree: what was read so far.
        failed: path -> why, of resources that are linked and cannot be read.
        unlucky: one of them may be read another time: it came too late or the BMC was busy.
        expanded: collections that the BMC gave with their members, in one answer.
        requests: how many were sent.
    """

    def __init__(self, get: Get, clock: Clock, on_slow: Callable[[Tree], None] = lambda _: None) -> None:
        self._get = get
        self._clock = clock
        self._on_slow = on_slow
        self._waiting: list[tuple[int, int, str, str, str, Document | None]] = []
        self._queued: set[str] = set()
        self._may_expand = False
        self.tree = Tree()
        self.failed: dict[str, str] = {}
        self.unlucky = False
        self._late = 0
        self._first_failure: DeviceError | None = None
        self.expanded: set[str] = set()
        self.requests = 0

    async def run(self) -> Tree:
        """Read everything.

        Raises:
            DeviceError: where not even the service root answers, no resource can be read, or it stops to answer.
        """
        self._queue(ROOT, "root", "")
        told = False
        while self._waiting and len(self.tree) < MAX_RESOURCES:
            rank, _, path, kind, chassis, document = heapq.heappop(self._waiting)
            if rank >= _RANK["sensor"] and not told:
                told = True
                self._on_slow(self.tree)
            if document is None:
                document = await self._read(path, kind)
            if document is not None:
                await self._take(path, kind, chassis, document)
        if len(self.tree) == 1 and self._first_failure is not None:
            raise self._first_failure
        return self.tree

    async def _read(self, path: str, kind: str) -> Document | None:
        self.requests += 1
        try:
            document = await self._get(path)
        except DeviceError as error:
            self._late = self._late + 1 if error.reason == "timeout" else 0
            if kind == "root" or error.reason in {"refused", "unreachable"} or self._late >= GIVE_UP_AFTER:
                raise
            self.failed[path] = str(error)
            self.unlucky |= error.reason in {"timeout", "busy"}
            self._first_failure = self._first_failure or error
            return None
        self._late = 0
        return document

    async def _take(self, path: str, kind: str, chassis: str, document: Document) -> None:
        if kind == "root":
            features = part(part(document, "ProtocolFeaturesSupported"), "ExpandQuery")
            self._may_expand = any(features.get(each) is True for each in ("Levels", "NoLinks", "ExpandAll"))
        is_part = kind in _PARTS
        self.tree[path] = Resource(path, kind, path if is_part else chassis, document, self._clock.now_s())
        for name, leads_to in _FOLLOW.get(kind, {}).items():
            if (link := linked(part(document, name))) is None:
                continue
            if leads_to.endswith("+"):
                await self._members(link, leads_to[:-1], path if is_part else chassis)
            else:
                self._queue(link, leads_to, path if is_part else chassis)

    async def _members(self, path: str, kind: str, chassis: str) -> None:
        """Queue what is in a collection; where the BMC can, with their contents from one answer."""
        if path in self._queued:
            return
        self._queued.add(path)
        answer = None
        if kind == "sensor" and self._may_expand:
            answer = await self._read(path + EXPAND, kind)
            self._may_expand = answer is not None and (not rows(answer, "Members") or any(_whole(answer)))
            if answer is not None and any(_whole(answer)):
                self.expanded.add(path)
        if answer is None:
            answer = await self._read(path, kind)
        if answer is None:
            return
        if "Members" not in answer:  # some firmware has the one member in place of the collection
            self._queue(path, kind, chassis, answer, again=True)
        for member in (await self._all_pages(path, kind, answer))[:MAX_MEMBERS]:
            if link := linked(member):
                self._queue(link, kind, chassis, member if len(member) > 2 else None)

    async def _all_pages(self, path: str, kind: str, answer: Document) -> list[Document]:
        """Members of a collection that comes in pages; a page that repeats or fails is the last."""
        members = rows(answer, "Members")
        asked: set[str] = set()
        while (page := next_page(answer)) and page not in asked and len(asked) < MAX_PAGES:
            asked.add(page)
            found = await self._read(page, kind)
            if found is None or not rows(found, "Members"):
                break
            if linked(rows(found, "Members")[0]) in map(linked, members):  # it does not know $skip
                break
            self.expanded.discard(path)  # its members are asked one by one: one answer has not all of them
            members, answer = members + rows(found, "Members"), found
        return members

    def _queue(
        self, path: str, kind: str, chassis: str, document: Document | None = None, *, again: bool = False
    ) -> None:
        if path in self._queued and not again:
            return
        self._queued.add(path)
        heapq.heappush(self._waiting, (_RANK[kind], len(self._queued), path, kind, chassis, document))


def next_page(answer: Document) -> str | None:
    """The link to the rest of a collection, with its query."""
    link = answer.get("Members@odata.nextLink")
    link = link.get("@odata.id") if isinstance(link, dict) else link
    if not isinstance(link, str) or not linked({"@odata.id": link}):
        return None
    return link


def _whole(answer: Document) -> Iterator[Any]:
    """Members that came with their contents."""
    return (member for member in rows(answer, "Members") if len(member) > 2)


def collection_members(answer: Document) -> dict[str, Document]:
    """Path -> document of the members that an expanded answer holds."""
    return {link: member for member in _whole(answer) if (link := linked(member))}
