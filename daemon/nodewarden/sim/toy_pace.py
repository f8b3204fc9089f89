"""How long the toy job takes: as long as it is told, or on the twin a synchronous step that the slowest board ends."""

import time
from pathlib import Path

from nodewarden.sim.job_link import BOARDS, JobLink
from nodewarden.sim.plant import ALL_REDUCE_S, COMPUTE_S

SLICE_S = 0.1


class Pace:
    """How long things take. This one is a machine that needs `step_s` per step."""

    def __init__(self, step_s: float, save_s: float) -> None:
        self.step_s = step_s
        self.save_s = save_s

    def step(self, _step: int) -> None:
        """Wait out one step."""
        time.sleep(self.step_s)

    def save(self, _step: int) -> None:
        """Wait out the copy of a large model."""
        time.sleep(self.save_s)

    def rest(self, _step: int) -> None:
        """Nothing runs until the next step."""

    def end(self) -> None:
        """The job is over."""


class TwinPace(Pace):
    """Takes the boards' speeds from the file that the twin shares, and tells it what they run. Shared-clock seconds."""

    def __init__(self, path: Path, save_s: float) -> None:
        super().__init__(step_s=0.0, save_s=save_s)
        self._link = JobLink(path)
        self._link.say("wait", 0)

    def step(self, step: int) -> None:
        """Until every board has done its work, then the exchange of gradients."""
        link = self._link
        link.say("compute", step)
        work_s = [0.0] * BOARDS
        then_s = link.now_s()
        while min(work_s) < COMPUTE_S:
            link.sleep_s(SLICE_S)
            now_s = link.now_s()
            work_s = [done_s + speed * (now_s - then_s) for done_s, speed in zip(work_s, link.speeds(), strict=True)]
            then_s = now_s
        link.say("all_reduce", step)
        link.sleep_s(ALL_REDUCE_S)

    def save(self, step: int) -> None:
        """The boards wait while the state is copied."""
        self._link.say("checkpoint", step)
        self._link.sleep_s(self.save_s)

    def rest(self, step: int) -> None:
        """Between two steps; a throttled job stays here for a while."""
        self._link.say("pause", step)

    def end(self) -> None:
        """The boards fall idle."""
        self._link.say("idle", 0)
        self._link.close()
