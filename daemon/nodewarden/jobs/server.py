"""The job server: accepts ranks, keeps jobs, sends pings and throttles, asks for checkpoints and hears their ends.

Durations on the wire are real seconds, as peers count them; inside, all times are seconds of the injected clock.
"""

import asyncio
import contextlib
import itertools
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import structlog

from nodewarden.clock import Clock
from nodewarden.jobs.checkpoints import CheckpointDesk
from nodewarden.jobs.job import SILENT_AFTER_S, Job, clock_seconds
from nodewarden.jobs.protocol import PROTOCOL, FromRank, Hello, HelloResult, Ping, Pong, State, Vote
from nodewarden.jobs.registry import JOBS_MAX, Registry
from nodewarden.jobs.requests import CheckpointRequest
from nodewarden.jobs.session import Session
from nodewarden.jobs.throttling import ThrottleDesk
from nodewarden.jobs.verify import Verifier
from nodewarden.model.events import Event
from nodewarden.model.snapshot import JobSnapshot
from nodewarden.served_socket import ServedSocket
from nodewarden.unix_socket import BACKLOG

log = structlog.get_logger("jobs")

PING_S = 0.5
HELLO_TIMEOUT_S = 5.0
DROP_AFTER_S = 120.0
LOST_KEPT_S = 60.0
VERIFY_EVERY_S = 2.0
VERIFIED_PER_TURN = 8
SESSIONS_PER_UID = 64
SESSIONS_MAX = 512
EVENTS_PER_MINUTE = 60


class JobServer:
    """Serves job.sock.

    Args:
        socket_path: where; in a directory that only the agent may write.
        clock: for every age, deadline and ttl.
        verify: "gpu-process": a peer counts for a GPU once the driver lists its process there; "none": at once.
        pids_of: compute processes of a GPU by uuid, None where the driver does not say.
        on_event: gets every event as it happens.

    Attributes:
        progress_s: clock time of the last turn of the ping loop.
    """

    def __init__(
        self,
        socket_path: Path,
        clock: Clock,
        *,
        verify: str = "gpu-process",
        pids_of: Callable[[str], frozenset[int] | None],
        on_event: Callable[[Event], None],
    ) -> None:
        self.progress_s = clock.now_s()
        self._path = socket_path
        self._clock = clock
        self._verifier = Verifier(verify, pids_of)
        self._on_event = on_event
        # On a fast clock a ping costs as much real time as ever, so do not send more than 20 per real second.
        self._ping_s = max(PING_S, self._clock_s(0.05))
        self._sessions: set[Session] = set()
        self._jobs = Registry()
        self._throttles = ThrottleDesk(self._jobs, clock, self._new_id, on_event)
        self._checkpoints = CheckpointDesk(self._jobs, clock, self._new_id, on_event)
        self._instance = secrets.token_hex(2)  # a restarted agent must not reuse the ids of the one before
        self._numbers = itertools.count(1)
        self._seq = itertools.count(1)
        self._event_minute = (0.0, 0)
        self._socket = ServedSocket(socket_path, self._serve)
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and start the ping loop.

        Raises:
            AlreadyRunningError: another daemon listens on the socket.
            RefusedError: something else is in its place.
        """
        await self._socket.start()
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="jobs")

    async def _serve(self, bound: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(lambda: Session(self, self._clock), sock=bound, backlog=BACKLOG)

    async def listen_again(self) -> None:
        """Make the socket anew when somebody removed its file; jobs that are connected stay. Raises as `start`."""
        await self._socket.start_again()

    async def close(self) -> None:
        """Stop; training goes on, throttles end by their ttl within 15 s, saves under way are finished by the jobs."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        self._socket.refuse()
        for session in list(self._sessions):
            session.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the connections end
        self._socket.close()

    # For the agent ---------------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobSnapshot, ...]:
        """Every job on this node, by id."""
        now_s, silent_s = self._clock.now_s(), self._clock_s(SILENT_AFTER_S)
        return tuple(job.snapshot(now_s, silent_s) for job in self._jobs.all())

    def throttle(
        self, duty: float, *, ttl_s: float, cause: str, gpu: str | None = None, job: str | None = None
    ) -> list[str]:
        """Ask for a duty cycle from 0.05 to 1; 1 releases. The lowest that is asked of a job wins.

        Args:
            duty: share of the time that the job may run.
            ttl_s: the order ends after this unless it is given again; renewing it towards the job is our business.
            cause: why.
            gpu: the GPU to blame, where there is one.
            job: id of one job; None = every job, those to come included.

        Returns:
            Ids of the jobs that were asked.

        Raises:
            RefusedError: the duty is out of range, or there is no such job, or it cannot be throttled.
        """
        return self._throttles.order(duty, ttl_s=ttl_s, cause=cause, gpu=gpu, job=job)

    def request_checkpoint(
        self,
        *,
        deadline_s: float,
        cause: str,
        job: str | None = None,
        then: Literal["continue", "stop"] = "continue",
        unless_saved_since_s: float | None = None,
    ) -> list[str]:
        """Ask for a checkpoint that is persisted within `deadline_s`; returns the ids of the requests.

        A job has one open request at most: while one is open, its id is returned. With job=None every job is asked that
        has saved nothing since `unless_saved_since_s`; one that cannot is passed over with an event, and is not asked
        again for a minute after a request of the same time has ended. It is fine to call this once a second.

        Raises:
            RefusedError: the named job cannot do it; its code is "unknown_job", "lost", "no_agreement", "unsupported",
                "deadline" or "busy".
        """
        return self._checkpoints.ask(job, deadline_s, cause, then, unless_saved_since_s)

    def cancel(self, request_id: str) -> bool:
        """Take a request back; True when the job has been told.

        It ends as "cancelled" once the job confirms; a save that has started is finished and reported as usual.
        """
        return self._checkpoints.cancel(request_id)

    def request(self, request_id: str) -> CheckpointRequest | None:
        """How far a request is; None when it is unknown (the last 64 are kept)."""
        return self._checkpoints.get(request_id)

    # From sessions ---------------------------------------------------------------------------------------------------

    def admit(self, session: Session) -> str | None:
        """Count a new connection; a text when there are too many."""
        if len(self._sessions) >= SESSIONS_MAX:
            return f"the agent serves {SESSIONS_MAX} connections and has no room for more"
        if sum(other.uid == session.uid for other in self._sessions) >= SESSIONS_PER_UID:
            return f"uid {session.uid} has {SESSIONS_PER_UID} connections, which is what one user may have"
        self._sessions.add(session)
        return None

    def on_hello(self, session: Session, request_id: int | str | None, hello: Hello) -> None:
        """Put the rank into its job, or say why not."""
        if PROTOCOL not in hello.proto:
            text = f"this agent speaks protocol {PROTOCOL}, the client {hello.proto}: update the older one"
            session.refuse("no_common_version", text, request_id=request_id)
            return
        now_s = self._clock.now_s()
        job = self._jobs.get_or_new(session.uid, hello.job)
        if job is None:
            session.refuse("too_many", f"the agent keeps {JOBS_MAX} jobs and has no room", request_id=request_id)
            return
        other = job.sessions.get(hello.rank)
        if other is not None and other.pid != session.pid and now_s - other.heard_at_s <= self._clock_s(SILENT_AFTER_S):
            text = f"rank {hello.rank} of job {hello.job} is already here (pid {other.pid}): give each job its own name"
            session.hello = None
            session.refuse("duplicate_rank", text, request_id=request_id)
            return
        is_new, is_back = not job.sessions and job.ended_at_s is None, job.ended_at_s is not None
        job.join(session, now_s, self._clock_s(1.0))
        if other is not None:
            other.refuse("replaced", f"rank {hello.rank} of job {hello.job} connected anew")
        self._verify(session, now_s)
        result = HelloResult(
            proto=PROTOCOL,
            session=secrets.token_hex(4),
            ping_s=self._clock.real_s(self._ping_s),
            verified=session.verified,
        )
        session.welcome(request_id, result)
        self._throttles.apply(job, now_s, anew=True)
        if is_new:
            self._often("job_joined", f"job {job.id} joined: rank {hello.rank} of {hello.world}, pid {session.pid}")
        elif is_back:
            self._often("job_returned", f"job {job.id} is back: rank {hello.rank}, pid {session.pid}")

    def on_message(self, session: Session, body: FromRank) -> None:
        """Handle what a known rank says."""
        hello = session.hello
        job = self._jobs.get(session.uid, hello.job) if hello is not None else None
        if hello is None or job is None or job.sessions.get(hello.rank) is not session:
            return
        now_s = self._clock.now_s()
        if isinstance(body, Pong):
            if body.step is not None:
                job.at_step(hello.rank, body.step, now_s)
        elif isinstance(body, Vote):
            self._checkpoints.on_vote(job, session, body, now_s)
        elif isinstance(body, State):
            self._checkpoints.on_state(job, session, body, now_s)
        else:
            session.said_bye = True
            session.close()

    def on_gone(self, session: Session) -> None:
        """A connection ended: the job is lost until it comes back, or gone when it said so."""
        self._sessions.discard(session)
        hello = session.hello
        job = self._jobs.get(session.uid, hello.job) if hello is not None else None
        if job is None:
            return
        now_s = self._clock.now_s()
        if not job.leave(session, now_s) or job.sessions:
            return
        if session.said_bye:
            self._forget(job, now_s, f"job {job.id} left")
            return
        self._often("job_lost", f"job {job.id} lost: {session.ended}, pid {session.pid}")
        for one in self._jobs.lost_beyond_limit(session.uid):
            self._forget(one, now_s, f"job {one.id} gone")

    # The loop --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        next_s = self._clock.now_s()
        while True:
            now_s = self._clock.now_s()
            self.progress_s = now_s
            try:
                self._turn(now_s)
            except Exception:  # one odd peer must not end the loop for all; it is a bug, so say so
                log.exception("job_turn_failed")
            # The next deadline from the last one; what was missed is skipped, not caught up.
            next_s = max(next_s + self._ping_s, now_s)
            await self._clock.sleep_until(next_s)

    def _turn(self, now_s: float) -> None:
        hello_s, drop_s = self._clock_s(HELLO_TIMEOUT_S), self._clock_s(DROP_AFTER_S)
        unverified = []
        for session in list(self._sessions):
            if session.hello is None:
                if now_s - session.opened_at_s > hello_s:
                    session.refuse("hello_timeout", f"no hello within {HELLO_TIMEOUT_S:.0f} s")
                continue
            if now_s - session.heard_at_s > drop_s:
                session.refuse("silent", f"no answer to pings for {DROP_AFTER_S:.0f} s")
                continue
            session.send(Ping(seq=next(self._seq)))
            if not session.verified and now_s - session.checked_at_s >= VERIFY_EVERY_S:
                unverified.append(session)
        for session in sorted(unverified, key=lambda session: session.checked_at_s)[:VERIFIED_PER_TURN]:
            self._verify(session, now_s)
        self._throttles.expire(now_s)
        for job in self._jobs.all():
            self._checkpoints.expire(job, now_s)
            self._throttles.apply(job, now_s)
            if job.ended_at_s is not None and now_s - job.ended_at_s > self._clock_s(LOST_KEPT_S):
                self._forget(job, now_s, f"job {job.id} gone")

    def _verify(self, session: Session, now_s: float) -> None:
        hello = session.hello
        assert hello is not None
        session.checked_at_s = now_s
        session.confirmed = self._verifier.confirmed(session.pid, hello.gpus)
        # A rank that names no GPU cannot be confirmed on one.
        session.verified = len(session.confirmed) == len(set(hello.gpus)) and (
            bool(hello.gpus) or self._verifier.mode == "none"
        )

    def _forget(self, job: Job, now_s: float, text: str) -> None:
        self._checkpoints.forget(job, now_s)
        self._throttles.forget(job)
        self._jobs.forget(job)
        self._often("job_left", text)

    # Small things ----------------------------------------------------------------------------------------------------

    def _clock_s(self, real_s: float) -> float:
        """Seconds of our clock in `real_s` of a peer's."""
        return clock_seconds(self._clock, real_s)

    def _new_id(self) -> str:
        return f"r{self._instance}-{next(self._numbers)}"

    def _often(self, code: str, text: str) -> None:
        """An event that a peer can cause as often as it likes: at most 60 a minute reach the journal."""
        now_s = self._clock.now_s()
        began_s, count = self._event_minute
        if now_s - began_s >= 60:
            if count > EVENTS_PER_MINUTE:
                log.warning("job_events_dropped", count=count - EVENTS_PER_MINUTE)
            began_s, count = now_s, 0
        self._event_minute = (began_s, count + 1)
        if count < EVENTS_PER_MINUTE:
            self._on_event(Event(code, None, text))
