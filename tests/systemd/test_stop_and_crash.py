"""What becomes of power caps when either service stops, dies, freezes or hangs: with the real units, in a container."""

import json
import time

import pytest

from standin.standin import Standin
from support.service_node import AGENT, CONFIG, DEFAULT_CONFIG, HELPER, ServiceNode
from support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.container, pytest.mark.timeout(300)]

GPUS = 3
FULL_W, MANUAL_W, FAILSAFE_W = 700.0, 550.0, 350.0
SHORT_WATCHDOG = "[Service]\nWatchdogSec=6s\n"


@pytest.fixture(scope="module")
def whole_node(wheel_folder, tmp_path_factory):
    state = tmp_path_factory.mktemp("standin")
    with ServiceNode.booted(wheel_folder, state, ["h100"] * GPUS, agent_drop_in=SHORT_WATCHDOG) as node:
        yield node


@pytest.fixture
def node(whole_node):
    """The node, handed over and taken back with both services running, disarmed, cool, and no cap."""
    yield whole_node
    calm(whole_node)


def calm(node: ServiceNode) -> None:
    standin: Standin = node.standin
    standin.clear()
    standin.one_lock = False
    standin.init_error = 0
    for gpu in standin.gpus:
        gpu.lost = 0
        gpu.junction_c, gpu.hbm_c, gpu.margin_c, gpu.power_w, gpu.utilisation_pct = 41, 48, None, 70, 0
    node.run(f"systemctl reset-failed; systemctl start {HELPER}; systemctl stop {AGENT}")
    node.run("nodectl restore --force --yes --reason test")
    for gpu in standin.gpus:
        gpu.limit_w = FULL_W
    assert ledger(node) == []
    node.run("rm -rf /var/lib/nodewarden/*")
    node.start()


def ledger(node: ServiceNode) -> list[dict]:
    """The open entries, as anyone may read them without any daemon."""
    code = (
        "import json, msgspec; from pathlib import Path; from nodewarden.gpuhelper.ledger import read_ledger; "
        "print(json.dumps([msgspec.to_builtins(e) for e in read_ledger(Path('/run/nodewarden/gpu-ledger'))]))"
    )
    return json.loads(node.run(f'/opt/nodewarden/venv/bin/python -c "{code}"', user="nobody").stdout)


def cap_by_hand(node: ServiceNode, gpu: int = 0, w: float = MANUAL_W) -> None:
    node.run(f"nodectl cap {gpu} {w:g} --for 10m --reason test")
    node.wait_limit(gpu, w)


def heat(node: ServiceNode, gpu: int = 1) -> float:
    """Arms the node and heats one GPU until the agent caps it for its protection; the cap at which it settles."""
    node.run("nodectl arm --reason test")
    board = node.standin.gpus[gpu]
    board.power_w, board.utilisation_pct, board.junction_c, board.hbm_c, board.margin_c = 650, 100, 88, 80, -1
    wait_for(lambda: board.limit_w < 600, 30, "a thermal cap")
    wait_for(
        lambda: any(e["uuid"] == board.uuid and e["protects"] == "gpu" and e["keep_w"] for e in ledger(node)),
        10,
        "a protective entry in the ledger",
    )
    return board.limit_w


def raises_of(node: ServiceNode, since_s: float) -> list[float]:
    """Limits that were raised by a write after `since_s`."""
    last: dict[int, float] = {}
    raised = []
    for write in node.standin.writes():
        if write.result == 0:
            if write.at_s > since_s and write.w > last.get(write.gpu, FULL_W):
                raised.append(write.w)
            last[write.gpu] = write.w
    return raised


def logged(node: ServiceNode, event: str) -> list[dict]:
    """What the agent told journald of one event, oldest first."""
    lines = node.run(f"journalctl -q --no-pager -o json -u {AGENT} NODEWARDEN_EVENT={event}").stdout.splitlines()
    return [json.loads(line) for line in lines]


def now_s() -> float:
    """CLOCK_BOOTTIME, which the container shares."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_restart_of_the_agent_adopts_the_caps_and_raises_nothing_for_ten_seconds(node):
    cap_by_hand(node)
    hot_w = heat(node)
    began_s = now_s()
    node.run(f"systemctl restart {AGENT}")
    wait_for(lambda: node.uptime_s(AGENT) > 10, 20, "ten seconds of the new agent")
    assert raises_of(node, began_s) == []
    assert node.standin.gpus[0].limit_w == MANUAL_W
    assert node.standin.gpus[1].limit_w <= hot_w
    status = node.status()[1]
    assert status["armed"] is True  # the armed state persists
    assert [gpu["cap"]["protects"] for gpu in status["gpus"][:2]] == ["none", "gpu"]


def test_a_stop_of_the_agent_restores_after_twenty_seconds_what_protects_nothing_and_shows_what_stays(node):
    cap_by_hand(node)
    heat(node)
    began_s = now_s()
    node.run(f"systemctl stop {AGENT}")
    kept_w = node.standin.gpus[1].limit_w
    code, status = node.status()
    assert code == 3
    assert [problem["code"] for problem in status["problems"]] == ["cap_kept", "cap_kept"]
    assert node.standin.gpus[0].limit_w == MANUAL_W  # a new agent may still come
    node.wait_limit(0, FULL_W, timeout_s=30)
    assert now_s() - began_s > 19
    assert node.standin.gpus[1].limit_w == kept_w < FULL_W
    code, status = node.status()
    assert code == 3
    assert [(problem["code"], problem["uuid"]) for problem in status["problems"]] == [
        ("cap_kept", node.standin.gpus[1].uuid)
    ]
    assert status["gpus"] == []
    assert status["health"] is None
    assert "keep" in node.container.journal(HELPER).lower() or "kept" in node.container.journal(HELPER)


def test_an_agent_that_is_killed_comes_back_and_adopts(node):
    cap_by_hand(node)
    began_s = now_s()
    before = node.main_pid(AGENT)
    node.run(f"kill -9 {before}")
    wait_for(lambda: node.main_pid(AGENT) not in {0, before} and node.state(AGENT) == "active", 20, "a new agent")
    node.wait_status(lambda status: status["gpus"][0]["cap"], "the adopted cap")
    assert node.standin.gpus[0].limit_w == MANUAL_W
    assert raises_of(node, began_s) == []


def test_a_frozen_agent_is_answered_by_the_fail_safe_and_ended_by_the_watchdog(node):
    node.run("nodectl arm --reason test")
    node.wait_status(lambda status: status["armed"], "armed")
    cap_by_hand(node)
    frozen, restarts = node.main_pid(AGENT), node.restarts(AGENT)
    began_s = now_s()
    node.run(f"kill -STOP {frozen}")
    for gpu in range(GPUS):
        node.wait_limit(gpu, FAILSAFE_W, timeout_s=8)
    first = min(write.at_s for write in node.standin.writes() if write.w == FAILSAFE_W and write.at_s > began_s)
    assert 2.5 < first - began_s < 6
    wait_for(lambda: node.restarts(AGENT) > restarts, 30, "the watchdog to end the frozen agent")
    wait_for(lambda: node.state(AGENT) == "active", 20, "the next agent")
    assert "watchdog" in node.run(f"journalctl -q --no-pager -u {AGENT} _PID=1 -o cat").stdout.lower()
    node.wait_status(lambda status: status["gpus"], "the returning agent's status")


def test_a_stop_of_the_helper_restores_at_once_what_protects_nothing(node):
    cap_by_hand(node)
    heat(node)
    began_s = now_s()
    agent = node.main_pid(AGENT)
    node.run(f"systemctl stop {HELPER}")
    assert now_s() - began_s < 5
    assert node.standin.gpus[0].limit_w == FULL_W
    assert node.standin.gpus[1].limit_w < FULL_W
    problem = node.wait_problem("helper_missing")
    assert problem["severity"] == "critical"
    assert node.main_pid(AGENT) == agent  # the agent goes on without it
    node.run(f"systemctl start {HELPER}")
    node.wait_status(lambda status: all(gpu["state"] == "ok" for gpu in status["gpus"]), "the GPUs again")
    assert node.main_pid(AGENT) == agent


def test_a_killed_helper_comes_back_and_holds_what_it_had_asked_for(node):
    cap_by_hand(node)
    began_s = now_s()
    before = node.main_pid(HELPER)
    node.run(f"kill -9 {before}")
    wait_for(lambda: node.main_pid(HELPER) not in {0, before} and node.state(HELPER) == "active", 20, "a new helper")
    node.wait_status(lambda status: status["gpus"][0]["cap"], "the cap in status")
    assert node.standin.gpus[0].limit_w == MANUAL_W
    assert raises_of(node, began_s) == []
    assert [entry["prior_w"] for entry in ledger(node)] == [FULL_W]


def test_a_cap_that_a_driver_reload_took_away_is_reported_and_protection_comes_back_at_once(node):
    cap_by_hand(node)
    heat(node)
    node.run(f"kill -9 {node.main_pid(HELPER)}")
    node.standin.reload_driver()
    wait_for(lambda: node.standin.gpus[1].limit_w < FULL_W, 20, "the protective cap again")
    wait_for(
        lambda: all(e["uuid"] != node.standin.gpus[0].uuid for e in ledger(node)), 20, "the unprotected entry closed"
    )
    assert node.standin.gpus[0].limit_w == FULL_W
    wait_for(lambda: "cap_vanished" in node.container.journal(HELPER), 10, "cap_vanished in the helper's log")


def test_a_reboot_closes_the_entries_of_the_boot_before(node):
    cap_by_hand(node)
    node.run(f"systemctl stop {AGENT}")
    drop_in = f"/run/systemd/system/{HELPER}.d/boot.conf"
    node.container.write("/run/other-boot", "6f8c7b1e-0000-4000-8000-000000000000\n")
    node.container.write(drop_in, "[Service]\nBindReadOnlyPaths=/run/other-boot:/proc/sys/kernel/random/boot_id\n")
    try:
        node.run(f"systemctl daemon-reload; kill -9 {node.main_pid(HELPER)}")
        wait_for(lambda: "another boot" in node.container.journal(HELPER), 20, "the entry of another boot in the log")
        assert ledger(node) == []
    finally:
        node.run(f"rm {drop_in}; systemctl daemon-reload; systemctl restart {HELPER}")


def test_a_limit_that_somebody_else_set_is_named_reasserted_and_then_left_alone(node):
    cap_by_hand(node)
    gpu = node.standin.gpus[0]
    reasserted = 0
    for other_w in (610, 620, 630):
        gpu.limit_w = other_w
        node.wait_limit(0, MANUAL_W, timeout_s=15)
        reasserted += 1
    assert reasserted == 3
    gpu.limit_w = 640
    node.wait_problem("foreign_cap")
    node.run("nodectl restore all --yes --reason test", check=False)
    node.wait_status(lambda status: status["gpus"][0]["cap_w"] == 640, "the foreign limit")
    assert gpu.limit_w == 640  # no restore overwrites it


def test_one_hung_gpu_is_named_and_everything_else_goes_on(node):
    cap_by_hand(node)
    node.standin.fault("nvmlDevice*", gpu=2, hang=True)
    problem = node.wait_problem("driver_unresponsive", timeout_s=30)
    assert problem["severity"] == "critical"
    assert problem["uuid"] in {None, node.standin.gpus[2].uuid}
    status = node.status()[1]
    assert [gpu["state"] for gpu in status["gpus"]] == ["ok", "ok", "unresponsive"]
    cap_by_hand(node, gpu=1, w=500)
    began_s = now_s()
    node.run(f"systemctl stop {HELPER}")
    assert now_s() - began_s < 6  # each writer had its 3 s; nobody waited for the hung one
    assert node.standin.limits_w[:2] == [FULL_W, FULL_W]


def test_a_stop_of_the_agent_is_quick_though_a_gpu_hangs(node):
    node.standin.fault("nvmlDevice*", gpu=2, hang=True)
    node.wait_problem("driver_unresponsive", timeout_s=30)
    began_s = now_s()
    node.run(f"systemctl stop {AGENT}")
    assert now_s() - began_s < 5
    assert node.container.show(AGENT, "Result") == {"Result": "success"}


def test_slow_calls_do_not_make_the_watchdog_end_a_healthy_agent(node):
    restarts, pid = node.restarts(AGENT), node.main_pid(AGENT)
    node.standin.fault("nvmlDeviceGet*", gpu=2, latency_s=50)
    node.wait_problem("driver_unresponsive", timeout_s=30)
    since_s = node.uptime_s(AGENT)
    wait_for(lambda: node.uptime_s(AGENT) > since_s + 8, 30, "more than a watchdog period")
    assert node.restarts(AGENT) == restarts
    assert node.main_pid(AGENT) == pid


def test_a_helper_stuck_in_the_kernel_is_left_alone_and_its_successor_waits_for_it(node):
    cap_by_hand(node)
    stuck = node.main_pid(HELPER)
    node.container.write(f"/run/systemd/system/{HELPER}.d/stop.conf", "[Service]\nTimeoutStopSec=4s\n")
    node.run("systemctl daemon-reload")
    with node.deaf_file_system() as never:
        node.standin.fault("nvmlDevice*", gpu=2, hang_path=never)
        node.wait_problem("driver_unresponsive", timeout_s=30)
        node.run(f"kill -9 {stuck}")
        wait_for(lambda: "D" in node.process_state(stuck), 10, "the helper to be in uninterruptible sleep")
        restarting = node.container.run(f"timeout 60 systemctl restart {HELPER}", check=False)
        assert restarting.returncode == 0, restarting.stderr
        successor = node.main_pid(HELPER)
        assert successor != stuck
        text = node.container.show(HELPER, "StatusText")["StatusText"]
        assert text == f"waiting for pid {stuck}"
        writes = len(node.standin.writes())
        node.wait_status(lambda status: status["health"] == "critical", "critical health")
        assert len(node.standin.writes()) == writes
        assert node.standin.gpus[0].limit_w == MANUAL_W
    node.standin.clear()
    wait_for(lambda: node.process_state(stuck) == "", 20, "the stuck helper to end")
    node.wait_status(lambda status: all(gpu["state"] == "ok" for gpu in status["gpus"]), "all GPUs", timeout_s=30)
    assert node.main_pid(HELPER) == successor


def test_the_helper_ends_quickly_and_cleanly_whenever_it_is_told_to(node):
    for moment_s in (0.0, 0.13, 0.31, 0.47, 0.62, 0.78, 0.91, 1.05):
        cap_by_hand(node)
        until_s = now_s() + moment_s  # somewhere else in the second between two readings each time
        wait_for(lambda until_s=until_s: now_s() >= until_s, 5, "the moment")
        began_s = now_s()
        node.run(f"systemctl restart {HELPER}")
        assert now_s() - began_s < 5
        node.wait_limit(0, FULL_W)
        wait_for(
            lambda: "agent pid" in node.container.show(HELPER, "StatusText")["StatusText"], 10, "the agent to come back"
        )
    shown = node.container.show(HELPER, "Result", "NRestarts")
    assert shown == {"Result": "success", "NRestarts": "0"}


def test_an_agent_started_by_hand_beside_the_services_only_reads(node):
    cap_by_hand(node)
    node.run("mkdir -p /tmp/hand/run /tmp/hand/state")
    node.container.write("/tmp/hand/config.toml", DEFAULT_CONFIG.replace("10048", "10049"))
    command = "/opt/nodewarden/venv/bin/nodewarden --config /tmp/hand/config.toml --helper spawn"
    environment = "-E LD_LIBRARY_PATH=/standin/lib -E NODEWARDEN_STANDIN_STATE=/standin/state/nvml.state"
    node.run(
        f"systemd-run -q --unit=hand --service-type=exec -p KillMode=process {environment} "
        f"{command} --runtime-dir /tmp/hand/run --state-dir /tmp/hand/state"
    )
    try:

        def refused() -> bool:
            child = node.run("nodectl --runtime-dir /tmp/hand/run status --json", check=False)
            problems = json.loads(child.stdout)["problems"] if child.stdout else []
            holder = f"pid {node.main_pid(HELPER)}"
            return any(p["code"] == "control_unavailable" and holder in p["text"] for p in problems)

        wait_for(refused, 30, "the agent by hand to name the pid that may write")
        writes = len(node.standin.writes())
        child = node.run("nodectl --runtime-dir /tmp/hand/run cap 1 400 --for 10m --reason test", check=False)
        assert child.returncode != 0
        assert len(node.standin.writes()) == writes
        assert node.standin.limits_w == [MANUAL_W, FULL_W, FULL_W]
    finally:
        node.run("systemctl stop hand")
    gone = "pgrep -f '[/]tmp/hand/run' || true"
    wait_for(lambda: not node.run(gone).stdout, 10, "the helper by hand to end with its agent")
    assert node.standin.gpus[0].limit_w == MANUAL_W


def test_a_second_agent_ends_with_75_and_is_not_started_again(node):
    unit = node.run(f"systemctl cat {AGENT}").stdout
    node.container.write("/etc/systemd/system/second.service", unit)
    node.run("systemctl daemon-reload; systemctl start second", check=False)
    wait_for(lambda: node.state("second") == "failed", 20, "the second agent to give up")
    shown = node.container.show("second", "ExecMainStatus", "NRestarts")
    assert shown == {"ExecMainStatus": "75", "NRestarts": "0"}
    assert node.state(AGENT) == "active"
    assert node.status()[0] in {0, 1}


def test_a_wrong_configuration_ends_with_78_names_every_mistake_and_is_not_started_again(node):
    node.configure('[node]\nname = "x y"\n[limits]\nfailsafe_w = "much"\n')
    try:
        node.run(f"systemctl restart {AGENT}", check=False)
        wait_for(lambda: node.state(AGENT) == "failed", 20, "the agent to give up")
        shown = node.container.show(AGENT, "ExecMainStatus", "NRestarts")
        assert shown["ExecMainStatus"] == "78"
        log = node.container.journal(AGENT)
        assert f"{CONFIG}:2: node.name" in log
        assert f"{CONFIG}:4: limits.failsafe_w" in log
        assert node.state(HELPER) == "active"
    finally:
        node.configure(DEFAULT_CONFIG)


def test_an_agent_that_crashes_again_and_again_waits_longer_and_is_never_given_up(node):
    for _ in range(4):
        pid = node.main_pid(AGENT)
        node.run(f"kill -9 {pid}")
        wait_for(
            lambda pid=pid: (
                node.main_pid(AGENT) not in {0, pid} and node.container.show(AGENT, "StatusText")["StatusText"]
            ),
            20,
            "the next start",
        )
    waits_s = [float(row["NODEWARDEN_WAIT_S"]) for row in logged(node, "start_delayed")]
    assert waits_s
    assert waits_s == sorted(waits_s)
    assert max(waits_s) <= 60
    wait_for(lambda: node.state(AGENT) == "active", 60, "the agent to be ready after its delay")


def test_the_journal_carries_fields_and_no_secret(node):
    rows = logged(node, "ready")
    assert rows
    assert {row["_SYSTEMD_UNIT"] for row in rows} == {AGENT}
    assert rows[-1]["NODEWARDEN_GPUS"] == str(GPUS)
    assert rows[-1]["PRIORITY"] == "6"


def test_a_credential_reaches_the_agent_and_is_shown_nowhere(node):
    secret = "correct-horse-battery"
    node.container.write("/etc/nodewarden/pdu/community", secret + "\n")
    node.run("chmod 600 /etc/nodewarden/pdu/community")
    pdu = (
        '[[pdu]]\nname = "rack12-a"\nhost = "127.0.0.1"\nport = 1\nversion = "2c"\n'
        'community_file = "${CREDENTIALS_DIRECTORY}/pdu_community"\n'
    )
    node.configure(DEFAULT_CONFIG + pdu)
    try:
        node.run(f"systemctl restart {AGENT}")
        node.wait_status(lambda status: [pdu["name"] for pdu in status["pdus"]] == ["rack12-a"], "the PDU")
        shown = node.run(
            f"cat /proc/{node.main_pid(AGENT)}/cmdline /proc/{node.main_pid(AGENT)}/environ; journalctl -q; "
            "nodectl status; nodectl pdus --json; nodectl config show",
            check=False,
        )
        assert secret not in shown.stdout + shown.stderr
        assert "rack12-a" in shown.stdout
    finally:
        node.configure(DEFAULT_CONFIG)
        node.run(f"systemctl restart {AGENT}")


def test_the_services_hold_no_more_rights_than_they_need(node):
    agent = node.run(f"cat /proc/{node.main_pid(AGENT)}/status").stdout
    helper = node.run(f"cat /proc/{node.main_pid(HELPER)}/status").stdout
    caps = {name: dict(line.split(":\t", 1) for line in text.splitlines() if line.startswith("Cap"))
            for name, text in (("agent", agent), ("helper", helper))}  # fmt: skip
    assert {int(value, 16) for value in caps["agent"].values()} == {0}
    assert int(caps["helper"]["CapEff"], 16) == 1 << 21 | 1 << 34  # SYS_ADMIN, SYSLOG
    uid = node.run("id -u nodewarden").stdout.strip()
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in agent
    sockets = node.run("stat -c '%n %a %U %G' /run/nodewarden/gpu.sock /run/nodewarden/gpu-ledger").stdout
    assert "gpu.sock 660 root nodewarden" in sockets
    assert "gpu-ledger 644 root" in sockets


def test_a_signal_to_the_agent_reloads_its_configuration(node):
    node.configure(DEFAULT_CONFIG + "[limits.nonsense]\n")
    try:
        node.run(f"systemctl reload {AGENT}")
        node.wait_problem("config_reload_failed")
    finally:
        node.configure(DEFAULT_CONFIG)
        node.run(f"systemctl reload {AGENT}")
    node.wait_status(
        lambda status: "config_reload_failed" not in {p["code"] for p in status["problems"]}, "a good config"
    )
