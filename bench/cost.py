"""What a process costs, from /proc: memory and CPU time, by thread."""

import os
import time
from dataclasses import dataclass
from pathlib import Path


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads that live now, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # a thread that just ended
    return total / 1e9


def memory_mb(pid: int) -> tuple[float, float]:
    """RSS and PSS (shared pages divided among who shares them) in MB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, kb = line.split()[:2]
        found[name.rstrip(":")] = int(kb) / 1024
    return found["Rss"], found["Pss"]


@dataclass(frozen=True)
class Cost:
    """Share of one core in percent, RSS and PSS in MB, of one process over one stretch of time."""

    core_pct: float
    rss_mb: float
    pss_mb: float


def over(pids: list[int], seconds: float) -> list[Cost]:
    """What each process costs over the next seconds."""
    before = [cpu_s(pid) for pid in pids]
    began_s = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    return [Cost((cpu_s(pid) - cpu) / took_s * 100, *memory_mb(pid)) for pid, cpu in zip(pids, before, strict=True)]


def load() -> str:
    """How busy the machine was meanwhile."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
