"""One GPU of the helper: its reader and its writer, its lock, and who waits for an answer.

A hung call costs this GPU only: the reader answers "busy" while its call has not come back, and reading goes on while
the writer hangs. `state` says what people see.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import msgspec

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import FastValues, GpuDevice, GpuIdentity, SlowValues
from nodewarden.errors import AlreadyRunningError, DeviceError, DeviceLostError, HelperError, NoPermissionError
from nodewarden.file_lock import FileLock, LockFailedError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.book import Book, EventLog
from nodewarden.gpuhelper.caps import GpuCap, error_code, expiry_s
from nodewarden.gpuhelper.lanes import Gate, Lane
from nodewarden.gpuhelper.replies import fast_reply, slow_reply
from nodewarden.units import mw_from_watts

log = logging.getLogger("nodewarden.gpu")

UNRESPONSIVE_S = 2.0
"""A call that takes longer counts as hanging; requests for it are answered at once."""
MAX_WAITERS = 4
"""Reads of one kind that one peer may have waiting at one GPU; all of them are answered by one call."""
MAX_REQUEST_AGE_S = 5.0
"""A write that waited longer behind a hung call is not done any more: its asker has given up and decided anew."""
DENIED_FOR_S = 60.0
"""After the driver refused a write for want of rights, none is tried for this long."""

T = TypeVar("T")


class Answerable(Protocol):
    """Where a reply goes. `send` never blocks and never raises."""

    def send(self, reply: wire.Reply) -> None:
        """Queue or drop."""
        ...


class Shared(msgspec.Struct, kw_only=True):
    """What all workers share."""

    clock: Clock
    book: Book
    events: EventLog
    gate: Gate
    report_lost: Callable[[], None]
    take_events: Callable[[Answerable], list[wire.HelperEvent]]
    wait: Callable[[float], None]
    stopping: threading.Event
    driver_problem: Callable[[], str]
    agent_away: Callable[[], bool]
    contest: bool


class GpuWorker:
    """Reader and writer of one GPU; all public methods return at once."""

    def __init__(self, identity: GpuIdentity, lock: FileLock, shared: Shared) -> None:
        self.identity = identity
        self.uuid = identity.uuid
        self._lock = lock
        self._shared = shared
        self._device: GpuDevice | None = None
        self._dropped: GpuDevice | None = None  # an object that met a lost GPU is never used again
        self._reader = Lane(f"read-{identity.index}", shared.clock)
        self._writer = Lane(f"write-{identity.index}", shared.clock)
        self._waiters: dict[wire.ReadKind, list[tuple[Answerable, int]]] = {"fast": [], "slow": []}
        self._waiters_lock = threading.Lock()
        self._lock_problem: str | None = None
        self._probe: str | None = None
        self.probed = threading.Event()
        self.probed.set()
        self._denied_until_s = 0.0
        self.next_restore_s = 0.0
        self.restore_delay_s = 0.0
        self._checked_at_s = 0.0
        self._failsafe_w: float | None = None  # still to be applied
        self._quiet_failure = ""  # as last logged
        self._cap = GpuCap(
            self.uuid,
            lambda: f"GPU {self.identity.index}",
            shared.book,
            shared.events,
            shared.clock,
            wait=shared.wait,
            agent_away=shared.agent_away,
            contest=shared.contest,
        )
        self.try_lock()

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def unresponsive(self) -> bool:
        """A call of this GPU hangs."""
        return max(self._reader.busy_for_s(), self._writer.busy_for_s()) > UNRESPONSIVE_S

    @property
    def writer_idle(self) -> bool:
        """No write runs or waits."""
        return self._writer.idle

    def shown(self) -> wire.GpuIdentity:
        """How the helper presents this GPU."""
        reason = self._why_no_write() or self._probe
        identity = self.identity
        return wire.GpuIdentity(
            uuid=identity.uuid,
            index=identity.index,
            model=identity.model,
            pci_bus_id=identity.pci_bus_id,
            state="unresponsive" if self.unresponsive else "lost" if self._device is None else "ok",
            can_write=reason is None,
            write_reason=reason,
        )

    def _why_no_write(self) -> str | None:
        """What makes a write pointless, without asking the board."""
        if not self._lock.held:
            return self._lock_problem or "not locked"
        return NoPermissionError.reason if self._shared.clock.now_s() < self._denied_until_s else None

    def try_lock(self) -> bool:
        """Take this GPU's lock if it is free; True when it was taken just now."""
        if self._lock.held:
            return False
        try:
            self._lock.acquire()
        except (AlreadyRunningError, LockFailedError) as error:
            if str(error) != self._lock_problem:
                log.warning("gpu_read_only uuid=%s reason=%r", self.uuid, str(error))
            self._lock_problem = str(error)
            return False
        if self._lock_problem:
            log.warning("gpu_writable uuid=%s", self.uuid)
        self._lock_problem = None
        return True

    def release_lock(self) -> None:
        """Only when nothing of ours runs on the GPU any more."""
        self._lock.release()

    def found(self, device: GpuDevice) -> None:
        """The GPU answers: at start, after a scan, or because it came back."""
        if device is self._device or device is self._dropped:
            return
        log.info("gpu_found uuid=%s index=%d model=%r", self.uuid, device.identity.index, device.identity.model)
        self.identity = device.identity
        self._probe = device.probe_write_permission()
        self._device, self._dropped = device, None
        self._denied_until_s = 0.0
        self.check()
        if self._probe is not None and self._lock.held and self._shared.book.get(self.uuid) is None:
            self._make_sure_of_no_permission()

    def _make_sure_of_no_permission(self) -> None:
        """Rights that seem to be missing: ask for the limit that is in force, which changes nothing either way.

        The driver refuses that before it looks at the value; a library that decides otherwise is believed.
        """

        def job() -> None:
            try:
                with self._shared.gate.call():
                    if self._device is not None:
                        self._device.set_cap_w(self._device.get_cap_w())
                        self._probe = None
            except DeviceError as error:
                log.warning("control_unavailable uuid=%s reason=%r", self.uuid, str(error))
            finally:
                self.probed.set()

        self.probed.clear()
        if not self._writer.submit(job):
            self.probed.set()

    def lost(self, why: str) -> None:
        """The GPU does not answer any more."""
        device, self._device = self._device, None
        if device is not None:
            self._dropped = device
            log.warning("gpu_lost uuid=%s index=%d why=%r", self.uuid, self.identity.index, why)

    def stop(self) -> None:
        """Take no more work."""
        self._reader.stop()
        self._writer.stop()

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, kind: wire.ReadKind, peer: Answerable, request_id: int) -> None:
        """Answer `peer` with one fast or slow reading, or with why there is none."""
        if self._device is None:
            peer.send(self._error(request_id, *self._why_no_device()))
            return
        if self._reader.busy_for_s() > UNRESPONSIVE_S:
            peer.send(self._error(request_id, "busy", "the read before has not come back from the driver"))
            return
        with self._waiters_lock:
            waiters = self._waiters[kind]
            full = sum(waiter is peer for waiter, _ in waiters) >= MAX_WAITERS
            submitted = not full and (bool(waiters) or self._reader.submit(lambda: self._read(kind)))
            if submitted:
                waiters.append((peer, request_id))
        if not submitted:
            peer.send(self._error(request_id, "busy", "too many reads wait"))

    def _read(self, kind: wire.ReadKind) -> None:
        values: FastValues | SlowValues | None = None
        failure = self._why_no_device()
        device = None
        taken_at_s = self._shared.clock.now_s()  # nothing in the answer is older than this
        try:
            with self._shared.gate.call():
                device = self._device  # past the gate: before it, this may be one of a library that was closed
                if device is not None:
                    values = device.read_fast() if kind == "fast" else device.read_slow()
        except DeviceError as error:
            failure = (self._failed(device, error), str(error))
        with self._waiters_lock:
            waiters, self._waiters[kind] = self._waiters[kind], []
        for peer, request_id in waiters:
            if isinstance(values, FastValues):
                peer.send(fast_reply(self.uuid, request_id, taken_at_s, values, self._shared.take_events(peer)))
            elif isinstance(values, SlowValues):
                peer.send(slow_reply(self.uuid, request_id, taken_at_s, values))
            else:
                peer.send(self._error(request_id, *failure))
        if isinstance(values, FastValues):
            self._notice_cap(values.values.get("cap_w"))

    def _why_no_device(self) -> tuple[wire.ErrorCode, str]:
        problem = self._shared.driver_problem()
        return ("driver_missing", problem) if problem else ("lost", "lost: it does not answer, and is looked for")

    def _failed(self, device: GpuDevice | None, error: DeviceError) -> wire.ErrorCode:
        """Take note of a failure; returns its code on the wire."""
        code = error_code(error)
        if isinstance(error, DeviceLostError) or code == "driver_missing":
            if device is not None and self._device is device:
                self.lost(str(error))
                self._shared.report_lost()
        elif isinstance(error, NoPermissionError):
            self._denied_until_s = self._shared.clock.now_s() + DENIED_FOR_S
        return code

    def _notice_cap(self, cap_w: float | None) -> None:
        """A fast reading shows the limit in force: if it is not ours, the writer looks again."""
        if cap_w is None or not self._writer.idle:
            return
        record = self._shared.book.get(self.uuid)
        if record is None:
            return
        ours = mw_from_watts(cap_w) == mw_from_watts(record.entry.w)
        if ours:
            self._checked_at_s = self._shared.clock.now_s()
        if ours != (record.entry.state != "foreign") or (ours and not record.confirmed):
            self.check()

    def _error(self, request_id: int, code: wire.ErrorCode, text: str) -> wire.ErrorReply:
        name = f"GPU {self.identity.index}"
        if not text.startswith((name, "power cap", "keep_w")):
            text = f"{name}: {text}"
        return wire.ErrorReply(id=request_id, code=code, text=text, uuid=self.uuid)

    # Writing --------------------------------------------------------------------------------------------------------

    def set_cap(self, request: wire.SetCap, peer: Answerable, owner_uid: int) -> None:
        """Apply a cap and answer `peer`."""
        asked_at_s = self._shared.clock.now_s()

        def act(device: GpuDevice) -> wire.CapReply:
            if self._shared.stopping.is_set() or self._shared.clock.now_s() - asked_at_s > MAX_REQUEST_AGE_S:
                raise HelperError("dropped: it waited too long behind a hung call, or the helper is stopping", "busy")
            reply = self._cap.set_cap(device, request, owner_uid)
            self._probe = None  # whatever we thought of our rights
            return reply

        def job() -> None:
            try:
                reply: wire.Reply = self._on_device(act, undoing=self._undoes(request))
            except HelperError as error:
                reply = self._error(request.id, cast("wire.ErrorCode", error.code), str(error))
            peer.send(reply)

        if self._writer.busy_for_s() > UNRESPONSIVE_S:
            peer.send(self._error(request.id, "busy", "the write before has not come back from the driver"))
        elif not self._writer.submit(job):
            peer.send(self._error(request.id, "busy", "too many writes wait"))

    def _undoes(self, request: wire.SetCap) -> bool:
        record = self._shared.book.get(self.uuid)
        return record is not None and request.keep_w is None and request.w >= record.entry.prior_w

    def _on_device(self, act: Callable[[GpuDevice], T], *, undoing: bool = False) -> T:
        """Run one act on the device, on the writer thread; everything that goes wrong is a HelperError.

        undoing: it is tried even while rights are known to be missing, since they may be back and it must not wait.
        """
        reason = self._why_no_write()
        if reason is not None and not (undoing and self._lock.held):
            raise HelperError(
                f"not written: {reason.replace('_', ' ')}",
                "no_permission" if reason == NoPermissionError.reason else "locked",
            )
        device = None
        try:
            with self._shared.gate.call():
                device = self._device
                if device is not None:
                    done = act(device)
                    if undoing:
                        self._denied_until_s = 0.0
                    return done
        except DeviceError as error:
            raise HelperError(str(error), self._failed(device, error)) from error
        code, text = self._why_no_device()
        raise HelperError(text, code)

    def restore(self, *, force: bool, why: str, done: Callable[[wire.RestoreOutcome], None] = lambda _: None) -> None:
        """Go back to min(prior, keep_w), or to prior with force; `done` is told, on the writer thread or at once."""

        def job() -> None:
            try:
                outcome = self._on_device(lambda device: self._cap.restore(device, force=force, why=why), undoing=True)
            except HelperError as error:
                outcome = self._cap.mark_pending(str(error), force=force)
            self._plan_retry(pending=outcome.outcome == "pending")
            done(outcome)

        if not self._writer.submit(job):
            done(self.give_up_restore("the writes before have not come back from the driver", force=force))

    def give_up_restore(self, reason: str, *, force: bool = False) -> wire.RestoreOutcome:
        """Note that a restore did not happen yet."""
        return self._cap.mark_pending(reason, force=force)

    def _plan_retry(self, *, pending: bool) -> None:
        self.restore_delay_s = min(60.0, max(1.0, 2 * self.restore_delay_s)) if pending else 0.0
        self.next_restore_s = self._shared.clock.now_s() + self.restore_delay_s

    def expire(self) -> None:
        """End an unprotected cap whose time is over."""

        def job() -> None:
            try:
                self._on_device(self._cap.expire, undoing=True)
            except HelperError as error:
                record = self._shared.book.get(self.uuid)
                ends_s = None if record is None else expiry_s(record.entry)
                if ends_s is not None and ends_s <= self._shared.clock.now_s():
                    self._cap.mark_pending(str(error), force=False)
                    self._plan_retry(pending=True)

        self._writer.submit(job)

    def check(self) -> None:
        """Compare the board with the ledger."""
        self._checked_at_s = self._shared.clock.now_s()
        if self._shared.book.get(self.uuid) is not None:
            self._quietly("check", self._cap.check)

    def check_if_older(self, seconds: float) -> None:
        """Check, unless a reading or a check did it lately."""
        if self._shared.clock.now_s() - self._checked_at_s >= seconds:
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
        elif self._failsafe_w is not None and self._writer.idle:
            self.apply_failsafe(self._failsafe_w)

    def _quietly(self, what: str, act: Callable[[GpuDevice], None]) -> None:
        """A write that nobody waits for; its failure is logged once, and the keeper tries again."""
        if self._device is None or not self._lock.held:
            return

        def job() -> None:
            text = ""
            try:
                self._on_device(act)
            except HelperError as error:
                text = str(error)
                if text != self._quiet_failure:
                    log.warning("%s_failed uuid=%s code=%s text=%r", what, self.uuid, error.code, text)
            self._quiet_failure = text

        self._writer.submit(job)
