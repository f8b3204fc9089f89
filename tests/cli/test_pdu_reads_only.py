"""No SET is ever sent: every command of `nodectl pdu` and the agent's polling, with each version, seen on the wire."""

import asyncio
import json
import math
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodewarden.api.view import View
from nodewarden.cli.main import main
from nodewarden.clock import ScaledClock, boot_now_s
from nodewarden.config import Config, NodeConfig, PduConfig, SamplingConfig, Secret, SnmpAuth
from nodewarden.model.readings import Reading
from nodewarden.pdus import PduLoops
from nodewarden.sampling import Progress
from nodewarden.sim.pdu import PduValues, serve_pdu
from nodewarden.sim.snmp_agent import GET, GET_BULK, GET_NEXT, INTEGER, SET
from nodewarden.store import SnapshotStore
from support.fake_node import served
from support.snmp_agents import Agent, load_recording
from support.snmp_proxy import READING, SnmpProxy, kind_of
from support.snmpd import AUTH_PASSWORD, Snmpd
from support.views import a_view
from support.wait import wait_for_async

RECORDING = Path(__file__).parents[1] / "recordings" / "apc_three_phase_metered.snmprec"


def test_the_sniffer_knows_a_set_when_it_sees_one() -> None:
    for kind in (GET, GET_NEXT, SET, GET_BULK):
        body = bytes((0x02, 1, 1, 0x02, 1, 0, 0x02, 1, 0, 0x30, 0))
        message = bytes((0x02, 1, 1, 0x04, 1, 0x63, kind, len(body))) + body
        assert kind_of(bytes((0x30, len(message))) + message) == kind


@pytest.mark.parametrize("version", ["1", "2c"])
def test_discover_and_record_only_read(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Agent(load_recording(RECORDING)) as peer, SnmpProxy(peer.port) as proxy:
        words = [f"127.0.0.1:{proxy.port}", "--community", "public", "--version", version, "--timeout", "10"]
        file = tmp_path / "pdu.snmprec"
        assert main(["pdu", "discover", *words, "--json"]) == 0
        assert main(["pdu", "record", words[0], str(file), *words[1:]]) == 0
        assert main(["pdu", "record", words[0], str(file), *words[1:]]) == 64, "it is there already"
        assert main(["pdu", "record", words[0], str(file), *words[1:], "--force", "--json"]) == 0
    out = capsys.readouterr().out
    assert "Look through it before you send it" in out
    assert "|4|AP8681" in file.read_text()
    assert sum(proxy.kinds.values()) > 10
    assert set(proxy.kinds) <= READING


@pytest.mark.real
def test_v3_without_privacy_only_reads(tmp_path: Path) -> None:
    """Privacy hides the PDU's type; the requests are the same."""
    (tmp_path / "auth").write_text(AUTH_PASSWORD)
    with Snmpd([("monitor", "sha", None)]) as snmpd, SnmpProxy(snmpd.port) as proxy:
        words = ["--user", "monitor", "--auth-file", str(tmp_path / "auth"), "--timeout", "5"]
        assert main(["pdu", "discover", f"127.0.0.1:{proxy.port}", *words]) == 1, "net-snmp is no PDU"
        assert main(["pdu", "record", f"127.0.0.1:{proxy.port}", str(tmp_path / "f"), *words]) == 0
    assert sum(proxy.kinds.values()) > 10
    assert set(proxy.kinds) <= READING


async def test_the_agents_polling_only_reads_through_faults_and_restarts(tmp_path: Path) -> None:
    clock = ScaledClock(20.0, boot_now_s())
    store = SnapshotStore(clock, tuple)
    with Agent(load_recording(RECORDING)) as peer, SnmpProxy(peer.port) as proxy:
        pdus = tuple(
            PduConfig(name=f"v{version}", host="127.0.0.1", port=proxy.port, version=version, outlets=(7,), **access)
            for version, access in (
                ("1", {"community": Secret("public")}),
                ("2c", {"community": Secret("public")}),
                ("3", {"user": "u", "auth": SnmpAuth(secret_file="x", secret=Secret(AUTH_PASSWORD))}),
            )
        )
        sampling = SamplingConfig(pdu_other_outlets_s=10)
        config = Config(node=NodeConfig(name="n"), pdu=pdus, sampling=sampling)
        loops = PduLoops(store, clock, "n", lambda _: None, lambda _, period_s: Progress(period_s, clock.now_s()))
        await loops.configure(config)
        running = asyncio.create_task(loops.run())
        polled = proxy.kinds.total()
        await wait_for_async(lambda: proxy.kinds.total() > polled + 20, 60, "polls")
        peer.silent = True
        lost = proxy.kinds.total()
        await wait_for_async(lambda: proxy.kinds.total() > lost + 6, 60, "polls without an answer")
        peer.silent = False
        peer.set("1.3.6.1.2.1.1.3.0", INTEGER, 1)
        await wait_for_async(lambda: store.pdus["v2c"].up and store.pdus["v1"].up, 60, "both to be back")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await loops.close()
    assert set(proxy.kinds) <= READING


def test_learn_watches_and_proposes_and_only_reads(capsys: pytest.CaptureFixture[str]) -> None:
    """The GPUs of a node swing, and so do two outlets of its PDU; nobody but a person writes the configuration."""
    began_s = time.monotonic()

    def gpus_w() -> float:
        return 4800.0 if math.floor((time.monotonic() - began_s) / 2.2) % 2 else 1600.0

    values = lambda: PduValues(outlets_w={7: 100 + 0.57 * gpus_w(), 8: 90 + 0.58 * gpus_w(), 9: 700})  # noqa: E731
    pdu = serve_pdu(values, community="public", publish_s=0.05)
    try:
        with served(a_view(gpus=8)) as served_node, SnmpProxy(pdu.port) as proxy:
            original = served_node.node.view

            def view() -> View:
                current = original()
                gpus = {
                    uuid: replace(gpu, power_w=Reading(gpus_w() / 8, current.now_s))
                    for uuid, gpu in current.snapshot.gpus.items()
                }
                return replace(current, snapshot=replace(current.snapshot, gpus=gpus))

            served_node.node.view = view  # type: ignore[method-assign]
            words = [
                "--runtime-dir",
                str(served_node.runtime),
                "pdu",
                "learn",
                f"127.0.0.1:{proxy.port}",
                "--community",
                "public",
            ]
            code = main([*words, "--for", "13s", "--every", "0.05", "--timeout", "10", "--json"])
            found = json.loads(capsys.readouterr().out)
            assert code == 0, found
            assert [match["outlet"] for match in found["matches"]] == [7, 8]
            assert found["verdict"] == "found"
            assert set(proxy.kinds) <= READING
    finally:
        pdu.close()


def test_learn_says_when_nothing_moves_and_when_no_pdu_answers(capsys: pytest.CaptureFixture[str]) -> None:
    pdu = serve_pdu(lambda: PduValues(outlets_w={7: 2600.0}), community="public")
    try:
        with served(a_view(gpus=8)) as served_node:
            words = ["--runtime-dir", str(served_node.runtime), "pdu", "learn", "--community", "public"]
            words += ["--for", "5s", "--every", "0.2"]
            assert main([*words, f"127.0.0.1:{pdu.port}"]) == 1
            assert "not enough swing" in capsys.readouterr().out
            assert main([*words, "127.0.0.1:9", "--timeout", "0.2"]) == 4
            assert "127.0.0.1:9" in capsys.readouterr().err
    finally:
        pdu.close()


def test_learn_without_an_agent_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--runtime-dir", str(tmp_path), "pdu", "learn", "127.0.0.1", "--community", "public"]
    assert main(words) == 3
    assert threading.active_count() < 20
    assert "not running" in capsys.readouterr().err
