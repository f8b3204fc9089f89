"""Peers that send nonsense, too much, too little or nothing: an error to that peer, nobody else is disturbed."""

import asyncio
import contextlib
import json
import resource
import socket
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.rig import Peer, Trainer, node
from nodewarden.clock import BootClock, ScaledClock
from nodewarden.jobs import protocol
from nodewarden.jobs.protocol import LineError
from support.wait import wait_for_async

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"proto": [1], "job": "toy"}}


def line(**changes: object) -> bytes:
    return json.dumps({**HELLO, **changes}).encode() + b"\n"


def hello(**params: object) -> bytes:
    return line(params={**HELLO["params"], **params})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"garbage\n", "parse_error"),
        (b"\x00\xff\xfe\x80\n", "parse_error"),
        (b"[" * 60_000 + b"\n", "invalid_request"),
        (b"{" + b'"a":{' * 5000 + b"\n", "parse_error"),
        (b"[]\n", "invalid_request"),
        (b'"hello"\n', "invalid_request"),
        (b"{}\n", "invalid_request"),
        (line(jsonrpc="1.0"), "invalid_request"),
        (line(method=7), "invalid_request"),
        (line(method="pong", params={"seq": 1}), "hello_first"),
        (line(method="reboot"), "hello_first"),
        (line(params=[1, 2]), "invalid_params"),
        (line(params={}), "invalid_params"),
        (hello(proto=[]), "invalid_params"),
        (hello(proto=[2, 3]), "no_common_version"),
        (hello(job=""), "invalid_params"),
        (hello(job="a b\u001b[2J"), "invalid_params"),
        (hello(job="x" * 200), "invalid_params"),
        (hello(rank=-1), "invalid_params"),
        (hello(world=0), "invalid_params"),
        (hello(rank=2, world=2), "invalid_params"),
        (hello(gpus=["GPU-1"] * 100), "invalid_params"),
        (hello(gpus=["GPU-1\u001b[2J"]), "invalid_params"),
        (hello(step=10**30), "invalid_params"),
        (hello(ckpt_s={"persisted": -1}), "invalid_params"),
        (hello(pg_timeout_s="long"), "invalid_params"),
        (line(params={"job": "toy", "proto": [1], "step": 1e400}), "parse_error"),
        (b"x" * (protocol.MAX_LINE_BYTES + 1), "line_too_long"),
        (b"x" * (protocol.MAX_LINE_BYTES + 1) + b"\n", "line_too_long"),
        (b"\n" * 1000, "too_fast"),
    ],
)
async def test_a_line_that_is_no_message_gets_an_error_in_words_and_the_connection_ends(text, code):
    async with node() as it:
        peer = await Peer.connect(it.socket)
        peer.say(text)
        (answer,) = await peer.ended()
        assert answer["error"]["data"]["code"] == code
        assert len(answer["error"]["message"]) > 10
        assert it.server.jobs() == ()
        await peer.close()


async def test_a_hello_in_pieces_is_understood_and_what_follows_in_the_same_packet_too():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        text = hello(step=3)
        for start in range(0, len(text), 7):
            peer.say(text[start : start + 7])
            await peer.writer.drain()
        peer.say(line(id=None, method="pong", params={"seq": 1, "step": 9}) + b'{"jsonrpc":"2.0","meth')
        await it.when(lambda job: job.step == 9, "the pong after the hello")
        await peer.close()


async def test_unknown_fields_and_notifications_are_ignored_and_unknown_requests_are_answered():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        peer.say(hello(colour="green"))
        assert (await peer.hear())["result"]["proto"] == 1
        peer.send("sing", song="x")
        peer.send("drain", 7)
        answer = await peer.hear()
        while "error" not in answer:
            answer = await peer.hear()
        assert answer["id"] == 7
        assert answer["error"]["code"] == -32601
        peer.send("pong", seq=1, step=5)
        await it.when(lambda job: job.step == 5, "the pong after it")
        await peer.close()


async def test_a_second_hello_costs_the_connection():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        peer.say(hello() * 50)
        answers = await peer.ended()
        assert [answer["error"]["data"]["code"] for answer in answers if "error" in answer] == ["hello_twice"]
        await peer.close()


async def test_100_mb_without_a_newline_cost_a_line_of_memory_and_disturb_nobody():
    async with node() as it:
        with Trainer(it.socket, it.dir):
            await it.joined()
            peer = await Peer.connect(it.socket)
            tracemalloc.start()
            chunk, sent = b"x" * (1 << 20), 0
            with contextlib.suppress(ConnectionError):
                while sent < 100 * len(chunk):
                    peer.say(chunk)
                    await peer.writer.drain()
                    sent += len(chunk)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert sent < 10 * len(chunk), "the server went on reading"
            assert peak < 8 * len(chunk)
            await peer.close()
            await _steps_on(it)


async def test_a_thousand_idle_connections_are_bounded_and_end_while_a_job_goes_on():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    async with node() as it:
        with Trainer(it.socket, it.dir):
            await it.joined()
            idle = []
            for _ in range(1000):
                one = socket.socket(socket.AF_UNIX)
                await asyncio.to_thread(one.connect, str(it.socket))  # blocks while the backlog is full
                one.setblocking(False)
                idle.append(one)
            assert len(it.server._sessions) <= 64
            await _steps_on(it)
            answers = [json.loads(await _first_line(one)) for one in idle]
            codes = [answer["error"]["data"]["code"] for answer in answers]
            assert codes.count("too_many") >= 1000 - 64
            assert codes.count("hello_timeout") == 1000 - codes.count("too_many")
            await wait_for_async(lambda: len(it.server._sessions) == 1, 10, "the idle ones to be closed")
            for one in idle:
                one.close()
            with Trainer(it.socket, it.dir, connect={"job": "next"}):
                await it.joined("next")
            await _steps_on(it)


async def test_a_peer_that_does_not_read_is_dropped_and_costs_no_memory():
    async with node(clock=ScaledClock(50, BootClock().now_s())) as it:
        with Trainer(it.socket, it.dir):
            await it.joined()
            one = socket.socket(socket.AF_UNIX)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(str(it.socket))
            one.sendall(hello(job="deaf"))
            await it.when(lambda job: job.ranks == 1, "the deaf job", name="deaf")
            session = next(session for session in it.server._sessions if session.hello.job == "deaf")
            reply = protocol.error(None, -32000, "test", "x" * 1000)
            for _ in range(2000):
                if session.is_open:
                    session._transport.write(reply)
            await it.when(lambda job: job.state == "lost", "the deaf job to be lost", name="deaf")
            assert session.ended == "slow_reader"
            one.close()
            await _steps_on(it)


async def test_a_duplicate_rank_is_refused_in_words_and_the_first_stays():
    async with node() as it:
        with Trainer(it.socket, it.dir) as first:
            await it.joined()
            peer = await Peer.connect(it.socket)
            answer = await peer.hello()
            assert answer["error"]["data"]["code"] == "duplicate_rank"
            assert f"(pid {first.pid})" in answer["error"]["message"]
            assert await peer.ended() == []
            await peer.close()
            assert it.job().pids == (first.pid,)
            await _steps_on(it)


async def test_a_late_or_foreign_acknowledgement_changes_nothing():
    async with node() as it:
        with Trainer(it.socket, it.dir, save="async", save_s=0.5):
            await it.joined()
            (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            peer = await Peer.connect(it.socket)
            await peer.hello(job="liar")
            for state in ("started", "staged", "persisted", "failed", "aborted", "expired"):
                peer.send("state", req=request_id, state=state, step=1, path="/etc/passwd", dur_s=1)
            peer.send("vote", req=request_id, round=0, ok=False, reason="busy")
            await it.request_state(request_id, "persisted")
            assert it.server.request(request_id).path.endswith("checkpoint.json")
            assert it.job("liar").last_checkpoint_at_s is None
            await peer.close()


async def test_a_path_with_control_characters_cannot_reach_a_terminal():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        await peer.hello()
        (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
        peer.send("state", req=request_id, state="persisted", step=1, path="/x\u001b[2J\n\u202efake")
        await it.request_state(request_id, "persisted")
        assert it.job().last_checkpoint_path == "/x\ufffd[2J\ufffd\ufffdfake"
        assert "\u001b" not in it.tape.text("checkpoint_persisted")
        await peer.close()


async def test_a_flood_of_joins_and_leaves_neither_fills_the_journal_nor_memory():
    async with node() as it:
        for number in range(200):
            peer = await Peer.connect(it.socket)
            await peer.hello(job=f"flood-{number}")
            await peer.close()
        await wait_for_async(lambda: len(it.server._sessions) == 0, 5, "the last to be gone")
        assert len(it.server.jobs()) <= 16
        assert len(it.tape.events) <= 60


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_fields = st.sampled_from(
    ["proto", "job", "rank", "world", "gpus", "caps", "step", "seq", "req", "ok", "state", "dur_s"]
)
_messages = st.builds(
    lambda method, params, request_id: json.dumps(
        {"jsonrpc": "2.0", "method": method, "params": params, "id": request_id}
    ).encode(),
    st.sampled_from(["hello", "pong", "vote", "state", "bye", "ping", ""]) | st.text(max_size=8),
    st.dictionaries(_fields, _json, max_size=8) | _json,
    st.none() | st.integers() | st.text(max_size=4),
)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200) | _messages | _json.map(lambda value: json.dumps(value).encode()))
def test_whatever_a_line_holds_it_is_a_message_or_a_line_error(text):
    try:
        message = protocol.decode(text)
    except LineError as refused:
        answer = json.loads(protocol.error(refused.id, refused.number, refused.code, str(refused)))
        fine = answer["error"]["code"] in {-32700, -32600, -32602}
    else:
        fine = message.body is None or type(message.body) is protocol.FROM_RANK[message.method]
    assert fine


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=60) | _messages, max_size=10), st.booleans())
def test_whatever_a_peer_sends_after_hello_the_server_serves_the_next_one(lines, greet):
    async def run() -> None:
        async with node() as it:
            peer = await Peer.connect(it.socket)
            if greet:
                await peer.hello()
                it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
            peer.say(b"\n".join(lines) + b"\n")
            peer.writer.write_eof()
            await peer.ended()
            await peer.close()
            other = await Peer.connect(it.socket)
            assert (await other.hello(job="other"))["result"]["proto"] == 1
            await other.close()

    asyncio.run(run())


async def _first_line(one: socket.socket) -> bytes:
    async with asyncio.timeout(15):
        return (await asyncio.get_running_loop().sock_recv(one, 4096)).split(b"\n")[0]


async def _steps_on(it) -> None:
    step = it.job().step
    await it.when(lambda job: job.step > step and job.state == "running", "the job to go on")
