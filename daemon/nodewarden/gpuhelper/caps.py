"""The power cap of one GPU: set, check, restore. Every method runs on that GPU's writer thread.

The order is always: check the range, write the ledger, write the board, read the board back, confirm in the ledger. The
limit found before the first write (prior) is never read again while the entry is open, and nothing is ever raised above
it.

    none ──set_cap──▶ owned ──restore──▶ none, or kept at min(prior, keep_w) while a protective cause demands it
                        │
                        ├── board shows prior or default ──▶ vanished: keep_w again, or none
                        └── board shows anything else ─────▶ re-asserted 3 times in 10 minutes, then foreign: reported
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import CapRange, GpuDevice
from nodewarden.errors import DeviceError, DeviceLostError, HelperError, NotSupportedError
from nodewarden.gpuhelper.book import Book, EventLog
from nodewarden.gpuhelper.ledger import Record
from nodewarden.gpuhelper.limitwriter import LimitWriter, same_limit
from nodewarden.gpuhelper.wire import CapReply, ErrorCode, LedgerEntry, RestoreOutcome, SetCap

log = logging.getLogger("nodewarden.gpu")

MAX_REASSERTS = 3
REASSERT_WINDOW_S = 600.0
DEFAULT_EXPIRY_S = 600.0
"""An unprotected cap without an expiry of its own ends this long after it was last renewed."""

Protects = Literal["none", "gpu", "breaker"]


def error_code(error: DeviceError) -> ErrorCode:
    """How a device's refusal is named on the wire."""
    if isinstance(error, NotSupportedError):
        return "not_supported"
    codes: dict[str, ErrorCode] = {
        "out_of_range": "out_of_range",
        "no_permission": "no_permission",
        "lost": "lost",
        "driver_not_loaded": "driver_missing",
        "library_not_found": "driver_missing",
        "version_mismatch": "driver_missing",
    }
    return codes.get(error.reason, "failed")


def expiry_s(entry: LedgerEntry) -> float | None:
    """When the helper itself ends this cap (CLOCK_BOOTTIME); None = never: it protects something."""
    if entry.protects != "none" or entry.state == "kept":
        return None
    return entry.written_at_s + DEFAULT_EXPIRY_S if entry.expires_at_s is None else entry.expires_at_s


def _believed_prior_w(board: CapRange, found_w: float) -> float:
    """The limit to go back to. No board can be above its own highest limit; one that says so says nothing."""
    if found_w <= board.max_w:
        return found_w
    return board.max_w if board.default_w is None else board.default_w


def _accepted_w(device: GpuDevice, w: float) -> float:
    """The limit nearest to `w` that the board takes today: its range may have changed since `w` was found."""
    try:
        board = device.cap_range_w()
    except DeviceLostError:
        raise
    except DeviceError:
        return w
    return min(max(w, board.min_w), board.max_w)


class GpuCap:
    """The cap of one GPU.

    Args:
        uuid, name: of the GPU; `name` is what people call it ("GPU 3").
        book, events, clock: shared by all GPUs.
        wait: sleeps so many seconds of the clock.
        agent_away: whether a cap that stays now is "kept" rather than "owned".
        contest: whether somebody else's limit may be answered by setting ours again.
    """

    def __init__(
        self,
        uuid: str,
        name: Callable[[], str],
        book: Book,
        events: EventLog,
        clock: Clock,
        *,
        wait: Callable[[float], None],
        agent_away: Callable[[], bool],
        contest: bool = True,
    ) -> None:
        self._uuid = uuid
        self._name = name
        self._book = book
        self._events = events
        self._clock = clock
        self._writer = LimitWriter(uuid, name, book, wait)
        self._agent_away = agent_away
        self._contest = contest
        self._reasserts: deque[float] = deque(maxlen=MAX_REASSERTS)

    # Set ------------------------------------------------------------------------------------------------------------

    def set_cap(self, device: GpuDevice, request: SetCap, owner_uid: int) -> CapReply:
        """Apply a cap. Raises HelperError when it is refused before anything was written, DeviceError after that."""
        board = device.cap_range_w()
        self._check_range(board, request)
        found_w = device.get_cap_w()
        record = self._book.get(self._uuid)
        prior_w = _believed_prior_w(board, found_w) if record is None else record.entry.prior_w
        target_w = min(request.w, prior_w)
        keep_w = None if request.keep_w is None else min(request.keep_w, prior_w)
        if same_limit(target_w, prior_w) and (keep_w is None or same_limit(keep_w, prior_w)):  # nobody demands anything
            outcome = None if record is None else self.restore(device, force=True, why="released")
            return self._reply(device, request, prior_w if outcome is None or outcome.w is None else outcome.w)
        if record is not None:
            self._refuse_if_foreign(record, device, found_w)
        now_s = self._clock.now_s()
        entry = LedgerEntry(
            uuid=self._uuid,
            prior_w=prior_w,
            w=target_w,
            keep_w=keep_w,
            protects=request.protects,
            cause=request.cause,
            owner_uid=owner_uid,
            since_s=now_s if record is None else record.entry.since_s,
            written_at_s=now_s,
            expires_at_s=request.expires_at_s if request.protects == "none" or request.manual_w is not None else None,
            manual_w=request.manual_w,
        )
        if (
            record is not None
            and record.confirmed
            and same_limit(found_w, target_w)
            and same_limit(record.entry.w, target_w)
        ):
            self._book.put_anyway(self._uuid, Record(entry=entry, confirmed=True))  # a renewal
            return self._reply(device, request, target_w)
        w = self._writer.write(device, entry, record, found_w)
        return self._reply(device, request, w)

    def _check_range(self, board: CapRange, request: SetCap) -> None:
        for what, w in (("power cap", request.w), ("keep_w", request.keep_w)):
            if w is None:
                continue
            too_high = w > board.max_w and what == "power cap"
            if not math.isfinite(w) or w < board.min_w or too_high:
                raise HelperError(
                    f"{what} {w:g} W refused for {self._name()}: allowed {board.min_w:g}-{board.max_w:g} W",
                    "out_of_range",
                )

    def _refuse_if_foreign(self, record: Record, device: GpuDevice, found_w: float) -> None:
        if not self._is_foreign(record, device, found_w):
            return
        self._note_foreign(record, found_w)
        if record.entry.state == "foreign" or not self._may_reassert():
            raise HelperError(
                f"foreign_cap: the limit {found_w:g} W of {self._name()} was set by somebody else and is left alone; "
                f"ours is {record.entry.w:g} W, before us it was {record.entry.prior_w:g} W; restore gives the GPU up",
                "failed",
            )

    def _reply(self, device: GpuDevice, request: SetCap, w: float) -> CapReply:
        try:
            enforced_w = device.enforced_w()
        except DeviceError:
            enforced_w = None
        return CapReply(id=request.id, uuid=self._uuid, w=w, enforced_w=enforced_w)

    # Restore --------------------------------------------------------------------------------------------------------

    def restore(self, device: GpuDevice, *, force: bool, why: str) -> RestoreOutcome:
        """Back to min(prior, keep_w), or to prior with force. Raises DeviceError, HelperError: it is pending then."""
        record = self._book.get(self._uuid)
        if record is None:
            return RestoreOutcome(uuid=self._uuid, outcome="none")
        entry = record.entry
        prior_w, keep_w = entry.prior_w, entry.keep_w
        target_w = prior_w if force or keep_w is None else min(prior_w, keep_w)
        found_w = device.get_cap_w()
        if self._is_foreign(record, device, found_w):
            text = f"limit {found_w:g} W was set by somebody else (ours {entry.w:g} W, before us {prior_w:g} W)"
            self._events.add("foreign_cap", self._uuid, f"{self._name()}: {text}; not overwritten")
            self._book.close_entry(self._uuid)
            return RestoreOutcome(uuid=self._uuid, outcome="none", w=found_w, text=text)
        kept = not same_limit(target_w, prior_w)
        target_w = _accepted_w(device, target_w)
        if not same_limit(found_w, target_w):
            asked = msgspec.structs.replace(entry, w=target_w, written_at_s=self._clock.now_s(), pending=why)
            self._writer.write(device, asked, record, found_w)
        if not kept:
            self._book.close_entry(self._uuid)
            log.info("cap_restored uuid=%s w=%g why=%s", self._uuid, target_w, why)
            return RestoreOutcome(uuid=self._uuid, outcome="restored", w=target_w)
        stays = msgspec.structs.replace(
            entry,
            w=target_w,
            previous_w=None,
            pending=None,
            expires_at_s=None,
            manual_w=None,
            protects="gpu" if entry.protects == "none" else entry.protects,
            state="kept" if self._agent_away() else "owned",
            written_at_s=self._clock.now_s(),
        )
        self._book.put_anyway(self._uuid, Record(entry=stays, confirmed=True))
        text = f"{target_w:g} W stays, since it protects the {stays.protects} (before us {prior_w:g} W)"
        if stays.state == "kept" and entry.state != "kept":
            self._events.add("cap_kept", self._uuid, f"{self._name()}: {text}")
        return RestoreOutcome(uuid=self._uuid, outcome="kept", w=target_w, text=text)

    def mark_pending(self, reason: str, *, force: bool) -> RestoreOutcome:
        """A restore that failed or does not come back: it stays in the ledger and is tried again. Any thread."""
        record = self._book.get(self._uuid)
        if record is None:
            return RestoreOutcome(uuid=self._uuid, outcome="none")
        entry = record.entry
        if force:
            entry.keep_w = None
        if entry.pending != reason:
            log.warning("restore_pending uuid=%s reason=%r", self._uuid, reason)
        entry.pending = reason
        self._book.put_anyway(self._uuid, record)
        return RestoreOutcome(uuid=self._uuid, outcome="pending", w=entry.w, text=reason)

    def expire(self, device: GpuDevice) -> None:
        """End an unprotected cap whose time is over; the protective part of it stays."""
        record = self._book.get(self._uuid)
        ends_s = None if record is None else expiry_s(record.entry)
        if record is None or ends_s is None or ends_s > self._clock.now_s():
            return  # renewed in the meantime
        was_w = record.entry.w
        outcome = self.restore(device, force=False, why="expired")
        if outcome.outcome in {"restored", "kept"}:
            self._events.add("cap_expired", self._uuid, f"{self._name()}: {was_w:g} W expired, now {outcome.w:g} W")

    # Silence --------------------------------------------------------------------------------------------------------

    def apply_failsafe(self, device: GpuDevice, failsafe_w: float) -> None:
        """The agent fell silent: min(current, failsafe_w), which no restore exceeds.

        Raises DeviceError, HelperError.
        """
        board = device.cap_range_w()
        safe_w = min(max(failsafe_w, board.min_w), board.max_w)
        found_w = device.get_cap_w()
        record = self._book.get(self._uuid)
        if record is None:
            if found_w <= safe_w or same_limit(found_w, safe_w):
                return
            prior_w = _believed_prior_w(board, found_w)
            entry = LedgerEntry(uuid=self._uuid, prior_w=prior_w, w=safe_w, since_s=self._clock.now_s())
        elif self._is_foreign(record, device, found_w):
            return  # the check reports it
        else:
            entry = record.entry
        keep_w = min(safe_w, entry.prior_w, math.inf if entry.keep_w is None else entry.keep_w)
        protects: Protects = entry.protects
        expires_at_s, cause = entry.expires_at_s, entry.cause
        if record is None or entry.w > safe_w:
            protects, cause = "breaker", "failsafe"
            expires_at_s = expires_at_s if entry.manual_w is not None else None
        safe = msgspec.structs.replace(
            entry,
            w=min(entry.w, safe_w),
            keep_w=keep_w,
            protects=protects,
            expires_at_s=expires_at_s,
            cause=cause,
            written_at_s=self._clock.now_s() if protects != "none" else entry.written_at_s,
        )
        if record is not None and same_limit(found_w, safe.w):
            self._book.put_anyway(self._uuid, Record(entry=safe, confirmed=True))
            return
        self._writer.write(device, safe, record, found_w)

    # Check ----------------------------------------------------------------------------------------------------------

    def check(self, device: GpuDevice) -> None:
        """Compare the board with the ledger, and answer what differs. Raises DeviceError, HelperError."""
        record = self._book.get(self._uuid)
        if record is None:
            return
        entry = record.entry
        found_w = device.get_cap_w()
        if same_limit(found_w, entry.w):
            if not record.confirmed or entry.state == "foreign":
                state = "owned" if entry.state == "foreign" else entry.state
                ours = msgspec.structs.replace(entry, previous_w=None, state=state)
                self._book.put_anyway(self._uuid, Record(entry=ours, confirmed=True))
            return
        if not record.confirmed and entry.previous_w is not None and same_limit(found_w, entry.previous_w):
            self._finish_interrupted(device, record, found_w)
        elif self._is_foreign(record, device, found_w):
            self._answer_foreign(device, record, found_w)
        else:
            self._answer_vanished(device, record, found_w)

    def _finish_interrupted(self, device: GpuDevice, record: Record, found_w: float) -> None:
        """We died between ledger and board: the lower of the two is ours now."""
        entry = record.entry
        log.warning("write_was_interrupted uuid=%s w=%g found_w=%g", self._uuid, entry.w, found_w)
        if entry.w < found_w:
            self._writer.write(device, entry, record, found_w)
        else:
            ours = msgspec.structs.replace(entry, w=found_w, previous_w=None)
            self._book.put_anyway(self._uuid, Record(entry=ours, confirmed=True))

    def _answer_vanished(self, device: GpuDevice, record: Record, found_w: float) -> None:
        entry = record.entry
        again_w = None if entry.keep_w is None else _accepted_w(device, min(entry.keep_w, entry.prior_w))
        first_write_interrupted = (
            not record.confirmed and entry.previous_w is None and same_limit(found_w, entry.prior_w)
        )
        what = "closed" if again_w is None else f"set to {again_w:g} W again"
        if first_write_interrupted:
            log.warning("write_was_interrupted uuid=%s w=%g %s", self._uuid, entry.w, what)
        else:
            self._events.add(
                "cap_vanished",
                self._uuid,
                f"{self._name()}: the board shows {found_w:g} W although {entry.w:g} W was in force "
                f"(driver reload or reset?); {what}",
            )
        if again_w is None or same_limit(again_w, found_w):
            self._book.close_entry(self._uuid)
            return
        protects: Protects = "gpu" if entry.protects == "none" else entry.protects
        again = msgspec.structs.replace(
            entry,
            w=again_w,
            protects=protects,
            expires_at_s=None,
            manual_w=None,
            written_at_s=self._clock.now_s(),
            pending=None,
        )
        self._writer.write(device, again, record, found_w)

    def _answer_foreign(self, device: GpuDevice, record: Record, found_w: float) -> None:
        if record.entry.state == "foreign":
            return  # reported already, and left alone
        self._note_foreign(record, found_w)
        if self._may_reassert():
            self._writer.write(device, record.entry, record, found_w)
            return
        reported = msgspec.structs.replace(record.entry, state="foreign")
        self._book.put_anyway(self._uuid, Record(entry=reported, confirmed=record.confirmed))

    def _note_foreign(self, record: Record, found_w: float) -> None:
        if record.entry.state != "foreign":
            entry = record.entry
            self._events.add(
                "foreign_cap",
                self._uuid,
                f"{self._name()}: the limit is {found_w:g} W, neither ours ({entry.w:g} W) nor the one before us "
                f"({entry.prior_w:g} W)",
            )

    def _may_reassert(self) -> bool:
        """Count one re-assertion, or say that there were enough of them."""
        now_s = self._clock.now_s()
        while self._reasserts and now_s - self._reasserts[0] >= REASSERT_WINDOW_S:
            self._reasserts.popleft()
        if not self._contest or len(self._reasserts) >= MAX_REASSERTS:
            return False
        self._reasserts.append(now_s)
        return True

    def _is_foreign(self, record: Record, device: GpuDevice, found_w: float) -> bool:
        entry = record.entry
        ours = [entry.w, entry.prior_w]
        if not record.confirmed and entry.previous_w is not None:
            ours.append(entry.previous_w)
        if any(same_limit(found_w, w) for w in ours):
            return False
        try:
            default_w = device.cap_range_w().default_w
        except DeviceLostError:
            raise
        except DeviceError:
            default_w = None
        return default_w is None or not same_limit(found_w, default_w)
