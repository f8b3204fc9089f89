"""Does a peer really use the GPUs that it names? The driver's process list against the kernel's process tree.

A session counts for a GPU when a compute process there is the peer, one of its ancestors or descendants, or in its
cgroup. Pids are the kernel's (SO_PEERCRED), never what a message says.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

MAX_DEPTH = 64


class Verifier:
    """Answers "is this pid at work on this GPU?"; reads /proc, keeps nothing.

    Args:
        mode: "gpu-process", or "none" to believe every peer.
        pids_of: compute processes of a GPU as host pids, None where the driver does not say.
        proc: the proc file system.
    """

    def __init__(self, mode: str, pids_of: Callable[[str], frozenset[int] | None], proc: Path = Path("/proc")) -> None:
        self.mode = mode
        self._pids_of = pids_of
        self._proc = proc

    def confirmed(self, pid: int, gpus: Iterable[str]) -> frozenset[str]:
        """Those of `gpus` on which `pid` is at work; all of them in mode "none"."""
        if self.mode == "none":
            return frozenset(gpus)
        if pid <= 0:  # the peer lives in a pid namespace that we cannot see
            return frozenset()
        mine = {pid, *self._ancestors(pid)}
        cgroup = self._cgroup(pid)
        return frozenset(gpu for gpu in gpus if self._works(pid, mine, cgroup, self._pids_of(gpu) or frozenset()))

    def _works(self, pid: int, mine: set[int], cgroup: str | None, others: frozenset[int]) -> bool:
        if mine & others:
            return True
        return any(
            pid in self._ancestors(other) or (cgroup is not None and self._cgroup(other) == cgroup) for other in others
        )

    def _ancestors(self, pid: int) -> list[int]:
        """Parents up to, not including, init."""
        found: list[int] = []
        while len(found) < MAX_DEPTH:
            try:
                stat = (self._proc / str(pid) / "stat").read_bytes()
                pid = int(stat.rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                break
            if pid <= 1:
                break
            found.append(pid)
        return found

    def _cgroup(self, pid: int) -> str | None:
        """The cgroup's path in the unified hierarchy, else in systemd's; None for the root, which says nothing."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        except OSError:
            return None
        paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines if ":" in line)}
        for controllers in ("", "name=systemd"):
            path = paths.get(controllers, "/")
            if path != "/":
                return path
        return None
