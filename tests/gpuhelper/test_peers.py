"""gpu.sock: garbage, greed, silence and strangers disturb nobody; who may be there, what may be in its place."""

import contextlib
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuhelper.rig import Peer, Rig, eventually
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.peers import MAX_STRANGERS


def raw(rig: Rig) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    try:
        connection.connect(str(rig.socket_path))
    except OSError:
        connection.close()
        raise
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ended it; whatever it still said is read first."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def still_serves(agent: Peer, rig: Rig) -> None:
    replies = agent.fast(*rig.uuids)
    assert all(isinstance(reply, wire.FastReply) for reply in replies.values())


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def test_a_frame_that_is_too_long_ends_its_connection_and_no_other(rig: Rig) -> None:
    rig.start()
    agent = rig.agent()
    with raw(rig) as connection:
        connection.sendall((wire.MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
        assert is_closed(connection)
    with raw(rig) as connection:
        connection.sendall(b"\xff" * 4)
        assert is_closed(connection)
    still_serves(agent, rig)


def test_a_hundred_megabytes_of_garbage_are_refused(rig: Rig) -> None:
    program = rig.start()
    agent = rig.agent()
    with raw(rig) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(100):
            connection.sendall(b"G" * (1 << 20))
    still_serves(agent, rig)
    status = Path(f"/proc/{program.pid}/status").read_text(encoding="ascii")
    assert int(status.split("VmRSS:")[1].split()[0]) < 100_000


def test_half_a_frame_holds_nobody_up(rig: Rig) -> None:
    rig.start()
    with raw(rig) as connection:
        connection.sendall(wire.frame(wire.Ledger(id=1))[:7])
        agent = rig.agent()
        still_serves(agent, rig)
        connection.sendall(wire.frame(wire.Ledger(id=1))[7:])
        assert connection.recv(4)


def test_a_request_that_is_not_understood_is_answered_with_its_id(rig: Rig) -> None:
    rig.start()
    peer = rig.peer()
    for body in (
        {"id": 77, "verb": "format_disk"},
        {"id": 77, "verb": "set_cap", "uuid": "GPU-x"},
        {"id": 77, "verb": "set_cap", "uuid": "GPU-x", "w": "many"},
        {"id": 77, "verb": "read_fast", "uuids": 3},
    ):
        peer.socket.sendall(framed(msgspec.msgpack.encode(body)))
        reply = peer.receive()
        assert isinstance(reply, wire.ErrorReply)
        assert (reply.id, reply.code) == (77, "bad_request")
    assert peer.ledger() == {}


def test_a_peer_of_another_protocol_is_told_which_is_spoken(rig: Rig) -> None:
    rig.start()
    peer = rig.peer()
    reply = peer.ask(wire.Hello(id=5, protocol=99))
    assert isinstance(reply, wire.ErrorReply)
    assert (reply.code, "99" in reply.text) == ("bad_request", True)


@pytest.fixture(scope="module")
def shared_rig() -> object:
    made = Rig(["h100"] * 2)
    made.start()
    made.agent()
    yield made
    made.close()


bodies = st.binary(max_size=64) | st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "verb", "uuids", "w", "uuid"]), inner)
    ),
    max_leaves=10,
).map(msgspec.msgpack.encode)


@given(st.lists(bodies, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_frame_harms_the_helper(shared_rig: Rig, sent: list[bytes]) -> None:
    with raw(shared_rig) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for body in sent:
            connection.sendall(framed(body))
    still_serves(shared_rig.peers[0], shared_rig)
    assert shared_rig.standin.writes() == []


def test_deeply_nested_garbage_is_refused(shared_rig: Rig) -> None:
    with raw(shared_rig) as connection:
        connection.sendall(framed(b"\x91" * 100_000 + b"\xc0"))
        assert connection.recv(4)
    still_serves(shared_rig.peers[0], shared_rig)


def test_a_thousand_idle_connections_shut_nobody_out(rig: Rig) -> None:
    program = rig.start()
    agent = rig.agent()
    idle: list[socket.socket] = []
    try:
        for number in range(1000):
            idle.append(raw(rig))
            if number % 100 == 0:
                still_serves(agent, rig)
        late = rig.peer()
        assert late.ledger() == {}
        still_serves(agent, rig)

        def open_in_helper() -> bool:
            return len(os.listdir(f"/proc/{program.pid}/fd")) < MAX_STRANGERS + 40  # noqa: PTH208

        eventually(open_in_helper, "the helper to let go of the crowd")
    finally:
        for connection in idle:
            connection.close()


def test_a_connection_that_says_nothing_is_ended(rig: Rig) -> None:
    rig.start()
    agent = rig.agent()
    with raw(rig) as connection:
        connection.settimeout(15)
        assert connection.recv(1) == b""
    still_serves(agent, rig)  # the adopted agent was silent for as long


def test_a_peer_that_does_not_read_is_cut_off_and_holds_no_gpu_up(rig: Rig) -> None:
    rig.start()
    agent = rig.agent()
    with raw(rig) as deaf:
        request = wire.frame(wire.ReadFast(id=1, uuids=rig.uuids))
        deaf.settimeout(0.5)
        cut_off = False
        for _ in range(3000):
            try:
                deaf.sendall(request)
            except (BrokenPipeError, ConnectionResetError):
                cut_off = True
                break
            except TimeoutError:
                continue
        still_serves(agent, rig)
        assert cut_off


def test_a_second_agent_is_told_who_is_served(rig: Rig) -> None:
    """F59"""
    rig.start()
    first = rig.agent()
    code = (
        "import sys; from gpuhelper.rig import Peer; from pathlib import Path\n"
        "print(Peer(Path(sys.argv[1])).hello(armed=True))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(rig.socket_path)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert "foreign" in answer
    assert f"pid {os.getpid()}" in answer
    still_serves(first, rig)
    first.hello(leaving=True)
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert "HelloReply" in answer


def test_an_agent_that_connects_again_replaces_its_old_connection(rig: Rig) -> None:
    rig.start()
    old = rig.agent()
    new = rig.agent()
    assert is_closed(old.socket)
    assert new.cap(rig.uuids[0], 300).w == 300


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_users_process_is_refused(rig: Rig) -> None:
    rig.start()
    rig.folder.chmod(0o755)
    rig.socket_path.chmod(0o666)
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "sys.stdout.buffer.write(s.recv(4096)); print(s.recv(1))"
    )
    command = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "/usr/bin/env",
        "python3",
        "-c",
        code,
    ]
    answer = subprocess.run([*command, str(rig.socket_path)], check=True, capture_output=True)
    assert b"foreign" in answer.stdout
    assert answer.stdout.endswith(b"b''\n")


def test_the_socket_is_never_open_to_others(rig: Rig) -> None:
    rig.start()
    status = rig.socket_path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o660


def test_a_dead_socket_file_is_replaced(rig: Rig) -> None:
    """F58"""
    program = rig.start()
    program.process.kill()
    program.process.wait()
    assert rig.socket_path.is_socket()
    rig.start()
    still_serves(rig.agent(), rig)


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling"])
def test_anything_else_in_the_sockets_place_is_refused_and_left_there(rig: Rig, kind: str) -> None:
    """F58"""
    rig.runtime_dir.mkdir()
    precious = rig.folder / "precious"
    if kind == "file":
        rig.socket_path.write_text("precious")
    elif kind == "directory":
        rig.socket_path.mkdir()
    else:
        if kind == "link":
            precious.write_text("precious")
        rig.socket_path.symlink_to(precious)
    status, output = rig.run()
    assert status == 78
    assert str(rig.socket_path) in output
    assert "remove it" in output
    assert rig.socket_path.is_symlink() == (kind in {"link", "dangling"})
    if kind in {"file", "link"}:
        assert rig.socket_path.read_text() == "precious"
    assert rig.socket_path.is_dir() == (kind == "directory")


def test_a_socket_that_somebody_else_listens_on_is_left_alone(rig: Rig) -> None:
    """F58, F59"""
    rig.runtime_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(rig.socket_path))
        other.listen()
        status, output = rig.run()
    assert status == 75
    assert "somebody listens" in output
    assert rig.socket_path.is_socket()


def test_a_service_waits_until_its_socket_can_be_made(rig: Rig) -> None:
    """F58: nothing that a restart could mend, so no restart loop."""
    rig.runtime_dir.mkdir()
    rig.socket_path.write_text("in the way")
    program = rig.start("--service", ready=False)
    program.wait_for_output("is in the way")
    assert program.running
    rig.socket_path.unlink()
    rig.wait_ready(program)
    still_serves(rig.agent(), rig)


def test_two_helpers_started_at_once_leave_exactly_one_in_charge(rig: Rig) -> None:
    """F59: the second waits, ready, and touches no GPU; a kill hands everything over."""
    for _ in range(5):
        pair = [rig.start(ready=False), rig.start(ready=False)]
        eventually(lambda pair=pair: any("waiting" in program.output for program in pair), "one to wait")
        waiting = next(program for program in pair if "waiting" in program.output)
        serving = next(program for program in pair if program is not waiting)
        rig.wait_ready(serving)
        agent = rig.agent()
        assert agent.adopt().pid == serving.pid
        waiting.wait_for_output(f"waiting for pid {serving.pid}")  # unknown, until the other has written its own
        assert "gpu_found" not in waiting.output
        agent.cap(rig.uuids[0], 300)
        serving.process.kill()
        serving.process.wait()
        eventually(lambda waiting=waiting: "gpu_found" in waiting.output, "the other to take over")
        rig.wait_ready(waiting)
        agent = rig.agent()
        assert agent.adopt().pid == waiting.pid
        assert agent.restore()[rig.uuids[0]].outcome == "restored"
        assert waiting.stop() == 0


def test_a_second_helper_leaves_a_stopped_one_alone(rig: Rig) -> None:
    """F59: a busy helper is not a dead one."""
    first = rig.start()
    first.signal(signal.SIGSTOP)
    second = rig.start(ready=False)
    second.wait_for_output(f"waiting for pid {first.pid}")
    assert second.stop() == 0
    first.signal(signal.SIGCONT)
    still_serves(rig.agent(), rig)


def test_a_storm_of_connections_that_break_off_leaves_no_thread_behind(rig: Rig) -> None:
    program = rig.start()
    agent = rig.agent()
    still_serves(agent, rig)
    threads = len(os.listdir(f"/proc/{program.pid}/task"))  # noqa: PTH208
    dice = random.Random(1)
    frame = wire.frame(wire.ReadSlow(id=1, uuids=rig.uuids))
    began_s = time.monotonic()
    for _ in range(200):
        with raw(rig) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(frame[: dice.randrange(len(frame) + 1)])
    assert time.monotonic() - began_s < 30
    still_serves(agent, rig)
    eventually(lambda: len(os.listdir(f"/proc/{program.pid}/task")) <= threads, "the threads to end")  # noqa: PTH208
