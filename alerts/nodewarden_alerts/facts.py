"""What conditions look at (`Facts`), what they find (`Finding`) and what people are told (`Problem`). Data only."""

from datetime import datetime
from typing import Literal

import msgspec

from nodewarden.gpuhelper.wire import HelperEvent, LedgerEntry
from nodewarden.model.limits import Limits
from nodewarden.model.setpoints import Setpoints
from nodewarden.model.snapshot import NodeSnapshot

Severity = Literal["critical", "warning", "info"]

# How long something that is over at once (a clock step, a cap that the driver forgot) is still told.
RECENT_S = 600.0
_DAY_S = 86400.0


def clock_time(since_s: float, now_s: float, wall_offset_s: float) -> str:
    """A time of day as the node shows it, such as "11:58:20"; with the date when it is more than a day ago."""
    at = datetime.fromtimestamp(since_s + wall_offset_s).astimezone()
    return at.strftime("%H:%M:%S") if now_s - since_s < _DAY_S else at.strftime("%Y-%m-%d %H:%M")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that holds now.

    Attributes:
        code: stable name, from `conditions.CONDITIONS`.
        text: for a person at 3 a.m.: what is wrong, since when, what was done.
        since_s: CLOCK_BOOTTIME seconds at which it began.
        uuid: the GPU it concerns, where it concerns one; pdu likewise.
    """

    code: str
    severity: Severity
    text: str
    since_s: float
    uuid: str | None = None
    pdu: str | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that conditions look at. Times are CLOCK_BOOTTIME seconds.

    Attributes:
        armed_since_s: since when it is armed, or disarmed.
        expected_gpus: from the configuration, 0 = none expected.
        ledger: the caps in force, from the helper or its file.
        events: what the helper told lately; those older than `RECENT_S` are not looked at.
        journal_problem, http_problem, mqtt_problem, config_problem: in words, None = fine.
        refusals: why a cap that is wanted is not in force, and since when, by uuid.
        growth: how much error counters grew in the last hour, by uuid, quantity, label (`growth.Growth`).
        stalled: loops that should have made progress and did not, with the time of their last progress.
        clock_stepped_at_s, clock_step_s: the last jump of the wall clock, positive = forward.
        wall_offset_s: Unix time minus CLOCK_BOOTTIME, for the times of day in texts.
    """

    snapshot: NodeSnapshot
    limits: Limits = Limits()
    setpoints: Setpoints = Setpoints()
    armed: bool = False
    armed_since_s: float | None = None
    expected_gpus: int = 0
    ledger: tuple[LedgerEntry, ...] = ()
    events: tuple[HelperEvent, ...] = ()
    journal_problem: str | None = None
    http_problem: str | None = None
    mqtt_problem: str | None = None
    config_problem: str | None = None
    refusals: dict[str, tuple[str, float]] = {}
    growth: dict[tuple[str, str, str], float] = {}
    stalled: dict[str, float] = {}
    clock_stepped_at_s: float | None = None
    clock_step_s: float = 0.0
    wall_offset_s: float = 0.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a condition holds; read as "`what` since 11:58:20; `done`".

    Attributes:
        since_s: when it began, where the facts say so; None = when it was first seen.
        key: tells findings of one condition apart where neither `uuid` nor `pdu` does.
    """

    what: str
    done: str = ""
    since_s: float | None = None
    uuid: str | None = None
    pdu: str | None = None
    key: str = ""

    @property
    def identity(self) -> tuple[str | None, str | None, str]:
        """What it is about; findings of one condition with the same identity are the same problem."""
        return (self.uuid, self.pdu, self.key)
