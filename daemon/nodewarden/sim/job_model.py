"""The training job as the boards see it, for the closed loop: step phases, duty, checkpoints, pause. No process.

A synchronous step: every board does its share of the work, the slowest one ends it, then all exchange gradients.
"""

from nodewarden.sim.plant import ALL_REDUCE_S, COMPUTE_S, Phase, Plant

CHECKPOINT_S = 4.0


class JobModel:
    """One job on all boards of the plant.

    Attributes:
        duty: share of time that it is asked to run, 1 = not throttled.
        paused: it stands still from the next step boundary on.
        steps: finished steps.
        step_ended_s: when the last of them ended.
        step_speed: compute speed of the last finished step, that of its slowest board; 1 = full clock.
        spread: in that step, the slowest board's mean speed against the fastest one's.
        checkpoint_step: step of the last finished checkpoint, None = none yet.
    """

    def __init__(self, plant: Plant, *, checkpoint_s: float = CHECKPOINT_S) -> None:
        self._plant = plant
        self._checkpoint_s = checkpoint_s
        self.duty = 1.0
        self.paused = False
        self.steps = 0
        self.step_ended_s = plant.now_s
        self.step_speed = 1.0
        self.spread = 1.0
        self._took_s = [0.0] * len(plant.gpus)
        self.checkpoint_step: int | None = None
        self.checkpoint_at_s: float | None = None
        self.checkpoint_asked = False
        self._work_s = [0.0] * len(plant.gpus)
        self._phase: Phase = "compute"
        self._left_s = 0.0
        self._step_began_s = plant.now_s

    def step(self, dt_s: float) -> None:
        """Set each board's phase for the next `dt_s` from what the boards did in the last one."""
        if self._phase == "compute":
            self._compute(dt_s)
        elif self._phase == "pause" and self._left_s <= 0.0:
            if not self.paused:
                self._begin("compute")
        else:
            self._left_s -= dt_s
            if self._left_s <= 1e-9:
                self._next()
        for gpu, work_s in zip(self._plant.gpus, self._work_s, strict=True):
            gpu.phase = self._phase
            if self._phase == "compute" and work_s >= COMPUTE_S:
                gpu.phase = "wait"

    def _compute(self, dt_s: float) -> None:
        for i, gpu in enumerate(self._plant.gpus):
            if gpu.phase == "compute":
                self._work_s[i] += gpu.work_speed * dt_s
                self._took_s[i] += dt_s
        if all(work_s >= COMPUTE_S for work_s in self._work_s):
            speeds = [work / took if took > 0 else 1.0 for work, took in zip(self._work_s, self._took_s, strict=True)]
            self.step_speed, self.spread = min(speeds), min(speeds) / max(speeds)
            self._begin("all_reduce", ALL_REDUCE_S)

    def _next(self) -> None:
        now_s = self._plant.now_s
        if self._phase == "all_reduce":
            self.steps += 1
            self.step_ended_s = now_s
            if self.checkpoint_asked:
                self.checkpoint_asked = False
                self._begin("checkpoint", self._checkpoint_s)
                return
        elif self._phase == "checkpoint":
            self.checkpoint_step, self.checkpoint_at_s = self.steps, now_s
        if self._phase in {"all_reduce", "checkpoint"} and self.duty < 1.0:
            self._begin("pause", (now_s - self._step_began_s) * (1.0 - self.duty) / max(self.duty, 0.05))
        elif self.paused:
            self._begin("pause")
        else:
            self._begin("compute")

    def _begin(self, phase: Phase, for_s: float = 0.0) -> None:
        self._phase, self._left_s = phase, for_s
        if phase == "compute":
            self._work_s = [0.0] * len(self._work_s)
            self._took_s = [0.0] * len(self._work_s)
            self._step_began_s = self._plant.now_s
