"""Errors of GPUs through the whole agent: stand-in driver and kernel's log in, status, metrics and journal out."""

import signal
from collections.abc import Iterator

import pytest

from end_to_end.node import TestNode
from support.wait import wait_for


@pytest.fixture
def node() -> Iterator[TestNode]:
    with TestNode(["h100"] * 8, config="[sampling]\ngpu_slow_s = 1\n") as made:
        made.start_agent()
        yield made


def total(node: TestNode, gpu: int) -> int:
    line = f'nodewarden_gpu_xid_events_total{{uuid="{node.standin.gpus[gpu].uuid}"}} '
    return next(int(float(text.removeprefix(line))) for text in node.page().splitlines() if text.startswith(line))


def listening(node: TestNode) -> None:
    up = ('nodewarden_source_up{source="xid/nvml"} 1', 'nodewarden_source_up{source="xid/kernel"} 1')
    wait_for(lambda: all(each in node.page() for each in up), 30, "both sources")


def test_an_xid_is_counted_once_over_restarts_of_agent_and_helper(node: TestNode) -> None:
    """F12, F13, F14."""
    listening(node)
    gpu = node.standin.gpus[1]
    assert total(node, 1) == 0
    gpu.xid(95, times=3)
    node.kernel_log.xid(gpu.bus_id, 95, times=1003)
    wait_for(lambda: total(node, 1) == 1003, 30, "all of them")
    wait_for(lambda: "xid_critical" in node.codes(), 10, "the problem")
    assert node.nodectl("status", check=2).stdout.count("GPU 1: Xid 95") == 1
    assert node.agent is not None
    node.agent.stop(15)  # it stops its helper: both begin anew
    node.start_agent()
    listening(node)
    node.kernel_log.xid(gpu.bus_id, 95)
    wait_for(lambda: total(node, 1) == 1004, 30, "one more, and none again")
    assert "xid_critical" in node.codes()
    rows = [each for each in node.json("events")["events"] if each["code"] == "gpu_xid"]
    assert 1 <= len(rows) <= 6
    node.nodectl("xid", "clear", "1", "--reason", "tested")
    wait_for(lambda: "xid_critical" not in node.codes(), 10, "the problem to be cleared")
    assert total(node, 1) == 1004


def test_a_gpu_that_falls_off_the_bus_without_an_xid_is_named_and_the_others_go_on(node: TestNode) -> None:
    """F04, variants A and C together: every call says lost, and the kernel has no number."""
    listening(node)
    gpu = node.standin.gpus[4]
    gpu.lost = 15
    node.kernel_log.write(f"NVRM: GPU {gpu.bus_id[4:].lower()}: GPU has fallen off the bus.")
    wait_for(lambda: {"gpu_lost", "xid_critical"} <= node.codes(), 30, "both problems")
    status = node.json("status")
    assert [each["state"] for each in status["gpus"]] == ["ok"] * 4 + ["lost"] + ["ok"] * 3
    texts = [each["text"] for each in status["problems"] if each["code"] == "xid_critical"]
    assert len(texts) == 1
    assert "GPU 4: Xid 79, GPU has fallen off the bus" in texts[0]
    assert "nodewarden_gpus_present 7" in node.page()
    assert node.nodectl("status", check=None).returncode == 2


def test_a_recovery_action_that_nothing_else_tells_of_is_a_problem(node: TestNode) -> None:
    """F13: reset wanted, all other calls normal."""
    node.standin.gpus[1].recovery_action = 1
    wait_for(lambda: "recovery_wanted" in node.codes(), 40, "the problem")
    node.standin.gpus[1].recovery_action = 0
    wait_for(lambda: "recovery_wanted" not in node.codes(), 40, "its end")


def test_a_storm_is_counted_to_the_last_line_though_agent_and_helper_are_killed_in_it() -> None:
    """F14."""
    with TestNode(["h100"] * 2) as node:
        helper = node.start_helper()
        agent = node.start_agent()
        listening(node)
        written = 0
        for kill_helper in (False, True):
            for _ in range(20):
                node.kernel_log.xid(node.standin.gpus[0].bus_id, 95, times=200)
                node.standin.gpus[0].xid(95, times=10)
                written += 200
                seen = total(node, 0)
            assert seen <= written
            agent.signal(signal.SIGKILL)
            agent.wait_exit(10)
            if kill_helper:
                helper.signal(signal.SIGKILL)
                helper.wait_exit(10)
                node.start_helper()
            agent = node.start_agent()
        wait_for(lambda: total(node, 0) == written, 30, "every line, once")
        rows = [each for each in node.json("events")["events"] if each["code"] == "gpu_xid"]
        assert 1 <= len(rows) <= 8
