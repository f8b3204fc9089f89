"""Who asked for which duty cycle until when, and telling the jobs: at once on a change, then every few seconds.

Towards a job a throttle has a ttl of 15 s that is renewed here, so that a dead or frozen agent leaves no job slow.
Whoever orders a throttle records it; here only an order that nobody renewed is an event.
"""

from collections.abc import Callable

from nodewarden.clock import Clock
from nodewarden.errors import RefusedError
from nodewarden.jobs import protocol
from nodewarden.jobs.job import Job, Throttle, clock_seconds, lowest
from nodewarden.jobs.protocol import Reason
from nodewarden.jobs.registry import Registry
from nodewarden.model.events import Event

TTL_S = 15.0
RENEW_S = 5.0
MAX_TTL_S = 7 * 86400.0
MIN_DUTY = 0.05


class ThrottleDesk:
    """Keeps the orders, one for all jobs and one per job, and passes the lowest on to each job."""

    def __init__(
        self, registry: Registry, clock: Clock, new_id: Callable[[], str], on_event: Callable[[Event], None]
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._new_id = new_id
        self._on_event = on_event
        self._orders: dict[str | None, Throttle] = {}  # by job id, None = every job

    def order(self, duty: float, *, ttl_s: float, cause: str, gpu: str | None, job: str | None) -> list[str]:
        """See `JobServer.throttle`."""
        if not MIN_DUTY <= duty <= 1:
            raise RefusedError(f"duty {duty:g} refused: allowed {MIN_DUTY:g} to 1 (1 releases)", "out_of_range")
        if not 0 <= ttl_s <= MAX_TTL_S:
            raise RefusedError(f"throttle for {ttl_s:g} s refused: allowed up to {MAX_TTL_S:.0f} s", "out_of_range")
        if job is not None and "throttle" not in self._registry.named(job).capabilities:
            raise RefusedError(f"job {job} did not say that it can be throttled", "unsupported")
        now_s = self._clock.now_s()
        if duty == 1:
            self._orders.pop(job, None)
        else:
            self._orders[job] = Throttle(duty=duty, until_s=now_s + ttl_s, cause=cause, gpu=gpu)
        asked = [one for one in self._registry.all() if job is None or one.id == job]
        for one in asked:
            self.apply(one, now_s)
        return [one.id for one in asked if one.sessions and "throttle" in one.capabilities]

    def forget(self, job: Job) -> None:
        """A job has gone, and its order with it."""
        self._orders.pop(job.id, None)

    def expire(self, now_s: float) -> None:
        """Drop orders that have run out."""
        self._orders = {key: order for key, order in self._orders.items() if order.until_s > now_s}

    def apply(self, job: Job, now_s: float, *, anew: bool = False) -> None:
        """Tell a job what holds for it now where it does not know, or must hear it again; anew=True: it has joined."""
        orders = [self._orders[key] for key in (None, job.id) if key in self._orders]
        order = lowest([one for one in orders if one.until_s > now_s])
        before = job.throttle
        if order is None and before is None:
            return
        changed = order is None or before is None or (order.duty, order.cause) != (before.duty, before.cause)
        job.throttle = order
        if changed:
            if before is None:
                job.throttle_id = self._new_id()
            if order is None and before is not None and before.until_s <= now_s and job.told_duty < 1:
                text = f"job {job.id} runs at full duty again: its throttle ({before.cause}) was not renewed"
                self._on_event(Event("throttle_lapsed", before.gpu, text))
        elif not anew and now_s < job.renew_at_s:
            return
        job.renew_at_s = now_s + clock_seconds(self._clock, RENEW_S)
        self._send(job, order, now_s)

    def _send(self, job: Job, order: Throttle | None, now_s: float) -> None:
        duty = order.duty if order else 1.0
        message = protocol.Throttle(
            req=job.throttle_id,
            duty=duty,
            ttl_s=round(min(TTL_S, self._clock.real_s(order.until_s - now_s)), 3) if order else 0.0,
            reason=Reason(cause=order.cause, gpu=order.gpu) if order else Reason(),
        )
        job.told_duty = 1.0
        for session in job.sessions.values():
            if session.hello is not None and "throttle" in session.hello.caps:
                session.send(message)
                job.told_duty = duty
