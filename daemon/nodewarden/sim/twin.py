"""The twin as a program: the plant in step with the clock, the real GPU helper in front of it, its PDU on real SNMP.

`python -m nodewarden.sim.twin --scenario fan-bank --runtime-dir D --lock-dir L --link F` makes the file F, prints one
JSON line when all is up, and runs until SIGTERM. The scenario begins when somebody says so in the file
(`JobLink.begin`).
Everything outside this process is the product as it is installed: the helper's socket, SNMP on loopback.
"""

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from nodewarden.clock import BootClock, Clock, ScaledClock, boot_now_s
from nodewarden.errors import ConfigError
from nodewarden.gpuhelper.server import serve
from nodewarden.sim.gpus import SimLibrary, uuid_of
from nodewarden.sim.job_link import JobLink
from nodewarden.sim.linked_job import LinkedJob
from nodewarden.sim.pdu import PduValues, serve_pdu
from nodewarden.sim.plant import DT_S, PSU_EFFICIENCY, REST_OF_NODE_W, Plant
from nodewarden.sim.scenario import Scenario, load_scenario, plant_for

OUTLETS = (7, 8)
COMMUNITY = "twin"
MOST_STEPS_AT_ONCE = 50


class Twin:
    """Steps the plant along the clock in a thread of its own.

    A machine that is busy elsewhere makes it late; it then catches up, at most five seconds at once, and lets the rest
    go: time that nobody could watch is not simulated.
    """

    def __init__(self, scenario: Scenario, link: JobLink, clock: Clock, seed: int) -> None:
        self._scenario = scenario
        self._link = link
        self._clock = clock
        self.plant: Plant = plant_for(scenario, seed)
        self.job = LinkedJob(self.plant, link)
        self._begun = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plant", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """Stop stepping; returns when the thread has ended."""
        self._end.set()
        self._thread.join()

    def pdu_values(self) -> PduValues:
        """What the node draws, mean of the last second, from two outlets alike."""
        plug_w = (REST_OF_NODE_W + sum(gpu.mean_w for gpu in self.plant.gpus)) / PSU_EFFICIENCY
        return PduValues(outlets_w=dict.fromkeys(OUTLETS, plug_w / len(OUTLETS)))

    def _run(self) -> None:
        due_s = self._clock.now_s()
        while not self._end.is_set():
            now_s = self._clock.now_s()
            due_s = max(due_s, now_s - MOST_STEPS_AT_ONCE * DT_S)
            while due_s <= now_s:
                self._step(due_s)
                due_s += DT_S
            self._end.wait(self._clock.real_s(max(0.0, due_s - self._clock.now_s())))

    def _step(self, at_s: float) -> None:
        begin_s = self._link.begin_s()
        if not self._begun and begin_s is not None and at_s >= begin_s:
            self._begun = True
            self.plant.begin(self._scenario.fault)
            self.job.begin()
        self.job.step(DT_S)
        self.plant.step(DT_S)
        if not self._begun:
            self.plant.begin(())
        self.job.tell(at_s)


def main() -> int:
    """Run the twin."""
    parser = argparse.ArgumentParser(prog="nodewarden.sim.twin", description="A simulated node with real interfaces.")
    parser.add_argument("--scenario", default="fan-bank", help="name, or a .toml file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runtime-dir", type=Path, required=True, help="where the helper puts its socket and ledger")
    parser.add_argument("--lock-dir", type=Path, required=True, help="where the helper locks its GPUs")
    parser.add_argument("--link", type=Path, required=True, help="file to share with the job; made here")
    parser.add_argument("--speed", type=float, default=1.0, help="clock seconds per real second")
    parser.add_argument("--origin-s", type=float, default=None, help="CLOCK_BOOTTIME at which a fast clock starts")
    options = parser.parse_args()
    try:
        scenario = load_scenario(options.scenario)
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program's last words
        return 78
    # The helper waits for these in this thread; the threads that are started here must not be the ones to get them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    origin_s = options.origin_s if options.origin_s is not None else boot_now_s()
    clock: Clock = BootClock() if options.speed == 1.0 else ScaledClock(options.speed, origin_s)
    link = JobLink.create(options.link, speed=options.speed, origin_s=origin_s)
    twin = Twin(scenario, link, clock, options.seed)
    twin.start()
    pdu = serve_pdu(twin.pdu_values, community=COMMUNITY, now_s=clock.now_s)
    ready = {
        "pid": os.getpid(),
        "pdu_host": pdu.host,
        "pdu_port": pdu.port,
        "community": COMMUNITY,
        "outlets": OUTLETS,
        "gpus": [uuid_of(gpu.index) for gpu in twin.plant.gpus],
    }
    print(json.dumps(ready), flush=True)  # noqa: T201 - whoever started it waits for this line
    try:
        return serve(
            SimLibrary(twin.plant, twin.job.pids),
            runtime_dir=options.runtime_dir,
            lock_dir=options.lock_dir,
            clock=clock,
        )
    finally:
        pdu.close()
        twin.stop()


if __name__ == "__main__":
    sys.exit(main())
