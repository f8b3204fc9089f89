"""One polling loop per configured PDU; made, changed and ended as the configuration says.

pysnmp is imported only when a PDU is configured. A PDU that is silent costs its own readings and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nodewarden.clock import Clock
from nodewarden.config import Config, PduConfig, SamplingConfig
from nodewarden.errors import DeviceError
from nodewarden.model.events import Event
from nodewarden.model.readings import Failed, Reading
from nodewarden.model.snapshot import PduSnapshot
from nodewarden.sampling import Progress, every, spread_offset_s
from nodewarden.sources.pdu.feeds import FeedWatch
from nodewarden.store import SnapshotStore

if TYPE_CHECKING:
    from nodewarden.devices.snmp import SnmpEngine
    from nodewarden.sources.pdu.source import PduSource

STALE_MIN_S = 15.0
FIRST_READ_S = 4.0  # how long the start waits for slow devices; their loops wait longer


class PduLoops:
    """All PDU loops of the agent.

    Attributes:
        progress: of each loop, by "pdu/NAME".
    """

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        node_name: str,
        on_event: Callable[[Event], None],
        new_progress: Callable[[str, float], Progress],
    ) -> None:
        self._store = store
        self._clock = clock
        self._node_name = node_name
        self._on_event = on_event
        self._new_progress = new_progress
        self._engine: SnmpEngine | None = None
        self._configs: dict[str, PduConfig] = {}
        self._sampling: SamplingConfig | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._feeds = FeedWatch()
        self.progress: dict[str, Progress] = {}

    async def configure(self, config: Config) -> None:
        """Take over the configuration and try each PDU once, all at the same time."""
        self.reconfigure(config)
        sources = {name: self._source(pdu) for name, pdu in self._configs.items()}
        if self._engine is not None:
            await self._engine.warm_up()  # its first request costs 0.2 s of CPU, paid before the loops have deadlines
        first = {name: asyncio.create_task(self._poll(name, source)) for name, source in sources.items()}
        if first:
            await asyncio.wait(first.values(), timeout=self._clock.real_s(FIRST_READ_S))
        for name, source in sources.items():
            self._start(name, source, first[name])
        self._changed.clear()

    def reconfigure(self, config: Config) -> None:
        """Take over a changed configuration; loops are changed by `run`."""
        wanted = {pdu.name: pdu for pdu in config.pdu}
        self._sampling = config.sampling
        if wanted != self._configs:
            self._configs = wanted
            self._changed.set()

    async def run(self) -> None:
        """Start and end loops as the configuration changes, for ever."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._end_loops()
                self._store.forget(f"pdu/{name}" for name in self._store.pdus.keys() - self._configs.keys())
                for name in self._store.pdus.keys() - self._configs.keys():
                    del self._store.pdus[name]
                self._feeds, self._store.feeds = FeedWatch(), {}
                for name, pdu in self._configs.items():
                    self._start(name, self._source(pdu))
        finally:
            await self._end_loops()

    async def close(self) -> None:
        """Close the SNMP engine."""
        await self._end_loops()
        if self._engine is not None:
            await self._engine.close()
            self._engine = None

    async def _end_loops(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self.progress.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _source(self, pdu: PduConfig) -> PduSource:
        # Imported here: a node without a PDU does not pay for pysnmp.
        from nodewarden.devices.snmp import SnmpEngine  # noqa: PLC0415
        from nodewarden.sources.pdu.source import PduSource  # noqa: PLC0415

        assert self._sampling is not None
        if self._engine is None:
            self._engine = SnmpEngine()
        if pdu.name not in self._store.pdus:
            self._store.pdus[pdu.name] = PduSnapshot(
                name=pdu.name,
                feed=pdu.feed,
                since_s=self._clock.now_s(),
                limit_w=pdu.limit_w,
                rated_w=pdu.rated_w,
                rated_a=pdu.rated_a,
                mapped_outlets=pdu.outlets,
                reason="not yet read",
            )
        return PduSource(pdu, self._engine, self._clock, self._sampling)

    def _start(self, name: str, source: PduSource, first: asyncio.Task[None] | None = None) -> None:
        assert self._sampling is not None
        period_s = self._configs[name].period_s or self._sampling.pdu_totals_s
        progress = self._new_progress(f"pdu/{name}", period_s)
        self.progress[f"pdu/{name}"] = progress

        async def tick() -> None:
            await self._poll(name, source)

        offset_s = spread_offset_s(self._node_name, name, period_s)

        async def loop() -> None:
            if first is not None:
                await first  # a slow agent may still be at its first answer; passes do not overlap
            await every(self._clock, progress, tick, offset_s=offset_s)

        self._tasks[name] = asyncio.create_task(loop(), name=f"pdu {name}")

    def _gpus_w(self) -> float | None:
        """Power of all GPUs together, None when one is unknown."""
        powers = [gpu.power_w for gpu in self._store.gpus.values()]
        readings = [power.value for power in powers if isinstance(power, Reading)]
        return sum(readings) if readings and len(readings) == len(powers) else None

    async def _poll(self, name: str, source: PduSource) -> None:
        await self._read(name, source)
        self._store.feeds = self._feeds.update(self._store.pdus, self._gpus_w(), self._clock.now_s())

    async def _read(self, name: str, source: PduSource) -> None:
        assert self._sampling is not None
        period_s = self._configs[name].period_s or self._sampling.pdu_totals_s
        record = self._store.record(f"pdu/{name}", max(3 * period_s, STALE_MIN_S))
        began_s = self._clock.now_s()
        before = self._store.pdus[name]
        try:
            snapshot = await source.read()
        except DeviceError as error:
            now_s = self._clock.now_s()
            record.failed(now_s, error.reason, str(error))
            self._store.pdus[name] = _silent(before, error.reason, now_s, is_stale=record.status().is_stale(now_s))
            if before.up:
                self._on_event(Event("pdu_lost", None, f"PDU {name} does not answer: {error}"))
        else:
            now_s = self._clock.now_s()
            record.succeeded(now_s, now_s - began_s)
            record.rejected = dict(source.rejected)
            since_s = before.since_s if before.up else now_s
            self._store.pdus[name] = msgspec.structs.replace(snapshot, up=True, since_s=since_s, reason=None)
            if not before.up:
                for warning in source.warnings:
                    self._on_event(Event("pdu_warning", None, f"PDU {name}: {warning}"))
                self._on_event(Event("pdu_found", None, f"PDU {name} answers: {snapshot.vendor} {snapshot.model}"))


def _silent(before: PduSnapshot, reason: str, now_s: float, *, is_stale: bool) -> PduSnapshot:
    """A PDU that did not answer. Once stale its readings go, but the outlets' sum stays and ages for the policy."""
    since_s = now_s if before.up else before.since_s
    silent = msgspec.structs.replace(before, up=False, since_s=since_s, reason=reason)
    if not is_stale:
        return silent
    gone = {
        name: Failed(reason, since_s)
        for name in ("power_w", "apparent_va", "power_factor", "energy_wh")
        if isinstance(getattr(before, name), Reading)
    }
    return msgspec.structs.replace(silent, phases=(), banks=(), outlets=(), **gone)
