"""A real process as the plant's job: what it says in the shared file becomes the boards' phases."""

from pathlib import Path

from nodewarden.sim.job_link import BoardTruth, JobLink
from nodewarden.sim.job_model import JobModel
from nodewarden.sim.plant import COMPUTE_S, Phase, Plant

LOOK_FOR_PROCESS_S = 1.0


class LinkedJob:
    """Stands where `JobModel` stands, for a job that is a process.

    Until the first process comes, an imagined job keeps the boards busy, so that the scenario finds them warm. A job
    that ended or died leaves them idle.
    """

    def __init__(self, plant: Plant, link: JobLink) -> None:
        self._plant = plant
        self._link = link
        self._imagined: JobModel | None = JobModel(plant)
        self._step = -1
        self._work_s = [0.0] * len(plant.gpus)
        self._alive = False
        self._looked_s = float("-inf")
        self.pid = 0
        self._hottest_c = [0.0] * len(plant.gpus)
        self._lowest_margin_c = [99.0] * len(plant.gpus)
        self._hw_before_s = [0.0] * len(plant.gpus)

    def begin(self) -> None:
        """The scenario begins: what counts from now on is its truth."""
        self._hottest_c = [gpu.junction_c for gpu in self._plant.gpus]
        self._lowest_margin_c = [gpu.margin_c for gpu in self._plant.gpus]
        self._hw_before_s = [gpu.firmware.hw_seconds for gpu in self._plant.gpus]

    def pids(self) -> tuple[int, ...]:
        """Compute processes on each board."""
        return (self.pid,) if self.pid else ()

    def step(self, dt_s: float) -> None:
        """Set each board's phase for the next `dt_s`."""
        pid, phase, step = self._link.job()
        if pid and self._imagined is not None:
            self._imagined = None
        if self._imagined is not None:
            self._imagined.step(dt_s)
            return
        self.pid = pid if self._lives(pid) and phase != "idle" else 0
        self._follow(phase if self.pid else "idle", step, dt_s)

    def _follow(self, phase: Phase, step: int, dt_s: float) -> None:
        if phase == "compute" and step != self._step:
            self._step = step
            self._work_s = [0.0] * len(self._work_s)
        for i, gpu in enumerate(self._plant.gpus):
            if phase == "compute" and gpu.phase == "compute":
                self._work_s[i] += gpu.work_speed * dt_s
            gpu.phase = "wait" if phase == "compute" and self._work_s[i] >= COMPUTE_S else phase

    def _lives(self, pid: int) -> bool:
        if self._plant.now_s - self._looked_s >= LOOK_FOR_PROCESS_S:
            self._looked_s = self._plant.now_s
            self._alive = Path(f"/proc/{pid}").exists() and not _is_zombie(pid)
        return self._alive

    def tell(self, at_s: float) -> None:
        """Write the boards' truth for the job and the demo."""
        for i, gpu in enumerate(self._plant.gpus):
            self._hottest_c[i] = max(self._hottest_c[i], gpu.junction_c)
            self._lowest_margin_c[i] = min(self._lowest_margin_c[i], gpu.margin_c)
            truth = BoardTruth(
                speed=gpu.work_speed,
                hottest_c=self._hottest_c[i],
                lowest_margin_c=self._lowest_margin_c[i],
                hw_slowdown_s=gpu.firmware.hw_seconds - self._hw_before_s[i],
                off=gpu.off,
            )
            self._link.write_board(i, truth)
        self._link.write_twin(self._plant.scenario_s, self._plant.plug_power_w(), at_s)


def _is_zombie(pid: int) -> bool:
    try:
        with Path(f"/proc/{pid}/stat").open(encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True
