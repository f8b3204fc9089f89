"""Plant and policy in lockstep, without a process, a socket or a wait: the same seed gives the same run, bit by bit.

Tests use it to show what a scenario does to the boards with and without the policy, and how two policies compare.
"""

import copy
import hashlib
import math
from typing import Any

import msgspec

from nodewarden.model.events import Event
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.readings import Absent, Reading
from nodewarden.model.setpoints import Cause, Setpoints
from nodewarden.model.snapshot import SLOW_REASONS, GpuSnapshot, JobSnapshot, NodeSnapshot, Number
from nodewarden.policy import decide, initial_state, worth_writing
from nodewarden.sim.gpus import SimDevice, uuid_of
from nodewarden.sim.job_model import JobModel
from nodewarden.sim.plant import DT_S, Plant
from nodewarden.sim.reversals import Reversals
from nodewarden.sim.scenario import Scenario, settled

JOB = "toy"
LIMIT = "rack-pdu"
PDU_PUBLISH_S = 5.0
PDU_LATE_S = 1.5
LAST_S = 60.0
SILENCE_S = 3
STEPS_PER_TICK = round(1.0 / DT_S)


class Outcome(msgspec.Struct, kw_only=True):
    """What a run came to, from the plant's truth and not from its sensors.

    Attributes:
        steps: training steps finished.
        lost: share of the healthy node's steps that were not done; None where that node is not known.
        hottest_c, lowest_margin_c: of the worst board at the worst moment; the margin is negative above a limit.
        above_max_op_s: board-seconds above max-operating (core or HBM). hbm_hot_s: of HBM alone.
        slowdown_samples: tenths of a second with any board at or above its slowdown threshold.
        hw_slowdown_s: board-seconds in hardware slowdown.
        boards_lost: boards that switched themselves off.
        lowest_cap_w: lowest cap that was written (0 = none was). cap_writes: how many were.
        late_writes: of those, in the last minute of the run.
        reversals: changes of direction of the job's speed by more than 5 %.
        least_spread: lowest slowest/fastest clock of a step while capped.
        top_level: highest rung of the ladder. paused_s: how long the job stood.
        checkpoint_step: step of the last checkpoint that was asked for and finished.
        energy_j: of all boards.
        events: scenario second and event, in order.
        caps_at_end_w: caps in force at the end.
        decisions_sha256: digest of every decision.
    """

    steps: int = 0
    lost: float | None = None
    hottest_c: float = 0.0
    lowest_margin_c: float = 99.0
    above_max_op_s: float = 0.0
    hbm_hot_s: float = 0.0
    slowdown_samples: int = 0
    hw_slowdown_s: float = 0.0
    boards_lost: int = 0
    lowest_cap_w: float = 0.0
    cap_writes: int = 0
    late_writes: int = 0
    reversals: int = 0
    least_spread: float = 1.0
    top_level: int = 0
    lowest_duty: float = 1.0
    paused_s: float = 0.0
    checkpoint_step: int | None = None
    energy_j: float = 0.0
    events: list[tuple[float, Event]] = []
    caps_at_end_w: list[float] = []
    decisions_sha256: str = ""


class ClosedLoop:
    """One scenario under one policy.

    Args:
        scenario: what happens.
        armed: False = the policy decides and nothing is done, as on a node that is not armed.
        limits: replaces what the boards and the scenario say.
    """

    def __init__(self, scenario: Scenario, *, seed: int = 1, armed: bool = True, limits: Limits | None = None) -> None:
        self.scenario = scenario
        self.armed = armed
        self.plant: Plant
        self.plant, self._healthy_steps_per_s = settled(scenario, seed)
        self.job = JobModel(self.plant, checkpoint_s=scenario.save_s)
        self.limits = limits or limits_of(self.plant, scenario)
        self.setpoints = Setpoints()
        self.outcome = Outcome()
        self._state: Any = initial_state(self.limits)
        self._devices = [SimDevice(self.plant, gpu.index, lambda: (1,)) for gpu in self.plant.gpus]
        self._digest = hashlib.sha256()
        self._published: list[tuple[float, float]] = []
        self._checkpoint_wanted = False
        self._steps_at_tick: list[tuple[float, int]] = []
        self._reversals = Reversals()
        self._began_j = math.fsum(gpu.energy_j for gpu in self.plant.gpus)
        self._last_step = 0
        self._stopped = False

    def run(self) -> Outcome:
        """Run the whole scenario."""
        while self.plant.scenario_s < self.scenario.duration_s:
            self.tick()
        return self.finish()

    def finish(self) -> Outcome:
        """What it came to until now."""
        outcome, plant = self.outcome, self.plant
        outcome.steps = self.job.steps
        if self._healthy_steps_per_s is not None and self.job.steps:
            # Up to the end of the last step: the part of a step that is under way is nobody's loss.
            healthy = self._healthy_steps_per_s * plant.scenario_s
            began = min(1.0, (plant.now_s - self.job.step_ended_s) * self._healthy_steps_per_s)
            outcome.lost = max(0.0, 1.0 - (self.job.steps + began * self.job.step_speed) / healthy)
        elif self._healthy_steps_per_s is not None:
            outcome.lost = 1.0
        outcome.checkpoint_step = self.job.checkpoint_step
        outcome.caps_at_end_w = [gpu.cap_w for gpu in plant.gpus]
        outcome.boards_lost = sum(gpu.off for gpu in plant.gpus)
        outcome.reversals = self._reversals.count
        outcome.energy_j = math.fsum(gpu.energy_j for gpu in plant.gpus) - self._began_j
        outcome.decisions_sha256 = self._digest.hexdigest()
        return outcome

    def tick(self) -> None:
        """One control period: read, decide, act, then one second of physics."""
        now_s = self.plant.now_s
        if not self._published or now_s - self._published[-1][0] >= PDU_PUBLISH_S - 1e-6:
            self._published.append((now_s, self.plant.plug_power_w()))
        snapshot = self.snapshot()
        self.setpoints, events = self.decide(snapshot, now_s)
        self._digest.update(msgspec.msgpack.encode((self.setpoints, events)))
        self.outcome.events += [(self.plant.scenario_s, event) for event in events]
        self.outcome.top_level = max(self.outcome.top_level, int(self.setpoints.level))
        if self.armed:
            self._act()
        self._advance()

    def _advance(self) -> None:
        """One second of physics."""
        for _ in range(STEPS_PER_TICK):
            self.job.step(DT_S)
            self.plant.step(DT_S)
            self._watch()

    def fork(self) -> "ClosedLoop":
        """A run of its own that goes on from this moment."""
        return copy.deepcopy(self, {id(self._digest): self._digest.copy()})

    def go_silent(self, for_s: int, *, failsafe_w: float | None = None) -> None:
        """The agent is dead or frozen for so long; caps stay, and after 3 s the helper lowers them to `failsafe_w`."""
        for second in range(for_s):
            if failsafe_w is not None and second == SILENCE_S:
                for gpu in self.plant.gpus:
                    if not gpu.off and gpu.cap_w > failsafe_w:
                        gpu.set_cap_w(failsafe_w, self.plant.now_s)
            self._advance()

    def restart(self, state: Any = None) -> None:
        """A new agent: with the memory that was saved, or with none."""
        self._state = initial_state(self.limits) if state is None else state

    def decide(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Setpoints, list[Event]]:
        """One decision of the policy; what takes its place overrides this."""
        self._state, setpoints, events = decide(self._state, snapshot, self.limits, now_s)
        return setpoints, events

    def snapshot(self) -> NodeSnapshot:
        """What the agent would know now."""
        now_s = self.plant.now_s
        outlets: dict[str, Number] = {LIMIT: Absent("not_read")}
        for at_s, watts in self._published:
            if at_s <= now_s - PDU_LATE_S:
                outlets[LIMIT] = Reading(round(watts, -1), at_s)
        return NodeSnapshot(
            taken_at_s=now_s,
            gpus={device.identity.uuid: self._gpu(device, now_s) for device in self._devices},
            outlets=outlets,
            jobs=(self._job(now_s),),
        )

    def _gpu(self, device: SimDevice, now_s: float) -> GpuSnapshot:
        identity, board = device.identity, self.plant.board
        if self.plant.gpus[identity.index].off:
            return GpuSnapshot(
                uuid=identity.uuid, index=identity.index, model=board.name, board=board.told, health="lost"
            )
        fast = device.read_fast()
        bits = fast.slow_bits or 0
        blank = GpuSnapshot(
            uuid=identity.uuid,
            index=identity.index,
            model=board.name,
            board=board.told,
            slow=Reading(tuple(name for bit, name in enumerate(SLOW_REASONS) if bits >> bit & 1), now_s),
        )
        return msgspec.structs.replace(blank, **{name: Reading(value, now_s) for name, value in fast.values.items()})

    def _job(self, now_s: float) -> JobSnapshot:
        self._steps_at_tick = [*self._steps_at_tick[-20:], (now_s, self.job.steps)]
        then_s, then = self._steps_at_tick[0]
        return JobSnapshot(
            id=JOB,
            gpus=tuple(device.identity.uuid for device in self._devices),
            ranks=1,
            world=1,
            step=self.job.steps,
            steps_per_s=(self.job.steps - then) / (now_s - then_s) if now_s > then_s else None,
            ckpt_s=self.scenario.save_s if self.job.checkpoint_step is not None else None,
            duty=self.job.duty,
            capabilities=("checkpoint", "throttle", "stop"),
            verified=True,
            last_checkpoint_at_s=self.job.checkpoint_at_s,
        )

    def _act(self) -> None:
        setpoints, outcome = self.setpoints, self.outcome
        for device in self._devices:
            gpu = self.plant.gpus[device.identity.index]
            cap = setpoints.caps.get(device.identity.uuid)
            if cap is None or gpu.off or gpu.cap_w == cap.w:
                continue
            released = cap.cause == Cause.NONE  # the way back to the prior limit has no dead band
            if not released and not worth_writing(gpu.cap_w, cap.w, hot=gpu.read_margin_c < 2):
                continue
            device.set_cap_w(cap.w)
            outcome.cap_writes += 1
            outcome.late_writes += self.plant.scenario_s >= self.scenario.duration_s - LAST_S
            outcome.lowest_cap_w = min(outcome.lowest_cap_w or cap.w, cap.w)
        self.job.duty = setpoints.job.duty
        outcome.lowest_duty = min(outcome.lowest_duty, setpoints.job.duty)
        self._stopped |= setpoints.job.request == "stop"
        self.job.paused = self._stopped or setpoints.job.request == "pause"
        wanted = setpoints.job.request == "checkpoint"
        if wanted and not self._checkpoint_wanted:
            self.job.checkpoint_asked = True
        self._checkpoint_wanted = wanted

    def _watch(self) -> None:
        outcome = self.outcome
        at_slowdown = False
        for gpu in self.plant.gpus:
            margin_c, junction_c = gpu.margin_c, gpu.junction_c
            outcome.hottest_c = max(outcome.hottest_c, junction_c)
            outcome.lowest_margin_c = min(outcome.lowest_margin_c, margin_c)
            at_slowdown |= junction_c >= gpu.board.slowdown_c
            if margin_c < 0.0:
                outcome.above_max_op_s += DT_S
                outcome.hbm_hot_s += DT_S * (gpu.hbm_c >= gpu.board.hbm_max_op_c)
            if gpu.firmware.hw_active:
                outcome.hw_slowdown_s += DT_S
        outcome.slowdown_samples += at_slowdown
        outcome.paused_s += DT_S * (self.job.paused and self.plant.gpus[0].phase == "pause")
        if self.job.steps != self._last_step:
            self._last_step = self.job.steps
            self._reversals.see(self.job.step_speed)
            if any(gpu.cap_w < gpu.board.max_w for gpu in self.plant.gpus):
                outcome.least_spread = min(outcome.least_spread, self.job.spread)


def limits_of(plant: Plant, scenario: Scenario) -> Limits:
    """What the boards and the scenario say must not be passed."""
    board = plant.board
    told = board.told
    return Limits(
        gpus={
            uuid_of(gpu.index): GpuLimits(
                min_w=board.min_w,
                max_w=board.max_w,
                prior_w=board.max_w,
                kind=board.kind,
                max_op_c=told.max_op_c or 0.0,
                slowdown_c=told.slowdown_c or 0.0,
                shutdown_c=told.shutdown_c or 0.0,
                hbm_max_op_c=told.hbm_max_op_c,
            )
            for gpu in plant.gpus
        },
        outlets={LIMIT: scenario.pdu_limit_w},
    )
