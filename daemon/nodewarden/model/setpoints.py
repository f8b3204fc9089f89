"""What we ask of the hardware and of the job, each with its cause."""

from enum import IntEnum, StrEnum
from typing import Literal

import msgspec


class Level(IntEnum):
    """The ladder. The numbers are exported and are never reused."""

    NORMAL = 0
    NOTIFY = 1
    CAP = 2
    THROTTLE = 3
    CHECKPOINT = 4
    PAUSE = 5
    DRAIN = 6


class Cause(StrEnum):
    """Why a cap is what it is."""

    NONE = "none"
    THERMAL = "thermal"
    NODE_POWER = "node_power"
    OUTLETS = "outlets"
    MANUAL = "manual"
    LEASE = "lease"
    FAILSAFE = "failsafe"
    STALE = "stale"


CAUSE_NOUNS: dict[str, str] = {
    Cause.THERMAL: "heat",
    Cause.NODE_POWER: "node power",
    Cause.OUTLETS: "outlet limit",
    Cause.MANUAL: "by hand",
    Cause.LEASE: "lease",
    Cause.FAILSAFE: "fail-safe",
    Cause.STALE: "old readings",
}
"""A cause in a word or two, as events of the journal call it."""


class Protects(StrEnum):
    """What a cap protects; decides what happens to it when the agent goes away."""

    NONE = "none"
    GPU = "gpu"
    BREAKER = "breaker"


PROTECTS = {
    Cause.NONE: Protects.NONE,
    Cause.MANUAL: Protects.NONE,
    Cause.LEASE: Protects.NONE,
    Cause.THERMAL: Protects.GPU,
    Cause.STALE: Protects.GPU,
    Cause.NODE_POWER: Protects.BREAKER,
    Cause.OUTLETS: Protects.BREAKER,
    Cause.FAILSAFE: Protects.BREAKER,
}


class CapSetpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The power cap that one GPU should have. Every GPU of the limits has one, `cause` none = its prior limit.

    Attributes:
        w: the lowest of all that demand one; the prior limit when nothing does.
        protects: what the winning cause protects.
        keep_w: what the protective causes alone demand now; None = nothing. Never above the prior limit.
        manual_w: what a person or a lease alone demands now; None = nothing. All that is applied while disarmed.
        expires_s: CLOCK_BOOTTIME seconds at which the manual part ends, None = open.
        lifts_when: in words, what would end it.
        paced_by: the GPU whose pace it keeps, as people call it; None = it is capped for a reason of its own.
    """

    w: float
    cause: Cause = Cause.NONE
    protects: Protects = Protects.NONE
    keep_w: float | None = None
    manual_w: float | None = None
    expires_s: float | None = None
    lifts_when: str = ""
    paced_by: str | None = None


JobRequest = Literal["none", "checkpoint", "pause", "stop"]


class JobSetpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs on this node are asked for. `duty` 1 = not throttled; `cause` and `gpu` say why.

    Attributes:
        deadline_s: seconds from now within which a requested checkpoint must be finished.
    """

    duty: float = 1.0
    request: JobRequest = "none"
    deadline_s: float | None = None
    cause: Cause = Cause.NONE
    gpu: str | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Where one GPU is heading at this rate. Seconds; None = not heading there."""

    margin_to_max_op_c: float | None = None
    margin_to_slowdown_c: float | None = None
    time_to_max_op_s: float | None = None
    time_to_slowdown_s: float | None = None


class Setpoints(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: what is asked of hardware and jobs, and the ladder's level (0 to 6)."""

    caps: dict[str, CapSetpoint] = {}
    job: JobSetpoint = JobSetpoint()
    level: Level = Level.NORMAL
    forecast: dict[str, Forecast] = {}
