"""Asks the training jobs for what the policy decided: duty cycle and checkpoints. Also carries out a person's request.

Armed: the policy's duty and requests go out. Disarmed: only what a person asked for. A cap that is wanted and cannot be
written is replaced by a duty in the same proportion, since a job needs no driver to slow down.
"""

import contextlib
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from nodewarden.clock import Clock
from nodewarden.errors import RefusedError
from nodewarden.model.events import Event
from nodewarden.model.setpoints import CAUSE_NOUNS, JobSetpoint
from nodewarden.model.snapshot import JobSnapshot

TTL_S = 15.0  # a dead agent frees the job after this
RENEW_S = 5.0
SAVE_AGAIN_S = 600.0  # while the danger lasts


class JobControl(Protocol):
    """What this actuator needs of the job server."""

    def throttle(self, duty: float, *, ttl_s: float, cause: str, gpu: str | None, job: str | None = None) -> list[str]:
        """Ask for a duty cycle (1.0 = release); the job ids asked. RefusedError when the named job cannot."""
        ...

    def request_checkpoint(
        self,
        *,
        deadline_s: float,
        cause: str,
        job: str | None = None,
        then: Literal["continue", "stop"] = "continue",
        unless_saved_since_s: float | None = None,
    ) -> list[str]:
        """Ask for a checkpoint; the request ids. May be called once a second."""
        ...


class ManualDuty(msgspec.Struct, frozen=True):
    """A person's throttle of one job: duty and when it ends (CLOCK_BOOTTIME seconds)."""

    duty: float
    until_s: float


class JobActuator:
    """Throttle and checkpoint.

    Attributes:
        manual: a person's throttles by job id.
        duty: what was last asked per job, only jobs below 1.
    """

    def __init__(self, jobs: JobControl, clock: Clock, on_event: Callable[[Event], None]) -> None:
        self._jobs = jobs
        self._clock = clock
        self._on_event = on_event
        self.manual: dict[str, ManualDuty] = {}
        self.duty: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._wanted_since_s: float | None = None

    def apply(self, setpoint: JobSetpoint, jobs: tuple[JobSnapshot, ...], *, armed: bool, stuck_duty: float) -> None:
        """Send what has changed or is due for renewal. `stuck_duty` stands in for caps that cannot be written."""
        now_s = self._clock.now_s()
        for job, manual in list(self.manual.items()):
            if now_s >= manual.until_s:
                del self.manual[job]
                self._on_event(Event("throttle_expired", None, f"manual throttle of job {job} has ended"))
        automatic = min(setpoint.duty, stuck_duty) if armed else 1.0
        present = [job.id for job in jobs if job.state != "lost"]
        for job in (job.id for job in jobs if job.state != "lost" and "throttle" in job.capabilities):
            manual_duty = self.manual[job].duty if job in self.manual else 1.0
            self._throttle(job, min(automatic, manual_duty), setpoint, now_s)
        for job in self.duty.keys() - set(present):
            self.duty.pop(job)
        self._checkpoint(setpoint, now_s, wanted=armed and setpoint.request == "checkpoint")

    def _checkpoint(self, setpoint: JobSetpoint, now_s: float, *, wanted: bool) -> None:
        """While a save is wanted, have each job asked that has saved nothing since then; again when that is old."""
        if not wanted:
            self._wanted_since_s = None
            return
        if self._wanted_since_s is None:
            self._wanted_since_s = now_s
        self._jobs.request_checkpoint(
            deadline_s=setpoint.deadline_s or 60.0,
            cause=str(setpoint.cause),
            unless_saved_since_s=max(self._wanted_since_s, now_s - SAVE_AGAIN_S),
        )

    def release_all(self) -> None:
        """End every throttle: the agent is stopping (F67)."""
        self.manual.clear()
        for job in self.duty:
            with contextlib.suppress(RefusedError):  # it has just left
                self._jobs.throttle(1.0, ttl_s=TTL_S, cause="stopping", gpu=None, job=job)
        self.duty.clear()

    def _throttle(self, job: str, duty: float, setpoint: JobSetpoint, now_s: float) -> None:
        before = self.duty.get(job, 1.0)
        if duty >= 1.0 and before >= 1.0:
            return
        if abs(duty - before) < 0.005 and now_s - self._asked_s.get(job, 0.0) < RENEW_S:
            return
        cause = "manual" if job in self.manual and self.manual[job].duty <= duty else str(setpoint.cause)
        self._asked_s[job] = now_s
        try:
            self._jobs.throttle(duty, ttl_s=TTL_S, cause=cause, gpu=setpoint.gpu, job=job)
        except RefusedError as error:
            self._on_event(Event("throttle_refused", None, str(error)))
            return
        if duty >= 1.0:
            self.duty.pop(job, None)
            self._on_event(Event("job_released", None, f"job {job} runs at full duty again"))
        else:
            self.duty[job] = duty
            if before >= 1.0:
                why = CAUSE_NOUNS.get(cause, "a cap cannot be written")
                self._on_event(Event("job_throttled", None, f"job {job} throttled to {duty:.0%} of the time: {why}"))
