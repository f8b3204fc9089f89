"""What the policy remembers between two decisions. Opaque to everyone else: it is copied, pickled and handed back.

All temperatures here are in degrees relative to max-operating (negative = cooler), so that boards with a signed
margin and boards with absolute thresholds share one law.
"""

import copy

import msgspec

from nodewarden.model.setpoints import Cause


class Channel(msgspec.Struct):
    """One temperature sensor: its last believed value (relative to max-operating) and when that was true."""

    rel_c: float | None = None
    taken_at_s: float = 0.0
    changed_at_s: float = 0.0
    low_w: float = 0.0
    high_w: float = 0.0
    low_c: float | None = None
    high_c: float | None = None


class GpuState(msgspec.Struct):
    """One GPU.

    Attributes:
        command_w: the thermal law's own cap, before dead bands; the prior limit when heat demands nothing.
        sink_c, removed_w: the observer: temperature behind the die, and the heat that leaves the GPU.
        fast_c, slow_c: the measured temperature, smoothed over 2 s and 12 s; their difference says whether it rises.
        duty: mean power over cap while the cap binds (the shape of the training step).
        out_w: the cap of the last decision. `adopted`: it started from a cap reading.
        stalled_s: how long nothing of this GPU has been fresh; blind_s: how long no temperature has been.
    """

    command_w: float
    out_w: float
    adopted: bool = False
    hold_s: float = 0.0
    seen_at_s: float | None = None
    sink_c: float | None = None
    removed_w: float = 0.0
    junction_c: float = 0.0
    rise_c_per_s: float = 0.0
    error_c: float = 0.0
    fast_c: float = 0.0
    slow_c: float = 0.0
    smooth_w: float = 0.0
    die_w: float = 0.0
    calm_w: float | None = None
    rising: bool = False
    tried: bool = False
    dwell_s: float = 0.0
    fallen_s: float = 0.0
    duty: float = 1.0
    power_mean_w: float = 0.0
    power_seen: bool = False
    strange: int = 0
    hot_bit_s: float = 0.0
    idle_s: float = 0.0
    stalled_s: float = 0.0
    blind_s: float = 0.0
    limit_in_force_w: float | None = None
    core: Channel = msgspec.field(default_factory=Channel)
    board: Channel = msgspec.field(default_factory=Channel)
    hbm: Channel = msgspec.field(default_factory=Channel)
    max_op_c: float | None = None
    cause: Cause = Cause.NONE
    told_cause: Cause = Cause.NONE
    cause_s: float = 0.0
    removed_before_w: float | None = None
    paced_by: str | None = None
    rejected: tuple[str, ...] = ()


class OutletState(msgspec.Struct):
    """What one limit on outlets has learnt: outlet watts = share x GPU watts + base.

    `value_w` is the newest reading that told something, `mean_w` what the GPUs drew when it last changed.
    """

    base_w: float | None = None
    share: float = 1.0
    samples: int = 0
    taken_at_s: float | None = None
    value_w: float = 0.0
    mean_w: float = 0.0
    repeats: int = 0
    stale: bool = False
    limited: bool = False
    lost: bool = False
    alive: bool = False


class PolicyState(msgspec.Struct):
    """The whole memory of the policy."""

    gpus: dict[str, GpuState]
    outlets: dict[str, OutletState]
    now_s: float | None = None
    level: int = 0
    calm_s: tuple[float, ...] = (0.0,) * 7
    step_s: float = 0.0
    throttle_s: float = 0.0
    spent_s: float = 0.0
    low_caps_s: float = 0.0
    full_caps_s: float = 0.0
    job_duty: float = 1.0
    checkpoint_since_s: float | None = None
    checkpoint_told: bool = False
    checkpoint_done: bool = False
    sum_mean_w: float | None = None
    trim_w: float = 0.0
    settled_s: float = 0.0
    budget_limited: bool = False
    infeasible: tuple[str, ...] = ()
    history: tuple[tuple[float, float], ...] = ()
    rejected: dict[str, int] = {}

    def copied(self) -> "PolicyState":
        """A copy of which every part may be changed without touching this one."""
        new = copy.copy(self)
        new.gpus = {}
        for uuid, gpu in self.gpus.items():
            fresh = copy.copy(gpu)
            fresh.core, fresh.board, fresh.hbm = copy.copy(gpu.core), copy.copy(gpu.board), copy.copy(gpu.hbm)
            new.gpus[uuid] = fresh
        new.outlets = {name: copy.copy(outlet) for name, outlet in self.outlets.items()}
        new.rejected = dict(self.rejected)
        return new
