"""The job server: accepts ranks, keeps jobs, sends pings and throttles, asks for checkpoints and hears their ends.

Durations on the wire are real seconds, as peers count them; inside, all times are seconds of the injected clock.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import structlog

from nodewarden.clock import Clock
from nodewarden.errors import RefusedError
from nodewarden.jobs.job import SILENT_AFTER_S, Job, Throttle, lowest
from nodewarden.jobs.listen import listen
from nodewarden.jobs.protocol import (
    PROTOCOL,
    Decide,
    FromRank,
    Hello,
    HelloResult,
    Ping,
    Pong,
    Prepare,
    Reason,
    State,
    Vote,
)
from nodewarden.jobs.protocol import Throttle as ThrottleMessage
from nodewarden.jobs.requests import CheckpointRequest
from nodewarden.jobs.session import Session
from nodewarden.jobs.verify import Verifier
from nodewarden.model.events import Event
from nodewarden.model.snapshot import JobSnapshot

log = structlog.get_logger("jobs")

PING_S = 0.5
HELLO_TIMEOUT_S = 5.0
DROP_AFTER_S = 120.0
LOST_KEPT_S = 60.0
THROTTLE_TTL_S = 15.0
THROTTLE_RENEW_S = 5.0
VERIFY_EVERY_S = 2.0
VERIFIED_PER_TURN = 8
SESSIONS_PER_UID = 64
SESSIONS_MAX = 512
JOBS_MAX = 256
JOBS_LOST_PER_UID = 16
REQUESTS_KEPT = 64
ASK_AGAIN_S = 60.0
MIN_DUTY = 0.05
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
        self._clock_per_real = 1 / clock.real_s(1.0)
        # On a fast clock a ping costs as much real time as ever, so do not send more than 20 per real second.
        self._ping_s = max(PING_S, self._clock_s(0.05))
        self._sessions: set[Session] = set()
        self._jobs: dict[tuple[int, str], Job] = {}
        self._throttles: dict[str | None, Throttle] = {}  # by job id, None = every job
        self._requests: dict[str, CheckpointRequest] = {}
        self._instance = secrets.token_hex(2)  # a restarted agent must not reuse the ids of the one before
        self._numbers = itertools.count(1)
        self._seq = itertools.count(1)
        self._event_minute = (0.0, 0)
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and start the ping loop.

        Raises:
            AlreadyRunningError: another daemon listens on the socket.
            RefusedError: something else is in its place.
        """
        listener = listen(self._path)
        self._inode = self._path.stat().st_ino
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Session(self, self._clock), sock=listener)
        self._loop_task = loop.create_task(self._run(), name="jobs")

    async def close(self) -> None:
        """Stop; training goes on, throttles end by their ttl within 15 s, saves under way are finished by the jobs."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.close()
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    # For the agent ---------------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobSnapshot, ...]:
        """Every job on this node, by id."""
        now_s, silent_s = self._clock.now_s(), self._clock_s(SILENT_AFTER_S)
        return tuple(job.snapshot(now_s, silent_s) for job in sorted(self._jobs.values(), key=lambda job: job.id))

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
        if not MIN_DUTY <= duty <= 1:
            raise RefusedError(f"duty {duty:g} refused: allowed {MIN_DUTY:g} to 1 (1 releases)", "out_of_range")
        if job is not None and "throttle" not in self._named(job).capabilities:
            raise RefusedError(f"job {job} did not say that it can be throttled", "unsupported")
        now_s = self._clock.now_s()
        if duty == 1:
            self._throttles.pop(job, None)
        else:
            self._throttles[job] = Throttle(duty=duty, until_s=now_s + ttl_s, cause=cause, gpu=gpu)
        asked = [one for one in self._jobs.values() if job is None or one.id == job]
        for one in asked:
            self._apply_throttle(one, now_s)
        return [one.id for one in asked if one.sessions and "throttle" in one.capabilities]

    def request_checkpoint(
        self,
        *,
        deadline_s: float,
        cause: str,
        job: str | None = None,
        then: Literal["continue", "stop"] = "continue",
    ) -> list[str]:
        """Ask for a checkpoint that is persisted within `deadline_s`; returns the ids of the requests.

        A job has one open request at most: while one is open, its id is returned. With job=None every job is asked; one
        that cannot is passed over with an event, and is not asked again for a minute after its last request ended.

        Raises:
            RefusedError: the named job cannot do it; its code is "unknown_job", "lost", "no_agreement", "unsupported",
                "deadline" or "busy".
        """
        now_s = self._clock.now_s()
        if job is not None:
            return [self._ask(self._named(job), now_s, deadline_s, cause, then).id]
        ids = []
        for one in list(self._jobs.values()):
            last = one.request
            if last is not None and last.ended_at_s is not None and now_s - last.ended_at_s < ASK_AGAIN_S:
                continue
            try:
                ids.append(self._ask(one, now_s, deadline_s, cause, then).id)
            except RefusedError as error:
                if one.open_request is None:
                    self._end_refused(one, now_s, cause, then, str(error))
        return ids

    def cancel(self, request_id: str) -> bool:
        """Take a request back; True when the job has been told.

        It ends as "cancelled" once the job confirms; a save that has started is finished and reported as usual.
        """
        request = self._requests.get(request_id)
        job = self._by_id(request.job) if request is not None else None
        if request is None or job is None or not request.is_open or request.has_started or not job.sessions:
            return False
        request.cancelling = True
        for session in job.sessions.values():
            session.send(Decide(req=request.id, round=request.round, value="abort"))
        return True

    def request(self, request_id: str) -> CheckpointRequest | None:
        """How far a request is; None when it is unknown (the last 64 are kept)."""
        return self._requests.get(request_id)

    # From sessions ---------------------------------------------------------------------------------------------------

    def admit(self, session: Session) -> str | None:
        """Count a new connection; a text when there are too many."""
        if len(self._sessions) >= SESSIONS_MAX:
            return f"the agent serves {SESSIONS_MAX} connections and has no room for more"
        if sum(other.uid == session.uid for other in self._sessions) >= SESSIONS_PER_UID:
            return f"uid {session.uid} has {SESSIONS_PER_UID} connections, which is what one user may have"
        self._sessions.add(session)
        session.admitted = True
        return None

    def on_hello(self, session: Session, request_id: int | str | None, hello: Hello) -> None:
        """Put the rank into its job, or say why not."""
        if PROTOCOL not in hello.proto:
            text = f"this agent speaks protocol {PROTOCOL}, the client {hello.proto}: update the older one"
            session.refuse("no_common_version", text, request_id=request_id)
            return
        now_s = self._clock.now_s()
        job = self._job_of(session, hello)
        if job is None:
            session.refuse("too_many", f"the agent keeps {JOBS_MAX} jobs and has no room", request_id=request_id)
            return
        other = job.sessions.get(hello.rank)
        if other is not None and other.pid != session.pid and now_s - other.heard_at_s <= self._clock_s(SILENT_AFTER_S):
            text = f"rank {hello.rank} of job {hello.job} is already here (pid {other.pid}): give each job its own name"
            session.hello = None
            session.refuse("duplicate_rank", text, request_id=request_id)
            return
        is_new = not job.sessions and job.ended_at_s is None
        job.join(session, now_s, self._clock_per_real)
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
        job.renew_at_s = now_s
        self._apply_throttle(job, now_s)
        if is_new:
            self._often("job_joined", f"job {job.id} joined: rank {hello.rank} of {hello.world}, pid {session.pid}")

    def on_message(self, session: Session, body: FromRank) -> None:
        """Handle what a known rank says."""
        hello = session.hello
        job = self._jobs.get((session.uid, hello.job)) if hello is not None else None
        if hello is None or job is None or job.sessions.get(hello.rank) is not session:
            return
        now_s = self._clock.now_s()
        if isinstance(body, Pong):
            if body.step is not None:
                job.at_step(hello.rank, body.step, now_s)
        elif isinstance(body, Vote):
            self._on_vote(job, session, body, now_s)
        elif isinstance(body, State):
            self._on_state(job, session, body, now_s)
        else:
            session.said_bye = True
            session.close()

    def on_gone(self, session: Session) -> None:
        """A connection ended: the job is lost until it comes back, or gone when it said so."""
        self._sessions.discard(session)
        hello = session.hello
        job = self._jobs.get((session.uid, hello.job)) if hello is not None else None
        if job is None:
            return
        now_s = self._clock.now_s()
        if not job.leave(session, now_s) or job.sessions:
            return
        if session.said_bye:
            self._forget(job, now_s, f"job {job.id} left")
            return
        self._often("job_lost", f"job {job.id} lost: {session.ended}, pid {session.pid}")
        lost = [one for one in self._jobs.values() if one.key[0] == session.uid and one.ended_at_s is not None]
        for one in sorted(lost, key=lambda one: one.ended_at_s or 0.0)[:-JOBS_LOST_PER_UID]:
            self._forget(one, now_s, f"job {one.id} gone")

    def _on_vote(self, job: Job, session: Session, vote: Vote, now_s: float) -> None:
        request = job.open_request
        if request is None or vote.req != request.id or vote.round != request.round or request.state != "requested":
            return
        if vote.step is not None and session.hello is not None:
            job.at_step(session.hello.rank, vote.step, now_s)
        if vote.ok:
            request.advance("voted", now_s)
            if not request.cancelling:
                session.send(Decide(req=request.id, round=request.round, value="commit"))
            return
        text = vote.reason or "no reason given"
        if vote.reason == "deadline" and vote.need_s is not None:
            given_s = max(0.0, request.deadline_at_s - request.asked_at_s)
            text = (
                f"deadline: a save takes about {vote.need_s * self._clock_per_real:.0f} s, {given_s:.0f} s were given"
            )
        self._advance(request, "refused", now_s, text)

    def _on_state(self, job: Job, session: Session, state: State, now_s: float) -> None:
        request = job.open_request
        if request is None or state.req != request.id:
            return  # late: its request has ended, and nothing may follow from it
        request.verified = session.verified
        request.step = state.step if state.step is not None else request.step
        if state.state in {"aborted", "expired"}:
            ended: Literal["cancelled", "expired"] = "cancelled" if state.state == "aborted" else "expired"
            self._advance(request, ended, now_s, "before the save had started")
            return
        if state.state == "failed":
            self._advance(request, "failed", now_s, printable(state.error or "the save failed"))
            return
        if state.state == "persisted":
            request.path = printable(state.path) if state.path is not None else None
            if state.dur_s is not None:
                request.dur_s = state.dur_s * self._clock_per_real
                job.learn(request.dur_s)
            job.last_checkpoint_at_s, job.last_checkpoint_path = now_s, request.path
            self._advance(request, "persisted", now_s)
        elif state.state == "staged":
            self._advance(request, "staged", now_s)
        else:
            request.advance("started", now_s)

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
        self._throttles = {key: order for key, order in self._throttles.items() if order.until_s > now_s}
        for job in list(self._jobs.values()):
            request = job.open_request
            if request is not None and now_s >= request.deadline_at_s:
                self._advance(request, "expired", now_s, f"not persisted in time, was {request.state}")
            self._apply_throttle(job, now_s)
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

    def _apply_throttle(self, job: Job, now_s: float) -> None:
        orders = [self._throttles[key] for key in (None, job.id) if key in self._throttles]
        order = lowest([one for one in orders if one.until_s > now_s])
        before = job.throttle
        if before is None and order is None:
            return
        changed = (order.duty, order.cause) != (before.duty, before.cause) if order and before else order is not before
        job.throttle = order
        if changed:
            if before is None:
                job.throttle_id = self._new_id()
            self._tell_throttled(job, before, order)
        elif now_s < job.renew_at_s:
            return
        job.renew_at_s = now_s + self._clock_s(THROTTLE_RENEW_S)
        ttl_s = min(THROTTLE_TTL_S, self._clock.real_s(order.until_s - now_s)) if order else 0.0
        duty = order.duty if order else 1.0
        reason = Reason(cause=order.cause, gpu=order.gpu) if order else Reason()
        message = ThrottleMessage(req=job.throttle_id, duty=duty, ttl_s=round(ttl_s, 3), reason=reason)
        job.told_duty = 1.0
        for session in job.sessions.values():
            if session.hello is not None and "throttle" in session.hello.caps:
                session.send(message)
                job.told_duty = duty

    def _tell_throttled(self, job: Job, before: Throttle | None, order: Throttle | None) -> None:
        if "throttle" not in job.capabilities or not job.sessions:
            return
        if order is None:
            self._event("job_released", None, f"job {job.id} runs at full duty again")
        elif before is None or before.cause != order.cause or abs(before.duty - order.duty) >= 0.05:
            text = f"job {job.id} throttled to {order.duty:.0%} of the time: {order.cause}"
            self._event("job_throttled", order.gpu, text)

    # Requests --------------------------------------------------------------------------------------------------------

    def _ask(
        self, job: Job, now_s: float, deadline_s: float, cause: str, then: Literal["continue", "stop"]
    ) -> CheckpointRequest:
        request = job.open_request
        if request is not None and not request.cancelling:
            return request
        self._check_able(job, deadline_s, then)
        session = job.sessions[min(job.sessions)]
        request = CheckpointRequest(
            id=self._new_id(),
            job=job.id,
            cause=cause,
            then=then,
            asked_at_s=now_s,
            deadline_at_s=now_s + deadline_s,
            step=0 if job.step is None else job.step + 1,
        )
        self._keep(job, request)
        assert request.step is not None
        prepare = Prepare(
            req=request.id,
            round=request.round,
            step=request.step,
            kind="checkpoint",
            then=then,
            deadline_s=round(self._clock.real_s(deadline_s), 3),
            reason=Reason(cause=cause),
        )
        session.send(prepare)
        text = f"job {job.id} was asked for a checkpoint within {deadline_s:.0f} s: {cause}"
        self._event("checkpoint_requested", None, text)
        return request

    def _check_able(self, job: Job, deadline_s: float, then: str) -> None:
        """Raise `RefusedError` when this job cannot do it now."""
        if job.open_request is not None:
            raise RefusedError(f"job {job.id} is taking back the request before; ask again in a moment", "busy")
        if not job.sessions:
            raise RefusedError(f"job {job.id} is lost: its process has gone or does not answer", "lost")
        if job.world > 1:
            text = (
                f"job {job.id} has {job.world} ranks, which must first agree on the step at which they save; "
                "this version asks jobs of one process only: save with the framework's own means"
            )
            raise RefusedError(text, "no_agreement")
        needed = ("checkpoint", "stop") if then == "stop" else ("checkpoint",)
        missing = [name for name in needed if name not in job.capabilities]
        if missing:
            text = f"job {job.id} cannot {missing[0]}: it gave connect() no save function"
            raise RefusedError(text, "unsupported")
        ckpt_s = job.ckpt_s
        if ckpt_s is not None and ckpt_s > deadline_s:
            text = f"job {job.id} takes about {ckpt_s:.0f} s to save, {deadline_s:.0f} s were given"
            raise RefusedError(text, "deadline")

    def _end_refused(self, job: Job, now_s: float, cause: str, then: Literal["continue", "stop"], text: str) -> None:
        """Remember that a job could not be asked, so that it is not said again at every tick."""
        request = CheckpointRequest(
            id=self._new_id(), job=job.id, cause=cause, then=then, asked_at_s=now_s, deadline_at_s=now_s
        )
        self._keep(job, request)
        self._advance(request, "refused", now_s, text)

    def _keep(self, job: Job, request: CheckpointRequest) -> None:
        job.request = request
        self._requests[request.id] = request
        while len(self._requests) > REQUESTS_KEPT:
            oldest = next((key for key, one in self._requests.items() if not one.is_open), next(iter(self._requests)))
            del self._requests[oldest]

    def _advance(
        self,
        request: CheckpointRequest,
        state: Literal["staged", "persisted", "failed", "refused", "expired", "cancelled"],
        now_s: float,
        text: str = "",
    ) -> None:
        if not request.advance(state, now_s, text):
            return
        words = f"checkpoint of job {request.job} {state}"
        if state == "persisted":
            words += f" at step {request.step}" + (f": {request.path}" if request.path else "")
        elif text:
            words += f": {text}"
        if state in {"staged", "persisted"} and not request.verified:
            words += " (says a process that is not confirmed on the job's GPUs)"
        self._event(f"checkpoint_{state}", None, words)

    # Jobs ------------------------------------------------------------------------------------------------------------

    def _job_of(self, session: Session, hello: Hello) -> Job | None:
        """The job of this rank, a new one when it is the first; None when there is no room."""
        key = (session.uid, hello.job)
        job = self._jobs.get(key)
        if job is None and len(self._jobs) < JOBS_MAX:
            # The same name of another user is another job: names cannot be squatted.
            taken = self._by_id(hello.job) is not None
            job = self._jobs[key] = Job(f"{hello.job}@{session.uid}" if taken else hello.job, key)
        return job

    def _forget(self, job: Job, now_s: float, text: str) -> None:
        request = job.open_request
        if request is not None:
            self._advance(request, "failed", now_s, "the job ended before the checkpoint was persisted")
        self._jobs.pop(job.key, None)
        self._throttles.pop(job.id, None)
        self._often("job_left", text)

    def _named(self, job_id: str) -> Job:
        job = self._by_id(job_id)
        if job is None:
            known = ", ".join(sorted(one.id for one in self._jobs.values())) or "none"
            raise RefusedError(f"no job {job_id!r} on this node; known: {known}", "unknown_job")
        return job

    def _by_id(self, job_id: str) -> Job | None:
        return next((job for job in self._jobs.values() if job.id == job_id), None)

    # Small things ----------------------------------------------------------------------------------------------------

    def _clock_s(self, real_s: float) -> float:
        """Seconds of our clock in `real_s` of a peer's."""
        return real_s * self._clock_per_real

    def _new_id(self) -> str:
        return f"r{self._instance}-{next(self._numbers)}"

    def _event(self, code: str, uuid: str | None, text: str) -> None:
        self._on_event(Event(code, uuid, text))

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
            self._event(code, None, text)


def printable(text: str) -> str:
    """A peer's text without what could move a terminal's cursor or forge a line."""
    return "".join(char if char.isprintable() else "�" for char in text)
