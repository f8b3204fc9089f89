"""A whole node under the bench: agent and helper, eight stand-in GPUs, a PDU with 24 outlets, a scrape a second."""

import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cost import Cost, load, over
from table import Row

from end_to_end.node import TestNode
from support.real import recordings_dir
from support.servers import SnmpSimulator, answers
from support.wait import wait_for

WARM_S = 12.0
MEASURE_S = 30.0
PDU = """
[[pdu]]
name = "rack12-a"
host = "127.0.0.1"
port = {port}
community = "apc_ap8959eu3"
outlets = [7, 8]
limit_w = 9000
"""


class Scraper(threading.Thread):
    """Scrapes once a second, as Prometheus does: one kept connection is not needed for the cost on our side."""

    def __init__(self, port: int) -> None:
        super().__init__(name="scraper", daemon=True)
        self.request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
        self.took_ms: list[float] = []
        self.bytes = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(1.0):
            began_s = time.perf_counter()
            with urllib.request.urlopen(self.request, timeout=5) as answer:  # noqa: S310
                self.bytes = len(answer.read())
            self.took_ms.append((time.perf_counter() - began_s) * 1000)


@contextmanager
def node(*, gpus: int = 8, pdu: bool = True) -> Iterator[TestNode]:
    """A started node; what it prints goes nowhere."""
    with ExitStack() as stack:
        config = ""
        if pdu:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nw-")))
            simulator = stack.enter_context(SnmpSimulator(recordings_dir(), scratch))
            config = PDU.format(port=simulator.port)
        made = stack.enter_context(TestNode(("h100",) * gpus, config=config))
        made.start_agent("--log-level", "warning", ready=False)
        wait_for(answers(f"http://127.0.0.1:{made.port}/metrics"), 60, "the agent's first turn")
        yield made


def cost_of(*, gpus: int = 8, pdu: bool = True, scrape: bool = True) -> tuple[Cost, Cost, Scraper | None]:
    """Agent's and helper's cost with these parts."""
    with node(gpus=gpus, pdu=pdu) as made:
        assert made.agent is not None
        scraper = Scraper(made.port) if scrape else None
        if scraper is not None:
            scraper.start()
        time.sleep(WARM_S)
        agent, helper = over([made.agent.pid, made.helper_pid()], MEASURE_S)
        if scraper is not None:
            scraper.stopped.set()
            scraper.join()
        return agent, helper, scraper


def measure() -> list[Row]:
    agent, helper, scraper = cost_of()
    quiet, quiet_helper, _ = cost_of(scrape=False)
    bare, bare_helper, _ = cost_of(scrape=False, pdu=False)
    assert scraper is not None

    def pct(value: float) -> str:
        return f"{value:.2f} %"

    def mb(value: float) -> str:
        return f"{value:.1f} MB"

    return [
        Row("agent + helper, share of a core", pct(agent.core_pct + helper.core_pct), f"aim 1.0 %; {load()}"),
        Row("  scrape, once a second, gzip", pct(agent.core_pct - quiet.core_pct), "with it - without it"),
        Row("  PDU, 24 outlets", pct(quiet.core_pct - bare.core_pct), "with it - without it"),
        Row("  agent without both (GPUs, policy, journal)", pct(bare.core_pct)),
        Row(
            "  helper, 8 GPUs", pct(bare_helper.core_pct), f"{pct(helper.core_pct)}, {pct(quiet_helper.core_pct)} above"
        ),
        Row("agent + helper, RSS", mb(agent.rss_mb + helper.rss_mb), "aim 75 MB"),
        Row("  agent", mb(agent.rss_mb), f"PSS {mb(agent.pss_mb)}; without PDU {mb(bare.rss_mb)}"),
        Row("  helper", mb(helper.rss_mb), f"PSS {mb(helper.pss_mb)}"),
        Row("a scrape as its client sees it", f"{statistics.median(scraper.took_ms):.1f} ms", f"{scraper.bytes} bytes"),
    ]


def measure_cap() -> list[Row]:
    """From the moment a board is hotter than it may be to the first write of a lower limit."""
    took_s = []
    with node(pdu=False) as made:
        made.nodectl("arm")
        for slot, gpu in enumerate(made.standin.gpus):
            time.sleep(0.13 * slot)  # another phase of the sampling period each time
            began_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            gpu.junction_c, gpu.hbm_c = 88, 92

            wait_for(lambda slot=slot: made.standin.writes(gpu=slot), 30, f"a cap on GPU {slot}")
            took_s.append(made.standin.writes(gpu=slot)[0].at_s - began_s)
    return [
        Row(
            "too hot -> lower limit in the board, median", f"{statistics.median(took_s):.2f} s", "sampled once a second"
        ),
        Row("too hot -> lower limit in the board, worst of 8", f"{max(took_s):.2f} s"),
    ]


def measure_status() -> list[Row]:
    took_s = []
    with node() as made:
        for _ in range(12):
            began_s = time.perf_counter()
            made.nodectl("status", check=None)
            took_s.append(time.perf_counter() - began_s)
    return [
        Row("nodectl status, start to end, median of 12", f"{statistics.median(took_s) * 1000:.0f} ms", "aim 300 ms"),
        Row("nodectl status, start to end, worst of 12", f"{max(took_s) * 1000:.0f} ms", load()),
    ]
