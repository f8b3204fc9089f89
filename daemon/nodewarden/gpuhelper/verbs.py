"""What can be asked over gpu.sock, and by whom: a cap by the adopted agent only, the rest by every allowed peer."""

import logging
import math
import os
import threading
from collections.abc import Sequence
from typing import cast

from nodewarden.errors import HelperError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.adoption import Adoption
from nodewarden.gpuhelper.book import Book, EventLog, News
from nodewarden.gpuhelper.driver import Driver
from nodewarden.gpuhelper.gpu_errors import ErrorFeed
from nodewarden.gpuhelper.gpus import Gpus
from nodewarden.gpuhelper.ledger import Record
from nodewarden.gpuhelper.letting_go import LettingGo
from nodewarden.gpuhelper.peers import Peer
from nodewarden.gpuhelper.pool import Pool, Sweep
from nodewarden.gpuhelper.quick import Quick
from nodewarden.gpuhelper.rapl import Rapl
from nodewarden.gpuhelper.seat import Answerable
from nodewarden.gpuhelper.watchers import KernelWatcher
from nodewarden.gpuhelper.worker import GpuWorker

log = logging.getLogger("nodewarden.gpu")

MAX_UUIDS = 64
MAX_RESTORES = 4


class Verbs:
    """The verbs of `wire`.

    Args:
        stopping: set when the helper takes no new caps.
    """

    def __init__(
        self,
        gpus: Gpus,
        adoption: Adoption,
        book: Book,
        events: EventLog,
        news: News,
        letting_go: LettingGo,
        pool: Pool,
        quick: Quick,
        driver: Driver,
        errors: ErrorFeed,
        kernel_watcher: KernelWatcher,
        rapl: Rapl,
        stopping: threading.Event,
    ) -> None:
        self._gpus = gpus
        self._adoption = adoption
        self._book = book
        self._events = events
        self._news = news
        self._letting_go = letting_go
        self._pool = pool
        self._quick = quick
        self._driver = driver
        self._errors = errors
        self._kernel_watcher = kernel_watcher
        self._rapl = rapl
        self._stopping = stopping
        self._restoring = threading.Semaphore(MAX_RESTORES)

    def answer(self, peer: Peer, request: wire.Request) -> None:
        """Answer one request; on the thread of its connection."""
        self._adoption.heard(peer)
        try:
            match request:
                case wire.Hello():
                    self._hello(peer, request)
                case wire.ReadFast() | wire.ReadSlow():
                    self._read(peer, request)
                case wire.SetCap():
                    self._set_cap(peer, request)
                case wire.Restore():
                    self._restore(peer, request)
                case wire.ReleaseDevice() | wire.Resume():
                    self._let_go(peer, request)
                case wire.Events():
                    if self._adoption.owns(peer):  # it knows which lines were taken before
                        self._kernel_watcher.start(request.kernel_after)
                    reply = self._errors.take(request.id, request.epoch, request.after, request.kernel_after)
                    peer.send(reply)
                case wire.Rapl():
                    self._rapl.answer(peer, request.id)
                case wire.Ledger():
                    peer.send(wire.LedgerReply(id=request.id, entries=self._book.entries()))
        except HelperError as error:
            code = cast("wire.ErrorCode", error.code)
            uuid = request.uuid if isinstance(request, wire.SetCap) else None
            peer.send(wire.ErrorReply(id=request.id, code=code, text=str(error), uuid=uuid))

    def _read(self, peer: Peer, request: wire.ReadFast | wire.ReadSlow) -> None:
        workers = self._named(peer, request.id, request.uuids)
        if isinstance(request, wire.ReadFast) and self._adoption.owns(peer):
            self._quick.wanted(request.quick_every_s)
        sweep = Sweep(peer, len(workers))
        for worker in workers:
            if isinstance(request, wire.ReadFast):
                worker.read("fast", sweep, request.id)
            else:
                worker.read("slow", sweep, request.id, rare=request.rare, raw_links=request.raw_links)
        if workers:
            sweep.wait(self._pool)

    def events_for(self, peer: Answerable) -> list[wire.HelperEvent]:
        """Events go to the adopted agent only."""
        return self._events.take() if isinstance(peer, Peer) and self._adoption.owns(peer) else []

    def _hello(self, peer: Peer, request: wire.Hello) -> None:
        if request.protocol != wire.PROTOCOL:
            raise HelperError(f"protocol {request.protocol} is not spoken here; ours is {wire.PROTOCOL}", "bad_request")
        _check_watts("failsafe_w", request.failsafe_w)
        before = (self._adoption.pid, self._adoption.armed, self._adoption.failsafe_w)
        self._adoption.hello(peer, request)
        if request.leaving:
            log.info("goodbye_heard pid=%d", peer.pid)
        elif before != (peer.pid, request.armed, request.failsafe_w):
            words = "agent_adopted pid=%d uid=%d armed=%s failsafe_w=%s"
            log.info(words, peer.pid, peer.uid, request.armed, request.failsafe_w)
            self._adopt_kept()
        driver = self._driver
        news = self._news.number  # before the rest: what changes while we look is heard of again
        peer.send(
            wire.HelloReply(
                id=request.id,
                news=news,
                pid=os.getpid(),
                driver=driver.shown_state(),
                driver_text=driver.text,
                driver_version=driver.version,
                gpus=self._gpus.shown(),
                ledger=self._book.entries(),
                ledger_ok=self._book.ok,
                ledger_text=self._book.problem or "",
                events=self.events_for(peer),
                errors=self._errors.revision,
            )
        )

    def _adopt_kept(self) -> None:
        """Caps that stayed for their protection are the new agent's."""
        for entry in self._book.entries():
            record: Record | None = self._book.get(entry.uuid)
            if record is not None and record.entry.state == "kept":
                record.entry.state = "owned"
                self._book.put_anyway(entry.uuid, record)

    def _named(self, peer: Peer, request_id: int, uuids: Sequence[str]) -> list[GpuWorker]:
        """The workers of the GPUs asked for; each unknown one is answered here."""
        workers = []
        for uuid in dict.fromkeys(uuids[:MAX_UUIDS]):
            worker = self._gpus.workers.get(uuid)
            if worker is None:
                peer.send(self._unknown(request_id, uuid))
            else:
                workers.append(worker)
        return workers

    def _unknown(self, request_id: int, uuid: str) -> wire.ErrorReply:
        shown = uuid[:80]
        if self._driver.state != "ok":
            return wire.ErrorReply(id=request_id, code="driver_missing", text=self._driver.text, uuid=shown)
        return wire.ErrorReply(id=request_id, code="unknown_gpu", text=f"no GPU with uuid {shown!r}", uuid=shown)

    def _set_cap(self, peer: Peer, request: wire.SetCap) -> None:
        if not self._adoption.owns(peer):
            pid = self._adoption.pid
            if pid is not None:
                raise HelperError(f"this helper serves another agent, pid {pid}", "foreign")
            raise HelperError("a cap needs a hello first: say who owns it", "not_adopted")
        if self._stopping.is_set():
            raise HelperError("the helper is stopping and restores", "busy")
        _check_watts("w", request.w)
        _check_watts("keep_w", request.keep_w)
        _check_watts("manual_w", request.manual_w)
        if request.expires_at_s is not None and not math.isfinite(request.expires_at_s):
            raise HelperError("expires_at_s must be a time", "bad_request")
        worker = self._gpus.workers.get(request.uuid)
        if worker is None:
            peer.send(self._unknown(request.id, request.uuid))
        else:
            worker.writer.set_cap(request, peer, peer.uid)

    def _restore(self, peer: Peer, request: wire.Restore) -> None:
        """On a thread of its own: it waits for all writers, and this one has the next request to read."""
        if not self._restoring.acquire(blocking=False):
            raise HelperError("other restores are under way", "busy")
        uuids = request.uuids or [entry.uuid for entry in self._book.entries()]
        wanted = list(dict.fromkeys(uuids[:MAX_UUIDS]))
        log.warning("restore_asked pid=%d uid=%d force=%s gpus=%d", peer.pid, peer.uid, request.force, len(wanted))

        def restore() -> None:
            try:
                outcomes = self._gpus.restore(wanted, force=request.force, why="restore")
                peer.send(wire.RestoreReply(id=request.id, gpus=outcomes))
            finally:
                self._restoring.release()

        threading.Thread(target=restore, name="restore", daemon=True).start()

    def _let_go(self, peer: Peer, request: wire.ReleaseDevice | wire.Resume) -> None:
        """On a thread of its own: the library is closed and opened again."""
        if self._stopping.is_set():
            raise HelperError("the helper is stopping", "busy")
        unknown = [uuid for uuid in request.uuids if uuid not in self._gpus.workers]
        if unknown:
            raise HelperError(f"no GPU with uuid {unknown[0][:100]!r}", "unknown_gpu")
        verb = type(request).__struct_config__.tag
        log.warning("%s_asked pid=%d uid=%d gpus=%d", verb, peer.pid, peer.uid, len(request.uuids))

        def work() -> None:
            try:
                if isinstance(request, wire.ReleaseDevice):
                    outcomes = self._letting_go.release(list(dict.fromkeys(request.uuids)), request.for_s)
                else:
                    outcomes = self._letting_go.resume(request.uuids or list(self._gpus.workers), "asked for")
                reply: wire.Reply = wire.ReleaseReply(id=request.id, gpus=outcomes)
            except HelperError as error:
                reply = wire.ErrorReply(id=request.id, code=cast("wire.ErrorCode", error.code), text=str(error))
            peer.send(reply)

        threading.Thread(target=work, name=str(verb), daemon=True).start()


def _check_watts(name: str, w: float | None) -> None:
    if w is not None and (not math.isfinite(w) or not 0 < w < 1e6):
        raise HelperError(f"{name} must be watts, not {w}", "bad_request")
