"""Policy and a model node against each other: what the caps achieve, and that the same faults get too hot without."""

from policy.loop import run
from policy.plant import AIR, SLOWDOWN_C, T_OP_C, Faults, Node


def fan_bank(gpu: int, t: float) -> float:
    return 0.33 if t > 60 and gpu % 4 < 2 else 1.0


def test_a_healthy_node_is_left_alone() -> None:
    node = Node(AIR, Faults())
    result = run(node, 120)
    assert result.caps == [[700.0] * 8] * 120
    assert result.events == []
    assert {int(s.level) for s in result.setpoints} == {0}


def test_caps_hold_a_failed_fan_bank_below_max_operating_where_the_same_fault_disarmed_reaches_slowdown() -> None:
    held, loose = Node(AIR, Faults(flow=fan_bank)), Node(AIR, Faults(flow=fan_bank))
    run(held, 360)
    run(loose, 360, armed=False)
    assert held.worst_c < T_OP_C
    assert loose.worst_c >= SLOWDOWN_C
