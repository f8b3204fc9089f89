"""What must not be passed: the boards' own limits, the node's budget, manual caps."""

from typing import Final, Literal

import msgspec

DEGREES_FROM_C: Final = 20.0
"""A threshold above this is a temperature in degC, one below it an offset to a signed margin."""
_USUAL_SLOWDOWN_ABOVE_C: Final = 2.0


class GpuLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one GPU.

    Attributes:
        min_w, max_w: range in which the board accepts a power cap.
        prior_w: the limit that was in force before we touched it; we never raise above it.
        kind: "tlimit": the board's signed margin is the truth (0 = max-operating), thresholds may be given as offsets
            to it (0, -2, -8) or in degC, each on its own; "absolute": thresholds in degC.
        hbm_max_op_c: HBM's max-operating in degC, None when unknown.
    """

    min_w: float
    max_w: float
    prior_w: float
    kind: Literal["tlimit", "absolute"] = "absolute"
    max_op_c: float = 85.0
    slowdown_c: float = 89.0
    shutdown_c: float = 92.0
    hbm_max_op_c: float | None = None

    @property
    def slowdown_above_max_op_c(self) -> float:
        """How far above max-operating the hardware slows down, positive."""
        if self.kind == "tlimit":
            if self.slowdown_c <= DEGREES_FROM_C < self.max_op_c:
                return abs(self.slowdown_c)  # an offset, beside a max-operating in degC
            if self.max_op_c <= DEGREES_FROM_C < self.slowdown_c:
                return _USUAL_SLOWDOWN_ABOVE_C  # in degC, and nobody says how many max-operating are
        return abs(self.slowdown_c - self.max_op_c)


class ManualCap(msgspec.Struct, frozen=True, kw_only=True):
    """A cap that a person or a lease asked for.

    Attributes:
        w: watts.
        expires_s: CLOCK_BOOTTIME seconds at which it ends, None = when it is released.
        cause: "manual" or "lease".
    """

    w: float
    expires_s: float | None = None
    cause: Literal["manual", "lease"] = "manual"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that bounds this node.

    Attributes:
        target_margin_c: hold GPUs this far below max-operating.
        node_power_w: bound on the sum of the GPUs, None = none.
        outlets: bound on the power of this node's outlets per limit name (a PDU).
        failsafe_w: cap per GPU when nothing can be read for long, None = hold what is in force.
    """

    gpus: dict[str, GpuLimits] = {}
    target_margin_c: float = 2.0
    node_power_w: float | None = None
    outlets: dict[str, float] = {}
    manual: dict[str, ManualCap] = {}
    failsafe_w: float | None = None
