"""All GPUs of the node: their workers, by uuid, and what is done to all of them at once."""

import threading
from collections.abc import Sequence
from pathlib import Path

from nodewarden.devices.gpu_library import GpuDevice, GpuIdentity
from nodewarden.devices.kernel_log import whole_bus_id
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.book import Book
from nodewarden.gpuhelper.locks import gpu_lock
from nodewarden.gpuhelper.pool import Pool
from nodewarden.gpuhelper.seat import Shared
from nodewarden.gpuhelper.worker import GpuWorker

STOP_S = 3.0
"""What each writer has to restore at stop, in real seconds; likewise what a `restore` waits for its answer."""


class Gpus:
    """Workers come and never go: a GPU that is lost keeps its place.

    Attributes:
        workers: by uuid; replaced whole when one comes, so that other threads may iterate over it.
    """

    def __init__(self, lock_dir: Path, book: Book) -> None:
        self._lock_dir = lock_dir
        self._book = book
        self._shared: Shared | None = None
        self._pool: Pool | None = None
        self.workers: dict[str, GpuWorker] = {}

    def share(self, shared: Shared, pool: Pool) -> None:
        """What all workers share; once, before the first is found."""
        self._shared = shared
        self._pool = pool

    def found(self, devices: Sequence[GpuDevice], why_not: str) -> None:
        """The driver thread's news: these answer, and why the others do not."""
        answering = {device.identity.uuid for device in devices}
        for device in devices:
            self.place_for(device.identity).found(device)
        for uuid, worker in self.workers.items():
            if uuid not in answering:
                worker.lost(why_not or "it is not listed any more")

    def place_for(self, identity: GpuIdentity) -> GpuWorker:
        """The worker of a GPU, made if need be; without its device unless that was found."""
        assert self._shared is not None
        assert self._pool is not None
        worker = self.workers.get(identity.uuid)
        if worker is None:
            worker = GpuWorker(identity, gpu_lock(self._lock_dir, identity.uuid), self._shared, self._pool)
            self.workers = {**self.workers, identity.uuid: worker}
        return worker

    def uuid_at(self, bus_id: str) -> str:
        """Uuid of the GPU at a PCI address, "" when none is known there."""
        wanted = whole_bus_id(bus_id)
        for worker in self.workers.values():
            if whole_bus_id(worker.identity.pci_bus_id) == wanted:
                return worker.uuid
        return ""

    def shown(self) -> list[wire.GpuIdentity]:
        """How the helper presents them."""
        return [worker.shown() for worker in self.workers.values()]

    def restore(
        self, uuids: Sequence[str], *, force: bool, why: str, timeout_s: float = STOP_S
    ) -> list[wire.RestoreOutcome]:
        """Restore on all writers in parallel; what is not back in time (real seconds) is "pending"."""
        outcomes: dict[str, wire.RestoreOutcome] = {}
        changed = threading.Condition()

        def done(outcome: wire.RestoreOutcome) -> None:
            with changed:
                outcomes.setdefault(outcome.uuid, outcome)
                changed.notify()

        asked = []
        for uuid in uuids:
            worker = self.workers.get(uuid)
            if worker is not None:
                asked.append(worker)
                worker.writer.restore(force=force, why=why, done=done)
        with changed:
            changed.wait_for(lambda: len(outcomes) == len(asked), timeout_s)
        for worker in asked:
            if worker.uuid not in outcomes:
                done(worker.writer.give_up_restore("the driver does not answer", force=force))
        return [outcomes.get(uuid) or self._restore_when_it_is_back(uuid, force=force) for uuid in uuids]

    def _restore_when_it_is_back(self, uuid: str, *, force: bool) -> wire.RestoreOutcome:
        """A GPU that was never seen since the start, though the ledger may have a cap for it."""
        text = "no GPU with this uuid"
        record = self._book.get(uuid)
        if record is None:
            return wire.RestoreOutcome(uuid=uuid, outcome="none", text=text)
        record.entry.pending = text
        if force:
            record.entry.keep_w = None
        self._book.put_anyway(uuid, record)
        return wire.RestoreOutcome(uuid=uuid, outcome="pending", w=record.entry.w, text=text)
