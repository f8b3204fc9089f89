"""One GPU's place in the helper: the device while it answers, the lock that allows writes, and why there is neither.

A GPU that is lost keeps its seat. Reader, writer and keeper share it; nothing here calls the driver but `take`.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import GpuDevice, GpuIdentity
from nodewarden.errors import AlreadyRunningError, DeviceError, DeviceLostError, NoPermissionError
from nodewarden.file_lock import FileLock, LockFailedError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.book import Book, EventLog, News
from nodewarden.gpuhelper.caps import error_code
from nodewarden.gpuhelper.lanes import Gate

log = logging.getLogger("nodewarden.gpu")

UNRESPONSIVE_S = 2.0
"""A call that takes longer counts as hanging; requests for it are answered at once."""
DENIED_FOR_S = 60.0
"""After the driver refused a write for want of rights, none is tried for this long."""


class Answerable(Protocol):
    """Where a reply goes. `send` never blocks and never raises."""

    @property
    def owner(self) -> "Answerable":
        """The connection behind it."""
        ...

    def send(self, reply: wire.Reply) -> None:
        """Queue or drop."""
        ...


class Shared(msgspec.Struct, kw_only=True):
    """What all workers share."""

    clock: Clock
    book: Book
    events: EventLog
    news: News
    gate: Gate
    report_lost: Callable[[], None]
    nudge: Callable[[], None]
    is_agent: Callable[[Answerable], bool]
    take_events: Callable[[Answerable], list[wire.HelperEvent]]
    wait: Callable[[float], None]
    stopping: threading.Event
    driver_problem: Callable[[], str]
    agent_away: Callable[[], bool]
    contest: bool


class Seat:
    """What reader, writer and keeper of one GPU know together.

    Attributes:
        identity: as last seen; uuid never changes.
        device: None while the GPU is lost or released.
        released_until_s: when we take it up again; None = it is not released.
        lost_why: what was last said of its loss.
        probe: why writes are expected to be refused, None = they are not.
    """

    def __init__(self, identity: GpuIdentity, lock: FileLock, shared: Shared) -> None:
        self.identity = identity
        self.uuid = identity.uuid
        self.shared = shared
        self.device: GpuDevice | None = None
        self.released_until_s: float | None = None
        self.lost_why = ""
        self.probe: str | None = None
        self._dropped: GpuDevice | None = None  # an object that met a lost GPU is never used again
        self._lock = lock
        self._lock_problem: str | None = None
        self._denied_until_s = 0.0

    @property
    def name(self) -> str:
        """How people call it."""
        return f"GPU {self.identity.index}"

    # Device ---------------------------------------------------------------------------------------------------------

    def take(self, device: GpuDevice) -> bool:
        """The GPU answers; True when that is news."""
        if device is self.device or device is self._dropped:
            return False
        log.info("gpu_found uuid=%s index=%d model=%r", self.uuid, device.identity.index, device.identity.model)
        self.identity = device.identity
        self.probe = device.probe_write_permission()
        self.device, self._dropped, self.lost_why = device, None, ""
        self._denied_until_s = 0.0
        self.shared.news.add()
        return True

    def lose(self, why: str) -> None:
        """The GPU does not answer any more."""
        device, self.device = self.device, None
        if device is not None:
            self._dropped = device
            self.lost_why = why
            self.shared.news.add()
            if self.released_until_s is None:
                log.warning("gpu_lost uuid=%s index=%d why=%r", self.uuid, self.identity.index, why)

    def release(self, until_s: float | None) -> None:
        """From now on nothing uses the device, until it is released no more (None)."""
        self.released_until_s = until_s
        self.shared.news.add()

    @property
    def live(self) -> GpuDevice | None:
        """The device, if it may be used."""
        return self.device if self.released_until_s is None else None

    def why_no_device(self) -> tuple[wire.ErrorCode, str]:
        """What to answer while there is no device."""
        if self.released_until_s is not None:
            left_s = max(0.0, self.released_until_s - self.shared.clock.now_s())
            return "released", f"released for another {left_s:.0f} s; `nodectl gpus resume` ends that"
        problem = self.shared.driver_problem()
        if problem:
            return "driver_missing", problem
        return "lost", f"lost: {self.lost_why or 'it does not answer'}; it is looked for"

    def failed(self, device: GpuDevice | None, error: DeviceError) -> wire.ErrorCode:
        """Take note of a failure; returns its code on the wire."""
        code = error_code(error)
        if isinstance(error, DeviceLostError) or code == "driver_missing":
            if device is not None and self.device is device and self.released_until_s is None:
                self.lose(str(error))
                self.shared.report_lost()
        elif isinstance(error, NoPermissionError):
            self._denied_until_s = self.shared.clock.now_s() + DENIED_FOR_S
            self.shared.news.add()
        return code

    def error(self, request_id: int, code: wire.ErrorCode, text: str) -> wire.ErrorReply:
        """A refusal that names this GPU."""
        if not text.startswith((self.name, "power cap", "keep_w")):
            text = f"{self.name}: {text}"
        return wire.ErrorReply(id=request_id, code=code, text=text, uuid=self.uuid)

    # Rights ---------------------------------------------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        """Whether this process may write, as far as other processes are concerned."""
        return self._lock.held

    def why_no_write(self) -> str | None:
        """What makes a write pointless, without asking the board."""
        if not self._lock.held:
            return self._lock_problem or "not locked"
        return NoPermissionError.reason if self.shared.clock.now_s() < self._denied_until_s else None

    def allowed(self) -> None:
        """A write went through, whatever we thought of our rights."""
        if self.probe is not None:
            self.probe = None
            self.shared.news.add()

    def not_denied(self) -> None:
        """An act that was tried although rights seemed to be missing went through."""
        if self._denied_until_s:
            self._denied_until_s = 0.0
            self.shared.news.add()

    def try_lock(self) -> bool:
        """Take this GPU's lock if it is free; True when it was taken just now."""
        if self._lock.held:
            return False
        try:
            self._lock.acquire()
        except (AlreadyRunningError, LockFailedError) as error:
            if str(error) != self._lock_problem:
                log.warning("gpu_read_only uuid=%s reason=%r", self.uuid, str(error))
                self.shared.news.add()
            self._lock_problem = str(error)
            return False
        if self._lock_problem:
            log.warning("gpu_writable uuid=%s", self.uuid)
        self._lock_problem = None
        self.shared.news.add()
        return True

    def release_lock(self) -> None:
        """Only when nothing of ours runs on the GPU any more."""
        self._lock.release()
