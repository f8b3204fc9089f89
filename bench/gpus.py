"""The GPU path under the bench: driver calls, cost per value, 100 ms mode with its lateness, nvitop-exporter beside it.

nvitop-exporter is installed into a virtual environment of the bench's own; it reads the same stand-in library with the
same period, and both are scraped once a second, in one run.
"""

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from cost import Cost, load, over
from node import Scraper
from table import Row

from end_to_end.node import TestNode
from gpuhelper.rig import Peer, Rig
from nodewarden.gpuhelper import wire
from standin.standin import Standin, function_numbers
from support.ports import free_port
from support.servers import answers
from support.wait import wait_for

VENV = Path(__file__).parents[1] / ".cache" / "bench-nvitop"
OTHER = "nvitop-exporter"
WARM_S = 12.0
MEASURE_S = 40.0
QUICK_CONFIG = "[sampling]\ngpu_fast_s = 0.1\n"


@contextlib.contextmanager
def agent(config: str = "") -> Iterator[TestNode]:
    """Agent and helper on eight stand-in H100s, without a PDU."""
    with TestNode(("h100",) * 8, config=config) as made:
        made.start_agent("--log-level", "warning", ready=False)
        wait_for(answers(f"http://127.0.0.1:{made.port}/metrics"), 60, "the agent's first turn")
        yield made


def both_of(made: TestNode) -> list[int]:
    """The pids of agent and helper."""
    assert made.agent is not None
    return [made.agent.pid, made.helper_pid()]


class Scraped(Scraper):
    """Scrapes another exporter the same way."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})


def exporter() -> Path:
    """The other exporter's program, installed if need be."""
    program = VENV / "bin" / OTHER
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin" / "pip", "install", "--quiet", OTHER], check=True)
    return program


def gpu_series(port: int, pattern: str) -> int:
    """How many series about GPUs a page has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(bool(re.match(pattern, line)) for line in lines)


def measure_beside() -> list[Row]:
    """Ours and theirs at the same time."""
    program = exporter()
    version = (
        subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        .stdout.split()[-1]
        .strip("()")
    )
    with agent() as made, tempfile.TemporaryDirectory(prefix="nw-") as folder:
        standin = Standin(Path(folder), ["h100"] * 8)
        port = free_port()
        command = [program, "--port", str(port), "--interval", "1.0", "--bind-address", "127.0.0.1"]
        other = subprocess.Popen(
            command, env=os.environ | standin.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(answers(f"http://127.0.0.1:{port}/metrics"), 60, "the other exporter")
            scrapers = [Scraped(made.port), Scraped(port)]
            for each in scrapers:
                each.start()
            time.sleep(WARM_S)
            calls = made.standin.calls(), standin.calls()
            ours_agent, ours_helper, theirs = over([*both_of(made), other.pid], MEASURE_S)
            per_s = [
                (now - was) / MEASURE_S for now, was in zip((made.standin.calls(), standin.calls()), calls, strict=True)
            ]
            for each in scrapers:
                each.stopped.set()
                each.join()
            ours_series = gpu_series(made.port, r"nodewarden_(gpu|nvlink|pcie|nvswitch|fabric)_")
            theirs_series = gpu_series(port, r"(?!host_|process_|python_)\w+\{.*(index|uuid|devicename)=")
        finally:
            other.terminate()
            other.wait()
    ours_pct = ours_agent.core_pct + ours_helper.core_pct
    ours_us, theirs_us = (pct * 1e4 / n for pct, n in ((ours_pct, ours_series), (theirs.core_pct, theirs_series)))
    return [
        Row("Nodewarden, agent + helper, share of a core", f"{ours_pct:.2f} %", f"{load()}"),
        Row(f"{OTHER} {version}, share of a core", f"{theirs.core_pct:.2f} %"),
        Row("Nodewarden, series about GPUs", f"{ours_series}"),
        Row(f"{OTHER}, series about GPUs", f"{theirs_series}"),
        Row("Nodewarden, CPU per series and second", f"{ours_us:.1f} us"),
        Row(
            f"{OTHER}, CPU per series and second", f"{theirs_us:.1f} us", f"{theirs_us / ours_us:.0f} x ours; aim 10 x"
        ),
        Row("Nodewarden, driver calls per second", f"{per_s[0]:.0f}"),
        Row(f"{OTHER}, driver calls per second", f"{per_s[1]:.0f}"),
        Row("Nodewarden, RSS of both", f"{ours_agent.rss_mb + ours_helper.rss_mb:.1f} MB"),
        Row(f"{OTHER}, RSS", f"{theirs.rss_mb:.1f} MB"),
        *(
            Row(f"{name}, a scrape as its client sees it", f"{statistics.median(each.took_ms):.1f} ms")
            for name, each in zip(("Nodewarden", OTHER), scrapers, strict=True)
        ),
    ]


def measure_calls() -> list[Row]:
    """Driver calls per second by function, and what a value costs."""
    with agent() as made:
        time.sleep(WARM_S)
        before = {name: made.standin.calls(name) for name in function_numbers()}
        began_s = time.monotonic()
        costs = over(both_of(made), MEASURE_S)
        took_s = time.monotonic() - began_s
        per_s = {name: (made.standin.calls(name) - was) / took_s for name, was in before.items()}
        values = values_per_s()
    cpu_us = sum(cost.core_pct for cost in costs) * 1e4
    rows = [Row(name, f"{rate:.1f} /s") for name, rate in sorted(per_s.items(), key=lambda item: -item[1]) if rate > 0]
    return [
        *rows,
        Row("all", f"{sum(per_s.values()):.1f} /s"),
        Row("values sampled, agent + helper", f"{values:.0f} /s"),
        Row("CPU per value sampled, agent + helper, not scraped", f"{cpu_us / values:.1f} us", load()),
        Row("helper, RSS", f"{costs[1].rss_mb:.1f} MB", "aim 22 MB"),
    ]


def values_per_s() -> float:
    """How many values the helper reads per second with the default periods."""
    rig = Rig()
    try:
        rig.start()
        peer = rig.agent()
        fast = sum(len(r.values) + len(r.slow_s) + 1 for r in peer.fast(*rig.uuids).values())
        slow = sum(sum(map(len, r.more.values())) + 4 * len(r.links) for r in peer.slow(*rig.uuids).values())
        return fast / 1.0 + slow / 10.0
    finally:
        rig.close()


def measure_quick() -> list[Row]:
    """What the 100 ms mode costs, and how late its samples are beside two busy processes."""

    def cost(*, scrape: bool) -> tuple[Cost, Cost]:
        with agent(QUICK_CONFIG) as made:
            scraper = Scraper(made.port) if scrape else None
            if scraper is not None:
                scraper.start()
            time.sleep(WARM_S)
            agents, helper = over(both_of(made), MEASURE_S)
            if scraper is not None:
                scraper.stopped.set()
                scraper.join()
            return agents, helper

    quiet, scraped = cost(scrape=False), cost(scrape=True)
    idle_ms, busy_ms = lateness_ms(0), lateness_ms(2)

    def pct(costs: tuple[Cost, Cost]) -> str:
        return f"{sum(each.core_pct for each in costs):.2f} %"

    def at(sorted_ms: list[float], share: float) -> str:
        return f"{sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))]:.1f} ms"

    return [
        Row("agent + helper, share of a core", pct(quiet), f"aim 1.5 %; {load()}"),
        Row("  with a scrape a second", pct(scraped)),
        Row("  helper alone", f"{quiet[1].core_pct:.2f} %"),
        Row("a sample is late by, median", at(idle_ms, 0.5), f"{len(idle_ms)} samples"),
        Row("a sample is late by, p99", at(idle_ms, 0.99)),
        Row("  beside two busy processes, median", at(busy_ms, 0.5), f"{os.cpu_count()} cores"),
        Row("  beside two busy processes, p99", at(busy_ms, 0.99)),
    ]


def lateness_ms(busy: int, seconds: float = 25.0) -> list[float]:
    """How late each sample of GPU 0 is against the grid of a tenth of a second, sorted."""
    rig = Rig()
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(busy)]
    try:
        rig.start()
        peer = rig.agent()
        times: list[float] = []
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            times += quick_times(peer, rig.uuids)
            threading.Event().wait(1.0)
    finally:
        for other in others:
            other.kill()
            other.wait()
        rig.close()
    phases = [moment % 0.1 for moment in times]
    first = statistics.median(phases)  # the grid begins a little before the earliest of them, round the circle
    near = [(phase - first + 0.05) % 0.1 for phase in phases]
    return sorted((phase - min(near)) * 1000 for phase in near)


def quick_times(peer: Peer, uuids: list[str]) -> list[float]:
    """When the samples were taken that one fast reading brings of the first GPU."""
    request_id = peer.send(wire.ReadFast(id=peer.next_id(), uuids=uuids, quick_every_s=0.1))
    replies = [peer.reply_to(request_id) for _ in uuids]
    return [
        sample.taken_at_s
        for reply in replies
        if isinstance(reply, wire.FastReply) and reply.uuid == uuids[0]
        for sample in reply.quick
    ]
