"""Publishing over MQTT, against a real mosquitto: F41 to F47."""

import asyncio
import contextlib
import json
import re
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiomqtt
import msgspec
import pytest

from nodewarden.clock import BootClock
from nodewarden.config_schema import MqttConfig, Secret
from nodewarden.model.events import Event
from nodewarden_exporters.mqtt import BackOff, MqttPublisher
from support.brokers import Authority, Broker, password_file
from support.views import a_view, gpu_uuid
from support.wait import ask_until, wait_for_async

pytestmark = [
    pytest.mark.real,
    # paho leaves the socket of a failed handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CLOCK = BootClock()
BASE = "nodewarden/node-a"
EVERYTHING = 12  # availability, node, jobs, eight GPUs, one PDU


def publisher(port: int, *, client_id: str = "agent-1", first_s: float = 0.2, slow_s: float = 1.0, **keys: object):
    config = MqttConfig(host="127.0.0.1", port=port, **keys)
    made = MqttPublisher(
        config,
        "node-a",
        "1.2.3",
        client_id,
        CLOCK,
        back_off=BackOff(first_s=first_s, most_s=max(1.0, first_s)),
        slow_delay_s=slow_s,
    )
    made.observe(a_view(now_s=CLOCK.now_s()))
    return made


@contextlib.asynccontextmanager
async def running(*publishers: MqttPublisher) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in publishers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def retained(port: int, topic: str = "#", at_least: int = EVERYTHING, **access: object) -> dict[str, dict]:
    """What a subscriber that comes now is told, once it is as much as `at_least`."""
    seen: dict[str, dict] = {}
    async with aiomqtt.Client("127.0.0.1", port, **access) as client, asyncio.timeout(20):
        await client.subscribe(topic, qos=1)
        async for message in client.messages:
            if message.payload:
                seen[message.topic.value] = json.loads(message.payload)
            if len(seen) >= at_least:
                return seen
    raise AssertionError(seen)


async def test_it_starts_without_a_broker_and_says_everything_when_one_comes(tmp_path: Path) -> None:
    """F44"""
    broker = Broker(tmp_path)
    one = publisher(broker.port)
    async with running(one):
        await wait_for_async(lambda: one.status.trouble, 10, "the missing broker to be named")
        assert one.status.trouble.kind == "network"
        with broker:
            seen = await retained(broker.port)
    assert seen[f"{BASE}/availability"]["state"] == "online"
    gpu = seen[f"{BASE}/gpu/{gpu_uuid(5)}"]
    assert (gpu["index"], gpu["state"]) == (5, "ok")
    assert gpu["power_w"] > 0
    assert gpu["time"].endswith("Z")
    assert len({body["seq"] for body in seen.values()}) == len(seen)


async def test_a_broker_that_restarts_without_memory_is_told_everything_again(tmp_path: Path) -> None:
    """F41: values are constant, and the subscriber comes later."""
    broker = Broker(tmp_path)
    one = publisher(broker.port)
    async with running(one):
        with broker:
            before = await retained(broker.port)
        with broker:
            after = await retained(broker.port)
    assert after.keys() == before.keys()
    assert after[f"{BASE}/availability"]["state"] == "online"


async def test_an_orderly_stop_says_offline_and_a_lost_connection_lets_the_broker_say_it(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        one = publisher(broker.port)
        async with running(one):
            await retained(broker.port)
        seen = await retained(broker.port, f"{BASE}/availability", 1)
        assert seen == {f"{BASE}/availability": {"state": "offline"}}


async def test_events_are_published_once_each_in_order_and_not_retained(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        one = publisher(broker.port)
        async with aiomqtt.Client("127.0.0.1", broker.port) as client, asyncio.timeout(20):
            await client.subscribe(f"{BASE}/event", qos=1)
            for n in range(5):
                one.event(Event("cap_set", "GPU-1", f"number {n}"))
            async with running(one):
                told = [json.loads((await anext(client.messages)).payload)["text"] for _ in range(5)]
        assert told == [f"number {n}" for n in range(5)]
        async with running(one):
            assert f"{BASE}/event" not in await retained(broker.port)


async def test_a_wrong_password_is_named_apart_from_the_network_and_tried_slowly(tmp_path: Path) -> None:
    """F44"""
    lines = ["allow_anonymous false", f"password_file {password_file(tmp_path, 'agent', 'right')}"]
    with Broker(tmp_path, *lines) as broker:
        one = publisher(broker.port, user="agent", password=Secret("wrong"), slow_s=60)
        async with running(one):
            await wait_for_async(lambda: one.status.trouble, 10, "the refusal")
            assert one.status.trouble.kind == "credentials"
            assert "wrong" not in one.status.trouble.text
        assert one.status.connects == 0


async def test_a_topic_that_the_broker_refuses_is_named_with_what_to_do(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("user agent\ntopic write other/#\n")
    acl.chmod(0o644)
    lines = ["allow_anonymous false", f"password_file {password_file(tmp_path, 'agent', 'right')}", f"acl_file {acl}"]
    with Broker(tmp_path, *lines) as broker:
        one = publisher(broker.port, user="agent", password=Secret("right"))
        async with running(one):
            await wait_for_async(lambda: one.status.trouble, 10, "the refusal")
            assert one.status.trouble.kind == "rights"
            assert f"{BASE}/availability" in one.status.trouble.text


async def test_two_agents_with_one_client_id_are_told_so_and_do_not_fight(tmp_path: Path) -> None:
    """F42"""
    with Broker(tmp_path) as broker:
        first, second = publisher(broker.port, slow_s=60), publisher(broker.port, slow_s=60)
        async with running(first, second):
            await wait_for_async(
                lambda: any((p.status.trouble and p.status.trouble.kind) == "client_id" for p in (first, second)),
                10,
                "the clash to be named",
            )
            loser, winner = (first, second) if first.status.trouble else (second, first)
            await wait_for_async(lambda: winner.status.state == "connected", 10, "the other to stay connected")
            assert '"agent-1"' in loser.status.trouble.text


async def taking_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes a connection with MQTT 5, then says that another client has come with the same id, as MQTT 5 words it."""
    await reader.read(4096)
    writer.write(bytes([0x20, 3, 0, 0, 0]))
    await reader.read(1)
    writer.write(bytes([0xE0, 2, 0x8E, 0]))
    await writer.drain()
    writer.close()


async def test_a_broker_that_says_who_took_over_is_believed_at_once() -> None:
    server = await asyncio.start_server(taking_over, "127.0.0.1", 0)
    one = publisher(server.sockets[0].getsockname()[1], slow_s=60)
    async with server, running(one):
        await wait_for_async(lambda: one.status.trouble, 10, "the clash to be named")
        assert (one.status.trouble.kind, one.status.connects) == ("client_id", 1)


async def old_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """From before MQTT 5: refuses its protocol level, takes 4, and closes the connection soon after the first word."""
    head = await reader.readexactly(2)
    connect = await reader.readexactly(head[1] if head[1] < 128 else (head[1] & 127) + 128 * (await reader.read(1))[0])
    length = struct.unpack(">H", connect[:2])[0]
    accepted = connect[2 + length] == 4
    writer.write(bytes([0x20, 2, 0, 0 if accepted else 1]))
    await writer.drain()
    if accepted:
        await reader.read(1)
    writer.close()


async def test_with_a_broker_from_before_mqtt_5_a_clash_is_guessed_from_the_short_connections() -> None:
    server = await asyncio.start_server(old_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one = publisher(port, slow_s=60)
    async with server, running(one):
        await wait_for_async(
            lambda: one.status.trouble and one.status.trouble.kind == "client_id", 20, "the clash to be guessed"
        )
        assert one.status.connects == 3


async def test_a_broker_that_never_answers_costs_neither_the_loop_nor_the_next_attempt(tmp_path: Path) -> None:
    """F43"""
    held: list[asyncio.StreamWriter] = []

    async def mute(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    broker = Broker(tmp_path)
    server = await asyncio.start_server(mute, "127.0.0.1", broker.port)
    one = publisher(broker.port)
    async with running(one):
        await wait_for_async(lambda: one.status.trouble, 20, "the silence to be named")
        assert one.status.trouble.kind == "network"
        server.close()
        for writer in held:
            writer.transport.abort()
        await server.wait_closed()
        with broker:
            assert await retained(broker.port)


def tls_lines(folder: Path, *, client: bool = True) -> list[str]:
    lines = [f"{key} {folder / name}" for key, name in (("cafile", "ca.pem"), ("certfile", "broker.pem"))]
    return [
        *lines,
        f"keyfile {folder / 'broker.key'}",
        f"require_certificate {'true' if client else 'false'}",
        "allow_anonymous true",
    ]


def tls_files(folder: Path, authority: Authority, *, hours: float = 24) -> None:
    authority.write(folder)
    authority.issue(folder, "broker", hours=hours)
    authority.issue(folder, "agent")


async def test_rotated_certificates_are_used_at_the_next_connection(tmp_path: Path) -> None:
    """F47: a new authority, new files at the same paths, then the broker restarts; a key unreadable in between."""
    tls_files(tmp_path, Authority("first"))
    names = {key: str(tmp_path / name) for key, name in (("ca_file", "ca.pem"), ("cert_file", "agent.pem"))}
    broker = Broker(tmp_path, *tls_lines(tmp_path))
    one = publisher(broker.port, tls=True, key_file=str(tmp_path / "agent.key"), **names)
    async with running(one):
        with broker:
            await wait_for_async(lambda: one.status.published >= EVERYTHING - 1, 20, "everything to be published")
            assert one.status.certificate_ends_unix_s is not None
        tls_files(tmp_path, Authority("second"))
        key = (tmp_path / "agent.key").read_bytes()
        (tmp_path / "agent.key").unlink()
        with broker:
            await wait_for_async(
                lambda: one.status.trouble and one.status.trouble.kind == "tls", 20, "the missing key to be named"
            )
            (tmp_path / "agent.key").write_bytes(key)
            await wait_for_async(lambda: one.status.state == "connected", 20, "the connection with new certificates")
            assert one.status.trouble is None


@pytest.mark.parametrize("wrong", ["stranger", "expired"])
async def test_a_broker_that_cannot_prove_itself_is_never_spoken_to(tmp_path: Path, wrong: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    authority = Authority("known")
    authority.write(ours)
    tls_files(
        theirs, Authority("unknown") if wrong == "stranger" else authority, hours=-1 if wrong == "expired" else 24
    )
    with Broker(tmp_path, *tls_lines(theirs, client=False)) as broker:
        one = publisher(broker.port, tls=True, ca_file=str(ours / "ca.pem"), user="u", password=Secret("hidden"))
        async with running(one):
            await wait_for_async(lambda: one.status.trouble, 20, "the refusal")
            assert one.status.trouble.kind == "tls"
            assert "hidden" not in broker.output
        assert one.status.connects == 0


async def test_two_hundred_agents_come_back_spread_in_time(tmp_path: Path) -> None:
    """F45: full jitter from the first attempt."""
    broker = Broker(tmp_path)
    fleet = [publisher(broker.port, client_id=f"agent-{n}", first_s=4.0, period_s=3600) for n in range(200)]
    async with running(*fleet):
        with broker:
            await wait_for_async(lambda: all(p.status.connects for p in fleet), 40, "all to connect")
        with broker:
            await wait_for_async(lambda: all(p.status.connects > 1 for p in fleet), 60, "all to be back")
            stamps = re.findall(r"^(\d+): New client connected", broker.output, re.MULTILINE)
    per_second = Counter(stamps)
    assert len(stamps) >= 200
    assert max(per_second.values()) < 120


async def test_home_assistant_is_told_of_every_quantity_once(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        one = publisher(broker.port, home_assistant=True)
        async with running(one):
            seen = await retained(broker.port, "homeassistant/#", 2 + 8 * 5 + 2)
    for topic, config in seen.items():
        assert re.fullmatch(r"homeassistant/sensor/[A-Za-z0-9_-]+/config", topic)
        assert config["state_topic"].startswith(f"{BASE}/")
        assert config["availability_topic"] == f"{BASE}/availability"
    assert len({config["unique_id"] for config in seen.values()}) == len(seen)


async def test_a_gpu_that_is_gone_is_cleared_at_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        one = publisher(broker.port, period_s=1)
        async with running(one):
            await retained(broker.port)
            view = a_view(now_s=CLOCK.now_s() + 60)
            fewer = {uuid: gpu for uuid, gpu in view.snapshot.gpus.items() if uuid != gpu_uuid(7)}
            one.observe(msgspec.structs.replace(view, snapshot=msgspec.structs.replace(view.snapshot, gpus=fewer)))

            async def cleared() -> bool:
                return f"{BASE}/gpu/{gpu_uuid(7)}" not in await retained(broker.port, f"{BASE}/gpu/+", 7)

            assert await ask_until(cleared, 20, "the gone GPU's topic to be cleared")
