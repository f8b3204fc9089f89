"""Brings the GPUs' power caps to what the policy asks for, through the helper; knows which caps are ours.

Armed: every setpoint is applied. Disarmed: only what a person asked for, and automatic caps still in force are lifted
by the policy's own exit and slew, never lowered, none is started. One write per GPU is under way at a time, each in a
task of its own, so a hung write delays nobody. Refusals for lack of rights are retried slowly: no storm (F30).
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
import structlog

from nodewarden.clock import Clock
from nodewarden.errors import HelperError
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.model.events import Event
from nodewarden.model.setpoints import CapSetpoint, Cause, Protects
from nodewarden.policy import ADOPTION_HOLD_S, RISE_W_PER_S, worth_writing

log = structlog.get_logger("nodewarden.caps")

RENEW_S = 60.0  # an unprotected cap without an end expires in the helper 10 minutes after its last renewal
REFUSED_RETRY_S = 30.0
FAILED_RETRY_S = 2.0  # and twice as long after each further failure of the same kind, up to MOST_RETRY_S
MOST_RETRY_S = 60.0
TOLD_ELSEWHERE = frozenset({"no_permission", "locked", "lost", "released", "driver_missing", "busy", "timeout", "gone"})
"""Failures that are a problem of their own: of the helper, the driver, or the GPU."""
RAISE_EVERY_S = 1.0  # rises are written at most once a second; falls at once
KEEP_STEP_W = 5.0
MOST_RISE_S = 2.0  # time without a write, longer than this, is no time in which a limit could have risen
MANUAL_STEP_W = 0.01  # more than the ledger rounds away


class OwnCap(msgspec.Struct, frozen=True, kw_only=True):
    """One cap in force that is ours. Watts; times are CLOCK_BOOTTIME seconds."""

    w: float
    prior_w: float
    keep_w: float | None
    protects: str
    cause: str
    since_s: float
    written_s: float
    expires_s: float | None = None
    manual_w: float | None = None
    pending: str | None = None


class Trouble(msgspec.Struct, frozen=True):
    """Why the last write to a GPU did not take, and when it is tried again."""

    code: str
    text: str
    since_s: float
    retry_at_s: float
    delay_s: float = 0.0


class PowerCapActuator:
    """Caps of all GPUs.

    Attributes:
        own: caps in force that are ours, by uuid.
        trouble: GPUs whose last write failed, with the reason.
        writing: GPUs with a write under way.
        touched_s: when the limit of a GPU was last written; a reading from before says nothing about it.
    """

    def __init__(
        self,
        link: HelperLink,
        clock: Clock,
        *,
        cap_now_w: Callable[[str], float | None],
        on_event: Callable[[Event], None],
    ) -> None:
        self._link = link
        self._clock = clock
        self._cap_now_w = cap_now_w
        self._on_event = on_event
        self.own: dict[str, OwnCap] = {}
        self.trouble: dict[str, Trouble] = {}
        self.writing: dict[str, asyncio.Task[None]] = {}
        self.touched_s: dict[str, float] = {}
        self._heard = 0
        self._adopted_s: float | None = None
        self._forgotten_s: dict[str, float] = {}

    def sync(self) -> None:
        """Take over what the ledger says is in force; caps of ours that it no longer has are gone.

        Called before each decision: the limits before we touched the GPUs come from here. While writes are under way
        the ledger as last heard is behind them, so it is looked at again when they are done.
        """
        if not self._link.adopted or self._heard == self._link.hellos:
            return
        self._heard = self._link.hellos
        if self._adopted_s is None:
            self._adopted_s = self._clock.now_s()
        found = self._link.entries
        for uuid in self.own.keys() - found.keys() - self.writing.keys():
            if self.own[uuid].written_s <= self._link.hello_s:
                del self.own[uuid]
        for uuid, entry in found.items():
            own = self.own.get(uuid)
            if self._link.hello_s <= self._forgotten_s.get(uuid, -1.0):
                continue  # the ledger of before
            if uuid in self.writing or (own is not None and own.written_s > self._link.hello_s):
                continue
            self.own[uuid] = OwnCap(
                w=entry.w,
                prior_w=entry.prior_w,
                keep_w=entry.keep_w,
                protects=entry.protects,
                cause=entry.cause or Cause.NONE,
                since_s=entry.since_s,
                written_s=entry.written_at_s,
                expires_s=entry.expires_at_s,
                manual_w=entry.manual_w,
                pending=entry.pending,
            )

    def forget(self, uuid: str) -> None:
        """The cap on this GPU is no more; what the ledger says of it is heard with the next hello."""
        self.own.pop(uuid, None)
        self._forgotten_s[uuid] = self._clock.now_s()
        self._link.hello_soon()

    def prior_w(self, uuid: str) -> float | None:
        """The limit before we touched the GPU; None when we have not."""
        own = self.own.get(uuid)
        return own.prior_w if own is not None else None

    def apply(self, caps: dict[str, CapSetpoint], *, armed: bool, hot: Callable[[str], bool]) -> None:
        """Start the writes that are due; returns at once. `hot` says whether a GPU is above its target."""
        if not self._link.adopted:
            return
        for uuid, setpoint in caps.items():
            identity = self._link.identities.get(uuid)
            if uuid in self.writing or identity is None or identity.state == "released":
                continue
            wanted = setpoint if armed else self._lifting(_disarmed(setpoint, self.own.get(uuid)), uuid)
            if wanted.cause == Cause.NONE and uuid not in self.own:
                self.trouble.pop(uuid, None)  # nothing is wanted any more
            if self._due(uuid, wanted, is_hot=hot(uuid)):
                task = asyncio.create_task(self._write(uuid, wanted), name=f"cap {uuid}")
                self.writing[uuid] = task
                task.add_done_callback(partial(self._written, uuid))

    def _lifting(self, wanted: CapSetpoint, uuid: str) -> CapSetpoint:
        """Disarmed, the policy's slew is not what is in force: hold the same pace on the way up."""
        own = self.own.get(uuid)
        if own is None or own.pending is not None:
            return wanted
        goal_w = own.prior_w if wanted.cause == Cause.NONE else wanted.w
        since_s = min(self._clock.now_s() - own.written_s, MOST_RISE_S)
        w = own.w + RISE_W_PER_S * max(0.0, since_s)
        if self._adopted_s is not None and own.written_s <= self._adopted_s > self._clock.now_s() - ADOPTION_HOLD_S:
            w = min(own.w, goal_w)  # found in force: nothing is raised at once
        if w >= goal_w:
            return wanted
        if wanted.cause != Cause.NONE:
            return msgspec.structs.replace(wanted, w=w)
        cause = Cause(own.cause) if own.cause in set(Cause) else Cause.MANUAL
        return msgspec.structs.replace(wanted, w=w, cause=cause)

    def ask_anew(self, uuids: Iterable[str]) -> None:
        """A person asks for a cap: what failed before is tried at once."""
        for uuid in uuids:
            self.trouble.pop(uuid, None)

    def refusals(self) -> dict[str, tuple[str, float]]:
        """Caps that are wanted and that the driver does not put in force: why, and since when."""
        return {
            uuid: (trouble.text.removeprefix(f"{self._name(uuid)}: "), trouble.since_s)
            for uuid, trouble in self.trouble.items()
            if trouble.code not in TOLD_ELSEWHERE
        }

    async def settle(self, within_s: float = 2.0) -> None:
        """Wait for the writes under way, at most `within_s`."""
        if self.writing:
            await asyncio.wait(list(self.writing.values()), timeout=self._clock.real_s(within_s))

    def _due(self, uuid: str, wanted: CapSetpoint, *, is_hot: bool) -> bool:
        now_s = self._clock.now_s()
        trouble = self.trouble.get(uuid)
        if trouble is not None and now_s < trouble.retry_at_s:
            return False
        own = self.own.get(uuid)
        if own is None:
            current_w = self._cap_now_w(uuid)
            return wanted.cause != Cause.NONE and (current_w is None or wanted.w < current_w - 0.5)
        if wanted.cause == Cause.NONE:
            return own.pending is None  # a pending restore is the helper's to retry
        if wanted.w > own.w and now_s - own.written_s < RAISE_EVERY_S:
            return False
        return (
            worth_writing(own.w, wanted.w, hot=is_hot)
            or own.protects != wanted.protects
            or own.cause != wanted.cause
            or own.expires_s != wanted.expires_s
            or (own.manual_w is None) != (wanted.manual_w is None)
            or abs((own.manual_w or 0.0) - (wanted.manual_w or 0.0)) >= MANUAL_STEP_W
            or (own.keep_w is None) != (wanted.keep_w is None)
            or (
                own.keep_w is not None
                and wanted.keep_w is not None
                and abs(own.keep_w - wanted.keep_w) >= KEEP_STEP_W
                and wanted.keep_w != wanted.w
            )
            or (wanted.protects == Protects.NONE and now_s - own.written_s >= RENEW_S)
        )

    def _written(self, uuid: str, _task: asyncio.Task[None]) -> None:
        self.writing.pop(uuid, None)

    async def _write(self, uuid: str, wanted: CapSetpoint) -> None:
        try:
            if wanted.cause == Cause.NONE:
                await self._release(uuid)
            else:
                await self._set(uuid, wanted)
        except HelperError as error:
            self._failed(uuid, error)
        else:
            self.touched_s[uuid] = self._clock.now_s()
            if self.trouble.pop(uuid, None) is not None:
                self._on_event(Event("control_back", uuid, f"caps of {self._name(uuid)} are written again"))

    async def _set(self, uuid: str, wanted: CapSetpoint) -> None:
        own = self.own.get(uuid)
        prior_w = own.prior_w if own is not None else self._cap_now_w(uuid)
        reply = await self._link.client.set_cap(
            uuid,
            wanted.w,
            keep_w=wanted.keep_w,
            protects=wanted.protects.value,
            cause=wanted.cause.value,
            expires_at_s=wanted.expires_s,
            manual_w=wanted.manual_w,
        )
        now_s = self._clock.now_s()
        same_cause = own is not None and own.cause == wanted.cause
        self.own[uuid] = OwnCap(
            w=reply.w,
            prior_w=prior_w if prior_w is not None else reply.w,
            keep_w=wanted.keep_w,
            protects=str(wanted.protects),
            cause=str(wanted.cause),
            since_s=own.since_s if own is not None and same_cause else now_s,
            written_s=now_s,
            expires_s=wanted.expires_s,
            manual_w=wanted.manual_w,
        )
        self._link.hello_soon()  # the ledger has changed: prior and state come from there

    async def _release(self, uuid: str) -> None:
        # Not `restore`: that keeps what the last write said a protective cause demands, and nothing demands it now.
        await self._link.client.set_cap(
            uuid, self.own[uuid].prior_w, keep_w=None, protects="none", cause="", expires_at_s=None
        )
        self._link.hello_soon()
        self.own.pop(uuid, None)

    def _failed(self, uuid: str, error: HelperError) -> None:
        now_s = self._clock.now_s()
        before = self.trouble.get(uuid)
        slow = error.code in {"no_permission", "locked", "out_of_range", "not_supported", "lost", "ledger_failed"}
        again = before is not None and before.code == error.code
        delay_s = REFUSED_RETRY_S if slow else FAILED_RETRY_S
        if again and before is not None:
            delay_s = min(MOST_RETRY_S, max(delay_s, 2 * before.delay_s))
        since_s = before.since_s if again and before is not None else now_s
        self.trouble[uuid] = Trouble(error.code, str(error), since_s, now_s + delay_s, delay_s)
        if before is None or before.code != error.code:
            log.warning("cap_not_written", uuid=uuid, code=error.code, detail=str(error))
            name = self._name(uuid)
            said = str(error).removeprefix(f"{name}: ")
            self._on_event(Event("cap_not_written", uuid, f"{name}: the cap is not written: {said}"))

    def _name(self, uuid: str) -> str:
        identity = self._link.identities.get(uuid)
        return f"GPU {identity.index}" if identity is not None else uuid


def _disarmed(setpoint: CapSetpoint, own: OwnCap | None) -> CapSetpoint:
    """What may be in force while disarmed: a person's cap, and an automatic cap on its way up."""
    lifting_w = None
    if own is not None and own.keep_w is not None and setpoint.cause != Cause.NONE and setpoint.keep_w is not None:
        # Not above what the slewed decision or the board has: a cap just adopted is held, not raised to keep_w at once.
        lifting_w = min(max(own.keep_w, setpoint.keep_w), max(own.w, setpoint.w))
    manual_w = setpoint.manual_w
    if lifting_w is not None and own is not None and (manual_w is None or lifting_w < manual_w):
        automatic = own.cause if own.protects != Protects.NONE else setpoint.cause
        return msgspec.structs.replace(
            setpoint,
            w=lifting_w,
            keep_w=lifting_w,
            cause=Cause(automatic),
            protects=Protects(own.protects) if own.protects != Protects.NONE else setpoint.protects,
        )
    if manual_w is not None:
        cause = setpoint.cause if setpoint.cause in {Cause.MANUAL, Cause.LEASE} else Cause.MANUAL
        return msgspec.structs.replace(setpoint, w=manual_w, keep_w=lifting_w, cause=cause, protects=Protects.NONE)
    return msgspec.structs.replace(setpoint, cause=Cause.NONE, protects=Protects.NONE, keep_w=None)
