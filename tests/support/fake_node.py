"""An agent that exists only as the `Node` protocol, behind the real control server: the seam of the verbs."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from structlog.testing import capture_logs

from nodewarden import paths
from nodewarden.api.control_server import ControlServer
from nodewarden.api.node import Who
from nodewarden.api.view import View
from nodewarden.errors import RefusedError
from nodewarden.gpuhelper.wire import LedgerEntry, ReleaseOutcome, RestoreOutcome
from nodewarden.model.limits import ManualCap
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import CapSetpoint, Cause


class FakeNode:
    """Does at once what an agent would do within a tick, and remembers who asked for what.

    Args:
        view: what readers see.
        writes: False = caps are taken note of, but never reach the hardware.
    """

    def __init__(self, view: View, *, writes: bool = True) -> None:
        self.current = view
        self.writes = writes
        self.calls: list[tuple[str, Any, Who]] = []
        self.journal: list[dict[str, Any]] = []

    def view(self) -> View:
        return self.current

    async def next_view(self) -> View:
        await asyncio.sleep(0.02)
        at_s = self.current.now_s + 0.02
        self.current = msgspec.structs.replace(self.current, now_s=at_s, wall_s=self.current.wall_s + 0.02)
        return self.current

    async def events(self, *, since_s: float, limit: int, after_id: int = 0) -> list[dict[str, Any]]:
        oldest = self.current.wall_s - since_s
        found = [e for e in self.journal if e["id"] > after_id and e["time"] >= oldest]
        return found[-limit:]

    async def arm(self, who: Who) -> None:
        self.calls.append(("arm", None, who))
        self._change(armed=True)

    async def disarm(self, who: Who) -> None:
        self.calls.append(("disarm", None, who))
        self._change(armed=False)

    async def set_manual_cap(self, uuids: Sequence[str], w: float, for_s: float | None, who: Who) -> None:
        self.calls.append(("cap", (tuple(uuids), w, for_s), who))
        view = self.current
        manual = view.limits.manual | {u: ManualCap(w=w) for u in uuids}
        caps, gpus, ledger = dict(view.setpoints.caps), dict(view.snapshot.gpus), {e.uuid: e for e in view.ledger}
        for uuid in uuids:
            now = caps[uuid]
            lowest = min(w, now.w) if now.cause != Cause.NONE else w
            cause = now.cause if now.cause != Cause.NONE and now.w < w else Cause.MANUAL
            caps[uuid] = CapSetpoint(w=lowest, cause=cause, manual_w=w, protects=now.protects, keep_w=now.keep_w)
            if self.writes:
                gpus[uuid] = msgspec.structs.replace(gpus[uuid], cap_w=Reading(lowest, view.now_s + 0.01))
                ledger.setdefault(uuid, LedgerEntry(uuid=uuid, prior_w=700.0, w=lowest, since_s=view.now_s))
        self._change(
            limits=msgspec.structs.replace(view.limits, manual=manual),
            setpoints=msgspec.structs.replace(view.setpoints, caps=caps),
            snapshot=msgspec.structs.replace(view.snapshot, gpus=gpus),
            ledger=tuple(ledger.values()),
        )

    async def release(self, uuids: Sequence[str], who: Who) -> None:
        self.calls.append(("release", tuple(uuids), who))
        kept = {u: c for u, c in self.current.limits.manual.items() if u not in uuids}
        self._change(limits=msgspec.structs.replace(self.current.limits, manual=kept))

    async def throttle(self, job: str, duty: float, for_s: float, who: Who) -> list[str]:
        self.calls.append(("throttle", (job, duty, for_s), who))
        lowest = min(duty, self.current.setpoints.job.duty)
        asked = [found.id for found in self.current.snapshot.jobs if job in {"all", found.id}]
        jobs = tuple(
            msgspec.structs.replace(found, duty=lowest) if found.id in asked else found
            for found in self.current.snapshot.jobs
        )
        if self.writes:
            self._change(snapshot=msgspec.structs.replace(self.current.snapshot, jobs=jobs))
        return asked

    async def checkpoint(self, job: str, who: Who) -> list[str]:
        if any(call[0] == "checkpoint" for call in self.calls):
            raise RefusedError(f"a checkpoint of {job} is under way already; wait for it", "busy")
        self.calls.append(("checkpoint", job, who))
        return ["r9"]

    async def release_gpus(self, uuids: Sequence[str], for_s: float, who: Who) -> list[ReleaseOutcome]:
        self.calls.append(("gpus_release", (tuple(uuids), for_s), who))
        until_s = self.current.now_s + for_s
        return [ReleaseOutcome(uuid=uuid, until_s=until_s, text=f"{uuid} is released") for uuid in uuids]

    async def resume_gpus(self, uuids: Sequence[str], who: Who) -> list[ReleaseOutcome]:
        self.calls.append(("gpus_resume", tuple(uuids), who))
        return [ReleaseOutcome(uuid=uuid, text=f"{uuid} is taken up again") for uuid in uuids]

    async def clear_xids(self, uuids: Sequence[str], who: Who) -> dict[str, list[int]]:
        self.calls.append(("xid_clear", tuple(uuids), who))
        known = self.current.snapshot.xids
        return {uuid: [each.code for each in known[uuid].incidents] for uuid in uuids if uuid in known}

    async def restore(self, uuids: Sequence[str], who: Who, *, force: bool = False) -> list[RestoreOutcome]:
        self.calls.append(("restore", (tuple(uuids), force), who))
        named = uuids or list(self.current.snapshot.gpus)
        held = {entry.uuid: entry for entry in self.current.ledger}
        self._change(armed=False)
        return [
            RestoreOutcome(uuid=u, outcome="none")
            if u not in held
            else RestoreOutcome(uuid=u, outcome="restored", w=700.0)
            if force
            else RestoreOutcome(uuid=u, outcome="kept", w=540.0, text="protects the GPU")
            for u in named
        ]

    def _change(self, **changes: Any) -> None:
        self.current = msgspec.structs.replace(self.current, **changes)


class ServedNode:
    """A fake node, where its control socket is, and what its server logged."""

    def __init__(self, node: FakeNode, runtime: Path, server: ControlServer, logs: list[Any]) -> None:
        self.node = node
        self.runtime = runtime
        self.server = server
        self.logs = logs

    @property
    def socket(self) -> Path:
        return paths.control_socket(self.runtime)


@contextlib.contextmanager
def served(view: View, **options: Any) -> Iterator[ServedNode]:
    """The real control server in a thread of its own, in a runtime directory with a short path."""
    writes = options.pop("writes", True)
    node = options.pop("node", FakeNode)(view, writes=writes)
    with tempfile.TemporaryDirectory(prefix="nw-") as directory, capture_logs() as logs:
        Path(directory).chmod(0o755)
        runtime = Path(directory)
        loop = asyncio.new_event_loop()
        server = ControlServer(paths.control_socket(runtime), node, **options)
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result(5)
            yield ServedNode(node, runtime, server, logs)
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(5)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)
            loop.close()
