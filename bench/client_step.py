"""What `guard.step()` costs a training process: nanoseconds per call, idle, without an agent, and after it has died.

Run: python bench/client_step.py
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import nodewarden_client

AGENT = Path(__file__).parents[1] / "tests" / "jobs" / "agent_process.py"
CALLS = 200_000

Step = Callable[[int], str]


def per_call_ns(step: Step) -> float:
    runs = timeit.repeat("step(7)", globals={"step": step}, number=CALLS, repeat=9)
    return min(runs) / CALLS * 1e9


def spaced_us(step: Step, calls: int = 2000) -> list[float]:
    """Calls 2 ms apart, as in a fast training loop: caches are cold."""
    took = []
    for number in range(calls):
        time.sleep(0.002)
        began = time.perf_counter()
        step(number)
        took.append((time.perf_counter() - began) * 1e6)
    return sorted(took)


def empty(_step: int) -> str:
    return "continue"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nw-") as directory:
        socket = Path(directory) / "job.sock"
        os.environ["NODEWARDEN_JOB_SOCKET"] = str(socket)
        rows = [("a call that does nothing", per_call_ns(empty))]
        guard = nodewarden_client.connect(job="bench")
        rows.append(("no agent", per_call_ns(guard.step)))
        guard.close()
        agent = subprocess.Popen(
            [sys.executable, AGENT, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        agent.stdout.readline()
        guard = nodewarden_client.connect(job="bench")
        while "job_joined" not in agent.stdout.readline():
            pass
        rows.append(("connected, idle", per_call_ns(guard.step)))
        spaced = spaced_us(guard.step)
        agent.kill()
        agent.wait()
        rows.append(("agent killed", per_call_ns(guard.step)))
        guard.close()
        agent.stdin.close()
        agent.stdout.close()
    for name, ns in rows:
        print(f"{name:<28} {ns:8.0f} ns")
    p50, p99 = statistics.median(spaced), spaced[int(len(spaced) * 0.99)]
    print(f"{'connected, one per 2 ms':<28} {p50:8.2f} us p50, {p99:.2f} us p99, {spaced[-1]:.2f} us max")


main()
