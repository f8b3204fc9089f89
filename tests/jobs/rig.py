"""What the job tests share: a server in this process, trainers and agents as real processes, a bare peer."""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from nodewarden.clock import BootClock, Clock
from nodewarden.jobs.server import JobServer
from nodewarden.model.events import Event
from nodewarden.model.snapshot import JobSnapshot
from support.processes import Program
from support.wait import wait_for_async

HERE = Path(__file__).parent
WELCOME = b'{"jsonrpc":"2.0","id":1,"result":{"proto":1,"session":"x","ping_s":0.5,"verified":true}}\n'
# A launcher around the tests must not speak for the jobs in them.
NO_LAUNCHER = dict.fromkeys(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")
)


@contextlib.contextmanager
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="nw-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Tape:
    """Events as they came."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def codes(self) -> list[str]:
        return [event.code for event in self.events]

    def text(self, code: str) -> str:
        return next(event.text for event in self.events if event.code == code)


class Node:
    """A job server in this process with its socket and what it told."""

    def __init__(self, socket: Path, server: JobServer, tape: Tape) -> None:
        self.socket = socket
        self.dir = socket.parent
        self.server = server
        self.tape = tape

    def job(self, name: str = "toy") -> JobSnapshot | None:
        return next((job for job in self.server.jobs() if job.id == name), None)

    async def when(
        self, condition: Callable[[JobSnapshot], object], what: str, *, name: str = "toy", timeout_s: float = 10
    ) -> JobSnapshot:
        """The job's snapshot once `condition` holds for it."""

        def found() -> JobSnapshot | None:
            job = self.job(name)
            return job if job is not None and condition(job) else None

        job = await wait_for_async(found, timeout_s, what)
        assert job is not None
        return job

    async def joined(self, name: str = "toy") -> JobSnapshot:
        return await self.when(lambda job: job.step is not None, f"job {name} to join and step", name=name)

    async def request_state(self, request_id: str, state: str, timeout_s: float = 10) -> None:
        def reached() -> bool:
            request = self.server.request(request_id)
            assert request is not None
            return request.state == state

        await wait_for_async(reached, timeout_s, f"request {request_id} to be {state}")


@contextlib.asynccontextmanager
async def node(
    *,
    clock: Clock | None = None,
    verify: str = "none",
    pids_of: Callable[[str], frozenset[int] | None] = lambda _: None,
) -> AsyncIterator[Node]:
    """A running job server."""
    with short_dir() as directory:
        tape = Tape()
        path = directory / "job.sock"
        server = JobServer(path, clock or BootClock(), verify=verify, pids_of=pids_of, on_event=tape)
        await server.start()
        try:
            yield Node(path, server, tape)
        finally:
            await server.close()


class Peer:
    """A bare connection that says whatever a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, socket: Path) -> "Peer":
        return cls(*await asyncio.open_unix_connection(str(socket)))

    def say(self, line: bytes) -> None:
        self.writer.write(line)

    def send(self, method: str, request_id: int | None = None, **params: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if request_id is not None:
            message["id"] = request_id
        self.say(json.dumps(message).encode() + b"\n")

    async def hear(self, method: str | None = None, timeout_s: float = 10) -> dict[str, Any]:
        """The next message, or the next of that method (skipping pings and others)."""
        async with asyncio.timeout(timeout_s):
            while True:
                line = await self.reader.readline()
                if not line:
                    raise ConnectionResetError("the other side closed the connection")
                message: dict[str, Any] = json.loads(line)
                if method is None or message.get("method") == method:
                    return message

    async def hello(self, **params: Any) -> dict[str, Any]:
        given = {"proto": [1], "job": "toy", "caps": ["throttle", "checkpoint", "stop"], "step": 0, **params}
        self.send("hello", 1, **given)
        return await self.hear()

    async def ended(self, timeout_s: float = 10) -> list[dict[str, Any]]:
        """All that comes until the server closes."""
        async with asyncio.timeout(timeout_s):
            try:
                text = await self.reader.read()
            except ConnectionResetError:
                text = b""
        return [json.loads(line) for line in text.splitlines()]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def other_agent(path: Path, answer: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[None]:
    """Something that listens where an agent should and deals with each connection as `answer` does."""
    open_now: dict[asyncio.Task[None], Peer] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, task = Peer(reader, writer), asyncio.current_task()
        assert task is not None
        open_now[task] = peer
        try:
            with contextlib.suppress(ConnectionError):
                await answer(peer)
        finally:
            await peer.close()
            del open_now[task]

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield
    finally:
        server.close()
        for peer in open_now.values():
            peer.writer.transport.abort()
        await asyncio.gather(*open_now, return_exceptions=True)


class Trainer(Program):
    """tests/jobs/trainer.py as a real process."""

    def __init__(self, socket: Path, directory: Path, **options: Any) -> None:
        env = options.pop("env", {})
        options.setdefault("connect", {"job": "toy"})
        command = [sys.executable, HERE / "trainer.py", json.dumps({"dir": str(directory), **options})]
        super().__init__(command, env={**NO_LAUNCHER, "NODEWARDEN_JOB_SOCKET": str(socket), **env})

    def told(self, what: str | None = None) -> list[dict[str, Any]]:
        """What it has printed so far, whole lines only."""
        lines = self.output.splitlines(keepends=True)
        facts = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [fact for fact in facts if what is None or fact["what"] == what]

    async def telling(self, what: str, count: int = 1, timeout_s: float = 10) -> list[dict[str, Any]]:
        def enough() -> list[dict[str, Any]] | None:
            found = self.told(what)
            assert len(found) >= count or self.running, f"ended before {what!r}"
            return found if len(found) >= count else None

        found = await wait_for_async(enough, timeout_s, f"{count} x {what!r} from the trainer")
        assert found is not None
        return found

    async def exited(self, timeout_s: float = 20) -> int:
        """Its exit status, awaited without stopping the server in this process."""
        await wait_for_async(lambda: not self.running, timeout_s, "the trainer to end")
        return self.process.returncode


class Agent(Program):
    """tests/jobs/agent_process.py: the job server as a process that can be killed."""

    def __init__(self, socket: Path) -> None:
        super().__init__([sys.executable, HERE / "agent_process.py", socket], interactive=True)

    def told(self) -> list[dict[str, Any]]:
        lines = self.output.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    async def telling(self, event: str, timeout_s: float = 10) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((fact for fact in self.told() if fact.get("event") == event), None)

        fact = await wait_for_async(found, timeout_s, f"event {event!r} from the agent")
        assert fact is not None
        return fact

    async def answered(self, answer: list[str]) -> None:
        await wait_for_async(lambda: {"answer": answer} in self.told(), 10, f"the answer {answer}")

    def do(self, name: str, **arguments: Any) -> None:
        self.send(json.dumps({"do": name, **arguments}) + "\n")
