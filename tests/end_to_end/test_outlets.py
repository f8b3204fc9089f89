"""A limit on this node's outlets is held through real SNMP, also when the PDU freezes or falls silent."""

from collections.abc import Iterator

import pytest

from end_to_end.node import TestNode
from nodewarden.sim.pdu import PduHandle, PduValues, serve_pdu
from support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

BASE_W = 900.0  # fans, CPUs, disks
LIMIT_W = 4000.0


class Rack:
    """Outlets 7 and 8 carry the node; `frozen` keeps publishing what was."""

    def __init__(self, node: TestNode) -> None:
        self.node = node
        self.frozen: PduValues | None = None

    @property
    def node_w(self) -> float:
        return BASE_W + sum(min(gpu.power_w, gpu.enforced_w) for gpu in self.node.standin.gpus)

    def values(self) -> PduValues:
        if self.frozen is not None:
            return self.frozen
        half_w = self.node_w / 2
        return PduValues(outlets_w={7: half_w, 8: half_w, 3: 500.0})


@pytest.fixture
def rack() -> Iterator[tuple[TestNode, Rack, PduHandle]]:
    with TestNode() as node:
        found = Rack(node)
        handle = serve_pdu(found.values)
        node.write_config(
            f'[[pdu]]\nname = "rack"\nhost = "{handle.host}"\nport = {handle.port}\n'
            f'community = "{handle.community}"\noutlets = [7, 8]\nlimit_w = {LIMIT_W}\n'
            "[sampling]\npdu_totals_s = 1\npdu_outlets_s = 2\n"
        )
        for gpu in node.standin.gpus:
            gpu.power_w = 350.0
        node.start_agent()
        wait_for(lambda: node.call("status")["pdus"][0]["outlets_w"], 30, "the outlets to be read")
        yield node, found, handle
        handle.close()


def more_sweeps(node: TestNode, count: int) -> None:
    seen = node.standin.calls("nvmlDeviceGetFieldValues", gpu=0)
    wait_for(lambda: node.standin.calls("nvmlDeviceGetFieldValues", gpu=0) > seen + count, 90, f"{count} more sweeps")


def test_the_sum_of_the_outlets_is_held_and_given_back(rack) -> None:
    node, found, _ = rack
    assert found.node_w < LIMIT_W
    node.call("arm")
    for gpu in node.standin.gpus:
        gpu.power_w = 650.0
    more_sweeps(node, 5)
    wait_for(lambda: found.node_w <= LIMIT_W, 40, "the node to be under its limit")

    def held_for_the_breaker() -> bool:
        status = node.call("status")
        caps = [gpu["cap"] for gpu in status["gpus"]]
        return status["health"] == "degraded" and all(
            cap is not None and (cap["cause"], cap["protects"]) == ("outlets", "breaker") for cap in caps
        )

    wait_for(held_for_the_breaker, 20, "status to say that the outlets' limit holds all GPUs")
    more_sweeps(node, 15)
    assert found.node_w <= 1.02 * LIMIT_W
    node.call("disarm")
    wait_for(lambda: not node.call("status")["armed"], 5, "disarmed")


def test_a_pdu_that_freezes_or_falls_silent_lifts_nothing(rack) -> None:
    node, found, handle = rack
    node.call("arm")
    more_sweeps(node, 10)
    found.frozen = found.values()  # from now on it repeats itself, and the load rises
    for gpu in node.standin.gpus:
        gpu.power_w = 650.0
    more_sweeps(node, 30)
    assert found.node_w <= 1.02 * LIMIT_W
    handle.close()
    wait_for(lambda: "pdu_stale" in node.codes(), 60, "the silence to be told")
    more_sweeps(node, 15)
    assert found.node_w <= 1.02 * LIMIT_W
