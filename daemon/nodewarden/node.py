"""The agent as verbs and readers see it: the newest view, and the few changes a person may ask for.

Each change is journalled with uid, pid and reason before it is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nodewarden.actuators.job import JobActuator, ManualDuty
from nodewarden.api.node import Who
from nodewarden.api.view import View
from nodewarden.clock import Clock
from nodewarden.control import ControlLoop
from nodewarden.errors import HelperError, RefusedError
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.gpuhelper.wire import ReleaseOutcome, RestoreOutcome
from nodewarden.jobs.server import JobServer
from nodewarden.journal import Entry, Journal, Recorder, read_entries
from nodewarden.model.limits import ManualCap
from nodewarden.sources.xid import XidSource
from nodewarden.state import StateFile


class AgentNode:
    """Implements `api.node.Node` on the running parts of the agent. `refresh` publishes a new view at once."""

    def __init__(
        self,
        *,
        control: ControlLoop,
        link: HelperLink,
        job_actuator: JobActuator,
        jobs: JobServer,
        journal: Journal,
        recorder: Recorder,
        state: StateFile,
        clock: Clock,
        xids: XidSource,
        refresh: Callable[[], None],
    ) -> None:
        self._refresh = refresh
        self._control = control
        self._link = link
        self._job_actuator = job_actuator
        self._jobs = jobs
        self._journal = journal
        self._recorder = recorder
        self._state = state
        self._clock = clock
        self._xids = xids
        self._view: View | None = None
        self._turned = asyncio.Event()

    def publish(self, view: View) -> None:
        """The control loop has turned."""
        self._view = view
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    def view(self) -> View:
        """The newest picture of the node."""
        if self._view is None:
            raise RefusedError("the agent has not finished its first turn; try again in a second", "starting")
        return self._view

    async def next_view(self) -> View:
        """The picture after the next control tick."""
        await self._turned.wait()
        return self.view()

    async def events(self, *, since_s: float, limit: int, after_id: int = 0) -> list[dict[str, Any]]:
        """Journalled events and actions, oldest first; from memory where the journal cannot be read."""
        since_wall_s = self._clock.wall_s() - since_s
        path, journal = self._journal.path, self._journal

        def read() -> list[tuple[int, Entry]]:
            journal.flush(1.0)
            return read_entries(path, since_wall_s=since_wall_s, limit=limit, after_id=after_id)

        rows = await asyncio.to_thread(read)
        if journal.problem is not None:
            recent = [entry for entry in journal.recent() if entry.kind != "decision" and entry.wall_s >= since_wall_s]
            rows = list(enumerate(recent, start=1))[-limit:]
        return [_shown(number, entry) for number, entry in rows]

    async def arm(self, who: Who) -> None:
        """From now on decisions reach the hardware and the jobs. Persists."""
        status = self._link.status
        if self._link.adopted and not status.can_write:
            raise RefusedError(
                f"arming refused: power caps cannot be set ({status.write_reason or status.driver}); "
                "give the helper the right to write and see `nodectl doctor`",
                "control_unavailable",
            )
        self._act("arm", "armed", who)
        self._set_armed(armed=True)
        await self._link.keep()  # the helper's fail-safe counts from now on, not from the next sweep

    async def disarm(self, who: Who) -> None:
        """Lift automatic caps by the normal exit rules and start none. Persists."""
        self._act("disarm", "disarmed", who)
        self._set_armed(armed=False)

    async def set_manual_cap(self, uuids: Sequence[str], w: float, for_s: float | None, who: Who) -> None:
        """Ask for a manual cap of `w` watts, which the verb has checked, on each GPU."""
        if not self._link.adopted or not self._link.status.can_write:
            reason = self._link.status.write_reason or self._link.status.text or "no helper"
            raise RefusedError(f"power cap refused: caps cannot be set now ({reason})", "control_unavailable")
        expires_s = None if for_s is None else self._clock.now_s() + for_s
        length = "until released" if for_s is None else f"for {for_s:g} s"
        self._act("cap", f"cap {w:g} W on {len(uuids)} GPUs {length}", who, uuids=list(uuids), w=w, for_s=for_s)
        self._control.ask(uuids, ManualCap(w=w, expires_s=expires_s))

    async def release(self, uuids: Sequence[str], who: Who) -> None:
        """End manual caps and leases; protective caps stay."""
        self._act("release", f"manual caps of {len(uuids)} GPUs released", who, uuids=list(uuids))
        for uuid in uuids:
            self._control.manual.pop(uuid, None)

    async def throttle(self, job: str, duty: float, for_s: float, who: Who) -> list[str]:
        """Ask a job (or "all") to run `duty` of the time for `for_s` seconds; 1.0 releases."""
        asked = self._jobs_named(job)
        self._act("throttle", f"job {job} to {duty:.0%} for {for_s:g} s", who, job=job, duty=duty, for_s=for_s)
        for name in asked:
            if duty >= 1.0:
                self._job_actuator.manual.pop(name, None)
            else:
                self._job_actuator.manual[name] = ManualDuty(duty, self._clock.now_s() + for_s)
        return asked

    async def checkpoint(self, job: str, who: Who) -> list[str]:
        """Ask a job (or "all") for a checkpoint; the ids of the requests."""
        asked = self._jobs_named(job)
        self._act("checkpoint", f"checkpoint of job {job}", who, job=job)
        requests: list[str] = []
        for name in asked:
            requests += self._jobs.request_checkpoint(deadline_s=600.0, cause="manual", job=name)
        return requests

    async def restore(self, uuids: Sequence[str], who: Who, *, force: bool = False) -> list[RestoreOutcome]:
        """Disarm, then have the helper restore the named GPUs; force lifts protective caps too."""
        named = ", ".join(uuids) or "all GPUs"
        self._act("restore", f"restore of {named}{' by force' if force else ''}", who, uuids=list(uuids), force=force)
        self._set_armed(armed=False)
        for uuid in list(uuids) or list(self._control.manual):
            self._control.manual.pop(uuid, None)
        await self._control.caps_settled()
        try:
            outcomes = await self._link.client.restore(list(uuids), force=force)
        except HelperError as error:
            raise RefusedError(
                f"restore not done: {error}; as root `nodectl restore` works without the daemon", error.code
            ) from error
        self._link.hello_soon()
        return outcomes

    async def release_gpus(self, uuids: Sequence[str], for_s: float, who: Who) -> list[ReleaseOutcome]:
        """Let go of all device files of these GPUs for a while; their manual caps come back with them."""
        self._act("gpus_release", f"{len(uuids)} GPUs released for {for_s:g} s", who, uuids=list(uuids), for_s=for_s)
        await self._control.caps_settled()
        return await self._asked_helper("released", self._link.client.release_device(uuids, for_s))

    async def resume_gpus(self, uuids: Sequence[str], who: Who) -> list[ReleaseOutcome]:
        """Take released GPUs up again now."""
        self._act("gpus_resume", f"{len(uuids)} GPUs taken up again", who, uuids=list(uuids))
        return await self._asked_helper("taken up again", self._link.client.resume(uuids))

    async def clear_xids(self, uuids: Sequence[str], who: Who) -> dict[str, list[int]]:
        """These GPUs are well, a person says: no error of theirs is open any more. Their numbers, by uuid."""
        cleared = self._xids.clear(uuids)
        named = "; ".join(f"{uuid} {', '.join(map(str, codes))}" for uuid, codes in cleared.items() if codes)
        self._act("xid_clear", f"Xids cleared: {named or 'none was open'}", who, uuids=list(uuids), cleared=cleared)
        self._refresh()
        return cleared

    async def _asked_helper(self, what: str, asked: Awaitable[list[ReleaseOutcome]]) -> list[ReleaseOutcome]:
        try:
            outcomes = await asked
        except HelperError as error:
            raise RefusedError(f"GPUs not {what}: {error}", error.code) from error
        self._link.hello_soon()
        await self._link.keep()
        return outcomes

    def _set_armed(self, *, armed: bool) -> None:
        self._control.set_armed(armed=armed)
        self._state.write(armed=armed)
        self._refresh()  # who asks again must see what was just done

    def _jobs_named(self, job: str) -> list[str]:
        known = [found.id for found in self._jobs.jobs() if found.state != "lost"]
        asked = known if job == "all" else [name for name in known if name == job]
        if not asked:
            raise RefusedError(
                f"no job {job!r} here; known: {', '.join(known) or 'none'} (nodectl jobs)", "unknown_job"
            )
        return asked

    def _act(self, verb: str, text: str, who: Who, **data: Any) -> None:
        self._recorder.action(verb, text, uid=who.uid, pid=who.pid, reason=who.reason, data=data)


def _shown(number: int, entry: Entry) -> dict[str, Any]:
    return {
        "id": number,
        "time": entry.wall_s,
        "kind": entry.kind,
        "code": entry.code,
        "uuid": entry.uuid,
        "text": entry.text,
        "data": entry.data,
    }
