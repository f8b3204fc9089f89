"""One GPU of the helper: its reader, its writer (`capwriter`), and who waits for an answer.

A hung call costs this GPU only: the reader answers "busy" while its call has not come back, and reading goes on while
the writer hangs. `state` says what people see.
"""

import contextlib
import threading
from collections import deque

from nodewarden.devices.gpu_library import FastValues, GpuDevice, GpuIdentity, SlowValues
from nodewarden.errors import DeviceError
from nodewarden.file_lock import FileLock
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.capwriter import CapWriter
from nodewarden.gpuhelper.pool import Pool, ReadLane
from nodewarden.gpuhelper.replies import fast_reply, slow_reply
from nodewarden.gpuhelper.seat import UNRESPONSIVE_S, Answerable, Seat, Shared

MAX_WAITERS = 4
"""Reads of one kind that one peer may have waiting at one GPU; all of them are answered by one call."""

MAX_SAMPLES = 64
RISE_C = 2.0
"""A GPU that is so much hotter than the agent knows is worth a word."""


class GpuWorker:
    """Reader and writer of one GPU; all public methods return at once.

    Attributes:
        writer: caps, restores and checks.
    """

    def __init__(self, identity: GpuIdentity, lock: FileLock, shared: Shared, pool: Pool) -> None:
        self.uuid = identity.uuid
        self._shared = shared
        self._seat = Seat(identity, lock, shared)
        self._reader = ReadLane(f"read-{identity.index}", pool)
        self.writer = CapWriter(self._seat)
        self._waiters: dict[wire.ReadKind, list[tuple[Answerable, int]]] = {"fast": [], "slow": []}
        self._waiters_lock = threading.Lock()
        self._samples: deque[wire.QuickSample] = deque(maxlen=MAX_SAMPLES)
        self._told_c: tuple[float | None, float | None] = (None, None)  # junction and HBM as the agent knows them
        self._wants_rare = False
        self._wants_raw_links = False
        self._seat.try_lock()

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def unresponsive(self) -> bool:
        """A call of this GPU hangs."""
        return max(self._reader.busy_for_s(), self.writer.busy_for_s()) > UNRESPONSIVE_S

    def shown(self) -> wire.GpuIdentity:
        """How the helper presents this GPU."""
        seat = self._seat
        reason = seat.why_no_write() or seat.probe
        identity = seat.identity
        state: wire.GpuState = "ok"
        why = ""
        if seat.released_until_s is not None:
            state = "released"
        elif self.unresponsive:
            state, why = "unresponsive", "a driver call hangs"
        elif seat.device is None:
            state, why = "lost", seat.lost_why or self._shared.driver_problem()
        return wire.GpuIdentity(
            uuid=identity.uuid,
            index=identity.index,
            model=identity.model,
            pci_bus_id=identity.pci_bus_id,
            state=state,
            why=why,
            released_until_s=seat.released_until_s,
            can_write=reason is None,
            write_reason=reason,
        )

    @property
    def identity(self) -> GpuIdentity:
        """As last seen."""
        return self._seat.identity

    def release(self, until_s: float | None) -> None:
        """Use the device no more until it is released no more (None); calls in flight go on."""
        self._seat.release(until_s)

    def try_lock(self) -> bool:
        """Take this GPU's lock if it is free; True when it was taken just now."""
        return self._seat.try_lock()

    def release_lock(self) -> None:
        """Only when nothing of ours runs on the GPU any more."""
        self._seat.release_lock()

    def found(self, device: GpuDevice) -> None:
        """The GPU answers: at start, after a scan, or because it came back."""
        if self._seat.take(device):
            self.writer.found()

    def lost(self, why: str) -> None:
        """The GPU does not answer any more."""
        self._seat.lose(why)

    def stop(self) -> None:
        """Take no more work."""
        self._reader.stop()
        self.writer.stop()

    # Reading --------------------------------------------------------------------------------------------------------

    def read(
        self, kind: wire.ReadKind, peer: Answerable, request_id: int, *, rare: bool = False, raw_links: bool = False
    ) -> None:
        """Answer `peer` with one fast or slow reading, or with why there is none; see `wire.ReadSlow`."""
        seat = self._seat
        if seat.live is None:
            peer.send(seat.error(request_id, *seat.why_no_device()))
            return
        if self._reader.busy_for_s() > UNRESPONSIVE_S:
            peer.send(seat.error(request_id, "busy", "the read before has not come back from the driver"))
            return
        with self._waiters_lock:
            waiters = self._waiters[kind]
            full = sum(waiter.owner is peer.owner for waiter, _ in waiters) >= MAX_WAITERS
            submitted = not full and (bool(waiters) or self._reader.submit(lambda: self._read(kind)))
            if submitted:
                waiters.append((peer, request_id))
                self._wants_rare |= rare
                self._wants_raw_links |= raw_links
        if not submitted:
            peer.send(seat.error(request_id, "busy", "too many reads wait"))

    def sample(self) -> None:
        """Read by ourselves what changes within a tenth of a second, for the next reply; not while the GPU is busy."""
        if self._seat.live is not None and self._reader.busy_for_s() == 0:
            self._reader.submit(self._sample)

    def _sample(self) -> None:
        device = None
        taken_at_s = self._shared.clock.now_s()
        try:
            with self._shared.gate.call():
                device = self._seat.live
                read = device.read_quick() if device is not None else None
        except DeviceError as error:
            self._seat.failed(device, error)
            return
        if read is not None:
            self._samples.append(
                wire.QuickSample(taken_at_s, read.junction_c, read.hbm_c, read.margin_c, read.power_instant_w)
            )
            pairs = zip(self._told_c, (read.junction_c, read.hbm_c), strict=True)
            if any(was is not None and now is not None and now >= was + RISE_C for was, now in pairs):
                self._told_c = (None, None)  # once
                self._shared.nudge()

    def _read(self, kind: wire.ReadKind) -> None:
        seat = self._seat
        values: FastValues | SlowValues | None = None
        failure = seat.why_no_device()
        device = None
        taken_at_s = self._shared.clock.now_s()  # nothing in the answer is older than this
        try:
            with self._shared.gate.call():
                device = seat.live  # past the gate: before it, this may be one of a library that was closed
                if device is not None:
                    values = device.read_fast() if kind == "fast" else self._read_slow(device)
        except DeviceError as error:
            failure = (seat.failed(device, error), str(error))
        with self._waiters_lock:
            waiters, self._waiters[kind] = self._waiters[kind], []
        for peer, request_id in waiters:
            if isinstance(values, FastValues):
                reply = fast_reply(
                    self.uuid,
                    request_id,
                    taken_at_s,
                    values,
                    self._shared.take_events(peer.owner),
                    self._shared.news.number,
                )
                if self._shared.is_agent(peer.owner):
                    reply.quick = self._take_samples(values)
                peer.send(reply)
            elif isinstance(values, SlowValues):
                peer.send(slow_reply(self.uuid, request_id, taken_at_s, values))
            else:
                peer.send(seat.error(request_id, *failure))
        if isinstance(values, FastValues):
            self.writer.notice(values.values.get("cap_w"))

    def _take_samples(self, values: FastValues) -> list[wire.QuickSample]:
        """Those since the last fast reply; from now on a rise is told that is one from this reply."""
        samples: list[wire.QuickSample] = []
        with contextlib.suppress(IndexError):
            while True:
                samples.append(self._samples.popleft())
        self._told_c = (values.values.get("junction_c"), values.values.get("hbm_c"))
        return samples

    def _read_slow(self, device: GpuDevice) -> SlowValues:
        with self._waiters_lock:
            rare, self._wants_rare = self._wants_rare, False
            raw_links, self._wants_raw_links = self._wants_raw_links, False
        return device.read_slow(rare=rare, raw_links=raw_links)
