"""Letting go of GPUs, so that they can be reset, have MIG switched or their driver exchanged, and taking them up again.

    held ──release──▶ caps back to min(prior, keep_w) ──▶ library closed, opened without them ──▶ released
     ▲                                                                                              │
     └── library closed, opened with them; limits compared with the ledger ◀── asked, reset seen, time over

An open library holds the device file of every GPU that it was asked about, and gives them back only when it is shut
down. So it is opened anew without the released ones; if it holds their files all the same, or if all are released, it
stays closed until the end.
"""

import logging
import threading
from collections.abc import Sequence

from nodewarden.clock import Clock
from nodewarden.errors import HelperError
from nodewarden.gpuhelper.book import EventLog
from nodewarden.gpuhelper.driver import Driver
from nodewarden.gpuhelper.gpus import Gpus
from nodewarden.gpuhelper.releases import Releases
from nodewarden.gpuhelper.wire import ReleaseOutcome

log = logging.getLogger("nodewarden.gpu")

MIN_FOR_S, MAX_FOR_S = 1.0, 86400.0
RETRY_S = 5.0
"""How often the library is asked to be what the releases say, where that failed."""


class LettingGo:
    """Releases and resumes, one at a time."""

    def __init__(self, releases: Releases, gpus: Gpus, driver: Driver, events: EventLog, clock: Clock) -> None:
        self._releases = releases
        self._gpus = gpus
        self._driver = driver
        self._events = events
        self._clock = clock
        self._one = threading.Lock()
        self._next_try_s = 0.0

    def begin(self) -> None:
        """What was released before this helper was started stays so. Before the driver is looked at."""
        self._releases.load()
        for identity in self._releases.identities():
            self._gpus.place_for(identity).release(self._releases.all()[identity.uuid])
        identities = self._releases.identities()
        self._driver.begin_without(identities, shut=False)

    def release(self, uuids: Sequence[str], for_s: float) -> list[ReleaseOutcome]:
        """Let go of these GPUs, which are known. Blocks for some seconds.

        Raises HelperError "busy" when a driver call hangs, so that the library cannot be closed.
        """
        if not MIN_FOR_S <= for_s <= MAX_FOR_S:
            raise HelperError(
                f"released for {for_s:g} s refused: allowed {MIN_FOR_S:g} to {MAX_FOR_S:g} s", "bad_request"
            )
        if not self._one.acquire(timeout=1.0):
            raise HelperError("another release or resume is under way", "busy")
        try:
            before = self._releases.all()
            outcomes = {each.uuid: each for each in self._gpus.restore(uuids, force=False, why="released")}
            until_s = self._clock.now_s() + for_s
            self._set({**before, **dict.fromkeys(uuids, until_s)})
            problem = self._apply()
            if not problem and self._driver.held_files():
                log.warning("library_holds_on files=%r", self._driver.held_files())
                self._set(dict.fromkeys(self._gpus.workers, until_s))
                problem = self._apply()
            if problem:
                self._set(before)
                raise HelperError(f"not released: {problem}", "busy")
            released = self._releases.all()
            said = []
            for uuid in released.keys() - before.keys() | set(uuids):
                name = f"GPU {self._gpus.workers[uuid].identity.index}"
                words = [f"{name} is released for {for_s:g} s"]
                if uuid not in uuids:
                    words.append("as well, since the library would keep its files open")
                restored = outcomes.get(uuid)
                if restored is not None and restored.outcome == "pending":
                    words.append(f"its limit could not be restored before: {restored.text}")
                elif restored is not None and restored.outcome in {"restored", "kept"}:
                    words.append(f"its limit is {restored.w:g} W")
                said.append(ReleaseOutcome(uuid=uuid, until_s=released[uuid], text="; ".join(words)))
                self._events.add("gpu_released", uuid, said[-1].text)
            return said
        finally:
            self._one.release()

    def resume(self, uuids: Sequence[str], why: str) -> list[ReleaseOutcome]:
        """Take these GPUs up again; those that are not released are left out. Blocks for some seconds."""
        if not self._one.acquire(timeout=1.0):
            raise HelperError("another release or resume is under way", "busy")
        try:
            before = self._releases.all()
            ending = [uuid for uuid in uuids if uuid in before]
            self._set({uuid: until_s for uuid, until_s in before.items() if uuid not in ending})
            problem = self._apply() if ending else ""
            said = []
            for uuid in ending:
                text = f"GPU {self._gpus.workers[uuid].identity.index} is taken up again: {why}"
                if problem:
                    text += f"; not yet, {problem}"
                said.append(ReleaseOutcome(uuid=uuid, text=text))
                self._events.add("gpu_resumed", uuid, text)
            return said
        finally:
            self._one.release()

    def keep(self) -> None:
        """Once a second: end what is over, and see that the library is what the releases say."""
        over = self._releases.over()
        is_off = self._driver.spared != self._releases.all().keys()
        if not (over or is_off) or self._clock.now_s() < self._next_try_s or self._one.locked():
            return
        self._next_try_s = self._clock.now_s() + RETRY_S

        def work() -> None:
            try:
                for why in set(over.values()):
                    self.resume([uuid for uuid, each in over.items() if each == why], why)
                with self._one:
                    if self._driver.spared != self._releases.all().keys():
                        self._apply()
            except HelperError as error:
                log.warning("resume_put_off reason=%r", str(error))

        threading.Thread(target=work, name="resume", daemon=True).start()

    def _set(self, until_s: dict[str, float]) -> None:
        """Make exactly these the released ones, as far as everybody but the library is concerned."""
        for uuid in self._releases.all().keys() - until_s.keys():
            self._releases.end(uuid)
        for uuid, worker in self._gpus.workers.items():
            if uuid in until_s and self._releases.all().get(uuid) != until_s[uuid]:
                self._releases.add(worker.identity, until_s[uuid])
            worker.release(until_s.get(uuid))

    def _apply(self) -> str:
        """Have the library opened accordingly; returns why it was not."""
        identities = self._releases.identities()
        shut = bool(identities) and self._gpus.workers.keys() <= self._releases.all().keys()
        return self._driver.spare(identities, shut=shut)
