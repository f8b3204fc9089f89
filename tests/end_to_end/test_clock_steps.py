"""F72, F73: nothing that acts depends on the wall clock; a step is noticed, told, and changes no lease and no rate."""

import time
from collections.abc import Iterator

import pytest

from end_to_end.node import TestNode
from support.wait import wait_for
from support.wallclock import WallClock

pytestmark = pytest.mark.real

DAY_S = 86400.0


@pytest.fixture
def node(tmp_path) -> Iterator[TestNode]:
    with TestNode(["h100"] * 2) as found:
        found.clock = WallClock(tmp_path)
        yield found


def start(node: TestNode) -> None:
    node.extra_env = node.clock.env()
    node.start_agent()


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 30 * DAY_S])
def test_a_lease_keeps_its_real_length_over_a_step(node: TestNode, step_s: float) -> None:
    start(node)
    began_s = time.monotonic()
    node.cap("0", 400, for_s=12)
    node.clock.offset_s = step_s
    wait_for(lambda: "clock_stepped" in node.codes(), 10, "the step to be told")
    assert node.standin.limits_w[0] == 400
    assert node.call("status")["gpus"][0]["age_s"] < 3
    wait_for(lambda: node.standin.limits_w[0] > 400, 20, "the lease to end")
    assert 11 <= time.monotonic() - began_s <= 20
    wait_for(lambda: node.standin.limits_w[0] == 700, 60, "the cap to be gone")


def test_power_stays_plausible_over_steps_and_sampling_goes_on(node: TestNode) -> None:
    """Energy over a wall-clock difference would give absurd watts."""
    node.standin.gpus[0].power_w = 321
    start(node)
    wait_for(lambda: abs((node.call("status")["gpus"][0]["power_w"] or 0) - 321) < 25, 15, "a mean power")
    for offset_s in (3600, -3600, -1, 0):
        node.clock.offset_s = offset_s
        seen = node.standin.calls("nvmlDeviceGetFieldValues", gpu=0)
        wait_for(lambda seen=seen: node.standin.calls("nvmlDeviceGetFieldValues", gpu=0) > seen + 3, 15, "more sweeps")
        assert abs(node.call("status")["gpus"][0]["power_w"] - 321) < 25


def test_a_boot_in_1970_is_no_obstacle(node: TestNode) -> None:
    node.clock.offset_s = -time.time() + 100
    start(node)
    assert node.call("status")["time"].startswith("1970-01-01")
    node.cap("1", 400, for_s=60)
    node.clock.offset_s = 0
    wait_for(lambda: "clock_stepped" in node.codes(), 10, "the step to be told")
    assert node.standin.limits_w[1] == 400
    events = node.call("events", since_s=3600)["events"]
    assert "clock_stepped" in {event["code"] for event in events}
