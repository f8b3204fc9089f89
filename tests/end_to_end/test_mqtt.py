"""The agent with a real broker: what a subscriber sees of a node that is capped, killed and comes back."""

import asyncio
import json
import socket
from pathlib import Path

import aiomqtt
import pytest

from end_to_end.node import TestNode
from support.brokers import Broker, password_file
from support.ports import free_port
from support.wait import wait_for

pytestmark = pytest.mark.real

SECRET = "zq8-only-for-the-broker"


async def told(port: int, topic: str, wanted: str) -> dict[str, object]:
    """The first message on `topic` whose payload holds `wanted`."""
    async with aiomqtt.Client("127.0.0.1", port, username="agent", password=SECRET) as client, asyncio.timeout(40):
        await client.subscribe(topic, qos=1)
        async for message in client.messages:
            if wanted in message.payload.decode():
                return json.loads(message.payload)
    raise AssertionError(topic)


def test_a_node_is_published_capped_killed_and_back_and_its_password_shows_nowhere(tmp_path: Path) -> None:
    lines = ["allow_anonymous false", f"password_file {password_file(tmp_path, 'agent', SECRET)}"]
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    broker = Broker(tmp_path, *lines)
    mqtt = (
        f'[mqtt]\nhost = "127.0.0.1"\nport = {broker.port}\nuser = "agent"\npassword_file = "{secret}"\nperiod_s = 1\n'
    )
    with TestNode(["h100"], config=mqtt) as node:
        agent = node.start_agent("--log-level", "debug")  # before there is a broker (F44)
        with broker:
            uuid = node.standin.gpus[0].uuid
            before = asyncio.run(told(broker.port, f"nodewarden/+/gpu/{uuid}", '"power_w":'))
            assert before["state"] == "ok"
            node.cap("0", 400)
            after = asyncio.run(told(broker.port, f"nodewarden/+/gpu/{uuid}", '"cap_w":400'))
            assert after["cap"]["cause"] == "manual"
            page = node.page()
            assert "nodewarden_agent_mqtt_connected 1.0" in page
            assert "nodewarden_agent_mqtt_published_total" in page
            agent.process.kill()
            assert asyncio.run(told(broker.port, "nodewarden/+/availability", "offline"))
            second = node.start_agent("--log-level", "debug")
            assert asyncio.run(told(broker.port, "nodewarden/+/availability", "online"))
            texts = [agent.output, second.output, page, str(node.call("status")), str(node.call("agent"))]
        assert not [text[:200] for text in texts if SECRET[:6] in text]


def test_a_broker_in_a_black_hole_does_not_delay_the_end() -> None:
    """A TLS handshake that nobody answers hangs in a thread; SIGTERM must not wait for it."""
    with socket.create_server(("127.0.0.1", free_port())) as mute:
        mqtt = f'[mqtt]\nhost = "127.0.0.1"\nport = {mute.getsockname()[1]}\ntls = true\n'
        with TestNode(["h100"], config=mqtt) as node:
            agent = node.start_agent()
            mute.settimeout(30)
            held, _ = mute.accept()
            with held:
                assert held.recv(1)  # the handshake has begun
                agent.process.terminate()
                wait_for(lambda: not agent.running, 8, "the agent to end")
                assert agent.wait_exit() == 0
