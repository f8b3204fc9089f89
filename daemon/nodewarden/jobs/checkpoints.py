"""Asking jobs for checkpoints: who can, what they answer, and how each request ends."""

import math
from collections.abc import Callable
from typing import Literal

from nodewarden.clock import Clock
from nodewarden.errors import RefusedError
from nodewarden.jobs.job import Job, clock_seconds
from nodewarden.jobs.protocol import Decide, Prepare, Reason, State, Vote
from nodewarden.jobs.registry import Registry
from nodewarden.jobs.requests import CheckpointRequest
from nodewarden.jobs.session import Session
from nodewarden.model.events import Event
from nodewarden.model.setpoints import CAUSE_NOUNS

REQUESTS_KEPT = 64
ASK_AGAIN_S = 60.0
MAX_DEADLINE_S = 86400.0
GRACE_S = 1.0
"""The job counts the deadline from when it heard of it, and what it did just in time has a way to go (real seconds)."""

Then = Literal["continue", "stop"]


class CheckpointDesk:
    """Keeps the requests, one open per job at most, and moves them on as answers and deadlines come."""

    def __init__(
        self, registry: Registry, clock: Clock, new_id: Callable[[], str], on_event: Callable[[Event], None]
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._new_id = new_id
        self._on_event = on_event
        self._requests: dict[str, CheckpointRequest] = {}

    def get(self, request_id: str) -> CheckpointRequest | None:
        """How far a request is; None when it is unknown."""
        return self._requests.get(request_id)

    def ask(
        self, job_id: str | None, deadline_s: float, cause: str, then: Then, unless_saved_since_s: float | None = None
    ) -> list[str]:
        """See `JobServer.request_checkpoint`."""
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            raise RefusedError(
                f"deadline of {deadline_s:g} s refused: allowed up to {MAX_DEADLINE_S:.0f} s", "out_of_range"
            )
        now_s = self._clock.now_s()
        if job_id is not None:
            return [self._ask(self._registry.named(job_id), now_s, deadline_s, cause, then).id]
        ids = []
        for job in self._registry.all():
            last = job.request
            since_s = -math.inf if unless_saved_since_s is None else unless_saved_since_s
            saved_s, ended_s = job.last_checkpoint_at_s, None if last is None else last.ended_at_s
            if unless_saved_since_s is not None and saved_s is not None and saved_s >= since_s:
                continue
            if ended_s is not None and ended_s >= since_s and now_s - ended_s < ASK_AGAIN_S:
                continue
            try:
                ids.append(self._ask(job, now_s, deadline_s, cause, then).id)
            except RefusedError as error:
                if job.open_request is None:
                    self._end_refused(job, now_s, cause, then, str(error))
        return ids

    def expire(self, job: Job, now_s: float) -> None:
        """End a request whose deadline has passed."""
        request = job.open_request
        if request is not None and now_s >= request.deadline_at_s + clock_seconds(self._clock, GRACE_S):
            self._advance(request, "expired", now_s, f"not persisted in time, was {request.state}")

    def forget(self, job: Job, now_s: float) -> None:
        """A job has gone, and its request with it."""
        request = job.open_request
        if request is not None:
            self._advance(request, "failed", now_s, "the job ended before the checkpoint was persisted")

    def cancel(self, request_id: str) -> bool:
        """See `JobServer.cancel`."""
        request = self._requests.get(request_id)
        job = self._registry.by_id(request.job) if request is not None else None
        if request is None or job is None or not request.is_open or request.has_started or not job.sessions:
            return False
        request.cancelling = True
        for session in job.sessions.values():
            session.send(Decide(req=request.id, round=request.round, value="abort"))
        return True

    def on_vote(self, job: Job, session: Session, vote: Vote, now_s: float) -> None:
        """A rank can or cannot do what was proposed."""
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
            need_s = clock_seconds(self._clock, vote.need_s)
            text = f"deadline: a save takes about {need_s:.0f} s, {given_s:.0f} s were given"
        self._advance(request, "refused", now_s, text)

    def on_state(self, job: Job, session: Session, state: State, now_s: float) -> None:
        """A rank says how far it is."""
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
                request.dur_s = clock_seconds(self._clock, state.dur_s)
            if session.verified:  # what anybody may claim decides nothing
                job.last_checkpoint_at_s, job.last_checkpoint_path = now_s, request.path
                if request.dur_s is not None:
                    job.learn(request.dur_s)
            self._advance(request, "persisted", now_s)
        elif state.state == "staged":
            self._advance(request, "staged", now_s)
        else:
            request.advance("started", now_s)

    def _ask(self, job: Job, now_s: float, deadline_s: float, cause: str, then: Then) -> CheckpointRequest:
        request = job.open_request
        if request is not None and not request.cancelling and request.then == then:
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
        text = f"job {job.id} was asked for a checkpoint within {deadline_s:.0f} s: {CAUSE_NOUNS.get(cause, cause)}"
        self._on_event(Event("checkpoint_requested", None, text))
        return request

    def _check_able(self, job: Job, deadline_s: float, then: str) -> None:
        """Raise `RefusedError` when this job cannot do it now."""
        if not job.sessions:
            raise RefusedError(f"job {job.id} is lost: its process has gone or does not answer", "lost")
        if job.open_request is not None:
            raise RefusedError(f"job {job.id} has not finished the request before; ask again when it has", "busy")
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

    def _end_refused(self, job: Job, now_s: float, cause: str, then: Then, text: str) -> None:
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
        self._on_event(Event(f"checkpoint_{state}", None, words))


def printable(text: str) -> str:
    """A peer's text without what could move a terminal's cursor or forge a line."""
    return "".join(char if char.isprintable() else "�" for char in text)
