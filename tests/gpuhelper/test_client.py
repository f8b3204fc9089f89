"""The agent's client against the real helper, and against a helper that misbehaves."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhelper.rig import Rig
from nodewarden.clock import BootClock
from nodewarden.errors import HelperError, HelperGoneError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.client import HelperClient
from nodewarden.gpuhelper.link import HelperLink
from support.credentials import as_user
from support.processes import Program
from support.wait import ask_until, wait_for_async


@contextlib.asynccontextmanager
async def client_of(path: Path, deadline_s: float = 1.0) -> AsyncIterator[HelperClient]:
    client = HelperClient(path, BootClock(), deadline_s=deadline_s)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def set_cap(client: HelperClient, uuid: str, w: float) -> wire.CapReply:
    return await client.set_cap(uuid, w, keep_w=None, protects="none", cause="manual", expires_at_s=None)


async def test_the_client_speaks_every_verb(rig: Rig) -> None:
    program = rig.start()
    async with client_of(rig.socket_path) as client:
        assert (client.connected, client.pid, client.uid) == (True, program.pid, os.geteuid())
        hello = await client.hello(armed=True, failsafe_w=300)
        assert [gpu.uuid for gpu in hello.gpus] == rig.uuids
        fast = await client.read_fast(rig.uuids)
        assert all(isinstance(reply, wire.FastReply) for reply in fast.values())
        slow = await client.read_slow(rig.uuids[:2])
        assert [type(reply) for reply in slow.values()] == [wire.SlowReply] * 2
        assert (await set_cap(client, rig.uuids[0], 350)).w == 350
        assert [entry.w for entry in await client.ledger()] == [350]
        with pytest.raises(HelperError) as refused:
            await set_cap(client, rig.uuids[0], 750)
        assert refused.value.code == "out_of_range"
        assert [outcome.outcome for outcome in await client.restore()] == ["restored"]
        unknown = (await client.read_fast(["GPU-x", rig.uuids[0]]))["GPU-x"]
        assert isinstance(unknown, wire.ErrorReply)


async def test_without_a_helper_the_client_says_so(tmp_path: Path) -> None:
    client = HelperClient(tmp_path / "gpu.sock", BootClock())
    with pytest.raises(HelperGoneError, match=r"gpu\.sock"):
        await client.connect()
    assert not client.connected
    with pytest.raises(HelperGoneError):
        await client.hello(armed=False, failsafe_w=None)
    with pytest.raises(HelperGoneError):
        await client.read_fast(["GPU-x"])


async def test_a_hung_gpu_is_none_is_not_asked_again_and_delays_nobody(rig: Rig) -> None:
    """F02"""
    rig.start()
    loop = asyncio.get_running_loop()
    async with client_of(rig.socket_path, 0.3) as client:
        rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, latency_s=4)
        for _ in range(4):
            began_s = loop.time()
            replies = await client.read_fast(rig.uuids)
            assert loop.time() - began_s < 1
            assert [uuid for uuid, reply in replies.items() if reply is None] == [rig.uuids[5]]
        assert rig.standin.calls("nvmlDeviceGetTemperature*", gpu=5) == 1
        assert await client.read_fast([rig.uuids[5]]) == {rig.uuids[5]: None}
        rig.standin.clear()

        async def ask() -> bool:
            return isinstance((await client.read_fast([rig.uuids[5]]))[rig.uuids[5]], wire.FastReply)

        assert await ask_until(ask, 10, "the GPU to answer again")


async def test_events_of_an_answer_that_came_too_late_are_not_lost(rig: Rig) -> None:
    rig.start()
    async with client_of(rig.socket_path, 0.3) as client:
        await client.hello(armed=False, failsafe_w=None)
        await set_cap(client, rig.uuids[0], 350)
        rig.standin.fault("nvmlDeviceGetUtilizationRates", gpu=0, latency_s=0.8, times=1)
        rig.standin.gpus[0].limit_w = 450
        seen: list[str] = []

        async def told() -> bool:
            for reply in (await client.read_fast(rig.uuids)).values():
                if isinstance(reply, wire.FastReply):
                    seen.extend(event.code for event in reply.events)
            return "foreign_cap" in seen

        assert await ask_until(told, 10, "the foreign limit to be told")
        assert rig.standin.limits_w[0] == 350


async def test_a_killed_helper_is_noticed_and_a_new_one_is_found(rig: Rig) -> None:
    program = rig.start()
    client = HelperClient(rig.socket_path, BootClock())
    await client.connect()
    program.process.kill()
    program.process.wait()
    await wait_for_async(lambda: not client.connected, 5, "the client to notice")
    with pytest.raises(HelperGoneError):
        await client.read_fast(rig.uuids)
    with pytest.raises(HelperGoneError):
        await client.connect()
    rig.start()
    await client.connect()
    assert isinstance((await client.read_fast(rig.uuids))[rig.uuids[0]], wire.FastReply)
    await client.close()


async def test_a_stopped_helper_costs_a_deadline_and_not_the_loop(rig: Rig) -> None:
    program = rig.start()
    async with client_of(rig.socket_path, 0.2) as client:
        program.signal(signal.SIGSTOP)
        with pytest.raises(HelperError) as late:
            await client.hello(armed=False, failsafe_w=None)
        assert late.value.code == "timeout"
        assert set((await client.read_fast(rig.uuids)).values()) == {None}
        program.signal(signal.SIGCONT)
        hello = await client.hello(armed=False, failsafe_w=None)
        assert len(hello.gpus) == 8


async def test_a_process_that_connects_again_takes_over_from_its_old_connection(rig: Rig) -> None:
    """F59"""
    rig.start()
    async with client_of(rig.socket_path) as first, client_of(rig.socket_path) as second:
        await first.hello(armed=True, failsafe_w=None)
        await second.hello(armed=True, failsafe_w=None)  # the same process: it connected again
        await wait_for_async(lambda: not first.connected, 5, "the older connection to be ended")


@contextlib.contextmanager
def answering(path: Path, data: bytes) -> Iterator[None]:
    """A helper that answers whatever it hears with these bytes, once."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4)
                connection.sendall(data)
                while connection.recv(4096):
                    pass

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b"\x10\x00", b"", b"\x00\x00\x00\x00"], ids=repr
)
async def test_a_helper_that_talks_nonsense_is_dropped(rig: Rig, data: bytes) -> None:
    with answering(rig.folder / "fake.sock", data):
        async with client_of(rig.folder / "fake.sock", 0.3) as client:
            with pytest.raises(HelperError):
                await client.hello(armed=False, failsafe_w=None)
            assert client.connected == (len(data) < 4)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
async def test_another_users_helper_is_foreign_except_to_root(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.folder.chmod(0o777)
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
        "s.listen(); print('up', flush=True); [s.accept()[0].recv(9) for _ in range(2)]"
    )
    path = rig.folder / "other.sock"
    with Program([sys.executable, "-c", code, path]) as other:
        other.wait_for_output("up")
        client = HelperClient(path, BootClock())
        await client.connect()
        assert (client.pid, client.uid) == (other.pid, 65534)
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
        with pytest.raises(HelperError) as refused:
            await client.connect()
        assert refused.value.code == "foreign"
        assert f"pid {other.pid} of uid 65534" in str(refused.value)
        assert not client.connected


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("mode", [0o660, 0o666])
def test_a_helper_that_does_not_let_us_in_is_named_with_pid_and_uid(rig: Rig, mode: int) -> None:
    """0660: the kernel refuses us; 0666: the helper does."""
    program = rig.start()
    rig.folder.chmod(0o755)
    rig.socket_path.chmod(mode)

    def look() -> list[Any]:
        async def keep() -> list[Any]:
            client = HelperClient(rig.socket_path, BootClock())
            link = HelperLink(client, BootClock(), lambda _: None, lambda _: None)
            await link.keep()
            await client.close()
            return [link.status.state, link.status.pid, link.status.uid]

        return asyncio.run(keep())

    assert as_user(65534, 65534, [], look) == ["foreign", program.pid, 0]
