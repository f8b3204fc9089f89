"""Which GPUs a person asked us to let go of, and until when.

Kept in a file, so that a helper that is started anew in the middle of a GPU reset does not take the GPU up again.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Hashable
from pathlib import Path

import msgspec

from nodewarden.clock import Clock
from nodewarden.devices.gpu_library import GpuIdentity
from nodewarden.gpuhelper.ledger import boot_id

log = logging.getLogger("nodewarden.gpu")

SETTLED_S = 5.0
"""What is seen of a GPU must have stood still for so long before it is taken up again: setting it up has many steps."""


class _Kept(msgspec.Struct, kw_only=True):
    """One release on file."""

    boot: str
    identity: GpuIdentity
    until_s: float


class _Release:
    """One release: what was seen of the GPU at first, and last and since when."""

    def __init__(self, identity: GpuIdentity, until_s: float, seen: Hashable, now_s: float) -> None:
        self.identity = identity
        self.until_s = until_s
        self.first = self.last = seen
        self.last_s = now_s


class Releases:
    """All releases in force. One thread at a time, but `of` and `all`.

    Args:
        path: of the file; removed when there are none.
        traces: what shows of a GPU without touching it (`GpuLibrary.traces`).
    """

    def __init__(self, path: Path, clock: Clock, traces: Callable[[GpuIdentity], Hashable]) -> None:
        self._path = path
        self._clock = clock
        self._traces = traces
        self._of: dict[str, _Release] = {}

    def load(self) -> None:
        """Those of before, if this is still the same boot and their time is not over."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=list[_Kept])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("releases_not_read path=%s reason=%r", self._path, str(error))
            return
        now_s, boot = self._clock.now_s(), boot_id()
        for each in kept:
            if each.boot == boot and each.until_s > now_s:
                self._put(each.identity, each.until_s)
                log.warning("gpu_still_released uuid=%s for_s=%.0f", each.identity.uuid, each.until_s - now_s)

    def add(self, identity: GpuIdentity, until_s: float) -> None:
        """Release one, or change its end."""
        self._put(identity, until_s)
        self._save()

    def _put(self, identity: GpuIdentity, until_s: float) -> None:
        release = _Release(identity, until_s, self._traces(identity), self._clock.now_s())
        self._of = {**self._of, identity.uuid: release}

    def end(self, uuid: str) -> None:
        """Take one up again."""
        self._of = {key: each for key, each in self._of.items() if key != uuid}
        self._save()

    def all(self) -> dict[str, float]:
        """Uuid -> until when."""
        return {uuid: each.until_s for uuid, each in self._of.items()}

    def identities(self) -> list[GpuIdentity]:
        """The released GPUs as they were."""
        return [each.identity for each in self._of.values()]

    def over(self) -> dict[str, str]:
        """Uuid -> why it is to be taken up again: its time is over, or it was reset or set up anew. Once a second."""
        now_s = self._clock.now_s()
        over = {}
        for uuid, each in self._of.items():
            seen = self._traces(each.identity)
            if seen != each.last:
                each.last, each.last_s = seen, now_s
            if now_s >= each.until_s:
                over[uuid] = "its time is over"
            elif seen is not None and seen != each.first and now_s - each.last_s >= SETTLED_S:
                over[uuid] = "the driver has set it up anew"
        return over

    def _save(self) -> None:
        boot = boot_id()
        kept = [_Kept(boot=boot, identity=each.identity, until_s=each.until_s) for each in self._of.values()]
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            if not kept:
                self._path.unlink(missing_ok=True)
                return
            scratch.write_bytes(msgspec.json.encode(kept))
            scratch.rename(self._path)
        except OSError as error:
            log.warning("releases_not_kept path=%s reason=%r", self._path, error.strerror)
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
