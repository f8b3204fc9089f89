"""The real helper process on the C stand-in, and a plain blocking peer for its socket."""

import contextlib
import dataclasses
import itertools
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from nodewarden.clock import ScaledClock
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.ledger import read_ledger
from standin.standin import Standin
from support.kernel_log import KernelLogFile
from support.processes import Program
from support.wait import wait_for

QUICK_HELPER = (sys.executable, str(Path(__file__).with_name("quick_helper.py")))
HELPER = (sys.executable, "-m", "nodewarden.gpuhelper.main")


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Peer:
    """One blocking connection. Replies that nobody asked for yet are kept."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._ids = itertools.count(1)
        self.unclaimed: list[wire.Reply] = []

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the helper closed the connection")
            data += part
        return data

    def receive(self) -> wire.Reply:
        length = int.from_bytes(self._exactly(4), "little")
        return wire.reply_decoder.decode(self._exactly(length))

    def send(self, request: wire.Request) -> int:
        self.socket.sendall(wire.frame(request))
        return request.id

    def reply_to(self, request_id: int) -> wire.Reply:
        for reply in self.unclaimed:
            if reply.id == request_id:
                self.unclaimed.remove(reply)
                return reply
        while True:
            reply = self.receive()
            if reply.id == request_id:
                return reply
            self.unclaimed.append(reply)

    def ask(self, request: wire.Request) -> wire.Reply:
        return self.reply_to(self.send(request))

    def next_id(self) -> int:
        return next(self._ids)

    def hello(self, *, armed: bool = True, failsafe_w: float | None = None, leaving: bool = False) -> wire.Reply:
        return self.ask(wire.Hello(id=self.next_id(), armed=armed, failsafe_w=failsafe_w, leaving=leaving))

    def adopt(self, *, armed: bool = True, failsafe_w: float | None = None) -> wire.HelloReply:
        reply = self.hello(armed=armed, failsafe_w=failsafe_w)
        assert isinstance(reply, wire.HelloReply), reply
        return reply

    def fast(self, *uuids: str) -> dict[str, wire.Reply]:
        request_id = self.send(wire.ReadFast(id=self.next_id(), uuids=list(uuids)))
        replies = [self.reply_to(request_id) for _ in uuids]
        return {reply.uuid: reply for reply in replies}  # type: ignore[union-attr]

    def slow(self, *uuids: str) -> dict[str, wire.Reply]:
        request_id = self.send(wire.ReadSlow(id=self.next_id(), uuids=list(uuids)))
        replies = [self.reply_to(request_id) for _ in uuids]
        return {reply.uuid: reply for reply in replies}  # type: ignore[union-attr]

    def set_cap(self, uuid: str, w: float, **rest: object) -> wire.Reply:
        return self.ask(wire.SetCap(id=self.next_id(), uuid=uuid, w=w, **rest))  # type: ignore[arg-type]

    def cap(self, uuid: str, w: float, **rest: object) -> wire.CapReply:
        reply = self.set_cap(uuid, w, **rest)
        assert isinstance(reply, wire.CapReply), reply
        return reply

    def restore(self, *uuids: str, force: bool = False) -> dict[str, wire.RestoreOutcome]:
        reply = self.ask(wire.Restore(id=self.next_id(), uuids=list(uuids), force=force))
        assert isinstance(reply, wire.RestoreReply), reply
        return {outcome.uuid: outcome for outcome in reply.gpus}

    def errors(self, epoch: str = "", after: int = 0, kernel_after: int = -1) -> wire.EventsReply:
        reply = self.ask(wire.Events(id=self.next_id(), epoch=epoch, after=after, kernel_after=kernel_after))
        assert isinstance(reply, wire.EventsReply), reply
        return reply

    def ledger(self) -> dict[str, wire.LedgerEntry]:
        reply = self.ask(wire.Ledger(id=self.next_id()))
        assert isinstance(reply, wire.LedgerReply), reply
        return {entry.uuid: entry for entry in reply.entries}


@dataclasses.dataclass
class QuickHelper:
    """A helper whose time flies, and its clock."""

    program: Program
    clock: ScaledClock


class Rig:
    """A node: stand-in, runtime and lock directories, and helpers started on them."""

    def __init__(self, kinds: Sequence[str] = ("h100",) * 8) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nw-"))
        self.standin = Standin(self.folder, kinds)
        self.runtime_dir = self.folder / "run"
        self.lock_dir = self.folder / "lock"
        self.socket_path = self.runtime_dir / "gpu.sock"
        self.ledger_path = self.runtime_dir / "gpu-ledger"
        self.kernel_log = KernelLogFile(self.folder / "kmsg")
        self.host_root = self.folder / "host"
        self.programs: list[Program] = []
        self.peers: list[Peer] = []

    def start(self, *words: str, env: dict[str, str | None] | None = None, ready: bool = True) -> Program:
        program = Program(
            [*HELPER, "--runtime-dir", self.runtime_dir, "--lock-dir", self.lock_dir, *words],
            env={
                **self.standin.env(),
                "NOTIFY_SOCKET": None,
                "NODEWARDEN_KERNEL_LOG": str(self.kernel_log.path),
                "NODEWARDEN_HOST_ROOT": str(self.host_root),
                **(env or {}),
            },
        )
        self.programs.append(program)
        if ready:
            self.wait_ready(program)
        return program

    def start_quick(self, speed: float, *kernel_dir: Path) -> "QuickHelper":
        """The helper on a clock that runs `speed` times as fast, for what takes minutes."""
        clock = ScaledClock(speed, boottime_s())
        program = Program(
            [*QUICK_HELPER, self.runtime_dir, self.lock_dir, str(speed), repr(clock.origin_s), *kernel_dir],
            env={**self.standin.env(), "NOTIFY_SOCKET": None},
        )
        self.programs.append(program)
        self.wait_ready(program)
        return QuickHelper(program, clock)

    def wait_ready(self, program: Program) -> None:
        def answers() -> bool:
            assert program.running, f"the helper ended: {program.output}"
            try:
                Peer(self.socket_path).close()
            except OSError:
                return False
            return True

        wait_for(answers, 15, "the helper to answer")

    def peer(self, timeout_s: float = 10.0) -> Peer:
        peer = Peer(self.socket_path, timeout_s)
        self.peers.append(peer)
        return peer

    def agent(self, *, armed: bool = True, failsafe_w: float | None = None) -> Peer:
        peer = self.peer()
        peer.adopt(armed=armed, failsafe_w=failsafe_w)
        return peer

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.standin.gpus]

    def entries(self) -> dict[str, wire.LedgerEntry]:
        return {entry.uuid: entry for entry in read_ledger(self.ledger_path)}

    def run(self, *words: str) -> tuple[int, str]:
        """A helper command that ends by itself: status and output."""
        program = self.start(*words, ready=False)
        status = program.wait_exit(30)
        return status, program.output

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        for program in self.programs:
            program.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def rig_of(kinds: Sequence[str] = ("h100",) * 8) -> Iterator[Rig]:
    rig = Rig(kinds)
    try:
        yield rig
    except BaseException as error:
        for program in rig.programs:
            error.add_note(f"--- helper {program.pid}\n{program.output[-6000:]}")
        raise
    finally:
        rig.close()


def eventually(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    wait_for(condition, timeout_s, what)


def collect_events(peer: Peer, uuids: Sequence[str], into: list[wire.HelperEvent]) -> list[str]:
    """Codes of all events that came with one more fast reading."""
    for reply in peer.fast(*uuids).values():
        if isinstance(reply, wire.FastReply):
            into += reply.events
    return [event.code for event in into]
