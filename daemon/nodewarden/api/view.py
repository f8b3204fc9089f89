"""Everything that a reader may see, put together by the agent once per control tick; readers never look elsewhere.

All times are CLOCK_BOOTTIME seconds except `wall_s`, which maps them to what people read.
"""

from typing import Literal

import msgspec

from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.limits import Limits
from nodewarden.model.setpoints import Setpoints
from nodewarden.model.snapshot import NodeSnapshot
from nodewarden_alerts.conditions import Problem

Health = Literal["ok", "degraded", "critical"]


STALL_PERIODS = 5.0
STALL_MIN_S = 5.0


class LoopHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one loop of the agent is doing.

    Attributes:
        progress_s: when it last finished a turn.
        period_s: how often it should.
        critical: without it the agent is not doing its work (the watchdog and /healthz look at these).
    """

    progress_s: float
    period_s: float
    critical: bool = True

    def is_stalled(self, now_s: float) -> bool:
        """True when it made no progress for `STALL_PERIODS` of its periods, and at least `STALL_MIN_S`."""
        return now_s - self.progress_s > max(STALL_PERIODS * self.period_s, STALL_MIN_S)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent picture of the node.

    Attributes:
        wall_s: Unix time at `now_s`; a time `t_s` is shown as `wall_s - (now_s - t_s)`.
        started_s: when this agent started; armed_since_s: when it was armed, None while disarmed.
        health: the worst of `problems`.
        ledger: the caps that the helper holds open, with their prior limits.
        caps_since: when the cap of a GPU was last imposed, by uuid; only GPUs that have one.
        refusals: why the last cap we asked for is not in force, by uuid; only GPUs where that is so.
        expected_gpus: from the configuration, None = not stated.
        config_error: why the last reload was not taken over; None = the file is in force.
    """

    node_name: str
    now_s: float
    wall_s: float
    started_s: float
    version: str
    snapshot: NodeSnapshot = NodeSnapshot()
    limits: Limits = Limits()
    setpoints: Setpoints = Setpoints()
    armed: bool = False
    armed_since_s: float | None = None
    health: Health = "ok"
    problems: tuple[Problem, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    caps_since: dict[str, float] = {}
    refusals: dict[str, str] = {}
    loops: dict[str, LoopHealth] = {}
    expected_gpus: int | None = None
    config_path: str | None = None
    config_error: str | None = None
    http_listen: str | None = None

    def unix_s(self, at_s: float) -> float:
        """The wall-clock time of a CLOCK_BOOTTIME time, Unix seconds."""
        return self.wall_s - (self.now_s - at_s)
