"""GPU readings: asks the helper, checks plausibility, keeps health per GPU, writes into the store.

One sweep costs one request; each GPU answers for itself, so a hung or lost one costs only its own readings. Identity is
the uuid. A value outside what the physics allows is dropped and counted, the reading before it ages.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from nodewarden.clock import Clock
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.model.events import Event
from nodewarden.model.gpu_quantities import FAST_READ
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import FAST_QUANTITIES, SLOW_REASONS, GpuBoard, GpuHealth, GpuSnapshot, Number
from nodewarden.sources.gpu_counters import GpuCounters
from nodewarden.sources.gpu_quick import QuickSampling
from nodewarden.sources.gpu_values import LinkBaseline, checked_board, quantities, quantity
from nodewarden.store import SnapshotStore, SourceRecord

RARE_PERIOD_S = 60.0
BOARD_RETRY_S = 3.0
_HEALTH_EVENTS = {
    "ok": "gpu_back",
    "lost": "gpu_lost",
    "unresponsive": "gpu_unresponsive",
    "absent": "gpu_lost",
}
_UNSAID = wire.Value(None, "not_supported")


class GpuSource:
    """Both sampling sets of all GPUs.

    Args:
        link: the connection to the helper.
        store: where readings go.
        fast_period_s, slow_period_s: how often the sets are read; stale is max(3 periods, 3 s).
        raw_links: read the NVLink bytes with protocol overhead too.
        counters: what is counted over the readings, kept by their owner.
        on_event: told when a GPU is lost, hangs or is back.
    """

    def __init__(
        self,
        link: HelperLink,
        store: SnapshotStore,
        clock: Clock,
        *,
        fast_period_s: float,
        slow_period_s: float,
        raw_links: bool = False,
        counters: GpuCounters | None = None,
        quick: QuickSampling | None = None,
        on_event: Callable[[Event], None],
    ) -> None:
        self._link = link
        self._store = store
        self._clock = clock
        self._fast_deadline_s = min(0.8 * fast_period_s, 0.8)
        self._fast_stale_s = max(3 * fast_period_s, 3.0)
        self._slow_stale_s = max(3 * slow_period_s, 3.0)
        self._on_event = on_event
        self._raw_links = raw_links
        self._counters = counters or GpuCounters()
        self._quick = quick
        self._is_reading = False
        self._links = LinkBaseline()
        self._rare_due_s: dict[str, float] = {}
        self._board_due_s = 0.0

    async def read_fast(self) -> None:
        """One sweep of the fast set; nothing while one is under way. Never raises for a sick GPU or helper."""
        if self._is_reading:
            return
        self._is_reading = True
        try:
            await self._read_fast()
        finally:
            self._is_reading = False

    async def _read_fast(self) -> None:
        began_s = self._clock.now_s()
        ready = await self._link.keep()
        self._store.helper = self._link.status
        if not ready:
            self._nothing_answers(f"helper_{self._link.status.state}")
        else:
            uuids = self._known()
            every_s = None if self._quick is None else self._quick.every_s
            replies = await self._link.client.read_fast(uuids, self._fast_deadline_s, quick_every_s=every_s)
            for uuid in uuids:
                self._take_fast(uuid, replies.get(uuid), began_s)
            unlimited = any(self._store.gpus[uuid].board.max_w is None for uuid in uuids)
            if unlimited and began_s >= self._board_due_s:  # no cap can be decided before the boards said their range
                self._board_due_s = began_s + BOARD_RETRY_S
                await self.read_slow()
        self._store.gpus_swept()

    async def read_slow(self) -> None:
        """One sweep of the slow set (ECC, PCIe, NVLink, processes), now and then with what hardly ever changes."""
        if not self._link.adopted:
            return
        began_s = self._clock.now_s()
        uuids = [uuid for uuid in self._known() if self._store.gpus[uuid].health == "ok"]
        rare = any(began_s >= self._rare_due_s.get(uuid, 0.0) for uuid in uuids)
        replies = await self._link.client.read_slow(uuids, 2.0, rare=rare, raw_links=self._raw_links)
        for uuid in uuids:
            self._take_slow(uuid, replies.get(uuid), began_s)

    def _known(self) -> list[str]:
        """GPUs that the helper names; one that it no longer names is lost. New ones get a place in the store."""
        gpus = self._store.gpus
        for uuid, identity in self._link.identities.items():
            old = gpus.get(uuid) or GpuSnapshot(uuid=uuid, health_since_s=self._clock.now_s())
            gpus[uuid] = msgspec.structs.replace(
                old,
                index=identity.index,
                model=identity.model,
                pci_bus_id=identity.pci_bus_id,
                released_until_s=identity.released_until_s,
                health_text=identity.why if old.health == "lost" and identity.state == "lost" else old.health_text,
            )
        for uuid in gpus.keys() - self._link.identities.keys():
            if self._link.status.driver in {"starting", "unresponsive"}:  # a new helper that could not look yet
                self._set_health(uuid, "unresponsive", "the helper could not look for it yet")
            else:
                self._lose(uuid, "lost", "the driver no longer lists it")
        return list(self._link.identities)

    def _record(self, uuid: str) -> SourceRecord:
        return self._store.record(f"gpu/{uuid}", self._fast_stale_s)

    def _take_fast(self, uuid: str, reply: wire.FastReply | wire.ErrorReply | None, began_s: float) -> None:
        now_s = self._clock.now_s()
        record = self._record(uuid)
        if not isinstance(reply, wire.FastReply):
            self._link.hello_soon()  # does the helper itself answer, and what does it say of this GPU?
        if isinstance(reply, wire.FastReply):
            record.succeeded(now_s, now_s - began_s)
            self._link.note_events(reply.events)
            self._link.note_news(reply.news)
            if self._quick is not None:
                self._quick.take(uuid, reply.quick, record)
            self._store.gpus[uuid] = self._merged(self._store.gpus[uuid], reply, record)
            self._set_health(uuid, "ok", "answers again")
        elif isinstance(reply, wire.ErrorReply) and reply.code in {"lost", "released"}:
            record.failed(now_s, reply.code, reply.text)
            self._lose(uuid, "released" if reply.code == "released" else "lost", reply.text)
        else:
            reason = "timeout" if reply is None or reply.code == "busy" else reply.code
            record.failed(now_s, reason, "" if reply is None else reply.text)
            if _long_silent(record, now_s):
                self._set_health(uuid, "unresponsive", "the driver does not answer for it")

    def _merged(self, old: GpuSnapshot, reply: wire.FastReply, record: SourceRecord) -> GpuSnapshot:
        taken_at_s = reply.taken_at_s
        fields: dict[str, Number] = {}
        more = dict(old.more)
        for name in FAST_READ:
            given = reply.values.get(name) or _UNSAID
            read = quantity(name, given.value, given.reason, old.number(name), taken_at_s, record)
            if name in FAST_QUANTITIES:
                fields[name] = read
            else:
                more[name] = {(): read}
        more["caps_vanished"] = {(): Reading(self._counters.vanished(old.uuid), taken_at_s)}
        slow: Reading[tuple[str, ...]] | Absent | Failed
        if reply.slow_bits is None:
            slow = Absent(reply.slow_reason or "not_supported")
        else:
            bits = reply.slow_bits
            slow = Reading(tuple(name for n, name in enumerate(SLOW_REASONS) if bits >> n & 1), taken_at_s)
        slow_s = {
            name: quantity("slow_s", value.value, value.reason, old.slow_s.get(name, Absent()), taken_at_s, record)
            for name, value in reply.slow_s.items()
        }
        merged = msgspec.structs.replace(old, slow=slow, slow_s=slow_s, more=more, **fields)
        return self._counters.count(merged)

    def _take_slow(self, uuid: str, reply: wire.SlowReply | wire.ErrorReply | None, began_s: float) -> None:
        now_s = self._clock.now_s()
        record = self._store.record(f"gpu_slow/{uuid}", self._slow_stale_s)
        if not isinstance(reply, wire.SlowReply):
            record.failed(now_s, "timeout" if reply is None else reply.code)
            return
        record.succeeded(now_s, now_s - began_s)
        pids = (
            Absent(reply.pids_reason or "not_supported")
            if reply.pids is None
            else Reading(tuple(reply.pids), reply.taken_at_s)
        )
        old = self._store.gpus[uuid]
        links = self._links.links(uuid, reply.links, record)
        more = dict(old.more)
        for name, samples in reply.more.items():
            more[name] = quantities(name, samples, old.more.get(name, {}), reply.taken_at_s, record)
        down = sum(link.present and not link.active for link in links)
        more["nvlinks_down"] = {(): Reading(float(down), reply.taken_at_s) if links else Absent("not_supported")}
        for name in ("nvlink_up", "nvlink_transmit_bytes", "nvlink_receive_bytes"):  # where no link has one
            more[name] = {(): Absent(reply.links_reason or ("no_link" if links else "not_supported"))}
        if reply.rare:
            self._rare_due_s[uuid] = now_s + RARE_PERIOD_S - 1.0  # the sweep that comes up to a second early counts
        self._store.gpus[uuid] = msgspec.structs.replace(
            old,
            board=msgspec.convert(msgspec.to_builtins(checked_board(reply.board, record)), GpuBoard),
            links=links,
            links_taken_at_s=reply.taken_at_s if reply.links else None,
            pids=pids,
            more=more,
            calls=old.calls | reply.calls,
        )

    def _set_health(self, uuid: str, health: GpuHealth, why: str) -> None:
        old = self._store.gpus[uuid]
        if old.health == health:
            return
        why = why.removeprefix(f"{old.name}: ")
        self._store.gpus[uuid] = msgspec.structs.replace(
            old, health=health, health_since_s=self._clock.now_s(), health_text="" if health == "ok" else why
        )
        if health != "released":  # the helper tells that itself
            self._on_event(
                Event(_HEALTH_EVENTS[health], uuid, f"{old.name} ({old.pci_bus_id or uuid}) is {health}: {why}")
            )

    def _lose(self, uuid: str, health: Literal["lost", "released"], why: str) -> None:
        """A lost GPU keeps its place, without readings."""
        old = self._store.gpus[uuid]
        if old.health != health:
            gone = Failed(health, self._clock.now_s())
            empty = dict.fromkeys((*FAST_QUANTITIES, "slow", "pids"), gone)
            self._store.gpus[uuid] = msgspec.structs.replace(
                old, links=(), links_taken_at_s=None, slow_s={}, more={}, **empty
            )
            self._rare_due_s.pop(uuid, None)
            self._set_health(uuid, health, why)

    def _nothing_answers(self, reason: str) -> None:
        now_s = self._clock.now_s()
        for uuid, gpu in self._store.gpus.items():
            record = self._record(uuid)
            record.failed(now_s, reason, self._link.status.text)
            if gpu.health == "ok" and _long_silent(record, now_s):
                self._set_health(uuid, "unresponsive", self._link.status.text or reason)


def _long_silent(record: SourceRecord, now_s: float) -> bool:
    """Stale; one that never answered gets as long since it was first asked."""
    last_s = record.since_s if record.last_success_s is None else record.last_success_s
    return now_s - last_s > record.stale_after_s
