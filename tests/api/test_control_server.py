"""control.sock with real peers: good ones, greedy ones, deaf ones, unprivileged ones. Nobody disturbs anybody else."""

import asyncio
import contextlib
import grp
import json
import os
import socket
import threading
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.api.control_server import Limits
from nodewarden.api.protocol import RpcError, parse_request
from nodewarden.api.verbs import VERBS
from support.credentials import as_user
from support.fake_node import FakeNode, served
from support.node_views import calm, hot, uuid_of
from support.real import require_root
from support.wait import wait_for

NOBODY = 65534


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(path))  # blocking: waits for room in the backlog
    sock.settimeout(5)
    return sock


def ask_raw(path: Path, line: bytes) -> dict:
    with connect(path) as sock:
        sock.sendall(line)
        return json.loads(sock.makefile("rb").readline())


def ask(path: Path, method: str, **params) -> dict:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return ask_raw(path, json.dumps(request).encode() + b"\n")


EXAMPLES = {
    "cap": {"gpu": "0", "w": 500},
    "throttle": {"job": "slurm-4711", "duty": 0.8},
    "checkpoint": {"job": "slurm-4711"},
}


def test_every_read_verb_answers_everybody():
    with served(calm()) as there:
        for name in (n for n, verb in VERBS.items() if verb.access == "read"):
            answer = ask(there.socket, name)
            assert "result" in answer, (name, answer)
            assert answer["id"] == 1


def test_several_requests_on_one_connection_are_answered_in_order():
    with served(calm()) as there, connect(there.socket) as sock:
        lines = [{"jsonrpc": "2.0", "id": f"q{i}", "method": "status"} for i in range(5)]
        sock.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        file = sock.makefile("rb")
        assert [json.loads(file.readline())["id"] for _ in range(5)] == ["q0", "q1", "q2", "q3", "q4"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"hello\n", "parse_error"),
        (b"\xff\xfe\x00\n", "parse_error"),
        (b"[]\n", "invalid_request"),
        (b"{}\n", "invalid_request"),
        (b"[" * 30_000 + b"\n", "invalid_request"),
        (b'{"jsonrpc":"1.0","id":1,"method":"status"}\n', "invalid_request"),
        (b'{"jsonrpc":"2.0","id":1,"method":"statsu"}\n', "unknown_verb"),
        (b'{"jsonrpc":"2.0","id":1,"method":"status","params":{"x":1}}\n', "invalid_params"),
        (b'{"jsonrpc":"2.0","id":1,"method":"status","params":[1]}\n', "invalid_params"),
        (b'{"jsonrpc":"2.0","id":1,"method":"cap","params":{"gpu":"0","w":"many"}}\n', "invalid_params"),
        (b'{"jsonrpc":"2.0","id":1,"method":"cap","params":{"gpu":"0","w":NaN}}\n', "parse_error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"events","params":{"after_id":9223372036854775808}}\n', "invalid_params"),
    ],
)
def test_garbage_gets_an_error_and_the_connection_lives_on(line, kind):
    with served(calm(), own_uid=os.getuid()) as there, connect(there.socket) as sock:
        sock.sendall(line + b'{"jsonrpc":"2.0","id":2,"method":"status"}\n')
        file = sock.makefile("rb")
        assert json.loads(file.readline())["error"]["data"]["kind"] == kind
        assert json.loads(file.readline())["result"]["node"] == "gpu-node-07"


def test_a_notification_is_done_and_not_answered():
    with served(calm(), own_uid=os.getuid()) as there, connect(there.socket) as sock:
        sock.sendall(b'{"jsonrpc":"2.0","method":"disarm"}\n{"jsonrpc":"2.0","id":3,"method":"status"}\n')
        assert json.loads(sock.makefile("rb").readline())["id"] == 3
        assert [call[0] for call in there.node.calls] == ["disarm"]


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: json.dumps(text).encode())))
def test_any_line_is_a_request_or_an_error_of_the_protocol(line):
    try:
        request = parse_request(line)
    except RpcError as error:
        assert error.kind in {"parse_error", "invalid_request"}  # noqa: PT017 - both outcomes are right
    else:
        assert request.jsonrpc == "2.0"


def test_any_garbage_leaves_the_server_well():
    random = Random(20261130)
    with served(calm()) as there:
        for _ in range(30):
            with connect(there.socket) as sock:
                sock.sendall(random.randbytes(random.randrange(1, 2000)) + b"\n")
                sock.shutdown(socket.SHUT_WR)
                for line in sock.makefile("rb"):
                    assert "error" in json.loads(line)
        assert "result" in ask(there.socket, "status")
        assert not [entry for entry in there.logs if entry["log_level"] == "error"]


def test_a_verb_that_breaks_is_told_as_internal_and_logged_and_the_connection_lives_on():
    class Broken(FakeNode):
        def view(self):
            raise ZeroDivisionError

    with served(calm(), node=Broken) as there, connect(there.socket) as sock:
        file = sock.makefile("rb")
        for number in (1, 2):
            sock.sendall(json.dumps({"jsonrpc": "2.0", "id": number, "method": "status"}).encode() + b"\n")
            answer = json.loads(file.readline())
            assert (answer["id"], answer["error"]["data"]["kind"]) == (number, "internal")
            assert "ZeroDivisionError" not in answer["error"]["message"]
        assert [entry["event"] for entry in there.logs] == ["verb_failed", "verb_failed"]


def test_a_verb_that_never_ends_is_given_up():
    class Stuck(FakeNode):
        async def events(self, **_):
            await asyncio.Event().wait()

    with served(calm(), node=Stuck, limits=Limits(handler_s=0.1)) as there:
        assert ask(there.socket, "events")["error"]["data"]["kind"] == "timeout"


def test_of_many_requests_of_one_user_only_some_are_worked_on_at_a_time():
    most = [0, 0]

    class Slow(FakeNode):
        async def events(self, **_):
            most[0] += 1
            most[1] = max(most)
            await asyncio.sleep(0.01)
            most[0] -= 1
            return []

    with served(calm(), node=Slow) as there, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(there.socket)) for _ in range(20)]
        for sock in socks:
            sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"events"}\n')
        assert all("result" in json.loads(sock.makefile("rb").readline()) for sock in socks)
        assert most == [0, 4]


def test_a_greedy_user_makes_room_for_another_when_the_house_is_full():
    require_root()
    with served(calm(), limits=Limits(connections=8, connections_per_uid=6)) as there, contextlib.ExitStack() as stack:

        def hold() -> list[str]:
            socks = [connect(there.socket) for _ in range(6)]
            with connect(there.runtime / "held") as done:  # the test may go on
                done.recv(1)
            last = [sock.makefile("rb").readline() for sock in socks[:2]]
            return [json.loads(line)["error"]["data"]["kind"] for line in last]

        meeting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        meeting.bind(str(there.runtime / "held"))
        (there.runtime / "held").chmod(0o666)
        meeting.listen()

        def others() -> None:
            held, _ = meeting.accept()
            mine = [stack.enter_context(connect(there.socket)) for _ in range(4)]
            for sock in mine:
                sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"status"}\n')
            answers.extend(json.loads(sock.makefile("rb").readline()) for sock in mine)
            held.close()

        answers: list[dict] = []
        thread = threading.Thread(target=others)
        thread.start()
        told = as_user(NOBODY, NOBODY, [], hold)
        thread.join(5)
        assert len([answer for answer in answers if "result" in answer]) == 4
        assert told == ["limited", "limited"]


def test_half_a_line_and_a_hang_up_is_nobodys_problem():
    with served(calm()) as there:
        with connect(there.socket) as sock:
            sock.sendall(b'{"jsonrpc":"2.0","id":1,"meth')
        assert ask(there.socket, "status")["result"]["schema"] == 1


def test_a_hundred_megabytes_without_a_newline_end_that_connection_only():
    with served(calm()) as there, connect(there.socket) as greedy:
        sent = 0
        chunk = b"x" * 65536
        with contextlib.suppress(OSError):
            while sent < 100_000_000:
                sent += greedy.send(chunk)
        assert sent < 1_000_000
        answer = json.loads(greedy.makefile("rb").readline())
        assert answer["error"]["data"]["kind"] == "limited"
        assert "65536 bytes" in answer["error"]["message"]
        assert "result" in ask(there.socket, "status")


def test_a_thousand_idle_connections_make_room_for_the_next_request():
    with served(calm(), limits=Limits(connections_per_uid=16)) as there, contextlib.ExitStack() as stack:
        idle = []
        for _ in range(1000):
            idle.append(connect(there.socket))
            stack.enter_context(idle[-1])
        assert "result" in ask(there.socket, "status")
        wait_for(lambda: there.server.connections <= 16, 5, "the connections to be few")
        oldest = json.loads(idle[0].makefile("rb").readline())
        assert oldest["error"]["data"]["kind"] == "limited"


def test_an_idle_connection_is_told_and_closed():
    with served(calm(), limits=Limits(idle_s=0.1)) as there, connect(there.socket) as sock:
        file = sock.makefile("rb")
        assert json.loads(file.readline())["error"]["data"]["kind"] == "limited"
        assert file.readline() == b""


def test_a_line_that_never_ends_is_told_and_closed():
    with served(calm(), limits=Limits(line_s=0.1)) as there, connect(there.socket) as sock:
        sock.sendall(b'{"jsonrpc"')
        assert json.loads(sock.makefile("rb").readline())["error"]["data"]["kind"] == "limited"


def test_a_peer_that_never_reads_is_dropped_and_others_are_served():
    with served(hot(), limits=Limits(write_s=0.2)) as there, connect(there.socket) as deaf:
        request = b'{"jsonrpc":"2.0","id":1,"method":"gpus"}\n'
        with contextlib.suppress(OSError):
            for _ in range(2000):
                deaf.sendall(request)
        assert "result" in ask(there.socket, "status")
        wait_for(lambda: there.server.connections == 0, 5, "the deaf peer to be dropped")


def test_changes_are_handed_on_with_uid_pid_and_reason():
    with served(hot(), own_uid=os.getuid()) as there:
        assert ask(there.socket, "arm", reason="shift change")["result"] == {"armed": True, "was": True}
        ((verb, _, who),) = there.node.calls
        assert (verb, who.uid, who.pid, who.reason) == ("arm", os.getuid(), os.getpid(), "shift change")
        (entry,) = [entry for entry in there.logs if entry["event"] == "verb_called"]
        assert (entry["verb"], entry["uid"], entry["reason"]) == ("arm", os.getuid(), "shift change")


def test_the_reason_cannot_be_endless():
    with served(hot(), own_uid=os.getuid()) as there:
        assert ask(there.socket, "arm", reason="x" * 501)["error"]["data"]["kind"] == "invalid_params"
        assert there.node.calls == []


def test_nobody_may_read_everything_and_change_nothing():
    require_root()
    with served(hot()) as there:

        def every_verb():
            return {name: ask(there.socket, name, **EXAMPLES.get(name, {})) for name in VERBS}

        answers = as_user(NOBODY, NOBODY, [], every_verb)
        for name, verb in VERBS.items():
            if verb.access == "read":
                assert "result" in answers[name], name
            else:
                assert answers[name]["error"]["data"]["kind"] == "forbidden", name
                assert "nodewarden-admin" in answers[name]["error"]["message"]
        assert there.node.calls == []


@pytest.mark.parametrize(
    ("gid", "groups", "allowed"),
    [(7777, [], True), (NOBODY, [5, 7777], True), (NOBODY, [5, 6], False), (NOBODY, list(range(100, 300)), False)],
)
def test_members_of_the_admin_group_may_change_things_by_primary_or_supplementary_group(gid, groups, allowed):
    require_root()
    with served(hot(), admin_gid=7777) as there:
        answer = as_user(NOBODY, gid, groups, lambda: ask(there.socket, "arm"))
        assert ("result" in answer) is allowed


def test_the_agents_own_user_may_change_things_only_when_it_was_started_by_hand():
    require_root()
    with served(hot(), own_uid=NOBODY) as there:
        assert "result" in as_user(NOBODY, NOBODY, [], lambda: ask(there.socket, "arm"))
    with served(hot()) as there:
        assert "error" in as_user(NOBODY, NOBODY, [], lambda: ask(there.socket, "arm"))


def test_the_admin_group_is_found_by_name_or_is_nobody():
    from nodewarden.api.control_server import admin_gid  # noqa: PLC0415

    names = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    assert admin_gid() == names.get("nodewarden-admin")


def test_an_unknown_gpu_is_refused_with_what_is_known():
    with served(calm(), own_uid=os.getuid()) as there:
        answer = ask(there.socket, "cap", gpu="9", w=500)
        assert answer["error"]["message"] == 'no GPU "9"; allowed: 0, 1, 2, 3, 4, 5, 6, 7, a uuid, or all'
        assert "result" in ask(there.socket, "cap", gpu=uuid_of(3)[:12], w=500)
        assert there.node.calls[0][1][0] == (uuid_of(3),)
