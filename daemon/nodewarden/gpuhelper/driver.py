"""Opening the GPU library, finding GPUs, and finding them again: one thread, because every step of it may hang."""

import logging
import threading
from collections.abc import Callable, Sequence

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import GpuDevice, GpuIdentity, GpuLibrary
from nodewarden.errors import DeviceError
from nodewarden.gpuhelper.lanes import Gate

log = logging.getLogger("nodewarden.gpu")

RESCAN_S = 5.0
"""How soon a GPU that appears is found."""
FIRST_RETRY_S = 5.0
MAX_OPEN_RETRY_S = 60.0
MAX_REOPEN_RETRY_S = 300.0
HUNG_S = 3.0
"""A library call that takes longer counts as hanging."""
ORDER_S = 15.0
"""How long `spare` waits for the driver thread, in real seconds: to open a GPU may take one or two."""
_DRAIN_S = 2.0  # real seconds


class _Order:
    """Asked of the driver thread: open the library without these GPUs, or keep it closed."""

    def __init__(self, spared: Sequence[GpuIdentity], *, shut: bool) -> None:
        self.spared = tuple(spared)
        self.shut = shut
        self.done = threading.Event()
        self.problem = ""


class Driver:
    """The library's life.

        closed ──open──▶ open ──a GPU is lost, or none is there──▶ closed, as soon as no call is in flight

    Both ways are retried with a growing delay, and the driver's absence is a state, not an error. While every GPU is
    released it stays closed ("released").

    Args:
        on_devices: called on this thread with the GPUs that answer, after every look.
        on_state: called when `state` or `text` has changed.

    Attributes:
        state: "starting", "ok", or why there is no driver: a reason of `GpuLibrary.open`.
        text: the same in words; what could not be reached when the state is "ok".
        first_look: set when the library was tried once.
    """

    def __init__(
        self,
        library: GpuLibrary,
        clock: Clock,
        gate: Gate,
        on_devices: Callable[[Sequence[GpuDevice]], None],
        on_state: Callable[[], None],
    ) -> None:
        self._library = library
        self._clock = clock
        self._gate = gate
        self._on_devices = on_devices
        self._on_state = on_state
        self._wake = threading.Condition()
        self._stopping = False
        self._opened = False
        self._reported = False  # somebody met a lost GPU since the last look
        self._reopen_wanted = False
        self._reopen_from_s = 0.0
        self._open_retry_s = FIRST_RETRY_S
        self._reopen_retry_s = FIRST_RETRY_S
        self._call_since_s: float | None = None
        self._order: _Order | None = None
        self._spared: tuple[GpuIdentity, ...] = ()
        self._shut = False
        self.first_look = threading.Event()
        self.state = "starting"
        self.text = ""
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    @property
    def version(self) -> str:
        """Of the driver; empty when unknown."""
        return self._library.driver_version

    def shown_state(self) -> str:
        """`state`, or "unresponsive" while a call of this thread hangs."""
        since_s = self._call_since_s
        return self.state if since_s is None or self._clock.now_s() - since_s < HUNG_S else "unresponsive"

    def report_lost(self) -> None:
        """A GPU or the driver went away: drop all handles, open again, find by uuid. Any thread."""
        with self._wake:
            self._reported = True
            self._wake.notify()

    def begin_without(self, spared: Sequence[GpuIdentity], *, shut: bool) -> None:
        """Before `start`: these GPUs are released from the first look on."""
        self._spared, self._shut = tuple(spared), shut

    def spare(self, spared: Sequence[GpuIdentity], *, shut: bool) -> str:
        """Close the library and open it again without touching these GPUs, or leave it closed. One caller at a time.

        Returns why that was not done, empty when it was.
        """
        order = _Order(spared, shut=shut)
        with self._wake:
            self._order = order
            self._wake.notify()
        if not order.done.wait(ORDER_S):
            with self._wake:
                if self._order is order:
                    self._order = None
            if not order.done.is_set():
                return "the driver does not answer"
        return order.problem

    @property
    def spared(self) -> frozenset[str]:
        """Uuids of the GPUs that the library was opened without, or will be."""
        return frozenset(gpu.uuid for gpu in self._spared)

    def held_files(self) -> list[str]:
        """Device files that stay open though they should not."""
        return self._library.held_files()

    def stop(self, timeout_s: float) -> None:
        """End the thread, and shut the library down if no call is in flight. Waits `timeout_s` real seconds at most."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            try:
                pause_s = self._step()
            except Exception:  # a library of another kind may raise anything; the next look comes all the same
                log.exception("driver_step_failed")
                pause_s = RESCAN_S
            with self._wake:
                if not self._stopping and not self._reported and self._order is None:
                    self._wake.wait(max(0.01, self._clock.real_s(pause_s)))
                self._reopen_wanted |= self._reported
                self._reported = False
        if self._opened and self._gate.close(0.5):  # never shut down under a call
            self._library.close()
            log.info("library_closed")

    def _step(self) -> float:
        with self._wake:
            order, self._order = self._order, None
        if order is not None:
            return self._carry_out(order)
        if self._shut:
            self._none_found("released", "closed, since every GPU is released")
            return RESCAN_S
        if not self._opened:
            return self._open()
        if self._reopen_wanted and self._clock.now_s() >= self._reopen_from_s:
            return self._reopen()
        return self._look()

    def _carry_out(self, order: _Order) -> float:
        if not self._gate.close(_DRAIN_S):
            order.problem = "a driver call hangs, and the library cannot be closed under it"
            order.done.set()
            return RESCAN_S
        if self._opened:
            log.warning("library_closed released=%d", len(order.spared))
            self._call_since_s = self._clock.now_s()
            try:
                self._library.close()
            finally:
                self._call_since_s = None
            self._opened = False
        self._spared, self._shut = order.spared, order.shut
        try:
            if order.shut:
                self._gate.open()
                return self._step()
            return self._open()
        finally:
            order.done.set()

    def _open(self) -> float:
        """Try to open; returns how long to wait then. Calls are let in when the new devices are known."""
        try:
            return self._try_open()
        finally:
            self._gate.open()

    def _try_open(self) -> float:
        self._call_since_s = self._clock.now_s()
        try:
            self._library.open(self._spared)
        except DeviceError as error:
            self._none_found(error.reason, str(error))
            pause_s, self._open_retry_s = self._open_retry_s, min(2 * self._open_retry_s, MAX_OPEN_RETRY_S)
            return pause_s
        finally:
            self._call_since_s = None
        self._opened = True
        self._reopen_wanted = False
        self._open_retry_s = FIRST_RETRY_S
        self._reopen_from_s = max(self._reopen_from_s, self._clock.now_s() + FIRST_RETRY_S)
        return self._look()

    def _reopen(self) -> float:
        """Drop everything and start again, if nothing is in flight."""
        now_s = self._clock.now_s()
        self._reopen_from_s = now_s + self._reopen_retry_s
        self._reopen_retry_s = min(2 * self._reopen_retry_s, MAX_REOPEN_RETRY_S)
        if not self._gate.close(_DRAIN_S):
            log.warning("reopen_put_off reason=%r", "a driver call does not come back")
            return RESCAN_S
        log.warning("library_reopened")
        self._call_since_s = now_s
        self._library.close()
        self._opened = False
        return self._open()

    def _look(self) -> float:
        """Look which GPUs answer; returns how long to wait then."""
        self._call_since_s = self._clock.now_s()
        try:
            devices = self._library.devices()
        except DeviceError as error:
            self._none_found(error.reason, str(error))
            self._reopen_wanted = True
            return RESCAN_S
        finally:
            self._call_since_s = None
        self._set_state("ok", self._library.trouble)
        self._on_devices(devices)
        self.first_look.set()
        if self._library.trouble or not devices:
            self._reopen_wanted = True
        elif not self._reopen_wanted and self._clock.now_s() > self._reopen_from_s + MAX_REOPEN_RETRY_S:
            self._reopen_retry_s = FIRST_RETRY_S  # well for long: the next loss is a new one
        if self._reopen_wanted:
            return min(RESCAN_S, max(0.1, self._reopen_from_s - self._clock.now_s()))
        return RESCAN_S

    def _none_found(self, reason: str, text: str) -> None:
        self._set_state(reason, text)
        self._on_devices(())
        self.first_look.set()

    def _set_state(self, state: str, text: str) -> None:
        if (state, text) != (self.state, self.text):
            level = logging.INFO if (state, text) == ("ok", "") else logging.WARNING
            log.log(level, "driver state=%s text=%r version=%s", state, text, self.version)
            self.state, self.text = state, text
            self._on_state()
