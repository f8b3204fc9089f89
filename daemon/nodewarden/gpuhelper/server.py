"""The GPU helper as a whole: verbs, the keeper's second-by-second duties, start and stop. Plain threads, no event loop.

The main thread waits for signals; `driver` finds GPUs; each GPU has two lanes (`worker`); `watchers` listen for GPU
errors; the keeper watches expiry, silence, pending restores, locks and the ledger once a second.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import GpuLibrary
from nodewarden.errors import AlreadyRunningError, RefusedError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.adoption import BY_HAND_S, Adoption
from nodewarden.gpuhelper.book import Book, EventLog, News
from nodewarden.gpuhelper.caps import expiry_s
from nodewarden.gpuhelper.driver import Driver
from nodewarden.gpuhelper.gpu_errors import ErrorFeed
from nodewarden.gpuhelper.gpus import STOP_S, Gpus
from nodewarden.gpuhelper.lanes import Gate
from nodewarden.gpuhelper.ledger import Ledger
from nodewarden.gpuhelper.letting_go import LettingGo
from nodewarden.gpuhelper.locks import runtime_lock
from nodewarden.gpuhelper.peers import Listener, Peer, allowed_uids, is_served
from nodewarden.gpuhelper.pool import Pool
from nodewarden.gpuhelper.quick import Quick
from nodewarden.gpuhelper.rapl import Rapl
from nodewarden.gpuhelper.releases import Releases
from nodewarden.gpuhelper.seat import Shared
from nodewarden.gpuhelper.turn import wait_for_turn, waiting
from nodewarden.gpuhelper.verbs import Verbs
from nodewarden.gpuhelper.watchers import DriverWatcher, KernelWatcher
from nodewarden.gpuhelper.worker import GpuWorker
from nodewarden.sdnotify import notify

log = logging.getLogger("nodewarden.gpu")

KEEPER_S = 1.0
CHECK_S = 5.0
"""How often the board is compared with the ledger when no agent reads."""
FIRST_LOOK_S = 2.0
LEAVE_S = 0.8
"""How long the end waits for the wait for events to be over, in real seconds, beside the restores."""
EXIT_OK, EXIT_FAILED, EXIT_SECOND, EXIT_CONFIG = 0, 1, 75, 78


class Helper:
    """One running helper; it owns the runtime lock already. contest=False: it answers no foreign limit.

    kernel_log: where the kernel's complaints of GPUs are read; None = nowhere.
    host_root: where /sys is, for the energy counters of the processors; None = they are not read.
    """

    def __init__(
        self,
        library: GpuLibrary,
        runtime_dir: Path,
        lock_dir: Path,
        clock: Clock,
        stop: threading.Event,
        *,
        contest: bool = True,
        kernel_log: Path | None = None,
        host_root: Path | None = None,
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._stopping = threading.Event()  # no new caps from now on
        self._started_s = clock.now_s()
        self._events = EventLog(clock)
        self._news = News()
        self._book = Book(Ledger(runtime_dir / "gpu-ledger"), clock, self._events, self._news)
        self._adoption = Adoption(self._book, clock)
        self._gate = Gate()
        self._pool = Pool(clock)
        self._gpus = Gpus(lock_dir, self._book)
        self._driver = Driver(
            library,
            clock,
            self._gate,
            lambda found: self._gpus.found(found, self._driver.text),
            self._news.add,
        )
        releases = Releases(runtime_dir / "gpu-released", clock, library.traces)
        self._letting_go = LettingGo(releases, self._gpus, self._driver, self._events, clock)
        self._errors = ErrorFeed(self._news.add, self._gpus.uuid_at)
        self._driver_watcher = DriverWatcher(library, clock, self._gate, self._errors, self._stopping)
        self._kernel_watcher = KernelWatcher(kernel_log, clock, self._errors, self._stopping)
        self._quick = Quick(self._gpus, self._pool, self._adoption, clock)
        self._verbs = Verbs(
            self._gpus,
            self._adoption,
            self._book,
            self._events,
            self._news,
            self._letting_go,
            self._pool,
            self._quick,
            self._driver,
            self._errors,
            self._kernel_watcher,
            Rapl(clock, host_root),
            self._stopping,
        )
        self._listener: Listener | None = None
        self._no_socket = ""
        self._status = ""
        shared = Shared(
            clock=clock,
            book=self._book,
            events=self._events,
            news=self._news,
            gate=self._gate,
            report_lost=self._driver.report_lost,
            nudge=self._quick.nudge,
            is_agent=lambda peer: isinstance(peer, Peer) and self._adoption.owns(peer),
            take_events=self._verbs.events_for,
            wait=lambda seconds: time.sleep(clock.real_s(seconds)),
            stopping=self._stopping,
            driver_problem=lambda: "" if self._driver.state == "ok" else self._driver.text,
            agent_away=lambda: self._adoption.away,
            contest=contest,
        )
        self._gpus.share(shared, self._pool)

    # Start, run, stop -----------------------------------------------------------------------------------------------

    def begin(self, first_look_s: float = FIRST_LOOK_S) -> None:
        """Read the ledger and look for GPUs; goes on when the first look takes longer than so many real seconds."""
        for entry in self._book.open():
            self._events.add(
                "entry_closed",
                entry.uuid,
                f"cap of {entry.w:g} W (before us {entry.prior_w:g} W) was of another boot and ended with it",
            )
        self._adoption.recall()
        self._letting_go.begin()
        self._driver.start()
        self._driver_watcher.start()
        if self._driver.first_look.wait(first_look_s):
            for worker in self._gpus.workers.values():
                worker.writer.probed.wait(first_look_s / 4)

    def listen(self, path: Path, uids: frozenset[int]) -> int:
        """Open gpu.sock; returns an exit status, 0 when it is open."""
        try:
            self._listener = Listener(path, uids, self._verbs.answer, self._adoption.gone)
        except (AlreadyRunningError, RefusedError, OSError) as error:
            if str(error) != self._no_socket:
                log.critical("socket_refused text=%r", str(error))
            self._no_socket = str(error)
            return EXIT_SECOND if isinstance(error, AlreadyRunningError) else EXIT_CONFIG
        self._no_socket = ""
        return EXIT_OK

    def keep(self, wait: Callable[[float], None], path: Path, uids: frozenset[int], *, by_hand: bool) -> None:
        """The keeper's loop, until stop; by hand also until no agent was there for ten minutes."""
        while not self._stop.is_set():
            try:
                if self._listener is not None and self._listener.is_missing:
                    log.warning("socket_removed path=%s", path)
                    self._listener.close()
                    self._listener = None
                if self._listener is None:
                    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                    self.listen(path, uids)
            except OSError as error:
                log.error("no_socket text=%r", str(error))
            try:
                self._keep_once()
                self._show_status()
            except Exception:  # a mistake in one duty must not end the others, let alone restore every cap
                log.exception("keeper_failed")
            if by_hand and min(self._adoption.away_for_s(), self._clock.now_s() - self._started_s) >= BY_HAND_S:
                log.warning("helper_stopped reason=%r", "no agent for ten minutes")
                self._stop.set()
                return
            wait(max(0.005, self._clock.real_s(self._pause_s())))

    def restore_all(self, *, force: bool, why: str, timeout_s: float = STOP_S) -> list[wire.RestoreOutcome]:
        """Restore everything in the ledger; what is not back in time (real seconds) is "pending"."""
        uuids = [entry.uuid for entry in self._book.entries()]
        return self._gpus.restore(uuids, force=force, why=why, timeout_s=timeout_s)

    def end(self, *, restoring: bool = True) -> None:
        """Restore at once, shut the library down if nothing hangs, give up locks and socket."""
        self._stopping.set()
        left_by_s = time.monotonic() + LEAVE_S
        notify("STOPPING=1", STATUS="restoring")
        outcomes = self.restore_all(force=False, why="helper stopped") if restoring else []
        for outcome in outcomes:
            log.info(
                "gpu_released uuid=%s outcome=%s w=%s text=%r", outcome.uuid, outcome.outcome, outcome.w, outcome.text
            )
        for worker in self._gpus.workers.values():
            worker.stop()
        self._pool.stop()
        self._driver_watcher.leave(max(0.0, left_by_s - time.monotonic()))
        self._driver.stop(1.0)
        if self._listener is not None:
            self._listener.close()
        for worker in self._gpus.workers.values():
            if worker.writer.idle:
                worker.release_lock()
        self._book.close()

    # Keeper ---------------------------------------------------------------------------------------------------------

    def _keep_once(self) -> None:
        now_s = self._clock.now_s()
        self._letting_go.keep()
        self._pool.help()
        self._quick.keep()
        if self._adoption.silence_is_due():
            self._answer_silence()
        if self._adoption.goodbye_is_due():
            log.warning("agent_left after_s=20 caps=%d", len(self._book.entries()))
            self._each_entry(lambda worker: worker.writer.restore(force=False, why="agent left"))
        for worker in self._gpus.workers.values():
            if worker.try_lock():
                worker.writer.check()
            worker.writer.keep_failsafe(wanted=self._adoption.away)
        entries = self._book.entries()
        for entry in entries:
            owner = self._gpus.workers.get(entry.uuid)
            if owner is None or not owner.writer.idle:
                continue
            ends_s = expiry_s(entry)
            if entry.pending is not None:
                if now_s >= owner.writer.next_restore_s:
                    owner.writer.restore(force=False, why=entry.pending)
            elif ends_s is not None and ends_s <= now_s:
                owner.writer.expire()
            else:
                owner.writer.check_if_older(CHECK_S)
        if entries or not self._book.ok:
            self._book.repair()

    def _pause_s(self) -> float:
        """Until the next moment that somebody waits for, at most a second."""
        now_s = self._clock.now_s()
        deadlines = [expiry_s(entry) for entry in self._book.entries() if entry.pending is None]
        deadlines.append(self._adoption.next_deadline_s())
        return min([KEEPER_S, *(deadline - now_s + 0.001 for deadline in deadlines if deadline and deadline > now_s)])

    def _answer_silence(self) -> None:
        failsafe_w = self._adoption.failsafe_w if self._adoption.armed else None
        held = len(self._book.entries())
        answer = f"{held} caps hold" if failsafe_w is None else f"every GPU goes to {failsafe_w:g} W or lower"
        self._events.add("agent_silent", None, f"nothing heard from the agent for 3 s: {answer}")
        if failsafe_w is not None:
            for worker in self._gpus.workers.values():
                worker.writer.apply_failsafe(failsafe_w)

    def _each_entry(self, act: Callable[[GpuWorker], None]) -> None:
        for entry in self._book.entries():
            worker = self._gpus.workers.get(entry.uuid)
            if worker is not None:
                act(worker)

    def _show_status(self) -> None:
        gpus = self._gpus.shown()
        ill = sum(gpu.state in {"lost", "unresponsive"} for gpu in gpus)
        released = sum(gpu.state == "released" for gpu in gpus)
        words = [self._no_socket] if self._no_socket else []
        words.append(
            f"{len(gpus)} GPUs"
            + (f", {ill} not answering" if ill else "")
            + (f", {released} released" if released else "")
        )
        if self._driver.shown_state() != "ok":
            words.append(self._driver.text or self._driver.shown_state())
        pid = self._adoption.pid
        words.append(f"agent pid {pid}" if pid else "no agent")
        entries = self._book.entries()
        if entries:
            pending = sum(entry.pending is not None for entry in entries)
            words.append(f"{len(entries)} caps" + (f", {pending} restores pending" if pending else ""))
        status = "; ".join(words)
        if status != self._status:
            self._status = status
            notify(STATUS=status)


def serve(
    library: GpuLibrary,
    *,
    runtime_dir: Path,
    lock_dir: Path,
    clock: Clock,
    service: bool = False,
    stop: threading.Event | None = None,
    kernel_log: Path | None = None,
    host_root: Path | None = None,
) -> int:
    """Run the helper on any GPU library until SIGTERM, SIGINT or SIGHUP, or until `stop` is set.

    Returns the exit status. A lane that hangs in the driver may still be there then: the caller ends the process with
    `_exit`.

    Args:
        library: not open yet.
        runtime_dir: where gpu.sock and the ledger live.
        lock_dir: where the locks of the GPUs live, shared by all helpers of the node.
        clock: CLOCK_BOOTTIME, shared with the agent.
        service: started by the service manager: it stays without an agent, and serves the agent's user.
        stop: set by the caller instead of signals, where this is not the main thread.
        kernel_log: where the kernel's complaints of GPUs are read; None = nowhere.
        host_root: where /sys is, for the energy counters of the processors; None = they are not read.
    """
    stop, wait = waiting(stop or threading.Event())
    runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = runtime_lock(runtime_dir)
    limit_s = math.inf if service else BY_HAND_S
    if not wait_for_turn(lock, lock_dir, clock, stop, wait, limit_s=limit_s):
        return EXIT_OK if stop.is_set() else EXIT_SECOND
    path, uids = runtime_dir / "gpu.sock", allowed_uids(service=service)
    told = False
    while is_served(path):  # though the lock is free: its file was removed under another helper, whose caps these are
        if not told:
            log.critical("no_socket text=%r", f"somebody listens on {path}: stop that one")
            notify("READY=1", STATUS=f"waiting: somebody listens on {path}")
        told = True
        if not service:
            return EXIT_SECOND
        wait(clock.real_s(1.0))
        if stop.is_set():
            return EXIT_OK
    helper = Helper(library, runtime_dir, lock_dir, clock, stop, kernel_log=kernel_log, host_root=host_root)
    helper.begin()
    status = EXIT_OK
    try:
        status = helper.listen(path, uids)
        if status == EXIT_OK or service:  # a service goes on without: there is nothing that a restart could mend
            notify("READY=1", STATUS="looking for GPUs")
            helper.keep(wait, path, uids, by_hand=not service)
            status = EXIT_OK
    finally:
        helper.end(restoring=status != EXIT_SECOND)  # the caps are those of the helper that lives
        lock.release()
    return status
