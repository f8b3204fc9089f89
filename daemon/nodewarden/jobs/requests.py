"""One checkpoint that was asked of one job, from the request to its one terminal state.

    requested ── vote ok ──> voted ── started ──> started ── staged ──> staged ── persisted ──> persisted
        │ vote no               │ aborted             │                     │
        └──> refused            └──> cancelled        └──── failed ─────────┴──> failed
    any open state ── deadline ──> expired

A terminal state never changes: late answers are ignored, and nothing follows from a request that was cancelled or has
expired. Two completions matter: staged (power may change) and persisted (the process may end).
"""

from typing import Literal

import msgspec

RequestState = Literal[
    "requested", "voted", "started", "staged", "persisted", "failed", "refused", "expired", "cancelled"
]
TERMINAL: frozenset[RequestState] = frozenset({"persisted", "failed", "refused", "expired", "cancelled"})
_ORDER: dict[RequestState, int] = {"requested": 0, "voted": 1, "started": 2, "staged": 3, "persisted": 4}


class CheckpointRequest(msgspec.Struct, kw_only=True):
    """What was asked, by whom, until when, and how far it is. Times are CLOCK_BOOTTIME seconds.

    Attributes:
        cause: what led to it ("thermal", "manual", ...).
        then: "stop": the job ends after the save.
        text: for people: why it was refused or failed.
        verified: the acknowledgements came from a process that is at work on the job's GPUs.
        dur_s: how long the save took until it was persisted.
    """

    id: str
    job: str
    cause: str
    then: Literal["continue", "stop"]
    asked_at_s: float
    deadline_at_s: float
    state: RequestState = "requested"
    round: int = 0
    step: int | None = None
    path: str | None = None
    text: str = ""
    verified: bool = False
    cancelling: bool = False
    dur_s: float | None = None
    ended_at_s: float | None = None

    @property
    def is_open(self) -> bool:
        """True until a terminal state is reached."""
        return self.state not in TERMINAL

    @property
    def has_started(self) -> bool:
        """True while the save runs: too late to cancel."""
        return self.state in {"started", "staged"}

    def advance(self, state: RequestState, now_s: float, text: str = "") -> bool:
        """Move on to `state`; False (and nothing changes) when that would go back or leave a terminal state."""
        if not self.is_open:
            return False
        if state in _ORDER and _ORDER[state] <= _ORDER[self.state]:
            return False
        self.state = state
        self.text = text or self.text
        if not self.is_open:
            self.ended_at_s = now_s
        return True
