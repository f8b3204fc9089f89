"""A BMC by Redfish as a source: one walk over all it has, then only what gave values, politely, for ever.

Totals, supplies, fans and leak detectors are read every period; single sensors, of which a DGX has a hundred at half a
second each, in the time that is left of a period, in turn.
"""

from collections import deque

import structlog
from msgspec import structs

from nodewarden.clock import Clock
from nodewarden.devices.redfish import RedfishClient
from nodewarden.errors import DeviceError
from nodewarden.model.bmc import BmcSnapshot
from nodewarden.sources.bmc.decode import decode
from nodewarden.sources.bmc.tree import Document, Resource, Tree
from nodewarden.sources.bmc.walk import EXPAND, Walk, collection_members
from nodewarden.sources.pdu.backoff import Backoff
from nodewarden.store import SnapshotStore

log = structlog.get_logger("nodewarden.sources")

WALK_AGAIN_S = 3600.0  # a part may have been added
UNLUCKY_AGAIN_S = 300.0  # something came too late and may come now
SENSOR_STALE_S = 600.0  # a DGX's sensors one by one take minutes
_SHARE = 0.7  # of a period may go into requests
_STATIC = frozenset({"root", "chassis", "system", "manager", "equipment", "cdu", "loop"})
_GROUPS = frozenset({"power_subsystem", "thermal_subsystem", "leak_detection"})
_ALWAYS = frozenset({"power", "thermal", "supply", "supply_metrics", "leak_detector", "coolant", "power_subsystem"})


class RedfishSource:
    """Args: client: of the BMC; period_s: how often totals are read; name: seeds the jitter after failures."""

    def __init__(
        self, client: RedfishClient, store: SnapshotStore, clock: Clock, *, period_s: float, name: str
    ) -> None:
        self._client = client
        self._store = store
        self._clock = clock
        self._period_s = period_s
        self._record = store.record("bmc", max(6 * period_s, 90.0))
        self._backoff = Backoff(period_s, name)
        self._tree = Tree()
        self._expanded: set[str] = set()
        self._fast: dict[str, None] = {}
        self._slow: deque[str] = deque()
        self._walk_due_s: float | None = None
        self._refreshed_s: float | None = None

    async def read(self) -> None:
        """One turn. Never raises for a sick BMC."""
        began_s = self._clock.now_s()
        if not self._backoff.is_due(began_s):
            self._forget_old()
            return
        try:
            if self._walk_due_s is None or began_s >= self._walk_due_s:
                await self._walk()
            else:
                await self._refresh(began_s)
        except DeviceError as error:
            now_s = self._clock.now_s()
            self._record.failed(now_s, error.reason, str(error))
            self._backoff.failed(now_s, refused=error.reason == "refused")
            self._forget_old()
            return
        self._backoff.succeeded()
        now_s = self._clock.now_s()
        self._record.succeeded(now_s, now_s - began_s)

    async def close(self) -> None:
        """Log out of the BMC."""
        await self._client.close()

    async def _walk(self) -> None:
        walk = Walk(self._get_while_walking, self._clock, on_slow=self._totals_read)
        self._tree = await walk.run()
        self._refreshed_s = self._clock.now_s()
        self._walk_due_s = self._refreshed_s + (UNLUCKY_AGAIN_S if walk.unlucky else WALK_AGAIN_S)
        self._expanded = walk.expanded
        self._publish(self._tree)
        self._plan(decode(self._tree))
        # A BMC that cannot expand, or has no second page, was asked again without.
        failed = [(path, why) for path, why in walk.failed.items() if "?" not in path]
        for path, why in failed[:3]:
            log.info("bmc_resource_unreadable", path=path, detail=why, others=len(failed) - 1)

    def _totals_read(self, tree: Tree) -> None:
        """The first walk has all but the single sensors, which may take minutes: shown, and kept fresh, from now on."""
        if self._walk_due_s is None:
            self._tree = tree
            self._refreshed_s = self._clock.now_s()
            self._plan(decode(tree))
            self._publish(tree)
            self._record.succeeded(self._refreshed_s, 0.0)

    async def _get_while_walking(self, path: str) -> Document:
        """The totals do not wait for the end of a walk."""
        now_s = self._clock.now_s()
        if self._refreshed_s is not None and now_s - self._refreshed_s >= self._period_s:
            self._refreshed_s = now_s
            try:
                await self._refresh_totals()
            except DeviceError as error:
                if error.reason not in {"timeout", "busy"}:
                    raise  # else the walk itself finds out whether it is over
            else:
                self._publish(self._tree)
                self._record.succeeded(self._clock.now_s(), self._clock.now_s() - now_s)
        return await self._client.get(path)

    def _plan(self, found: BmcSnapshot) -> None:
        """Ask only for what gave values."""
        used = {path.partition("#")[0] for path in _paths(found)}
        first = {
            path.partition("#")[0] for path in (found.chassis_power_from or "", *(each.path for each in found.psus))
        }
        gpus = {each.path for each in self._tree.of("sensor") if "/HGX_GPU_" in each.path}
        self._fast, slow, collections = {}, [], set[str]()
        for path, resource in self._tree.items():
            if resource.kind in _ALWAYS or path in first or (resource.kind in {"fan", "environment"} and path in used):
                self._fast[path] = None
            elif resource.kind == "sensor" and (path in used or path in gpus):
                collection = path.rpartition("/")[0]
                if collection not in self._expanded:
                    slow.append(path)
                elif collection not in collections:
                    collections.add(collection)
                    slow.append(collection)
        self._slow = deque(slow)

    async def _refresh(self, began_s: float) -> None:
        self._refreshed_s = began_s
        await self._refresh_totals()
        for _ in range(len(self._slow)):
            if self._clock.now_s() - began_s > _SHARE * self._period_s:
                break
            path = self._slow[0]
            self._slow.rotate(-1)
            await self._refresh_slow(path)
        self._publish(self._tree)

    async def _refresh_totals(self) -> None:
        failures: list[DeviceError] = []
        for path in self._fast:
            try:
                self._take(path, await self._client.get(path))
            except DeviceError as error:
                failures.append(error)
                if error.reason in {"timeout", "unreachable", "refused", "busy"}:
                    raise  # the rest would fail alike; an old BMC is not asked forty times in vain
        if failures and len(failures) == len(self._fast):
            raise failures[0]

    async def _refresh_slow(self, path: str) -> None:
        try:
            if path in self._expanded:
                for member, document in collection_members(await self._client.get(path + EXPAND)).items():
                    self._take(member, document)
            else:
                self._take(path, await self._client.get(path))
        except DeviceError as error:
            if error.reason in {"timeout", "unreachable", "refused", "busy"}:
                raise

    def _take(self, path: str, document: Document) -> None:
        known = self._tree.get(path)
        if known is not None:
            self._tree[path] = structs.replace(known, document=document, taken_at_s=self._clock.now_s())

    def _publish(self, tree: Tree) -> None:
        now_s = self._clock.now_s()
        fresh = Tree((path, each) for path, each in tree.items() if self._is_fresh(each, now_s))
        self._store.bmc = decode(fresh)

    def _is_fresh(self, resource: Resource, now_s: float) -> bool:
        if resource.kind in _STATIC or resource.kind in _GROUPS:
            return True
        is_slow = resource.kind == "sensor" and resource.path not in self._fast
        return now_s - resource.taken_at_s <= (SENSOR_STALE_S if is_slow else self._record.stale_after_s)

    def _forget_old(self) -> None:
        """Nobody sees values of a BMC that has long been silent."""
        last_s = self._record.last_success_s
        if last_s is not None and self._clock.now_s() - last_s > self._record.stale_after_s:
            self._store.bmc = BmcSnapshot()
            self._walk_due_s = self._refreshed_s = None
            self._fast = {}


def _paths(found: BmcSnapshot) -> list[str]:
    return [
        found.chassis_power_from or "",
        *(each.path for each in found.psus),
        *(each.path for each in found.temperatures),
        *(each.path for each in found.margins),
        *(each.path for each in found.fans),
        *(each.path for each in found.flow),
        *(each.path for each in found.power_sensors),
        *(each.path for each in found.energy_sensors),
    ]
