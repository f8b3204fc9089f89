"""Writing one limit so that it can be undone: ledger, board, read-back, ledger."""

import logging
from collections.abc import Callable

import msgspec

from nodewarden.devices.gpu_library import GpuDevice
from nodewarden.errors import DeviceError, DeviceLostError, HelperError, NoPermissionError
from nodewarden.gpuhelper.book import Book
from nodewarden.gpuhelper.ledger import LedgerError, Record
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.units import mw_from_watts

log = logging.getLogger("nodewarden.gpu")

WRITE_RETRIES = 3
RETRY_AFTER_S = 0.2
_ROUNDING_MW = 1000
"""A board may round what it is asked for; what it then shows is ours if it is nearer than this."""


def same_limit(a_w: float, b_w: float) -> bool:
    """Whether two limits are the same to the driver, which counts whole milliwatts."""
    return mw_from_watts(a_w) == mw_from_watts(b_w)


class LimitWriter:
    """Writes the limit of one GPU, on its writer thread.

    Args:
        uuid, name: of the GPU; `name` is what people call it ("GPU 3").
        book: where the promise to undo is kept.
        wait: sleeps so many seconds of the clock; used between retries.
    """

    def __init__(self, uuid: str, name: Callable[[], str], book: Book, wait: Callable[[float], None]) -> None:
        self._uuid = uuid
        self._name = name
        self._book = book
        self._wait = wait

    def write(self, device: GpuDevice, entry: LedgerEntry, before: Record | None, found_w: float) -> float:
        """Ledger, board, read-back, ledger. Returns what the board shows now.

        `before` is the record in force, `found_w` what the board showed. Raises HelperError "ledger_failed" when the
        ledger cannot promise the undoing, DeviceError when the board does not take it.
        """
        entry.previous_w = None if before is None else found_w
        try:
            self._book.put(self._uuid, Record(entry=entry))
        except LedgerError as error:
            # Where an entry is open, the file still says what to go back to: lowering and restoring need no more.
            restoring = entry.pending is not None
            if before is None or (entry.w > before.entry.w and not restoring):
                self._put_back(before)
                raise HelperError(
                    f"{self._name()} is not capped, since the limit to go back to cannot be kept: {error}",
                    "ledger_failed",
                ) from error
        try:
            shown_w = self._write_board(device, entry.w)
        except DeviceError:
            self._settle_failed_write(device, entry, before)
            raise
        confirmed = msgspec.structs.replace(entry, w=shown_w, previous_w=None, pending=None)
        self._book.put_anyway(self._uuid, Record(entry=confirmed, confirmed=True))
        log.info("limit_written uuid=%s w=%g cause=%s protects=%s", self._uuid, shown_w, entry.cause, entry.protects)
        return shown_w

    def _write_board(self, device: GpuDevice, w: float) -> float:
        failure: DeviceError | None = None
        for attempt in range(1 + WRITE_RETRIES):
            if attempt:
                self._wait(RETRY_AFTER_S)
            try:
                device.set_cap_w(w)
                shown_w = device.get_cap_w()
            except (NoPermissionError, DeviceLostError):
                raise
            except DeviceError as error:
                if error.reason == "out_of_range":
                    raise
                failure = error
                continue
            if abs(mw_from_watts(shown_w) - mw_from_watts(w)) < _ROUNDING_MW:
                return shown_w
            failure = DeviceError(f"the driver takes {w:g} W and ignores it: the board shows {shown_w:g} W")
        raise failure or DeviceError(f"{w:g} W not written")

    def _settle_failed_write(self, device: GpuDevice, entry: LedgerEntry, before: Record | None) -> None:
        """After a failed write: what the board shows decides which record is true; unknown keeps the new one open."""
        try:
            shown_w = device.get_cap_w()
        except DeviceError:
            return
        if before is None and same_limit(shown_w, entry.prior_w):
            self._book.close_entry(self._uuid)
        elif before is not None and same_limit(shown_w, before.entry.w):
            self._book.put_anyway(self._uuid, before)

    def _put_back(self, before: Record | None) -> None:
        if before is None:
            self._book.forget(self._uuid)
        else:
            self._book.put_anyway(self._uuid, before)
