"""Decisions as pure functions: (state, snapshot, limits, now_s) -> (state, setpoints, events). No I/O, no clock."""

from nodewarden.policy.arbiter import worth_writing
from nodewarden.policy.decide import ADOPTION_HOLD_S, decide, initial_state
from nodewarden.policy.observe import margins
from nodewarden.policy.plain import limits_from, snapshot_from
from nodewarden.policy.plausibility import accept
from nodewarden.policy.state import PolicyState
from nodewarden.policy.thermal import RISE_W_PER_S

__all__ = [
    "ADOPTION_HOLD_S",
    "RISE_W_PER_S",
    "PolicyState",
    "accept",
    "decide",
    "initial_state",
    "limits_from",
    "margins",
    "snapshot_from",
    "worth_writing",
]
