"""The HTTP port with real sockets: what it answers, and that no peer can disturb the others."""

import asyncio
import gzip
import json
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from nodewarden.api import http, http_protocol
from nodewarden.api.http import HttpServer, split_listen
from nodewarden.api.view import LoopHealth, View
from nodewarden.errors import RefusedError
from nodewarden_exporters.dcgm import DcgmPage
from nodewarden_exporters.prometheus import Renderer
from support.ports import free_port
from support.servers import Prometheus
from support.views import NOW_S, a_view, gpu_uuid
from support.wait import wait_for, wait_for_async


class Node:
    """A node whose time is moved by the test; its clock does not make the server's own time-outs faster."""

    def __init__(self) -> None:
        self.at_s = NOW_S
        self.shown: View | None = a_view()
        self.slept = asyncio.Event()
        self.asked = 0

    def view(self) -> View:
        self.asked += 1
        if self.shown is None:
            raise RefusedError("the agent has not finished its first turn")
        return self.shown

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s

    async def sleep_until(self, deadline_s: float) -> None:
        """Sleeping takes as long as the test likes."""
        assert deadline_s > self.at_s
        await self.slept.wait()
        self.slept.clear()

    def real_s(self, seconds: float) -> float:
        return seconds


class Live(Node):
    """A node that samples as long as it is not frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False
        self._last = time.monotonic()

    def view(self) -> View:
        if not self.frozen and self.now_s() - self._last > 0.1:
            self._last = self.now_s()
            self.shown = a_view(self._last)
        return super().view()

    def now_s(self) -> float:
        return time.monotonic()


@pytest.fixture
async def node() -> Node:
    return Node()


@pytest.fixture
async def server(node: Node) -> AsyncIterator[HttpServer]:
    made = HttpServer("127.0.0.1:0", node.view, Renderer(), node, DcgmPage())
    await made.start()
    yield made
    await made.close()


async def ask(server: HttpServer, path: str, *headers: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest)}, body


def dropped(server: HttpServer, reason: str) -> float:
    value = server._renderer.own.registry.get_sample_value(
        "nodewarden_agent_connections_dropped_total", {"reason": reason}
    )
    return value or 0.0


async def test_metrics_are_served_plain_and_packed(server: HttpServer) -> None:
    status, headers, body = await ask(server, "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert len(list(text_string_to_metric_families(body.decode()))) > 60
    status, headers, packed = await ask(server, "/metrics", "Accept-Encoding: gzip")
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert b"nodewarden_gpu_junction_celsius" in gzip.decompress(packed)
    assert "server" not in headers


async def test_the_page_of_dcgm_names_has_the_hostname_label_that_is_asked_for(server: HttpServer) -> None:
    status, _, page = await ask(server, "/metrics/dcgm")
    assert status == 200
    assert b'hostname="' in page
    status, _, page = await ask(server, "/metrics/dcgm?hostname_label=Hostname")
    assert status == 200
    assert b'Hostname="' in page
    status, _, page = await ask(server, "/metrics/dcgm?hostname_label=node")
    assert status == 400
    assert b"hostname_label is hostname" in page


async def test_anything_else_is_answered_with_a_hint(server: HttpServer) -> None:
    status, _, body = await ask(server, "/")
    assert status == 404
    assert b"/metrics" in body
    assert (await ask(server, "/metrics", method="POST"))[0] == 405
    assert (await ask(server, "/metrics", method="HEAD"))[::2] == (200, b"")


async def test_before_the_first_turn_both_pages_say_that_it_is_starting(server: HttpServer, node: Node) -> None:
    node.shown = None
    assert (await ask(server, "/metrics"))[0] == 503
    status, _, body = await ask(server, "/healthz")
    assert (status, json.loads(body)["status"]) == (503, "starting")


def loops(**ages: tuple[float, bool]) -> dict[str, LoopHealth]:
    return {
        name: LoopHealth(progress_s=NOW_S - age_s, period_s=1.0, critical=critical)
        for name, (age_s, critical) in ages.items()
    }


@pytest.mark.parametrize(
    ("given", "status", "word", "named"),
    [
        ({"gpu": (0.5, True), "pdu": (1.0, False)}, 200, "ok", []),
        ({"gpu": (0.5, True), "pdu": (60.0, False)}, 200, "degraded", ["pdu"]),
        ({"gpu": (60.0, True), "pdu": (1.0, False)}, 503, "stalled", ["gpu"]),
    ],
)
async def test_health_comes_from_the_progress_of_the_loops(server, node, given, status, word, named) -> None:  # F51
    node.shown = replace(node.shown, loops=loops(**given))
    answered, _, body = await ask(server, "/healthz")
    found = json.loads(body)
    assert (answered, found["status"]) == (status, word)
    assert [each["loop"] for each in found["stalled"]] == named


async def test_a_frozen_control_loop_is_named_alone_though_the_view_is_old(server, node) -> None:  # F51
    node.shown = replace(node.shown, loops=loops(control=(0.1, True), gpu=(0.5, True), pdu=(1.0, False)))
    node.at_s = NOW_S + 300
    status, _, body = await ask(server, "/healthz")
    assert status == 503
    assert [each["loop"] for each in json.loads(body)["stalled"]] == ["control"]


async def test_an_occupied_port_is_reported_and_taken_when_it_is_free(node: Node) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = HttpServer(f"127.0.0.1:{port}", node.view, Renderer(), node)
        await server.start()
        assert server.problem == f"127.0.0.1:{port}: Address already in use"
        node.slept.set()
        await wait_for_async(lambda: not node.slept.is_set(), 5, "the second try")
        assert server.problem is not None
    node.slept.set()
    await wait_for_async(lambda: server.problem is None, 5, "the port to be taken")
    assert (await ask(server, "/metrics"))[0] == 200
    await server.close()
    assert server.port is None


async def test_signal_handlers_stay_as_they_are(node: Node) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    server = HttpServer("127.0.0.1:0", node.view, Renderer(), node)
    await server.start()
    await ask(server, "/metrics")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    await server.close()


async def test_a_thousand_idle_connections_leave_the_next_scrape_unharmed(server: HttpServer) -> None:  # F50
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as idle:
        for number in range(1000):
            sock = idle.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", server.port))
            if number % 10 == 0:
                await asyncio.sleep(0)
        began_s = time.monotonic()
        status, _, body = await ask(server, "/metrics")
        assert status == 200
        assert b"nodewarden_armed 1" in body
        assert time.monotonic() - began_s < 5
        await wait_for_async(lambda: dropped(server, "full") >= 900, 10, "the oldest idle connections to be dropped")


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Whatever still came before the server closed the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return b""


async def test_a_connection_that_sends_nothing_or_half_a_request_is_closed(server, monkeypatch) -> None:  # F50
    monkeypatch.setattr(http_protocol, "REQUEST_S", 0.2)
    silent, first = await asyncio.open_connection("127.0.0.1", server.port)
    halves, second = await asyncio.open_connection("127.0.0.1", server.port)
    second.write(b"GET /metrics HTTP/1.1\r\nHost")
    assert await closed(silent) == await closed(halves) == b""
    assert dropped(server, "idle") == 2
    first.close()
    second.close()


async def test_a_request_sent_byte_by_byte_does_not_get_more_time(server, monkeypatch) -> None:
    monkeypatch.setattr(http_protocol, "REQUEST_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    end = asyncio.create_task(closed(reader))
    sent = 0
    while not end.done():
        writer.write(b"G")
        sent += 1
        await asyncio.wait([end], timeout=0.02)
    assert sent > 3
    assert end.result() == b""
    assert dropped(server, "idle") == 1
    writer.close()


async def test_a_slow_reader_is_cut_off_and_others_are_served_meanwhile(server, monkeypatch) -> None:  # F50
    monkeypatch.setattr(http_protocol, "READ_S", 0.5)
    monkeypatch.setattr(http_protocol, "SEND_BUFFER_BYTES", 4096)
    loop = asyncio.get_running_loop()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await loop.sock_connect(slow, ("127.0.0.1", server.port))
        await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        received = len(await loop.sock_recv(slow, 1024))
        assert (await ask(server, "/metrics"))[0] == 200
        await wait_for_async(lambda: dropped(server, "slow") == 1, 5, "the slow reader to be cut off")
        with suppress(ConnectionResetError):
            while chunk := await loop.sock_recv(slow, 1024):
                received += len(chunk)
        assert 0 < received < 100_000


async def test_a_connection_that_is_kept_serves_many_requests(server: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(5):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["status"] == "ok"
    writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\x16\x03\x01" * 50 + b"\r\n\r\n",
        b"GET /metrics FTP/1.1\r\n\r\n",
        b"x" * 200_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(5000)),
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + b"z" * 300_000,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nBad Header\r\n\r\n",
    ],
)
async def test_garbage_costs_its_sender_the_connection_and_nobody_else(server: HttpServer, garbage: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answer = b""
    try:
        writer.write(garbage)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 8)
    except ConnectionError:
        pass  # closed while we were still talking
    writer.close()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert (await ask(server, "/metrics"))[0] == 200


async def test_ten_scrapers_cost_one_render(server: HttpServer) -> None:  # F50
    answers = await asyncio.gather(*(ask(server, "/metrics") for _ in range(10)))
    assert {status for status, _, _ in answers} == {200}
    assert server._renderer.renders == 1


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("0.0.0.0:10048", ("0.0.0.0", 10048)), ("[::1]:80", ("::1", 80)), (":9", ("0.0.0.0", 9))],
)
def test_listen_addresses_are_understood(listen: str, expected: tuple[str, int]) -> None:
    assert split_listen(listen) == expected


@pytest.mark.real
async def test_prometheus_stores_what_was_measured_and_forgets_what_is_stale(tmp_path) -> None:  # F03
    live = Live()
    server = HttpServer(f"127.0.0.1:{free_port()}", live.view, Renderer(), live)
    await server.start()
    target = f"127.0.0.1:{server.port}"
    prometheus = await asyncio.to_thread(Prometheus, tmp_path, [target], every_s=0.5)
    try:

        def rows(expression: str) -> dict:
            return {dict(labels).get("uuid", ""): v for labels, v in prometheus.query(expression).items()}

        async def query(expression: str) -> dict:
            return await asyncio.to_thread(rows, expression)

        await asyncio.to_thread(prometheus.wait_for_value, "nodewarden_gpu_junction_celsius")
        assert await query("nodewarden_gpu_junction_celsius") == {gpu_uuid(n): 70.0 + n for n in range(8)}
        assert await query("nodewarden_pdu_power_watts") == {"": 9810.0}
        assert await query("sum(nodewarden_source_up)") == {"": 17}
        assert await query("nodewarden_gpu_power_cap_watts == 540") == {gpu_uuid(5): 540.0}

        live.frozen = True

        def gone() -> bool:
            return not prometheus.query("nodewarden_gpu_junction_celsius")

        await asyncio.to_thread(wait_for, gone, 15, "the stale series to vanish from Prometheus")
        assert await query("sum(nodewarden_source_up)") == {"": 9}
        assert await query("nodewarden_pdu_power_watts") == {"": 9810.0}
        ages = await query('nodewarden_source_age_seconds{source=~"gpu/.*"}')
        assert min(ages.values()) > 2.9
    finally:
        await asyncio.to_thread(prometheus.stop)
        await server.close()


def test_the_limits_are_as_documented() -> None:
    assert (http_protocol.REQUEST_S, http.RETRY_S) == (5.0, 5.0)


@pytest.mark.real
async def test_every_expression_of_dashboard_12239_has_the_native_values(tmp_path) -> None:
    dashboard = Path(__file__).parents[2].parent / "shared" / "dashboards" / "12239.json"
    if not dashboard.exists():
        pytest.skip("the dashboard is not here")
    asked = [target["expr"] for panel in json.loads(dashboard.read_text())["panels"] for target in panel["targets"]]
    live = Live()
    server = HttpServer(f"127.0.0.1:{free_port()}", live.view, Renderer(), live, DcgmPage())
    await server.start()
    target = f"127.0.0.1:{server.port}"
    prometheus = await asyncio.to_thread(Prometheus, tmp_path, {target: "/metrics/dcgm"}, every_s=0.5)
    try:

        def rows(expression: str) -> dict[str, float]:
            return {dict(labels).get("UUID", ""): value for labels, value in prometheus.query(expression).items()}

        await asyncio.to_thread(prometheus.wait_for_value, "DCGM_FI_DEV_GPU_TEMP")
        found = {}
        for expression in asked:
            chosen = expression.replace("$instance", target).replace("$gpu", ".*")
            found[expression.replace('{instance=~"$instance", gpu=~"$gpu"}', "")] = await asyncio.to_thread(
                rows, chosen
            )
        every = [gpu_uuid(n) for n in range(8)]
        assert found["DCGM_FI_DEV_GPU_TEMP"] == {gpu_uuid(n): 70.0 + n for n in range(8)}
        assert found["avg(DCGM_FI_DEV_GPU_TEMP)"] == {"": 73.5}
        assert found["DCGM_FI_DEV_SM_CLOCK * 1000000"] == dict.fromkeys(every, 1.755e9)
        assert found["DCGM_FI_DEV_GPU_UTIL"] == dict.fromkeys(every, 99.0)
        assert found["DCGM_FI_DEV_FB_USED"] == pytest.approx(dict.fromkeys(every, 70e9 / 2**20))
        assert found["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == dict.fromkeys(every, 1.0)
        # Power moves with time in this node: a whole step of up to 6 W.
        assert found["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx({gpu_uuid(n): 643.0 + n for n in range(8)}, abs=3.5)
        assert found["sum(DCGM_FI_DEV_POWER_USAGE)"][""] == pytest.approx(8 * 646.5, abs=28)
        assert len(found) == len(set(asked)) == 8
    finally:
        await asyncio.to_thread(prometheus.stop)
        await server.close()
