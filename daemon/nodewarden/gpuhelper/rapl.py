"""The verb `rapl`: energy counters of the processors, read with the rights that the agent lacks.

Read at most once a second, whoever asks: what such a counter gives away, it gives to those who read it often.
"""

import threading
from pathlib import Path

from nodewarden.clock import Clock
from nodewarden.devices.rapl import read_zones
from nodewarden.devices.sysfs import Sysfs
from nodewarden.errors import HelperError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.peers import Peer

LEAST_S = 1.0


class Rapl:
    """The counters, read on a thread of their own, one read at a time. `root` None: there are none to be read."""

    def __init__(self, clock: Clock, root: Path | None) -> None:
        self._clock = clock
        self._files = None if root is None else Sysfs(root)
        self._reading = threading.Lock()
        self._zones: list[wire.RaplZone] = []
        self._taken_at_s: float | None = None

    def answer(self, peer: Peer, request_id: int) -> None:
        """Answer one request, from another thread. Raises HelperError when the read before has not come back."""
        files = self._files
        if files is None:
            peer.send(wire.RaplReply(id=request_id, taken_at_s=self._clock.now_s()))
            return
        if not self._reading.acquire(blocking=False):
            raise HelperError("the read of the energy counters before has not come back", "busy")

        def read() -> None:
            try:
                now_s = self._clock.now_s()
                if self._taken_at_s is None or not 0 <= now_s - self._taken_at_s < LEAST_S:
                    self._zones = [wire.RaplZone(*zone) for zone in read_zones(files)]
                    self._taken_at_s = now_s
                reply = wire.RaplReply(id=request_id, taken_at_s=self._taken_at_s, zones=self._zones)
            finally:
                self._reading.release()
            peer.send(reply)

        threading.Thread(target=read, name="rapl", daemon=True).start()
