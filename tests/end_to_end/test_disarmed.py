"""A disarmed agent with real parts: it says what it would do, does not do it, and never sounds as if it had."""

import pytest

from end_to_end.node import TestNode
from support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def test_decisions_are_told_as_a_dry_run_and_a_persons_cap_stays_a_persons() -> None:
    with TestNode(kinds=("h100",) * 2) as node:
        node.start_agent()
        node.cap("0", 400)
        for gpu in node.standin.gpus:
            gpu.junction_c, gpu.hbm_c = 88, 92

        def decided() -> bool:
            caps = node.call("caps")["caps"]
            return {(cap["index"], cap["in_force"]) for cap in caps} == {(0, True), (1, False)}

        wait_for(decided, 20, "a decision to cap GPU 1")
        hand = node.call("status")["gpus"][0]["cap"]
        assert (hand["cause"], hand["protects"]) == ("manual", "none")
        assert node.standin.gpus[1].limit_w == 700
        assert "thermal" not in {cap["cause"] for cap in node.call("caps")["caps"] if cap["in_force"]}
        said = node.nodectl("events").stdout
        assert "gpu_capped  GPU 0 capped at 400 W: a person asked for it" in said
        assert "  dry run  GPU 1 would be capped at " in said
        assert "gpu_capped  GPU 1" not in said
        node.nodectl("arm", "--yes", "--reason", "limits reviewed")
        wait_for(lambda: node.standin.gpus[1].limit_w < 700, 20, "the cap of GPU 1")
