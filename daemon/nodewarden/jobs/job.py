"""A training job as its ranks on this node report it: who is there, how fast it steps, what is asked of it."""

import math
from collections import deque

import msgspec

from nodewarden.clock import Clock
from nodewarden.jobs.requests import CheckpointRequest
from nodewarden.jobs.session import Session
from nodewarden.model.snapshot import JobSnapshot, JobState

PACE_WINDOW_S = 15.0
SILENT_AFTER_S = 10.0
"""A rank that has not answered a ping for this long is shown as lost; its connection stays."""
DURATIONS_KEPT = 20


class Pace:
    """Steps per second from (time, step) pairs; bounded, on whatever clock the times come from."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=64)

    def add(self, now_s: float, step: int) -> None:
        """A rank said at `now_s` that it is at `step`."""
        points = self._points
        if points and step < points[-1][1]:
            points.clear()  # the job started over
        if points and step == points[-1][1]:
            return
        points.append((now_s, step))
        while len(points) > 2 and now_s - points[0][0] > PACE_WINDOW_S:
            points.popleft()

    def steps_per_s(self, now_s: float) -> float | None:
        """Mean rate over the window; sinks while no step comes; None before there were two."""
        points = self._points
        if len(points) < 2:
            return None
        (first_s, first), (last_s, last) = points[0], points[-1]
        span_s, steps = last_s - first_s, last - first
        if span_s <= 0:
            return None
        # One more step is under way: it counts as late from when it takes longer than the others did.
        return min(steps / span_s, (steps + 1) / (now_s - first_s)) if now_s > first_s else steps / span_s


class Throttle(msgspec.Struct, frozen=True, kw_only=True):
    """A duty cycle that somebody asked for; ends at `until_s`, CLOCK_BOOTTIME seconds."""

    duty: float
    until_s: float
    cause: str
    gpu: str | None = None


class Job:
    """One job on this node. Ranks are its sessions by rank number; all times are CLOCK_BOOTTIME seconds.

    Attributes:
        id: unique on this node.
        key: (uid, name): the same name of another user is another job.
        request: the newest checkpoint that was asked of it, open or not.
        ended_at_s: when its last rank left, None while one is there.
    """

    def __init__(self, job_id: str, key: tuple[int, str]) -> None:
        self.id = job_id
        self.key = key
        self.sessions: dict[int, Session] = {}
        self.pace = Pace()
        self.step: int | None = None
        self.request: CheckpointRequest | None = None
        self.throttle: Throttle | None = None
        self.throttle_id = ""
        self.renew_at_s = 0.0
        self.told_duty = 1.0
        self.ended_at_s: float | None = None
        self.world = 1
        self.framework = ""
        self.capabilities: tuple[str, ...] = ()
        self.pg_timeout_s: float | None = None
        self.last_checkpoint_at_s: float | None = None
        self.last_checkpoint_path: str | None = None
        self._pids: tuple[int, ...] = ()
        self._claimed: tuple[str, ...] = ()
        self._declared_s: float | None = None
        self._durations_s: deque[float] = deque(maxlen=DURATIONS_KEPT)

    @property
    def open_request(self) -> CheckpointRequest | None:
        """The request that has not ended yet."""
        return self.request if self.request is not None and self.request.is_open else None

    @property
    def verified(self) -> bool:
        """True when every rank that is here is confirmed on the GPUs that it names."""
        return bool(self.sessions) and all(session.verified for session in self.sessions.values())

    @property
    def ckpt_s(self) -> float | None:
        """How long a save takes until it is persisted: the 95th percentile of what was seen, else what was declared."""
        if not self._durations_s:
            return self._declared_s
        ordered = sorted(self._durations_s)
        return ordered[math.ceil(0.95 * len(ordered)) - 1]

    def learn(self, persisted_s: float) -> None:
        """A save took this long."""
        self._durations_s.append(persisted_s)

    def join(self, session: Session, now_s: float, clock_per_real: float) -> None:
        """A rank said hello. `clock_per_real`: seconds of our clock per real second, in which peers count."""
        hello = session.hello
        assert hello is not None
        self.sessions[hello.rank] = session
        self.ended_at_s = None
        self.world = hello.world
        self.framework = hello.framework
        self.capabilities = tuple(hello.caps)
        self.pg_timeout_s = hello.pg_timeout_s
        if hello.ckpt_s is not None and hello.ckpt_s.persisted is not None:
            self._declared_s = hello.ckpt_s.persisted * clock_per_real
        if hello.last_ckpt is not None and self.last_checkpoint_at_s is None:
            self.last_checkpoint_at_s = now_s - hello.last_ckpt.age_s * clock_per_real
            self.last_checkpoint_path = hello.last_ckpt.path
        if hello.step is not None:
            self.at_step(hello.rank, hello.step, now_s)
        self._remember()

    def leave(self, session: Session, now_s: float) -> bool:
        """A rank's connection ended; True when it was the job's current one for that rank."""
        hello = session.hello
        if hello is None or self.sessions.get(hello.rank) is not session:
            return False
        del self.sessions[hello.rank]
        if self.sessions:
            self._remember()
        else:
            self.ended_at_s = now_s
        return True

    def at_step(self, rank: int, step: int, now_s: float) -> None:
        """A rank is at this step; the lowest rank here speaks for the job."""
        if rank == min(self.sessions, default=rank):
            self.step = step
            self.pace.add(now_s, step)

    def snapshot(self, now_s: float, silent_after_s: float) -> JobSnapshot:
        """What others see. GPUs: those that the driver confirms; those merely claimed while `verified` is False."""
        confirmed = {gpu for session in self.sessions.values() for gpu in session.confirmed}
        return JobSnapshot(
            id=self.id,
            gpus=tuple(sorted(confirmed)) if confirmed else self._claimed,
            ranks=len(self.sessions),
            world=self.world,
            framework=self.framework,
            step=self.step,
            steps_per_s=self.pace.steps_per_s(now_s),
            ckpt_s=self.ckpt_s,
            state=self._state(now_s, silent_after_s),
            duty=self.told_duty,
            capabilities=self.capabilities,
            verified=self.verified,
            pids=self._pids,
            last_checkpoint_at_s=self.last_checkpoint_at_s,
            last_checkpoint_path=self.last_checkpoint_path,
            pg_timeout_s=self.pg_timeout_s,
        )

    def _state(self, now_s: float, silent_after_s: float) -> JobState:
        request = self.request
        if not self.sessions or all(now_s - s.heard_at_s > silent_after_s for s in self.sessions.values()):
            return "lost"
        if request is not None and request.then == "stop" and request.state == "persisted":
            return "stopping"
        if self.open_request is not None:
            return "checkpointing"
        return "throttled" if self.told_duty < 1 else "running"

    def _remember(self) -> None:
        """What is shown of ranks that have gone: who was here last."""
        sessions = sorted(self.sessions.items())
        self._pids = tuple(session.pid for _, session in sessions if session.pid)
        self._claimed = tuple(sorted({gpu for _, s in sessions if s.hello is not None for gpu in s.hello.gpus}))


def lowest(orders: list[Throttle]) -> Throttle | None:
    """The order that asks for the least; None when there is none below 1."""
    return min((order for order in orders if order.duty < 1), key=lambda order: order.duty, default=None)


def clock_seconds(clock: Clock, real_s: float) -> float:
    """Seconds of `clock` in `real_s` real seconds, which is what peers count in."""
    return real_s / clock.real_s(1.0)
