"""What one sweep over the host costs: a node with 224 logical processors, 8 drives, 10 network cards."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from table import Row

from nodewarden.clock import BootClock
from nodewarden.sources.host.source import HostSource
from nodewarden.store import SnapshotStore
from support.host_tree import HostTree

SWEEPS = 60
PERIOD_S = 10.0
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "port_xmit_wait",
)


def build(root: Path) -> None:
    tree = HostTree(root)
    for socket in range(2):
        cores = {f"temp{n + 2}_input": 50000 for n in range(56)} | {f"temp{n + 2}_crit": 100000 for n in range(56)}
        labels = {f"temp{n + 2}_label": f"Core {n}" for n in range(56)}
        package = {"temp1_input": 60000, "temp1_label": f"Package id {socket}", "temp1_crit": 100000}
        tree.chip(socket, f"/sys/devices/platform/coretemp.{socket}", "coretemp", **package | cores | labels)
    for number in range(8):
        tree.drive(number + 1, 10 + number, temp2_input=45000, temp3_input=46000)
    for cpu in range(224):
        tree.cpu(cpu, cpu % 2, cpu % 112 // 2)
    for card in range(10):
        folder = tree.port(f"mlx5_{card}", f"0000:{card:02x}:00.0")
        tree.fill(f"{folder}/counters", **dict.fromkeys(_ERRORS, 0), port_xmit_packets=1, port_rcv_packets=1)
        tree.fill(f"{folder}/hw_counters", **{f"counter_{n}": n for n in range(25)})
    for resource in ("cpu", "memory", "io"):
        tree.pressure(resource)


async def _sweeps(source: HostSource, store: SnapshotStore) -> list[float]:
    took = []
    await source.read()
    for _ in range(SWEEPS):
        began_s = time.process_time()
        await source.read()
        took.append(time.process_time() - began_s)
    assert len(store.host.ports) == 10
    return took


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="nw-") as folder:
        build(Path(folder))
        store = SnapshotStore(BootClock(), tuple)
        link = SimpleNamespace(adopted=False, status=SimpleNamespace(state="missing"))
        source = HostSource(link, store, BootClock(), root=Path(folder), period_s=PERIOD_S)
        took = asyncio.run(_sweeps(source, store))
        calls = source._files.calls // (SWEEPS + 1)  # noqa: SLF001
    cpu_ms = statistics.median(took) * 1000
    return [
        Row("files and folders read per sweep", str(calls), f"{len(store.host.sensors)} sensors"),
        Row(
            "CPU per sweep, median",
            f"{cpu_ms:.1f} ms",
            f"{cpu_ms / PERIOD_S / 10:.2f} % of a core every {PERIOD_S:.0f} s",
        ),
    ]
