"""What the verbs need of the agent: the seam between the control socket and the composition root."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from nodewarden.api.view import View
from nodewarden.gpuhelper.wire import ReleaseOutcome, RestoreOutcome


class Who(msgspec.Struct, frozen=True):
    """Who asks for a change; journalled with it. uid and pid come from the kernel, the reason from the person."""

    uid: int
    pid: int
    reason: str = ""


class Node(Protocol):
    """The agent as the verbs see it.

    A change that is not allowed raises `RefusedError` with what was asked, what is allowed and what to do. Uuids and
    watts are checked against the view before these are called; the agent may still refuse.
    """

    def view(self) -> View:
        """The newest picture of the node."""
        ...

    async def next_view(self) -> View:
        """The picture after the next control tick."""
        ...

    async def events(self, *, since_s: float, limit: int, after_id: int = 0) -> list[dict[str, Any]]:
        """Journalled events of the last `since_s` seconds, oldest first, at most the newest `limit`.

        Each has "id" (rising; only those above `after_id` are given), "time" (Unix seconds), "kind", "code", "uuid"
        (or None), "text" and "data".
        """
        ...

    async def arm(self, who: Who) -> None:
        """From now on decisions reach the hardware and the jobs. Persists."""
        ...

    async def disarm(self, who: Who) -> None:
        """Lift automatic caps by the normal exit rules and start none. Persists."""
        ...

    async def set_manual_cap(self, uuids: Sequence[str], w: float, for_s: float | None, who: Who) -> None:
        """Ask for a manual cap of `w` watts on each GPU, for `for_s` seconds (None = until released)."""
        ...

    async def release(self, uuids: Sequence[str], who: Who) -> None:
        """End manual caps and leases; protective caps stay."""
        ...

    async def throttle(self, job: str, duty: float, for_s: float, who: Who) -> list[str]:
        """Ask a job to run `duty` (0 to 1) of the time for `for_s` seconds; 1.0 releases. Returns the jobs asked."""
        ...

    async def checkpoint(self, job: str, who: Who) -> list[str]:
        """Ask a job for a checkpoint. Returns the ids of the requests."""
        ...

    async def restore(self, uuids: Sequence[str], who: Who, *, force: bool = False) -> list[RestoreOutcome]:
        """Disarm, then have the helper restore the named GPUs (all when empty); force lifts protective caps too."""
        ...

    async def release_gpus(self, uuids: Sequence[str], for_s: float, who: Who) -> list[ReleaseOutcome]:
        """Let go of all device files of these GPUs for `for_s` seconds, so that they can be reset or set up anew."""
        ...

    async def clear_xids(self, uuids: Sequence[str], who: Who) -> dict[str, list[int]]:
        """These GPUs are well, a person says: no error of theirs is open any more. Their numbers, by uuid."""
        ...

    async def resume_gpus(self, uuids: Sequence[str], who: Who) -> list[ReleaseOutcome]:
        """Take released GPUs up again now."""
        ...
