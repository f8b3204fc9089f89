"""The agent's GPU path in one process, on a helper of its own: link, source, store, and the page made from them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from nodewarden.api.view import View
from nodewarden.clock import BootClock
from nodewarden.control import gpu_limits
from nodewarden.gpuhelper.client import HelperClient
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.model.events import Event
from nodewarden.model.limits import Limits
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.sources.gpu import GpuSource
from nodewarden.sources.gpu_counters import GpuCounters
from nodewarden.store import SnapshotStore
from nodewarden_exporters.prometheus import Renderer


class Watched:
    """What the agent knows of a node's GPUs."""

    def __init__(self, socket_path: Path, *, raw_links: bool = False, kept: Path | None = None) -> None:
        self.clock = BootClock()
        self.client = HelperClient(socket_path, self.clock, deadline_s=10.0)
        self.events: list[Event] = []
        self.link = HelperLink(self.client, self.clock, self.events.append, lambda _: None)
        self.store = SnapshotStore(self.clock, tuple)
        self.counters = GpuCounters(kept)
        self.source = GpuSource(
            self.link,
            self.store,
            self.clock,
            fast_period_s=10.0,
            slow_period_s=10.0,
            raw_links=raw_links,
            counters=self.counters,
            on_event=self.events.append,
        )

    async def sweep(self, *, rare: bool = False) -> None:
        """Every set that is due; with `rare` the rare one too."""
        await self.source.read_fast()
        if rare:
            self.source._rare_due_s.clear()
        await self.source.read_slow()

    def gpu(self, uuid: str) -> GpuSnapshot:
        """As it is known now."""
        return self.store.gpus[uuid]

    def view(self) -> View:
        """What readers would see."""
        now_s = self.clock.now_s()
        limits = {
            uuid: limits for uuid, gpu in self.store.gpus.items() if (limits := gpu_limits(gpu, None, None)) is not None
        }
        return View(
            node_name="node",
            now_s=now_s,
            wall_s=self.clock.wall_s(),
            started_s=now_s,
            version="0",
            snapshot=self.store.snapshot(),
            limits=Limits(gpus=limits),
        )

    def page(self) -> str:
        """The metrics of the GPUs alone."""
        page = Renderer().render(self.view()).decode()
        return page[: page.index("# HELP nodewarden_source_")]


@contextlib.asynccontextmanager
async def watched(socket_path: Path, *, raw_links: bool = False, kept: Path | None = None) -> AsyncIterator[Watched]:
    node = Watched(socket_path, raw_links=raw_links, kept=kept)
    try:
        yield node
    finally:
        await node.client.close()
