"""A GPU helper at the wire that only tells of errors: hello and `events`, answered from the helper's own feed."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nodewarden.clock import BootClock
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.gpu_errors import ErrorFeed
from nodewarden.gpuhelper.wire import GpuError, Listening


class HandClock(BootClock):
    """The machine's clock, moved forward by hand."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


class FakeHelper:
    """Answers on gpu.sock. `feed` may be exchanged: that is a helper that was started again."""

    def __init__(self, folder: Path, clock: HandClock) -> None:
        self.path = folder / "gpu.sock"
        self.clock = clock
        self.kernel_number = 0
        self.is_old = False  # it knows no `events`
        self.asked = 0
        self.new_feed()

    def new_feed(self) -> None:
        self.feed = ErrorFeed(lambda: None, lambda _: "")
        self.feed.driver = self.feed.kernel = Listening(up=True)

    def kernel(
        self, bus_id: str, code: int, *, count: int = 1, text: str = "", kind: str = "xid", pid: int | None = None
    ) -> None:
        """So many lines of the kernel's log, one entry as the helper makes it of a burst."""
        self.kernel_number += count
        now_s = self.clock.now_s()
        self.feed.add(
            GpuError(
                source="kernel",
                kind=kind,  # type: ignore[arg-type]
                code=code,
                bus_id=bus_id,
                count=count,
                first_s=now_s,
                last_s=now_s,
                kernel_number=self.kernel_number,
                text=text,
                pid=pid,
                process="python" if pid else "",
            )
        )

    def nvml(self, uuid: str, code: int, *, count: int = 1) -> None:
        """The driver's events."""
        now_s = self.clock.now_s()
        self.feed.add(
            GpuError(source="nvml", kind="xid", code=code, uuid=uuid, count=count, first_s=now_s, last_s=now_s)
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "little")
                reply: wire.Reply
                request = wire.request_decoder.decode(await reader.readexactly(length))
                self.asked += isinstance(request, wire.Events)
                if isinstance(request, wire.Events) and self.is_old:
                    reply = wire.ErrorReply(id=request.id, code="bad_request", text="not understood")
                elif isinstance(request, wire.Events):
                    reply = self.feed.take(request.id, request.epoch, request.after, request.kernel_after)
                else:
                    reply = wire.HelloReply(id=request.id, pid=1, errors=self.feed.revision)
                writer.write(wire.frame(reply))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def fake_helper(clock: HandClock) -> AsyncIterator[FakeHelper]:
    folder = Path(tempfile.mkdtemp(prefix="nw-"))
    helper = FakeHelper(folder, clock)
    server = await asyncio.start_unix_server(helper._serve, str(helper.path))
    try:
        yield helper
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
