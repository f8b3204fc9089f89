"""The agent's side of gpu.sock: requests with deadlines on the event loop. Late answers are dropped, never mixed up."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from nodewarden import paths
from nodewarden.clock import Clock
from nodewarden.errors import HelperError, HelperGoneError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.frames import Frames
from nodewarden.unix_socket import peer_of

RESTORE_DEADLINE_S = 5.0
"""A restore is answered when all writers are done or were given up, which takes the helper up to 3 s."""
RELEASE_DEADLINE_S = 25.0
"""Restores, then the library is closed and opened again, which may take seconds for each GPU."""
REFUSAL_S = 0.05
"""How long a helper of another user is listened to before it is spoken to, in real seconds."""

R = TypeVar("R", wire.FastReply, wire.SlowReply)


def _owner_of(path: Path) -> tuple[int | None, int | None]:
    """Pid and uid of the helper whose socket may not be opened, as far as the file and /proc tell."""
    try:
        uid = path.lstat().st_uid
    except OSError:
        return None, None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_helper = any(word.endswith((b"/nodewarden-gpu", b"nodewarden.gpuhelper.main")) for word in words)
            is_default = str(path.parent) == paths.DEFAULT_RUNTIME_DIR and b"--runtime-dir" not in words
            is_here = is_default or os.fsencode(path.parent) in words
            if is_helper and is_here and process.stat().st_uid == uid:
                return int(process.name), uid
    return None, uid


class HelperClient:
    """One connection to the helper.

    A GPU whose read has not come back is not asked again: it is reported as None until it answers, so that a hung GPU
    costs one outstanding request.

    Args:
        socket_path: gpu.sock.
        clock: of all deadlines.
        deadline_s: how long a call waits for its answer, unless it says otherwise.

    Attributes:
        pid, uid: of the helper, where known.
        sent_at_s: when it was last spoken to.
        on_nudge: called when the helper asks to be asked now, since a GPU has become much hotter.
    """

    def __init__(self, socket_path: Path, clock: Clock, *, deadline_s: float = 1.0) -> None:
        self._path = socket_path
        self._clock = clock
        self._deadline_s = deadline_s
        self._ids = itertools.count(1)
        self._frames: Frames | None = None
        self._waiting: dict[int, asyncio.Future[wire.Reply]] = {}
        self._reads: dict[int, tuple[dict[str, wire.Reply | None], asyncio.Event]] = {}
        self._outstanding: dict[tuple[wire.ReadKind, str], int] = {}
        self._outstanding_of: dict[int, tuple[wire.ReadKind, set[str]]] = {}
        self._late_events: list[wire.HelperEvent] = []
        self._refusal: str | None = None
        self.pid: int | None = None
        self.uid: int | None = None
        self.sent_at_s = 0.0
        self.on_nudge: Callable[[], None] = lambda: None

    @property
    def connected(self) -> bool:
        """Whether the connection stands."""
        return self._frames is not None

    async def connect(self) -> None:
        """Connect, or connect again.

        Raises HelperGoneError when there is no socket or nobody listens, HelperError with code "foreign" when the
        process behind it belongs neither to us nor to root, or does not let us in.
        """
        await self.close()
        self._refusal = None
        try:
            async with asyncio.timeout(self._clock.real_s(self._deadline_s)):
                loop = asyncio.get_running_loop()
                transport, frames = await loop.create_unix_connection(
                    lambda: Frames(self._received, self._ended), str(self._path)
                )
        except PermissionError:
            self.pid, self.uid = _owner_of(self._path)
            raise self._foreign() from None
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "no answer"
            raise HelperGoneError(f"no GPU helper at {self._path}: {reason}", "gone") from error
        helper = peer_of(transport.get_extra_info("socket"))
        self.pid, self.uid = helper.pid, helper.uid
        if os.geteuid() != 0 and self.uid not in {0, os.geteuid()}:
            frames.close()
            raise self._foreign()
        self._frames = frames
        if frames.ended.is_set():  # before we could say whose it is
            self._drop("it closed the connection")
        if self.uid != os.geteuid():  # a refusal comes at once, and would be lost behind a request that fails
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFUSAL_S):
                    await frames.ended.wait()
            if self._refusal is not None:
                raise self._gone("")

    def _foreign(self) -> HelperError:
        pid = "unknown" if self.pid is None else self.pid
        said = f"the helper at {self._path} is pid {pid} of uid {self.uid}; uid {os.geteuid()} may not adopt it"
        return HelperError(said, "foreign")

    def _gone(self, text: str) -> HelperError:
        """What to say of a connection that has ended."""
        if self._refusal is not None:
            return HelperError(f"GPU helper: {self._refusal}", "foreign")
        return HelperGoneError(text, "gone")

    async def close(self) -> None:
        """End the connection; whoever waits gets HelperGoneError."""
        self._drop("the connection was closed")
        await asyncio.sleep(0)  # the transport closes with the next turn of the loop

    def _drop(self, why: str) -> None:
        frames, self._frames = self._frames, None
        if frames is not None:
            frames.close()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._gone(f"GPU helper: {why}"))
        reads, self._reads = self._reads, {}
        for _, complete in reads.values():
            complete.set()
        self._outstanding.clear()
        self._outstanding_of.clear()

    def _received(self, reply: wire.Reply) -> str:
        """One reply; returns why the connection ends with it."""
        if isinstance(reply, wire.ErrorReply) and (reply.id, reply.code) == (0, "foreign"):
            self._refusal = reply.text  # it answers no request: we are not let in
            return reply.text
        if isinstance(reply, wire.Nudge):
            self.on_nudge()
            return ""
        self._take(reply)
        return ""

    def _ended(self, frames: Frames, why: str) -> None:
        if frames is self._frames:
            self._drop(why)

    def _take(self, reply: wire.Reply) -> None:
        future = self._waiting.pop(reply.id, None)
        if future is not None and not future.done():
            future.set_result(reply)
            return
        uuid = getattr(reply, "uuid", None)
        read = self._reads.get(reply.id)
        self._note_came_back(reply.id, uuid)
        if read is not None:
            answers, complete = read
            for wanted in [uuid] if uuid is not None else list(answers):
                if wanted in answers:
                    answers[wanted] = reply
            if all(answer is not None for answer in answers.values()):
                complete.set()
        elif isinstance(reply, wire.FastReply | wire.HelloReply):
            self._late_events += reply.events  # the readings are late, what happened is not

    def _note_came_back(self, request_id: int, uuid: str | None) -> None:
        known = self._outstanding_of.get(request_id)
        if known is None:
            return
        kind, uuids = known
        for name in list(uuids) if uuid is None else [uuid]:
            uuids.discard(name)
            if self._outstanding.get((kind, name)) == request_id:
                del self._outstanding[kind, name]
        if not uuids:
            del self._outstanding_of[request_id]

    def _send(self, request: wire.Request) -> None:
        transport = None if self._frames is None else self._frames.transport
        if transport is None:
            raise self._gone("no connection to the GPU helper")
        if transport.get_write_buffer_size() > wire.MAX_FRAME_BYTES:
            self._drop("it does not read what we send")
            raise HelperGoneError("the GPU helper does not read what we send", "gone")
        transport.write(wire.frame(request))
        self.sent_at_s = self._clock.now_s()

    async def _call(self, request: wire.Request, deadline_s: float | None = None) -> wire.Reply:
        future: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        wait_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            self._send(request)
            async with asyncio.timeout(self._clock.real_s(wait_s)):
                reply = await future
        except TimeoutError as error:
            raise HelperError(f"the GPU helper did not answer within {wait_s:g} s", "timeout") from error
        finally:
            self._waiting.pop(request.id, None)
        if isinstance(reply, wire.ErrorReply):
            raise HelperError(reply.text, reply.code)
        return reply

    def _with_late_events(self, events: list[wire.HelperEvent]) -> list[wire.HelperEvent]:
        late, self._late_events = self._late_events, []
        return late + events

    async def hello(self, *, armed: bool, failsafe_w: float | None, leaving: bool = False) -> wire.HelloReply:
        """Adopt the helper, tell it what changed, or say goodbye.

        Raises HelperError: "foreign" when it serves another agent, "timeout"; HelperGoneError.
        """
        request = wire.Hello(id=next(self._ids), armed=armed, failsafe_w=failsafe_w, leaving=leaving)
        reply = await self._call(request)
        if not isinstance(reply, wire.HelloReply):
            raise HelperError(f"the GPU helper answered a hello with {type(reply).__name__}", "failed")
        reply.events = self._with_late_events(reply.events)
        return reply

    async def read_fast(
        self, uuids: Sequence[str], deadline_s: float | None = None, *, quick_every_s: float | None = None
    ) -> dict[str, wire.FastReply | wire.ErrorReply | None]:
        """Fast readings of several GPUs at once; None = no answer in time. Raises HelperGoneError."""
        answers = await self._read("fast", wire.FastReply, uuids, deadline_s, quick_every_s=quick_every_s)
        for answer in answers.values():
            if isinstance(answer, wire.FastReply):
                answer.events = self._with_late_events(answer.events)
                break
        return answers

    async def read_slow(
        self,
        uuids: Sequence[str],
        deadline_s: float | None = None,
        *,
        rare: bool = False,
        raw_links: bool = False,
    ) -> dict[str, wire.SlowReply | wire.ErrorReply | None]:
        """Slow readings of several GPUs at once; None = no answer in time. Raises HelperGoneError."""
        return await self._read("slow", wire.SlowReply, uuids, deadline_s, rare=rare, raw_links=raw_links)

    async def _read(
        self,
        kind: wire.ReadKind,
        reply_type: type[R],
        uuids: Sequence[str],
        deadline_s: float | None,
        *,
        quick_every_s: float | None = None,
        rare: bool = False,
        raw_links: bool = False,
    ) -> dict[str, R | wire.ErrorReply | None]:
        result: dict[str, R | wire.ErrorReply | None] = dict.fromkeys(uuids)
        free = [uuid for uuid in result if (kind, uuid) not in self._outstanding]
        if not free:
            if not self.connected:
                raise self._gone("no connection to the GPU helper")
            return result
        request_id = next(self._ids)
        request: wire.Request = wire.ReadFast(id=request_id, uuids=free, quick_every_s=quick_every_s)
        if kind == "slow":
            request = wire.ReadSlow(id=request_id, uuids=free, rare=rare, raw_links=raw_links)
        self._send(request)
        self._outstanding.update(dict.fromkeys([(kind, uuid) for uuid in free], request_id))
        self._outstanding_of[request_id] = (kind, set(free))
        answers: dict[str, wire.Reply | None] = dict.fromkeys(free)
        complete = asyncio.Event()
        self._reads[request_id] = (answers, complete)
        wait_s = self._deadline_s if deadline_s is None else deadline_s
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(self._clock.real_s(wait_s)):
                    await complete.wait()
            finally:
                self._reads.pop(request_id, None)
        if not self.connected and not any(answers.values()):
            raise HelperGoneError("the GPU helper is gone", "gone")
        given = {name: reply for name, reply in answers.items() if isinstance(reply, reply_type | wire.ErrorReply)}
        return result | given

    async def set_cap(
        self,
        uuid: str,
        w: float,
        *,
        keep_w: float | None,
        protects: Literal["none", "gpu", "breaker"],
        cause: str,
        expires_at_s: float | None,
        manual_w: float | None = None,
    ) -> wire.CapReply:
        """Set one cap in watts. Raises HelperError with the wire's code, or "timeout"; HelperGoneError."""
        reply = await self._call(
            wire.SetCap(
                id=next(self._ids),
                uuid=uuid,
                w=w,
                keep_w=keep_w,
                protects=protects,
                cause=cause,
                expires_at_s=expires_at_s,
                manual_w=manual_w,
            )
        )
        if not isinstance(reply, wire.CapReply):
            raise HelperError(f"the GPU helper answered a cap with {type(reply).__name__}", "failed")
        return reply

    async def restore(self, uuids: Sequence[str] = (), *, force: bool = False) -> list[wire.RestoreOutcome]:
        """Restore the named GPUs, all where none is named. Raises HelperError, HelperGoneError."""
        request = wire.Restore(id=next(self._ids), uuids=list(uuids), force=force)
        reply = await self._call(request, max(self._deadline_s, RESTORE_DEADLINE_S))
        if not isinstance(reply, wire.RestoreReply):
            raise HelperError(f"the GPU helper answered a restore with {type(reply).__name__}", "failed")
        return reply.gpus

    async def release_device(self, uuids: Sequence[str], for_s: float) -> list[wire.ReleaseOutcome]:
        """Have the helper let go of GPUs for a while. Raises HelperError ("busy": a call hangs), HelperGoneError."""
        return await self._release(wire.ReleaseDevice(id=next(self._ids), uuids=list(uuids), for_s=for_s))

    async def resume(self, uuids: Sequence[str]) -> list[wire.ReleaseOutcome]:
        """Have released GPUs taken up again. Raises HelperError, HelperGoneError."""
        return await self._release(wire.Resume(id=next(self._ids), uuids=list(uuids)))

    async def _release(self, request: wire.ReleaseDevice | wire.Resume) -> list[wire.ReleaseOutcome]:
        reply = await self._call(request, max(self._deadline_s, RELEASE_DEADLINE_S))
        if not isinstance(reply, wire.ReleaseReply):
            raise HelperError(f"the GPU helper answered with {type(reply).__name__}", "failed")
        return reply.gpus

    async def gpu_errors(self, *, epoch: str, after: int, kernel_after: int) -> wire.EventsReply:
        """What was told of GPU errors since; see `wire.Events`. Raises HelperError, HelperGoneError."""
        request = wire.Events(id=next(self._ids), epoch=epoch, after=after, kernel_after=kernel_after)
        reply = await self._call(request)
        if not isinstance(reply, wire.EventsReply):
            raise HelperError(f"the GPU helper answered with {type(reply).__name__}", "failed")
        return reply

    async def rapl(self) -> wire.RaplReply:
        """Energy counters of the processors. Raises HelperError, HelperGoneError."""
        reply = await self._call(wire.Rapl(id=next(self._ids)))
        if not isinstance(reply, wire.RaplReply):
            raise HelperError(f"the GPU helper answered with {type(reply).__name__}", "failed")
        return reply

    async def ledger(self) -> list[wire.LedgerEntry]:
        """All caps in force. Raises HelperError, HelperGoneError."""
        reply = await self._call(wire.Ledger(id=next(self._ids)))
        if not isinstance(reply, wire.LedgerReply):
            raise HelperError(f"the GPU helper answered with {type(reply).__name__}", "failed")
        return reply.entries
