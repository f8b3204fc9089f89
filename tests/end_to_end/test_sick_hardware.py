"""A hung, lost, forbidden or missing GPU costs its own readings and nothing else; status says which, since when."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from end_to_end.node import TestNode
from standin.standin import DRIVER_NOT_LOADED, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, NO_PERMISSION, NOT_SUPPORTED
from support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def node() -> Iterator[TestNode]:
    with TestNode() as found:
        yield found


def others_are_fresh(node: TestNode, sick: int) -> list[Any]:
    status = node.call("status")
    return [gpu for gpu in status["gpus"] if gpu["index"] != sick and (gpu["age_s"] is None or gpu["age_s"] > 2.5)]


def test_one_hung_gpu_costs_only_its_own_readings(node: TestNode) -> None:
    """F02 variant B, F03, F55: never returns."""
    agent = node.start_agent()
    node.standin.fault("nvmlDeviceGetTemperature*", gpu=5, hang=True)
    wait_for(lambda: "driver_unresponsive" in node.codes(), 15, "the hung GPU to be named")
    status = node.call("status")
    assert status["health"] == "critical"
    assert status["gpus"][5]["state"] == "unresponsive"
    assert status["gpus"][5]["junction_c"] is None
    assert "5" in next(p["text"] for p in status["problems"] if p["code"] == "driver_unresponsive")
    assert not wait_for(lambda: [others_are_fresh(node, 5)], 5, "ages")[0]
    uuid = node.standin.gpus[5].uuid
    wait_for(lambda: f'junction_celsius{{uuid="{uuid}"}}' not in node.page(), 10, "its series to vanish")
    page = node.page()
    assert sum("nodewarden_gpu_junction_celsius{" in line for line in page.splitlines()) == 7
    assert f'nodewarden_source_up{{source="gpu/{uuid}"}} 0' in page
    assert agent.running
    # other GPUs are still controlled
    node.cap("1", 400)
    agent.signal(signal.SIGTERM)
    began_s = time.monotonic()
    assert agent.wait_exit(12) == 0
    assert time.monotonic() - began_s < 10
    assert node.standin.limits_w[1] == 700


def test_a_slow_gpu_is_reported_and_recovers(node: TestNode) -> None:
    """F02 variant A: the call takes long, then works again."""
    node.start_agent()
    node.standin.fault("nvmlDeviceGetTemperature*", gpu=3, latency_s=6)
    wait_for(lambda: node.call("status")["gpus"][3]["state"] == "unresponsive", 15, "unresponsive")
    node.standin.clear()
    wait_for(lambda: node.call("status")["gpus"][3]["state"] == "ok", 20, "well again")
    wait_for(lambda: "driver_unresponsive" not in node.codes(), 10, "the problem to be gone")


def test_the_whole_driver_hung_is_said_and_everything_else_goes_on(node: TestNode) -> None:
    """F02 in one-lock mode: every call of every process waits."""
    agent = node.start_agent()
    node.standin.one_lock = True
    node.standin.fault("nvmlDeviceGetTemperature*", gpu=0, hang=True)
    wait_for(lambda: "driver_unresponsive" in node.codes(), 20, "the driver to be named")
    wait_for(
        lambda: all(gpu["state"] == "unresponsive" for gpu in node.call("status")["gpus"]), 20, "all GPUs unresponsive"
    )
    assert "nodewarden_gpu_junction_celsius{" not in node.page()
    assert node.call("status")["health"] == "critical"
    agent.signal(signal.SIGTERM)
    began_s = time.monotonic()
    assert agent.wait_exit(12) == 0
    assert time.monotonic() - began_s < 10


def test_a_lost_gpu_keeps_its_place_with_null_readings_and_the_others_go_on(node: TestNode) -> None:
    """F04 variant A."""
    agent = node.start_agent()
    node.standin.gpus[4].lost = GPU_IS_LOST
    wait_for(lambda: "gpu_lost" in node.codes(), 15, "the loss to be named")
    shown = node.call("status")["gpus"][4]
    assert shown["state"] == "lost"
    assert shown["junction_c"] is None
    assert shown["power_w"] is None
    assert not others_are_fresh(node, 4)
    assert agent.running
    answer = node.call("cap", gpu="all", w=400)["gpus"]
    assert [gpu["index"] for gpu in answer if gpu["state"] == "refused"] == [4]
    wait_for(lambda: [gpu.limit_w for gpu in node.standin.gpus] == [400] * 4 + [700] + [400] * 3, 10, "the other caps")
    node.standin.gpus[4].lost = 0
    wait_for(lambda: node.call("status")["gpus"][4]["state"] == "ok", 40, "it to come back by its uuid")


def test_a_missing_power_reading_is_unknown_not_zero(node: TestNode) -> None:
    """F01."""
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"):
        node.standin.fault(name, gpu=3, error=NOT_SUPPORTED)
    for field in (83, 185, 186):
        node.standin.gpus[3].fail_field(field)
    node.start_agent()
    wait_for(lambda: node.call("status")["gpus"][2]["power_w"], 10, "power of a healthy GPU")
    shown = node.call("status")["gpus"][3]
    assert shown["power_w"] is None
    assert shown["junction_c"] is not None
    page = node.page()
    assert sum("nodewarden_gpu_power_watts{" in line for line in page.splitlines()) == 7
    assert "NaN" not in page
    assert "N/A" not in page


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH])
def test_an_agent_without_a_driver_is_ready_says_so_and_picks_it_up(node: TestNode, code: int) -> None:
    """F06, F07."""
    node.standin.init_error = code
    agent = node.start_agent()
    assert "driver_missing" in wait_for(lambda: node.codes() & {"driver_missing"}, 10, "driver_missing")
    assert node.call("status")["health"] == "critical"
    assert node.call("status")["gpus"] == []
    node.standin.init_error = 0
    wait_for(lambda: len(node.call("status")["gpus"]) == 8, 60, "the GPUs to be picked up")
    wait_for(lambda: "driver_missing" not in node.codes(), 10, "the problem to be gone")
    assert agent.running


def test_without_the_right_to_write_control_is_unavailable_and_monitoring_goes_on(node: TestNode) -> None:
    """F30: refused clearly, at once, without a storm of retries."""
    node.standin.write_right = "denied"
    node.start_agent()
    answer = node.call("cap", gpu="0", w=400)
    assert answer.get("code") is not None or answer["gpus"][0]["state"] == "refused"
    wait_for(lambda: "control_unavailable" in node.codes(), 10, "control_unavailable")
    assert not others_are_fresh(node, -1)
    assert {write.result for write in node.standin.writes()} <= {NO_PERMISSION}
    tries = len(node.standin.writes())
    node.call("arm")
    time_to_look = node.standin.calls("nvmlDeviceGetFieldValues", gpu=0) + 5
    wait_for(lambda: node.standin.calls("nvmlDeviceGetFieldValues", gpu=0) >= time_to_look, 20, "five more sweeps")
    assert len(node.standin.writes()) <= tries + 1


def test_a_driver_that_ignores_caps_is_named_and_not_pestered(node: TestNode) -> None:
    board = node.standin.gpus[3]
    board.ignores_set = 1
    node.start_agent()
    node.call("cap", gpu="all", w=400, for_s=3600)
    wait_for(lambda: "cap_not_written" in node.codes(), 15, "the problem")
    text = next(p["text"] for p in node.call("status")["problems"] if p["code"] == "cap_not_written")
    assert "GPU 3" in text
    assert "ignores it: the board shows 700 W" in text
    wait_for(lambda: node.standin.limits_w == [400] * 3 + [700] + [400] * 4, 10, "the other caps")
    refused = [cap["index"] for cap in node.json("caps")["caps"] if cap["refused"]]
    assert refused == [3]
    tries = len(node.standin.writes(gpu=3))
    sweeps = node.standin.calls("nvmlDeviceGetUtilizationRates", gpu=3) + 6
    wait_for(lambda: node.standin.calls("nvmlDeviceGetUtilizationRates", gpu=3) >= sweeps, 30, "six more sweeps")
    assert len(node.standin.writes(gpu=3)) <= tries + 3 * 4  # each try writes four times, after 2 s, 4 s, 8 s, ...
    board.ignores_set = 0
    node.call("cap", gpu="3", w=350)
    wait_for(lambda: board.limit_w == 350, 10, "a person's cap to be tried at once")
    wait_for(lambda: "cap_not_written" not in node.codes(), 10, "the problem to be gone")


@pytest.mark.parametrize("armed", [False, True])
def test_a_manual_cap_that_the_board_has_lost_is_given_up(node: TestNode, armed: bool) -> None:
    """A driver reload, or somebody's nvidia-smi: told as vanished, and not set again behind their back."""
    node.start_agent()
    if armed:
        node.call("arm")
    node.cap("2", 400)
    writes = len(node.standin.writes())
    node.standin.gpus[2].limit_w = 700
    wait_for(lambda: "cap_vanished" in node.codes(), 10, "the loss to be told")
    wait_for(lambda: node.json("caps")["caps"] == [], 10, "the entry to be closed")
    sweeps = node.standin.calls("nvmlDeviceGetUtilizationRates", gpu=2)
    wait_for(lambda: node.standin.calls("nvmlDeviceGetUtilizationRates", gpu=2) > sweeps + 4, 15, "more turns")
    assert node.standin.limits_w == [700] * 8
    assert len(node.standin.writes()) == writes


def test_different_ranges_are_all_checked_before_the_first_write(node: TestNode) -> None:
    """F29."""
    node.standin.gpus[6].max_w = 400
    node.standin.gpus[6].min_w = 100
    node.standin.gpus[6].limit_w = 400
    node.start_agent()
    answer = node.call("cap", gpu="all", w=600)
    assert "GPU 6" in answer["message"]
    assert "100" in answer["message"]
    assert node.standin.writes() == []
