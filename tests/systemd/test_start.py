"""How the services start: without any GPU, with an occupied port, and what they do when the missing thing appears."""

import pytest

from standin.standin import DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH
from support.real import require
from support.service_node import AGENT, DEFAULT_CONFIG, HELPER, KERNEL_LOG, REAL_KERNEL_LOG, ServiceNode
from support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.container, pytest.mark.timeout(300)]

EXPECTING = DEFAULT_CONFIG.replace("[limits]", "expected_gpus = 2\n[limits]")


@pytest.fixture(scope="module")
def node(wheel_folder, tmp_path_factory):
    state = tmp_path_factory.mktemp("standin")
    with ServiceNode.booted(wheel_folder, state, ["a100"] * 2, config=EXPECTING, start=False) as node:
        yield node


def test_both_services_are_ready_without_any_gpu_and_pick_the_driver_up_when_it_comes(node):
    node.standin.init_error = DRIVER_NOT_LOADED
    node.run("python3 -m http.server --bind 127.0.0.1 10048 >/dev/null 2>&1 & echo $! >/tmp/http.pid")
    node.run(f"systemctl start {AGENT}")  # Wants= brings the helper
    assert {node.state(AGENT), node.state(HELPER)} == {"active"}
    problem = node.wait_problem("driver_missing")
    assert problem["severity"] == "critical"
    assert node.status()[0] == 2
    node.standin.init_error = LIB_RM_VERSION_MISMATCH
    node.wait_status(
        lambda status: any("ersion" in p["text"] for p in status["problems"] if p["code"] == "driver_missing"),
        "the version mismatch",
        timeout_s=60,
    )
    node.standin.init_error = 0
    status = node.wait_status(lambda status: len(status["gpus"]) == 2, "both GPUs", timeout_s=60)
    assert {gpu["model"] for gpu in status["gpus"]} == {"NVIDIA A100-SXM4-80GB"}
    assert node.restarts(AGENT) == node.restarts(HELPER) == 0


def test_neither_a_slow_nor_a_hung_driver_delays_the_start(node):
    for fault in ({"latency_s": 60}, {"hang": True}):
        node.run(f"systemctl stop {AGENT} {HELPER}")
        node.standin.fault("*", **fault)
        node.run(f"systemctl start {AGENT}", timeout_s=30)
        assert {node.state(AGENT), node.state(HELPER)} == {"active"}
        problem = node.wait_problem("driver_unresponsive")
        assert problem["severity"] == "critical"
        wait_for(lambda: node.uptime_s(AGENT) > 8, 20, "some seconds without anything to read")
        node.standin.clear()
        node.wait_status(
            lambda status: [gpu["state"] for gpu in status["gpus"]] == ["ok", "ok"], "both GPUs", timeout_s=60
        )
    assert "agent_silent" not in node.container.journal(HELPER)
    assert node.restarts(AGENT) == node.restarts(HELPER) == 0


def test_an_occupied_port_is_reported_and_taken_over_when_it_is_free(node):
    node.wait_problem("http_unavailable")
    node.run("kill $(cat /tmp/http.pid)")
    node.wait_status(
        lambda status: "http_unavailable" not in {p["code"] for p in status["problems"]}, "the port", timeout_s=30
    )
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:10048/metrics').read().decode())"

    def scrape() -> str:
        return node.run(f'python3 -c "{fetch}"').stdout

    wait_for(lambda: "nodewarden_gpu_junction_celsius{" in scrape(), 10, "device metrics on the page")
    assert node.restarts(AGENT) == 0


def test_the_unit_may_read_the_kernels_log(node):
    require(KERNEL_LOG.exists(), str(KERNEL_LOG))
    drop_in = f"/etc/systemd/system/{HELPER}.d/kernel-log.conf"
    node.container.write(drop_in, f"[Service]\nEnvironment=NODEWARDEN_KERNEL_LOG={REAL_KERNEL_LOG}\n")
    node.run(f"systemctl daemon-reload; systemctl restart {HELPER}; systemctl start {AGENT}")
    wait_for(lambda: "kernel_log up=True" in node.container.journal(HELPER), 30, "the log to be read")
    node.run(f"rm {drop_in}; systemctl daemon-reload; systemctl restart {HELPER}")


def test_an_upgrade_restarts_the_agent_only_and_the_old_helper_keeps_its_files(node):
    helper, agent = node.main_pid(HELPER), node.main_pid(AGENT)
    old = node.run("readlink -e /opt/nodewarden/venv").stdout.strip()
    upgrade = node.run("/scripts/install --wheels /wheels")
    assert "kept your" in upgrade.stdout
    assert "systemctl restart nodewarden-gpu" in upgrade.stdout
    assert node.main_pid(HELPER) == helper
    assert node.main_pid(AGENT) not in {0, agent}
    assert node.run(f"test -d {old}").returncode == 0  # the helper still runs from there
    node.run(f"systemctl restart {HELPER}")
    node.run("/scripts/install --wheels /wheels")
    assert node.run(f"test -d {old}", check=False).returncode == 1


def test_uninstalling_stops_both_and_leaves_no_process(node):
    node.run("/scripts/install --uninstall")
    wait_for(lambda: "nodewarden" not in node.run("ps -eo args | grep -v grep", check=False).stdout, 10, "no process")
    assert node.standin.limits_w == [400, 400]
