"""The life of the agent and its helper: start, restart, kill -9, freeze, second instance, and what happens to caps."""

import itertools
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from end_to_end.node import TestNode
from nodewarden.gpuhelper.ledger import read_ledger
from support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def node() -> Iterator[TestNode]:
    with TestNode(["h100"] * 4) as found:
        yield found


def test_a_new_agent_adopts_the_caps_of_the_one_before(node: TestNode) -> None:
    """Restart: nothing is written in between, owner and end of the manual cap survive."""
    node.start_helper()
    first = node.start_agent("--helper", "connect")
    node.cap("0", 400)
    writes = len(node.standin.writes())
    assert first.stop() == 0
    assert node.standin.limits_w[0] == 400
    node.start_agent("--helper", "connect")
    shown = node.call("status")["gpus"][0]
    assert shown["cap"]["cause"] == "manual"
    assert shown["cap"]["prior_w"] == 700
    assert node.standin.limits_w == [400, 700, 700, 700]
    assert len(node.standin.writes()) == writes
    node.call("release", gpu="0")
    wait_for(lambda: node.standin.limits_w[0] == 700, 60, "the released GPU to be back at its limit")


def test_a_released_cap_rises_slowly_armed_or_not(node: TestNode) -> None:
    """At most 8 W/s per GPU; the limit is rounded to whole watts."""
    node.start_agent()
    for gpu in range(2):
        node.cap(str(gpu), 660)
        first = len(node.standin.writes(gpu=gpu)) - 1
        node.call("release", gpu=str(gpu))
        wait_for(lambda gpu=gpu: node.standin.limits_w[gpu] == 700, 20, "the limit found before")
        writes = node.standin.writes(gpu=gpu)[first:]
        assert all(b.w - a.w <= 8 * (b.at_s - a.at_s) + 9 for a, b in itertools.pairwise(writes))
        assert len(writes) > 3
        node.call("arm")


def test_what_is_only_said_while_disarmed_is_not_told_as_done(node: TestNode) -> None:
    node.write_config("[limits]\nnode_power_w = 2000\n")
    node.start_agent()

    def told() -> list[str]:
        events = node.call("events", since_s=600)["events"]
        return [event["text"] for event in events if event["code"] == "gpu_capped"]

    wait_for(lambda: len(told()) == 4, 15, "what would be done")
    assert all("would be capped at 500 W" in text for text in told())
    assert node.standin.writes() == []
    node.call("arm")
    wait_for(lambda: sum(node.standin.limits_w) <= 2001, 15, "the budget in force")
    done = [text for text in told() if "would be" not in text]
    assert done == [f"GPU {n} capped at 500 W, now that the node is armed: node power" for n in range(4)]


def test_caps_hold_over_kill_minus_nine_of_the_agent_and_the_next_one_adopts(node: TestNode) -> None:
    """F24."""
    node.start_helper()
    for round_number in range(5):
        agent = node.start_agent("--helper", "connect")
        if round_number == 0:
            node.cap("1", 350)
        assert node.standin.limits_w == [700, 350, 700, 700]
        agent.signal(signal.SIGKILL)
        agent.wait_exit()
    assert node.standin.limits_w == [700, 350, 700, 700]
    assert [entry.w for entry in read_ledger(node.runtime / "gpu-ledger")] == [350]


def test_stopping_an_agent_that_started_its_helper_restores_at_once(node: TestNode) -> None:
    """F25: stop by hand is stop, not restart."""
    agent = node.start_agent()
    node.cap("all", 300)
    assert node.standin.limits_w == [300] * 4
    agent.signal(signal.SIGINT)
    assert agent.wait_exit(10) == 0
    assert node.standin.limits_w == [700] * 4
    assert read_ledger(node.runtime / "gpu-ledger") == []


def test_the_helper_of_a_killed_agent_stays_and_the_next_agent_adopts_it(node: TestNode) -> None:
    agent = node.start_agent()
    pid = node.helper_pid()
    node.cap("2", 450)
    agent.signal(signal.SIGKILL)
    agent.wait_exit()
    node.start_agent()
    assert node.helper_pid() == pid
    assert node.call("status")["gpus"][2]["cap_w"] == 450


def test_kill_minus_nine_of_the_helper_loses_no_cap(node: TestNode) -> None:
    """The next helper finds its last request in force and holds it."""
    helper = node.start_helper()
    node.start_agent("--helper", "connect")
    node.cap("3", 420)
    helper.signal(signal.SIGKILL)
    helper.wait_exit()
    wait_for(lambda: "helper_missing" in node.codes(), 10, "the agent to say so")
    assert node.call("status")["health"] == "critical"
    node.start_helper()
    wait_for(lambda: "helper_missing" not in node.codes(), 10, "the new helper to be adopted")
    shown = node.call("status")["gpus"][3]
    assert (shown["cap_w"], shown["cap"]["cause"], shown["cap"]["prior_w"]) == (420, "manual", 700)


def test_nodectl_finds_the_state_of_an_agent_that_is_gone(node: TestNode) -> None:
    """The state directory was only given to the agent: the journal is read and the node disarmed all the same."""
    node.extra_env["NODEWARDEN_STATE_DIR"] = ""
    agent = node.start_agent("--state-dir", str(node.state))
    node.nodectl("arm", "--reason", "limits reviewed")
    agent.signal(signal.SIGKILL)
    agent.wait_exit()
    told = json.loads(node.nodectl("events", "--json", check=3).stdout)["events"]
    assert "limits reviewed" in str(told)
    node.nodectl("restore")
    node.start_agent("--state-dir", str(node.state))
    assert node.call("status")["armed"] is False


def test_what_nodectl_gave_up_is_not_done_later(node: TestNode) -> None:
    """F52: "not answering" must not be followed by the change."""
    agent = node.start_agent()
    agent.signal(signal.SIGSTOP)
    node.nodectl("cap", "0", "400", check=4)
    agent.signal(signal.SIGCONT)
    agent.wait_for_output("request_dropped", 10)
    assert node.json("caps")["caps"] == []
    assert node.standin.writes() == []


def test_a_released_cap_on_its_way_up_is_not_taken_for_a_persons_wish(node: TestNode) -> None:
    """Whoever restarts during the rise, helper or agent: the rise goes on to the limit found before us."""
    helper, agent = node.start_helper(), node.start_agent("--helper", "connect")
    node.call("arm")
    node.cap("0", 600)
    node.call("release", gpu="0")
    wait_for(lambda: node.standin.limits_w[0] > 602, 10, "the rise to begin")
    helper.signal(signal.SIGKILL)
    helper.wait_exit()
    node.start_helper()
    wait_for(lambda: node.standin.limits_w[0] > 630, 30, "the rise to go on under the new helper")
    agent.signal(signal.SIGKILL)
    agent.wait_exit()
    node.start_agent("--helper", "connect")
    wait_for(lambda: node.standin.limits_w[0] == 700, 40, "the rise to end under the new agent")
    assert read_ledger(node.runtime / "gpu-ledger") == []


def test_a_new_agent_that_is_disarmed_raises_nothing_in_its_first_ten_seconds(node: TestNode) -> None:
    """It goes on with the rise of the one before, but not before it has looked at what it found."""
    node.start_helper()
    agent = node.start_agent("--helper", "connect")
    node.cap("0", 600)
    node.call("release", gpu="0")
    wait_for(lambda: node.standin.limits_w[0] > 602, 10, "the rise to begin")
    agent.signal(signal.SIGKILL)
    agent.wait_exit()
    before, started_s = len(node.standin.writes(gpu=0)), time.monotonic()
    node.start_agent("--helper", "connect")
    wait_for(lambda: node.standin.limits_w[0] == 700, 40, "the rise to end")
    first = node.standin.writes(gpu=0)[before]
    assert first.at_s - started_s > 10


def test_a_manual_cap_above_a_budget_outlives_the_agent(node: TestNode) -> None:
    """What a person asked for is in the ledger even while something else asks for less."""
    node.write_config("[limits]\nnode_power_w = 1200\n")
    node.start_helper()
    agent = node.start_agent("--helper", "connect")
    node.call("arm")
    wait_for(lambda: sum(node.standin.limits_w) <= 1210, 30, "the budget to be held")
    node.call("cap", gpu="0", w=640, for_s=3600)
    wait_for(lambda: [e.manual_w for e in read_ledger(node.runtime / "gpu-ledger")].count(640) == 1, 10, "the ledger")
    agent.signal(signal.SIGKILL)
    agent.wait_exit()
    node.write_config("")
    node.start_agent("--helper", "connect")
    wait_for(lambda: node.standin.limits_w == [640, 700, 700, 700], 90, "the manual cap to be what is left")
    cap = node.call("status")["gpus"][0]["cap"]
    assert cap["cause"] == "manual"
    node.call("release", gpu="0")
    wait_for(lambda: node.standin.limits_w[0] == 700, 30, "the released GPU to be back at its limit")


def test_a_removed_runtime_directory_is_made_again(node: TestNode) -> None:
    """Nobody is connected to a socket without a file, and a cap without a ledger could not be undone."""
    node.start_helper()
    agent = node.start_agent("--helper", "connect")
    node.cap("0", 400)
    shutil.rmtree(node.runtime)
    ledger = node.runtime / "gpu-ledger"
    wait_for(lambda: [entry.w for entry in read_ledger(ledger)] == [400], 10, "the ledger")
    for name in ("gpu.sock", "control/control.sock", "job/job.sock"):
        wait_for((node.runtime / name).exists, 15, name)
    wait_for(lambda: not {"helper_missing", "driver_unresponsive"} & node.codes(), 10, "the helper to be adopted anew")
    assert node.standin.limits_w[0] == 400
    node.call("release", gpu="0")
    wait_for(lambda: node.standin.limits_w == [700] * 4, 60, "the limits as found")
    assert agent.running
    assert "Traceback" not in agent.output


def test_a_second_agent_ends_with_75_and_changes_nothing(node: TestNode) -> None:
    """F59: same state directory; and another state directory on the same runtime directory."""
    first = node.start_agent()
    node.cap("0", 400)
    assert node.start_agent(ready=False).wait_exit(15) == 75
    other = node.folder / "other-state"
    assert node.start_agent("--state-dir", str(other), ready=False).wait_exit(15) == 75
    assert first.running
    assert node.call("status")["gpus"][0]["cap_w"] == 400
    first.signal(signal.SIGSTOP)
    assert node.start_agent(ready=False).wait_exit(15) == 75
    first.signal(signal.SIGCONT)
    assert node.call("status")["gpus"][0]["cap_w"] == 400


def test_two_agents_started_at_the_same_moment_leave_exactly_one(node: TestNode) -> None:
    """F59."""
    for _ in range(5):
        pair = [node.start_agent(ready=False), node.start_agent(ready=False)]
        loser = wait_for(lambda pair=pair: [agent for agent in pair if not agent.running], 20, "one to give up")
        assert len(loser) == 1
        assert loser[0].process.returncode == 75
        winner = next(agent for agent in pair if agent is not loser[0])
        winner.wait_for_output("ready gpus=4", 20)
        assert winner.stop(10) == 0


def test_a_frozen_agent_is_answered_with_the_fail_safe_and_takes_over_again(node: TestNode) -> None:
    """DESIGN table: silence of more than 3 s while armed. F56: no burst when it comes back."""
    node.write_config("[limits]\nfailsafe_w = 350\n")
    node.start_helper()
    agent = node.start_agent("--helper", "connect")
    node.call("arm")
    wait_for(lambda: node.call("status")["armed"], 5, "armed")
    agent.signal(signal.SIGSTOP)
    wait_for(lambda: node.standin.limits_w == [350] * 4, 15, "the helper to set the fail-safe")
    calls = node.standin.calls("nvmlDeviceGetFieldValues", gpu=0)
    agent.signal(signal.SIGCONT)
    wait_for(lambda: node.call("status")["gpus"][0]["age_s"] < 2, 10, "fresh readings")
    assert node.standin.calls("nvmlDeviceGetFieldValues", gpu=0) - calls < 20
    assert agent.running
    wait_for(lambda: node.standin.limits_w == [700] * 4, 90, "the fail-safe to be lifted")
    rises = [(b.w - a.w, b.at_s - a.at_s) for a, b in itertools.pairwise(node.standin.writes(gpu=0))]
    assert all(rise_w <= 8 * gap_s + 9 for rise_w, gap_s in rises), "it is lifted slowly"


def test_broken_configuration_ends_with_78_and_says_everything(node: TestNode) -> None:
    """F68; the single mistakes are tests of the configuration (tests/cli/test_config.py)."""
    node.config.write_text('[limits]\nnode_powr_w = 400\n[sampling]\ngpu_fast_s = "1 s"\n')
    agent = node.start_agent(ready=False)
    assert agent.wait_exit(15) == 78
    assert "node_power_w" in agent.output
    assert "gpu_fast_s" in agent.output
    assert node.start_agent("--no-such-flag", ready=False).wait_exit(15) == 64


def test_a_failed_reload_keeps_the_old_configuration_and_the_caps(node: TestNode) -> None:
    """F69."""
    agent = node.start_agent()
    node.cap("0", 400)
    writes = len(node.standin.writes())
    good = node.config.read_text()
    said = {
        '[limits]\nnode_power_w = "x"\n': "a number from",
        "[[[": "nodewarden.toml:1",
        "[limits]\nnode_power_w = 1\n": "a number from",
        "[limits]\nnode_power_w = 500\n": "at least 800",  # of boards that take no less than 200 W
        "[limits]\nfailsafe_w = 150\n": "at least 200",
        good[: len(good) // 2] + "\n[": "nodewarden.toml",
    }
    for broken, words in said.items():
        node.config.write_text(good)
        agent.signal(signal.SIGHUP)
        wait_for(lambda: "config_reload_failed" not in node.codes(), 10, "the good file to be in force")
        node.config.write_text(broken)
        agent.signal(signal.SIGHUP)
        wait_for(lambda: "config_reload_failed" in node.codes(), 10, "the failed reload to show")
        assert words in str(node.call("status")["problems"])
    wait_for(lambda: "nodewarden_agent_config_reload_successful 0.0" in node.page(), 10, "the gauge")
    node.config.unlink()
    for _ in range(50):
        agent.signal(signal.SIGHUP)
    assert "config_reload_failed" in node.codes()
    assert len(node.standin.writes()) == writes
    node.config.write_text(good + "[limits]\nnode_power_w = 1200\n")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: "config_reload_failed" not in node.codes(), 10, "the good file to be in force")
    wait_for(lambda: "nodewarden_agent_config_reload_successful 1.0" in node.page(), 10, "the gauge")
    node.call("arm")
    wait_for(lambda: sum(node.standin.limits_w) <= 1210, 30, "the new budget to be held")


def test_a_reload_before_the_first_turn_is_no_error(node: TestNode) -> None:
    for _ in range(3):
        agent = node.start_agent(ready=False)
        wait_for((node.runtime / "control" / "control.sock").exists, 15, "the control socket")
        for _ in range(5):
            agent.signal(signal.SIGHUP)
        agent.wait_for_output("ready gpus=4", 20)
        assert "Traceback" not in agent.output
        assert agent.stop(10) == 0


def test_an_occupied_http_port_is_reported_and_taken_when_free(node: TestNode) -> None:
    """F57: not a reason to end."""
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", node.port))
        squatter.listen()
        agent = node.start_agent()
        wait_for(lambda: "http_unavailable" in node.codes(), 10, "the problem to show")
    wait_for(lambda: "http_unavailable" not in node.codes(), 20, "the port to be taken")
    assert "nodewarden_gpu_info" in node.page()
    assert agent.running


@pytest.mark.parametrize("rounds", [20])
def test_sigterm_at_any_moment_ends_in_order(node: TestNode, rounds: int) -> None:
    """F54: clean exit each time, and every limit as found."""
    for number in range(rounds):
        agent = node.start_agent(ready=False)
        if number % 4:
            agent.wait_for_output(("listening", "ready", "adopted")[number % 3], 20)
        if number % 5 == 4:
            agent.wait_for_output("ready gpus", 20)
            node.cap("all", 400)
        agent.signal(signal.SIGTERM)
        assert agent.wait_exit(8) in {0, -15}  # -15: before the handler was there
        wait_for(lambda: node._helper_pid() is None, 8, "the helper to end")
        assert node.standin.limits_w == [700] * 4


def test_a_dead_socket_file_is_replaced_and_anything_else_refused(node: TestNode) -> None:
    """F58."""
    folder = node.runtime / "control"
    folder.mkdir(parents=True)
    path = folder / "control.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    node.start_agent().stop()
    for make in (lambda: path.write_text("precious"), path.mkdir, lambda: path.symlink_to(node.config)):
        if path.is_symlink() or path.exists():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        make()
        before = os.lstat(path)
        agent = node.start_agent(ready=False)
        assert agent.wait_exit(15) == 70
        assert "control.sock" in agent.output
        assert os.lstat(path).st_ino == before.st_ino
    assert node.config.read_text()
