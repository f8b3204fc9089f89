"""Keeps when each condition began and whether it is told yet: pending -> firing -> resolved. No I/O, no clock.

(nothing) ──holds──> pending ──hold_s over──> firing ──holds no more──> resolved, forgotten
                        └──holds no more──> (nothing)
"""

from typing import Literal

import msgspec

from nodewarden_alerts.conditions import BY_CODE, CONDITIONS, Condition, Facts, Finding, Problem
from nodewarden_alerts.facts import clock_time

Health = Literal["ok", "degraded", "critical"]
Identity = tuple[str, str | None, str | None, str]

EXIT_CODES: dict[Health, int] = {"ok": 0, "degraded": 1, "critical": 2}


class Change(msgspec.Struct, frozen=True):
    """A problem that began or ended at the last evaluation: one log line, one journal row.

    lasted_s is how long it was there, for a resolved one.
    """

    what: Literal["firing", "resolved"]
    problem: Problem
    lasted_s: float = 0.0


def health_of(problems: list[Problem]) -> Health:
    """The worst of them: a critical one makes it critical, a warning degraded; info changes nothing."""
    severities = {problem.severity for problem in problems}
    if "critical" in severities:
        return "critical"
    return "degraded" if "warning" in severities else "ok"


def exit_code_of(health: Health) -> int:
    """What `nodectl status` exits with when the agent answered."""
    return EXIT_CODES[health]


def advice_of(code: str) -> str:
    """What a person can do about a problem, empty for a code that is not in the table."""
    condition = BY_CODE.get(code)
    return condition.advice if condition is not None else ""


class ConditionEngine:
    """Evaluates the table on facts, one call per control tick, times never going back."""

    def __init__(self, conditions: tuple[Condition, ...] = CONDITIONS) -> None:
        self._conditions = conditions
        self._since_s: dict[Identity, float] = {}
        self._firing: dict[Identity, Problem] = {}
        self.changes: list[Change] = []

    def evaluate(self, facts: Facts, now_s: float) -> list[Problem]:
        """All problems that hold at `now_s`, in the table's order; `changes` then says what began and ended."""
        since: dict[Identity, float] = {}
        firing: dict[Identity, Problem] = {}
        for condition in self._conditions:
            for finding in condition.find(facts, now_s):
                identity = (condition.code, *finding.identity)
                began_s = self._began_s(identity, finding, now_s)
                since[identity] = began_s
                if now_s - began_s >= condition.hold_s:
                    firing[identity] = Problem(
                        code=condition.code,
                        severity=condition.severity,
                        text=_text(finding, began_s, now_s, facts.wall_offset_s),
                        since_s=began_s,
                        uuid=finding.uuid,
                        pdu=finding.pdu,
                    )
        self.changes = [Change("firing", problem) for key, problem in firing.items() if key not in self._firing]
        self.changes += [
            Change("resolved", problem, lasted_s=now_s - problem.since_s)
            for key, problem in self._firing.items()
            if key not in firing
        ]
        self._since_s, self._firing = since, firing
        return list(firing.values())

    def _began_s(self, identity: Identity, finding: Finding, now_s: float) -> float:
        """The first time we saw it, or earlier where the facts know better; it never moves forward while it lasts."""
        seen_s = self._since_s.get(identity, now_s)
        return seen_s if finding.since_s is None else min(seen_s, finding.since_s)


def _text(finding: Finding, since_s: float, now_s: float, wall_offset_s: float) -> str:
    text = f"{finding.what} since {clock_time(since_s, now_s, wall_offset_s)}"
    return f"{text}; {finding.done}" if finding.done else text
