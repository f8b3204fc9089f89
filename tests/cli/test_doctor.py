"""`nodectl doctor`: each finding says what is wrong and what to do, whatever is missing."""

import http.server
import json
import threading

import msgspec
import pytest

from nodewarden.cli.doctor_checks import CHECKS, Machine, run_checks
from nodewarden.cli.exits import NOT_RUNNING, CliError
from nodewarden.cli.main import main
from nodewarden.model.snapshot import HelperStatus, SourceStatus
from support.fake_node import served
from support.node_views import calm, hot
from support.ports import free_port


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A state directory and a configuration of its own."""
    config = tmp_path / "nodewarden.toml"
    config.touch(mode=0o640)
    monkeypatch.setenv("NODEWARDEN_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("NODEWARDEN_CONFIG", str(config))
    return config


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def healthz():
    server = http.server.HTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def checks_of(capsys, runtime, view_code=None) -> dict[str, list[dict]]:
    code = main(["--runtime-dir", str(runtime), "doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (code == 0)
    if view_code is not None:
        assert code == view_code
    found: dict[str, list[dict]] = {}
    for check in answer["checks"]:
        found.setdefault(check["check"], []).append(check)
        assert check["advice"] or check["state"] in {"ok", "note"} or check["check"] == "config"
    return found


def test_a_node_without_anything_is_told_what_to_start(tmp_path, place, capsys):
    found = checks_of(capsys, tmp_path / "none", 2)
    assert found["agent"][0]["state"] == "problem"
    assert "systemctl status nodewarden" in found["agent"][0]["advice"]
    assert found["sockets"][0]["text"].endswith("does not exist")
    assert found["config"][-1]["state"] == "ok"
    assert len(found) == len(CHECKS)


def test_a_good_node_is_well(place, healthz, capsys):
    view = msgspec.structs.replace(calm(), http_listen=healthz, config_path=str(place))
    with served(view) as there:
        found = checks_of(capsys, there.runtime)
    assert [c["state"] for c in found["agent"]] == ["ok"]
    assert [c["state"] for c in found["driver"]] == ["ok"]
    assert [c["state"] for c in found["pdus"]] == ["ok"]
    assert [c["state"] for c in found["http"]] == ["ok"]
    assert [c["state"] for c in found["disk"]] == ["ok"]


def test_problems_of_the_agent_and_its_helper_are_problems(place, capsys):
    view = hot()
    helper = HelperStatus(state="foreign", text="pid 7 of uid 1000", pid=7, uid=1000)
    snapshot = msgspec.structs.replace(view.snapshot, helper=helper)
    view = msgspec.structs.replace(
        view, snapshot=snapshot, config_error="line 3", http_listen=f"127.0.0.1:{free_port()}"
    )
    with served(view) as there:
        found = checks_of(capsys, there.runtime, 2)
    assert "foreign: pid 7 of uid 1000" in found["helper"][0]["text"]
    assert any("fell off the bus" in c["text"] for c in found["agent"])
    assert "the last reload was refused: line 3" in found["config"][0]["text"]
    assert found["http"][0]["state"] == "problem"
    assert "ss -ltnp" in found["http"][0]["advice"]


def test_a_broken_configuration_is_named_line_by_line(tmp_path, place, capsys):
    place.write_text("[limits]\nfailsafe_w = 1\nnode_powr_w = 2\n")
    found = checks_of(capsys, tmp_path, 2)
    assert [c["state"] for c in found["config"]] == ["problem", "problem"]
    assert ":2: limits.failsafe_w" in found["config"][0]["text"]


def test_a_full_disk_is_a_warning(tmp_path, place, capsys, monkeypatch):
    import shutil  # noqa: PLC0415
    from collections import namedtuple  # noqa: PLC0415

    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 10**6, 10**6)  # noqa: PYI024
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert checks_of(capsys, tmp_path)["disk"][0]["state"] == "warning"


def test_for_people_each_finding_has_its_sign_and_what_to_do(tmp_path, place, capsys):
    assert main(["--runtime-dir", str(tmp_path / "none"), "doctor"]) == 2
    out = capsys.readouterr().out
    assert "FAIL agent: the agent is not running" in out
    assert "systemctl start nodewarden-gpu" in out


def test_a_check_that_breaks_is_a_finding_and_the_round_goes_on(tmp_path, place):
    machine = Machine(runtime=tmp_path, state=tmp_path, config=place, agent={"config_path": None}, error=None)
    findings = run_checks(machine)
    assert {"agent", "helper", "disk", "rights"} <= {finding.check for finding in findings}
    assert any("could not be checked: KeyError" in finding.text for finding in findings)


def test_a_wrong_socket_mode_is_seen(tmp_path, place):
    with served(calm()) as there:
        there.socket.chmod(0o600)
        machine = Machine(
            runtime=there.runtime, state=tmp_path, config=place, agent=None, error=CliError("x", NOT_RUNNING)
        )
        texts = [finding.text for finding in run_checks(machine) if finding.check == "sockets"]
    assert any("has mode 0600, not 0666" in text for text in texts)


def test_a_source_of_xids_that_is_not_listened_to_is_named(place, capsys):
    view = calm()
    down = SourceStatus(name="xid/kernel", up=False, reason="no_permission")
    sources = {**view.snapshot.sources, "xid/nvml": SourceStatus(name="xid/nvml", up=True), "xid/kernel": down}
    snapshot = msgspec.structs.replace(view.snapshot, sources=sources)
    with served(msgspec.structs.replace(view, snapshot=snapshot)) as there:
        found = checks_of(capsys, there.runtime)["gpu errors"]
    assert [(each["state"], each["text"]) for each in found] == [
        ("ok", "Xids come from the driver's events"),
        ("warning", "the kernel's log: not listened to (no permission)"),
    ]
    assert "CAP_SYSLOG" in found[1]["advice"]
