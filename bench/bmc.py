"""What reading a BMC costs the agent: every recorded Redfish tree, served by sushy-static in a process of its own."""

import asyncio
import time
from pathlib import Path
from typing import Any

from table import Row

from nodewarden.clock import BootClock
from nodewarden.devices.redfish import Access, RedfishClient
from nodewarden.sources.bmc.source import RedfishSource
from nodewarden.store import SnapshotStore
from support.redfish import TREES, RecordedBmc

PERIOD_S = 60.0  # long enough for every sensor to be read in each refresh
REFRESHES = 3


class Counting(RedfishClient):
    """Counts what it asks for."""

    requests = 0

    async def get(self, path: str) -> dict[str, Any]:
        self.requests += 1
        return await super().get(path)


async def _one(url: str) -> tuple[int, float, int, float]:
    """Requests and CPU seconds of the first walk, then of one refresh."""
    client = Counting(Access(url, "", ""), timeout_s=30.0)
    await client.get("/redfish/v1")  # the HTTP library is loaded and the connection there
    client.requests = 0
    store = SnapshotStore(BootClock(), tuple)
    source = RedfishSource(client, store, BootClock(), period_s=PERIOD_S, name="bench")
    began_s = time.process_time()
    await source.read()
    walk_s, walked = time.process_time() - began_s, client.requests
    assert store.records["bmc"].up
    began_s = time.process_time()
    for _ in range(REFRESHES):
        await source.read()
    refresh_s = (time.process_time() - began_s) / REFRESHES
    asked = (client.requests - walked) // REFRESHES
    await source.close()
    return walked, walk_s, asked, refresh_s


def _row(tree: Path) -> Row:
    with RecordedBmc(tree) as served:
        walked, walk_s, asked, refresh_s = asyncio.run(_one(served.url))
    return Row(
        f"{tree.name}: one full refresh",
        f"{asked} requests, {refresh_s:.3f} s of CPU",
        f"first walk {walked} requests, {walk_s:.2f} s",
    )


def measure() -> list[Row]:
    return [_row(path.parent) for path in sorted(TREES.glob("*/ORACLE.json"))]
