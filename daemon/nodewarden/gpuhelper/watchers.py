"""Two threads that listen for GPU errors: to the driver's events, and to the kernel's log. Nobody waits for either.

A wait that hangs in the driver costs its own events only; a log that cannot be opened is tried again.
"""

import logging
import threading
import time
from pathlib import Path

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import GpuLibrary
from nodewarden.devices.kernel_log import KernelLog, Reader, Record
from nodewarden.errors import DeviceError, NotSupportedError
from nodewarden.gpuhelper.gpu_errors import ErrorFeed
from nodewarden.gpuhelper.lanes import Gate
from nodewarden.gpuhelper.wire import GpuError, Listening

log = logging.getLogger("nodewarden.gpu")

WAIT_S = 0.5
"""How long one wait for an event lasts, in real seconds: the library is closed only when no call is in flight, and what
is in flight for a second counts as hanging."""
RETRY_S = 5.0
SOON_S = 1.0
_NOT_YET = frozenset({"driver_not_loaded", "no_data"})
"""Found out without a driver call: what happens before we listen is not told to us, so we look again soon."""
UNSUPPORTED_RETRY_S = 60.0
KERNEL_WAIT_S = 1.0
SETTLE_S = 0.1
"""Lines of the kernel's log come in bursts: they are read together."""


class DriverWatcher:
    """Takes the driver's events (Xid) from the library, on a thread of its own."""

    def __init__(
        self, library: GpuLibrary, clock: Clock, gate: Gate, feed: ErrorFeed, stopping: threading.Event
    ) -> None:
        self._library = library
        self._clock = clock
        self._gate = gate
        self._feed = feed
        self._stopping = stopping
        self._thread = threading.Thread(target=self._run, name="driver-events", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def leave(self, timeout_s: float) -> None:
        """After `stopping` was set: wait until no call is in flight, so many real seconds at most."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause_s = self._step()
            except Exception:  # a library of another kind may raise anything
                log.exception("driver_events_failed")
                pause_s = RETRY_S
            if pause_s:
                self._stopping.wait(self._clock.real_s(pause_s))

    def _step(self) -> float:
        try:
            with self._gate.call():
                events = self._library.wait_for_errors(WAIT_S)
        except NotSupportedError as error:
            self._set(Listening(reason=error.reason))
            return UNSUPPORTED_RETRY_S
        except DeviceError as error:
            self._set(Listening(reason=error.reason))
            return SOON_S if error.reason in _NOT_YET else RETRY_S
        self._set(Listening(up=True))
        now_s = self._clock.now_s()
        for event in events:
            self._feed.add(
                GpuError(source="nvml", kind="xid", code=event.xid, uuid=event.uuid, first_s=now_s, last_s=now_s)
            )
        return 0.0

    def _set(self, listening: Listening) -> None:
        if listening != self._feed.driver:
            log.info("driver_events up=%s reason=%s", listening.up, listening.reason)
            self._feed.driver = listening
            self._feed.changed()


class KernelWatcher:
    """Reads the kernel's log on a thread of its own, from the first time that somebody wants it.

    What was logged before that in this boot is read too, except the lines that were taken over by an earlier agent.
    """

    def __init__(self, path: Path | None, clock: Clock, feed: ErrorFeed, stopping: threading.Event) -> None:
        self._path = path
        self._clock = clock
        self._feed = feed
        self._stopping = stopping
        self._reader = Reader()
        self._behind = True  # still reading what was logged before we came
        self._after = -1
        self._lock = threading.Lock()
        self._started = False

    def start(self, after: int) -> None:
        """Begin behind line `after`, unless begun already."""
        with self._lock:
            if self._started:
                return
            self._started = True
        if self._path is None:
            self._set(Listening(reason="off"))
            return
        self._after = after
        threading.Thread(target=self._run, args=(self._path,), name="kernel-log", daemon=True).start()

    def _run(self, path: Path) -> None:
        while not self._stopping.is_set():
            try:
                opened = KernelLog(path)
            except OSError as error:
                self._set(Listening(reason=_reason(error)), str(error))
                self._stopping.wait(self._clock.real_s(UNSUPPORTED_RETRY_S))
                continue
            try:
                self._listen(opened)
            except OSError as error:
                self._set(Listening(reason=_reason(error)), str(error))
                self._stopping.wait(RETRY_S)
            except Exception:  # whatever was written there
                log.exception("kernel_log_failed")
                self._stopping.wait(RETRY_S)
            finally:
                opened.close()

    def _listen(self, opened: KernelLog) -> None:
        self._behind = True
        while not self._stopping.is_set():
            number_before = self._after
            for record in opened.read():
                self._take(record)
            self._set(Listening(up=True, lost=opened.lost))
            if self._after == number_before:
                self._behind = False
                opened.wait(KERNEL_WAIT_S)
                self._stopping.wait(SETTLE_S)

    def _take(self, record: Record) -> None:
        if record.number <= self._after:  # known, or the log was opened again
            return
        self._after = record.number
        complaint = self._reader.complaint(record.text)
        if complaint is None:
            return
        at_s = self._clock.now_s()
        if self._behind:  # the kernel's own time; a line that has just come is as old as now
            suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
            at_s = min(at_s, record.at_s + suspended_s)
        self._feed.add(
            GpuError(
                source="kernel",
                kind=complaint.kind,
                code=complaint.code,
                bus_id=complaint.bus_id,
                first_s=at_s,
                last_s=at_s,
                kernel_number=record.number,
                text=complaint.text,
                pid=complaint.pid,
                process=complaint.process,
            )
        )

    def _set(self, listening: Listening, text: str = "") -> None:
        if listening != self._feed.kernel:
            if listening.up != self._feed.kernel.up or listening.reason != self._feed.kernel.reason:
                log.info("kernel_log up=%s reason=%s text=%r", listening.up, listening.reason, text)
            self._feed.kernel = listening
            self._feed.changed()


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "no_permission"
    return "missing" if isinstance(error, FileNotFoundError) else "error"
