"""A person lets go of a GPU for a reset: nobody holds it, status says until when, and it comes back as it was."""

import json
import os
from collections.abc import Iterator

import pytest

from end_to_end.node import TestNode
from support.wait import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def node() -> Iterator[TestNode]:
    with TestNode() as found:
        yield found


def test_a_gpu_is_released_reset_and_resumed(node: TestNode) -> None:
    """F08, from the command to the descriptors in /proc."""
    agent = node.start_agent()
    node.cap("5", 400)
    wait_for(lambda: [cap["w"] for cap in node.json("caps")["caps"]] == [400], 10, "the cap to be known")
    five = node.standin.gpus[5]
    assert five.held_by == {node.helper_pid()}
    done = node.nodectl("gpus", "release", "5", "--for", "1h", "--reason", "reset")
    assert "GPU 5 is released for 3600 s; its limit is 700 W, until " in " ".join(done.stdout.split())
    assert "undo: nodectl gpus resume 5" in done.stdout
    assert five.held_by == set()
    assert not node.standin.holders("*") & {agent.pid}
    wait_for(lambda: node.call("status")["gpus"][5]["state"] == "released", 10, "the state")
    problem = wait_for(
        lambda: next((p for p in node.call("status")["problems"] if p["code"] == "gpu_released"), None), 10, "the word"
    )
    assert problem["text"].startswith("GPU 5 released until ")
    assert "nodectl gpus resume 5" in problem["advice"]
    assert node.nodectl("status", check=None).returncode == 1
    assert "released until" in node.nodectl("gpus").stdout
    assert "neither read nor capped" in " ".join(node.nodectl("explain", "5").stdout.split())
    refused = node.nodectl("cap", "5", "300", check=None)
    assert "it is released" in refused.stdout + refused.stderr
    touched = node.standin.calls(gpu=5)
    sweeps = node.standin.calls("nvmlDeviceGetFieldValues", gpu=4)
    five.reset()
    wait_for(lambda: node.standin.calls("nvmlDeviceGetFieldValues", gpu=4) > sweeps + 3, 15, "the others to be read")
    assert node.standin.calls(gpu=5) == touched
    assert node.standin.writes(gpu=5)[-1].w == 700
    assert f'gpu_junction_celsius{{uuid="{five.uuid}"}}' not in node.page()
    assert json.loads(node.nodectl("gpus", "resume", "--json").stdout)["gpus"][0]["index"] == 5
    wait_for(lambda: node.call("status")["gpus"][5]["state"] == "ok", 10, "it to be back")
    wait_for(lambda: five.limit_w == 400, 15, "the manual cap to be set again")
    wait_for(lambda: "gpu_released" not in node.codes(), 10, "the problem to be gone")
    told = [event["code"] for event in node.json("events")["events"]]
    assert {"gpus_release", "gpu_released", "gpus_resume", "gpu_resumed", "gpu_back"} <= set(told)
    assert "gpu_lost" not in told


def test_who_may_not_change_things_may_not_release(node: TestNode) -> None:
    node.start_agent()
    assert node.call("gpus_release", gpu="5", for_s=0)["data"]["kind"] == "invalid_params"
    assert node.call("gpus_release", gpu="99")["data"]["kind"] == "unknown_gpu"
    assert node.standin.gpus[5].held_by == {node.helper_pid()}
    assert os.getpid() not in node.standin.gpus[5].held_by
