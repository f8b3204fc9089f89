"""The agent's standing connection to the GPU helper: connects, adopts, notices when it is gone, and says what it knows.

One link is shared by the GPU source (reads) and the power-cap actuator (writes). It never blocks the loop: every call
has a deadline, and while a helper does not answer the link only says so.
"""

import asyncio
from collections.abc import Callable

import structlog

from nodewarden.clock import Clock
from nodewarden.errors import HelperError, HelperGoneError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.client import HelperClient
from nodewarden.model.events import Event
from nodewarden.model.snapshot import HelperState, HelperStatus

log = structlog.get_logger("nodewarden.helper")

# Refreshes ledger and device list even where no reading says that they have changed.
HELLO_EVERY_S = 5.0
# The sign of life where nothing else was said for so long: GPUs may be read rarely, or none may answer. The helper
# takes 3 s without a word as silence; a look is taken every second.
QUIET_S = 0.9
# Reads that come every second need no other sign beside them, even if one comes a little late.
QUIET_BETWEEN_READS_S = 1.4


class HelperLink:
    """Connection state and the newest hello.

    Attributes:
        status: what the snapshot shows.
        identities: GPUs as the helper knows them, by uuid.
        entries: open ledger entries, by uuid, as of the last hello.
        adopted: a hello was answered on the present connection; adoptions counts those.
        errors: another number when the helper has something new of GPU errors (`wire.Events`), as of the last hello.
        hellos, hello_s: how many were answered, and when the last answered one was asked.

    Args:
        reads_every_s: how often GPUs are read over this link.
    """

    def __init__(
        self,
        client: HelperClient,
        clock: Clock,
        on_event: Callable[[Event], None],
        on_helper_event: Callable[[wire.HelperEvent], None],
        *,
        reads_every_s: float = 1.0,
    ) -> None:
        self.client = client
        self._on_helper_event = on_helper_event
        self.status = HelperStatus(since_s=clock.now_s())
        self.identities: dict[str, wire.GpuIdentity] = {}
        self.entries: dict[str, wire.LedgerEntry] = {}
        self.ledger_ok = True
        self.adopted = False
        self.adoptions = 0
        self.errors = 0
        self.hellos = 0
        self.hello_s = 0.0
        self.armed = False
        self.failsafe_w: float | None = None
        self._clock = clock
        self._on_event = on_event
        self._hello_at_s = 0.0
        self._quiet_s = QUIET_BETWEEN_READS_S if reads_every_s <= 1.0 else QUIET_S
        self._news = 0
        self._busy = asyncio.Lock()

    def hello_soon(self) -> None:
        """Say hello at the next turn: armed state or fail-safe changed, or the process was paused."""
        self._hello_at_s = 0.0

    def note_news(self, number: int) -> None:
        """A reading carried this number of changes; another than the last hello's means that it is out of date."""
        if number != self._news:
            self.hello_soon()

    async def keep(self) -> bool:
        """Connect and adopt if need be, refresh when due; True when the helper is ours and answers."""
        if self._busy.locked():
            return self.adopted
        async with self._busy:
            try:
                if not self.client.connected:
                    self.adopted = False
                    await self.client.connect()
                now_s = self._clock.now_s()
                is_quiet = now_s - self.client.sent_at_s >= self._quiet_s
                if not self.adopted or now_s >= self._hello_at_s or is_quiet:
                    await self._hello()
            except HelperGoneError as error:
                self._lost("missing", str(error))
            except HelperError as error:
                # "foreign" from connect is another user's helper, from hello it is another agent's.
                ours = self.client.connected
                states: dict[str, HelperState] = {"timeout": "unresponsive", "foreign": "busy" if ours else "foreign"}
                self._lost(states.get(error.code, "unresponsive"), str(error))
            return self.adopted

    async def goodbye(self) -> None:
        """Tell the helper that this is an orderly stop; caps stay for the next agent. Never raises."""
        if not self.adopted:
            return
        try:
            await self.client.hello(armed=self.armed, failsafe_w=self.failsafe_w, leaving=True)
        except HelperError as error:
            log.warning("goodbye_failed", detail=str(error))

    def note_events(self, events: list[wire.HelperEvent]) -> None:
        """Hand on what the helper did by itself."""
        for event in events:
            self._on_helper_event(event)
            self._on_event(Event(event.code, event.uuid, event.text))

    async def _hello(self) -> None:
        asked_s = self._clock.now_s()
        reply = await self.client.hello(armed=self.armed, failsafe_w=self.failsafe_w)
        now_s = self._clock.now_s()
        self.hellos += 1
        self.hello_s = asked_s
        self._news = reply.news
        self.errors = reply.errors
        self._hello_at_s = now_s + HELLO_EVERY_S
        if not self.adopted:
            self.adoptions += 1
        self.adopted = True
        self.identities = {gpu.uuid: gpu for gpu in reply.gpus}
        self.entries = {entry.uuid: entry for entry in reply.ledger}
        self.ledger_ok = reply.ledger_ok
        self.note_events(reply.events)
        reasons = sorted({gpu.write_reason or "unknown" for gpu in reply.gpus if not gpu.can_write})
        was = self.status
        self.status = HelperStatus(
            state="ok",
            since_s=was.since_s if was.state == "ok" else now_s,
            driver=reply.driver,
            driver_since_s=was.driver_since_s if was.driver == reply.driver else now_s,
            can_write=bool(reply.gpus) and not reasons,
            write_reason=", ".join(reasons) or None,
            pid=reply.pid or self.client.pid,
            uid=self.client.uid,
            text=reply.driver_text,
            ledger_problem=None if reply.ledger_ok else reply.ledger_text or "it cannot be written",
        )
        if was.state != "ok":
            log.info("helper_adopted", pid=self.status.pid, gpus=len(self.identities), caps=len(self.entries))
        if was.driver != reply.driver:
            log.info("driver_changed", driver=reply.driver, detail=reply.driver_text)

    def _lost(self, state: HelperState, text: str) -> None:
        self.adopted = False
        was = self.status
        if was.state != state:
            log.warning("helper_lost", state=state, detail=text)
        self.status = HelperStatus(
            state=state,
            since_s=was.since_s if was.state == state else self._clock.now_s(),
            driver=was.driver if state == "unresponsive" else "unknown",
            driver_since_s=was.driver_since_s,
            can_write=False,
            write_reason=text,
            pid=self.client.pid,
            uid=self.client.uid,
            text=text,
        )
