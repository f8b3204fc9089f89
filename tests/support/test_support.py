"""The starters that other tests lean on: they start the real thing, wait for it, and leave nothing behind."""

import http.server
import os
import sys
import threading

import pytest

from support.processes import Program
from support.real import recordings_dir, require
from support.servers import Prometheus, SnmpSimulator, check_metrics
from support.wait import wait_for

pytestmark = pytest.mark.real


def test_waiting_in_vain_names_what_was_waited_for():
    with pytest.raises(AssertionError, match="in vain for the moon; last answer: 0"):
        wait_for(lambda: 0, 0.05, "the moon")


def test_a_program_is_ended_with_everything_it_started():
    code = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    with Program([sys.executable, "-c", code]) as program:
        wait_for(lambda: "\n" in program.output, 10, "the pid of the grandchild")
        grandchild = int(program.output)

    def gone() -> bool:
        try:
            os.kill(grandchild, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{grandchild}/stat") as stat:  # noqa: PTH123 - a zombie that init has not reaped yet is gone too
            return stat.read().split()[2] == "Z"

    wait_for(gone, 5, "the grandchild to be gone")


def test_a_missing_part_is_a_skip_and_in_strict_mode_a_failure(monkeypatch):
    monkeypatch.delenv("NODEWARDEN_STRICT", raising=False)
    with pytest.raises(pytest.skip.Exception):
        require(present=False, what="a flux capacitor")
    monkeypatch.setenv("NODEWARDEN_STRICT", "1")
    with pytest.raises(pytest.fail.Exception, match="flux capacitor"):
        require(present=False, what="a flux capacitor")


async def test_snmpsim_serves_a_recording_by_its_name(tmp_path):
    from pysnmp.hlapi.v3arch.asyncio import (  # noqa: PLC0415 - costs 0.1 s, and only here
        CommunityData,
        ContextData,
        ObjectIdentity,
        ObjectType,
        SnmpEngine,
        UdpTransportTarget,
        get_cmd,
    )

    with SnmpSimulator(recordings_dir(), tmp_path) as simulator:
        engine = SnmpEngine()
        try:
            target = await UdpTransportTarget.create(("127.0.0.1", simulator.port), timeout=5, retries=2)
            error, status, _, binds = await get_cmd(
                engine,
                CommunityData("apc_ap8959eu3", mpModel=1),  # noqa: S508 - what the recordings speak
                target,
                ContextData(),
                ObjectType(ObjectIdentity("1.3.6.1.2.1.1.2.0")),
                lookupMib=False,
            )
        finally:
            engine.close_dispatcher()
    assert error is None
    assert int(status) == 0
    assert str(binds[0][1]).startswith("1.3.6.1.4.1.318.")


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"# HELP answer_total Questions answered.\n# TYPE answer_total counter\nanswer_total 42\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_prometheus_scrapes_a_page_and_answers_queries(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            target = f"127.0.0.1:{server.server_address[1]}"
            with Prometheus(tmp_path, [target], every_s=0.2) as prometheus:
                assert prometheus.wait_for_value("answer_total") == 42
                assert prometheus.query("answer_total") == {(("instance", target), ("job", "target-0")): 42}
                assert prometheus.samples("answer_total[1m]")[0][1] == 42
        finally:
            server.shutdown()
            thread.join()


def test_promtool_finds_a_bad_page_and_passes_a_good_one():
    good = "# HELP answer_total Questions answered.\n# TYPE answer_total counter\nanswer_total 42\n"
    assert check_metrics(good) == ""
    assert "answers" in check_metrics("# TYPE answers counter\nanswers 42\n")
