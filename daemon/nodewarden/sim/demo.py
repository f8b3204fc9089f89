"""The demo itself: raises the stage, lets the scenario play, watches, tells the story. The command is in `cli.demo`."""

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from nodewarden import paths
from nodewarden.clock import boot_now_s
from nodewarden.sim.job_link import JobLink
from nodewarden.sim.scenario import Scenario
from nodewarden.sim.stage import Child, Ready, Stage
from nodewarden.sim.story import Story, tell
from nodewarden.sim.watch import Control, ControlError, Sample, Watcher

UP_WITHIN_S = 30.0
LOOK_PERIOD_S = 1.0  # scenario seconds between two samples
LONGEST_LOOK_S = 0.5  # real seconds
SHORTEST_LOOK_S = 0.05
JOB = "toy"


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns the signals that end a demo into `Interrupted`, so that the stage is cleared whatever ends it."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Demo(msgspec.Struct, kw_only=True):
    """One run. `speed` is scenario seconds per real second; `on_news` hears what is being prepared."""

    scenario: Scenario
    name: str
    seed: int = 1
    armed: bool = True
    speed: float = 1.0
    on_news: Callable[[str], None]
    on_sample: Callable[[Watcher, Sample], None]

    def run(self) -> Story:
        """Play the whole scenario; StageError when something on the stage breaks."""
        with Stage() as stage:
            return self._play(stage)

    def _play(self, stage: Stage) -> Story:
        origin_s = boot_now_s()
        self.on_news("starting the twin: eight GPUs, a PDU")
        twin = self._start_twin(stage, origin_s)
        ready = msgspec.convert(stage.wait_for("the twin", UP_WITHIN_S, twin.lines)[0], Ready)
        link = JobLink(stage.link_path)
        self.on_news("starting the agent")
        _write_config(stage.folder / "nodewarden.toml", ready, self.scenario)
        self._start_agent(stage, origin_s)
        control = _connect(stage, paths.control_socket(stage.runtime_dir))
        self.on_news("starting a training job")
        job = self._start_job(stage, ready)
        watcher = Watcher(control, link, job)
        try:
            self._wait_until_all_is_seen(stage, watcher)
            if self.armed:
                control.call("arm", reason="the demo arms the twin")
                stage.wait_for("the agent to be armed", UP_WITHIN_S, lambda: watcher.look().armed)
            link.begin(link.now_s())
            watcher.begin()
            self._watch(stage, watcher, link)
            return tell(self.scenario, self.name, watcher, armed=self.armed, seed=self.seed, speed=self.speed)
        finally:
            control.close()
            link.close()

    def _start_twin(self, stage: Stage, origin_s: float) -> Child:
        return stage.start(
            "twin",
            "nodewarden.sim.twin",
            *("--scenario", self.name, "--seed", str(self.seed)),
            *("--runtime-dir", stage.runtime_dir, "--lock-dir", stage.lock_dir, "--link", stage.link_path),
            *("--speed", str(self.speed), "--origin-s", repr(origin_s)),
        )

    def _start_agent(self, stage: Stage, origin_s: float) -> Child:
        return stage.start(
            "agent",
            "nodewarden.sim.agent",
            *(str(self.speed), repr(origin_s)),
            *("--config", stage.folder / "nodewarden.toml", "--helper", "connect"),
            *("--runtime-dir", stage.runtime_dir, "--state-dir", stage.state_dir),
        )

    def _start_job(self, stage: Stage, ready: Ready) -> Child:
        return stage.start(
            "job",
            "nodewarden.sim.train_toy",
            *("--checkpoints", stage.checkpoints, "--job", JOB, "--seed", str(self.seed)),
            *("--twin", stage.link_path, "--save-s", str(self.scenario.save_s)),
            *("--save-every", str(self.scenario.save_every_steps), "--gpus", *ready.gpus),
        )

    def _wait_until_all_is_seen(self, stage: Stage, watcher: Watcher) -> None:
        self.on_news("waiting until the agent sees all of them")

        def all_seen() -> bool:
            sample = watcher.look()
            gpus = sum(gpu.margin_c is not None and gpu.cap_w is not None for gpu in sample.gpus)
            return gpus == 8 and sample.pdu_w is not None and sample.steps_per_s is not None

        stage.wait_for("the agent to see eight GPUs, the PDU and the job", UP_WITHIN_S, all_seen)

    def _watch(self, stage: Stage, watcher: Watcher, link: JobLink) -> None:
        period_s = min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, LOOK_PERIOD_S / self.speed))
        begin_s = link.begin_s() or 0.0
        due_s = time.monotonic()
        while link.now_s() - begin_s < self.scenario.duration_s:
            stage.check()
            self.on_sample(watcher, watcher.look())
            due_s = max(due_s + period_s, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
        self.on_sample(watcher, watcher.look())


def _connect(stage: Stage, path: Path) -> Control:
    def try_it() -> Control | None:
        try:
            control = Control(path)
        except OSError:
            return None
        try:
            control.call("status")
        except (OSError, ValueError, ControlError):  # it has not finished its first turn
            control.close()
            return None
        return control

    control: Control = stage.wait_for("the agent's control socket", UP_WITHIN_S, try_it)
    return control


def _write_config(path: Path, ready: Ready, scenario: Scenario) -> None:
    with socket.socket() as probe:  # a free port; should somebody take it first, the agent says so and goes on
        probe.bind(("127.0.0.1", 0))
        http_port = probe.getsockname()[1]
    path.write_text(
        f"""\
[node]
name = "demo-node"
expected_gpus = {len(ready.gpus)}
[[pdu]]
name = "rack-pdu"
feed = "A"
host = {json.dumps(ready.pdu_host)}
port = {ready.pdu_port}
version = "2c"
community = {json.dumps(ready.community)}
outlets = {ready.outlets}
limit_w = {scenario.pdu_limit_w:g}
[sampling]
host_s = 0  # the host is this machine, not the one that is simulated
[http]
listen = "127.0.0.1:{http_port}"
""",
        encoding="utf-8",
    )
    path.chmod(0o600)
