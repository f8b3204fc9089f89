"""The writer of one GPU: every cap, restore and check runs on its lane, one after another, whoever asks.

`caps.GpuCap` knows what to write; here is who waits for it, what becomes of a failure, and when it is tried again.
"""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from nodewarden.devices.gpu_library import GpuDevice
from nodewarden.errors import DeviceError, HelperError, NoPermissionError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.caps import GpuCap, expiry_s
from nodewarden.gpuhelper.lanes import Lane
from nodewarden.gpuhelper.seat import UNRESPONSIVE_S, Answerable, Seat
from nodewarden.units import mw_from_watts

log = logging.getLogger("nodewarden.gpu")

MAX_REQUEST_AGE_S = 5.0
"""A write that waited longer behind a hung call is not done any more: its asker has given up and decided anew."""

T = TypeVar("T")


class CapWriter:
    """All methods return at once; what they start runs on the lane.

    Attributes:
        probed: set when it is known whether the driver lets us write.
        next_restore_s: when a pending restore is tried again.
    """

    def __init__(self, seat: Seat) -> None:
        shared = seat.shared
        self._seat = seat
        self._shared = shared
        self._lane = Lane(f"write-{seat.identity.index}", shared.clock)
        self._cap = GpuCap(
            seat.uuid,
            lambda: seat.name,
            shared.book,
            shared.events,
            shared.clock,
            wait=shared.wait,
            agent_away=shared.agent_away,
            contest=shared.contest,
        )
        self.probed = threading.Event()
        self.probed.set()
        self.next_restore_s = 0.0
        self._restore_delay_s = 0.0
        self._checked_at_s = 0.0
        self._failsafe_w: float | None = None  # still to be applied
        self._quiet_failure = ""  # as last logged

    @property
    def idle(self) -> bool:
        """No write runs or waits."""
        return self._lane.idle

    def busy_for_s(self) -> float:
        """How long the write in progress has been running; 0 when idle."""
        return self._lane.busy_for_s()

    def stop(self) -> None:
        """Take no more work."""
        self._lane.stop()

    def found(self) -> None:
        """The GPU answers, for the first time or again: compare it with the ledger, and look whether we may write."""
        self.check()
        if self._seat.probe is not None and self._seat.is_locked and self._shared.book.get(self._seat.uuid) is None:
            self._make_sure_of_no_permission()

    def _make_sure_of_no_permission(self) -> None:
        """Rights that seem to be missing: ask for the limit that is in force, which changes nothing either way.

        The driver refuses that before it looks at the value; a library that decides otherwise is believed.
        """
        seat = self._seat

        def job() -> None:
            try:
                with self._shared.gate.call():
                    device = seat.live
                    if device is not None:
                        device.set_cap_w(device.get_cap_w())
                        seat.allowed()
            except DeviceError as error:
                log.warning("control_unavailable uuid=%s reason=%r", seat.uuid, str(error))
            finally:
                self.probed.set()

        self.probed.clear()
        if not self._lane.submit(job):
            self.probed.set()

    # Asked for ------------------------------------------------------------------------------------------------------

    def set_cap(self, request: wire.SetCap, peer: Answerable, owner_uid: int) -> None:
        """Apply a cap and answer `peer`."""
        asked_at_s = self._shared.clock.now_s()

        def act(device: GpuDevice) -> wire.CapReply:
            if self._shared.stopping.is_set() or self._shared.clock.now_s() - asked_at_s > MAX_REQUEST_AGE_S:
                raise HelperError("dropped: it waited too long behind a hung call, or the helper is stopping", "busy")
            reply = self._cap.set_cap(device, request, owner_uid)
            self._seat.allowed()
            return reply

        def job() -> None:
            try:
                reply: wire.Reply = self._on_device(act, undoing=self._undoes(request))
            except HelperError as error:
                reply = self._seat.error(request.id, cast("wire.ErrorCode", error.code), str(error))
            peer.send(reply)

        if self._lane.busy_for_s() > UNRESPONSIVE_S:
            peer.send(self._seat.error(request.id, "busy", "the write before has not come back from the driver"))
        elif not self._lane.submit(job):
            peer.send(self._seat.error(request.id, "busy", "too many writes wait"))

    def _undoes(self, request: wire.SetCap) -> bool:
        record = self._shared.book.get(self._seat.uuid)
        return record is not None and request.keep_w is None and request.w >= record.entry.prior_w

    def restore(self, *, force: bool, why: str, done: Callable[[wire.RestoreOutcome], None] = lambda _: None) -> None:
        """Go back to min(prior, keep_w), or to prior with force; `done` is told, on the lane or at once."""

        def job() -> None:
            try:
                outcome = self._on_device(lambda device: self._cap.restore(device, force=force, why=why), undoing=True)
            except HelperError as error:
                outcome = self._cap.mark_pending(str(error), force=force)
            self._plan_retry(pending=outcome.outcome == "pending")
            done(outcome)

        if not self._lane.submit(job):
            done(self.give_up_restore("the writes before have not come back from the driver", force=force))

    def give_up_restore(self, reason: str, *, force: bool = False) -> wire.RestoreOutcome:
        """Note that a restore did not happen yet."""
        return self._cap.mark_pending(reason, force=force)

    # By itself ------------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """End an unprotected cap whose time is over."""

        def job() -> None:
            try:
                self._on_device(self._cap.expire, undoing=True)
            except HelperError as error:
                record = self._shared.book.get(self._seat.uuid)
                ends_s = None if record is None else expiry_s(record.entry)
                if ends_s is not None and ends_s <= self._shared.clock.now_s():
                    self._cap.mark_pending(str(error), force=False)
                    self._plan_retry(pending=True)

        self._lane.submit(job)

    def check(self) -> None:
        """Compare the board with the ledger."""
        self._checked_at_s = self._shared.clock.now_s()
        if self._shared.book.get(self._seat.uuid) is not None:
            self._quietly("check", self._cap.check)

    def check_if_older(self, seconds: float) -> None:
        """Check, unless a reading or a check did it lately."""
        if self._shared.clock.now_s() - self._checked_at_s >= seconds:
            self.check()

    def notice(self, cap_w: float | None) -> None:
        """A fast reading shows the limit in force: if it is not ours, look again."""
        if cap_w is None or not self._lane.idle:
            return
        record = self._shared.book.get(self._seat.uuid)
        if record is None:
            return
        ours = mw_from_watts(cap_w) == mw_from_watts(record.entry.w)
        if ours:
            self._checked_at_s = self._shared.clock.now_s()
        if ours != (record.entry.state != "foreign") or (ours and not record.confirmed):
            self.check()

    def apply_failsafe(self, failsafe_w: float) -> None:
        """The agent fell silent while armed."""
        self._failsafe_w = failsafe_w

        def act(device: GpuDevice) -> None:
            self._cap.apply_failsafe(device, failsafe_w)
            self._failsafe_w = None

        self._quietly("failsafe", act)

    def keep_failsafe(self, *, wanted: bool) -> None:
        """Try again what failed, for instance because the GPU was lost; or drop it, because the agent is back."""
        if not wanted:
            self._failsafe_w = None
        elif self._failsafe_w is not None and self._lane.idle:
            self.apply_failsafe(self._failsafe_w)

    # On the lane ----------------------------------------------------------------------------------------------------

    def _on_device(self, act: Callable[[GpuDevice], T], *, undoing: bool = False) -> T:
        """Run one act on the device; everything that goes wrong is a HelperError.

        undoing: it is tried even while rights are known to be missing, since they may be back and it must not wait.
        """
        seat = self._seat
        reason = seat.why_no_write()
        if reason is not None and not (undoing and seat.is_locked):
            raise HelperError(
                f"not written: {reason.replace('_', ' ')}",
                "no_permission" if reason == NoPermissionError.reason else "locked",
            )
        device = None
        try:
            with self._shared.gate.call():
                device = seat.live
                if device is not None:
                    done = act(device)
                    if undoing:
                        seat.not_denied()
                    return done
        except DeviceError as error:
            raise HelperError(str(error), seat.failed(device, error)) from error
        code, text = seat.why_no_device()
        raise HelperError(text, code)

    def _quietly(self, what: str, act: Callable[[GpuDevice], None]) -> None:
        """A write that nobody waits for; its failure is logged once, and the keeper tries again."""
        if self._seat.live is None or not self._seat.is_locked:
            return

        def job() -> None:
            text = ""
            try:
                self._on_device(act)
            except HelperError as error:
                text = str(error)
                if text != self._quiet_failure:
                    log.warning("%s_failed uuid=%s code=%s text=%r", what, self._seat.uuid, error.code, text)
            self._quiet_failure = text

        self._lane.submit(job)

    def _plan_retry(self, *, pending: bool) -> None:
        self._restore_delay_s = min(60.0, max(1.0, 2 * self._restore_delay_s)) if pending else 0.0
        self.next_restore_s = self._shared.clock.now_s() + self._restore_delay_s
