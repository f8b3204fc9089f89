"""The conditions that a person may be told about: one table, evaluated on facts; no I/O, no clock."""

from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that holds now.

    Attributes:
        code: stable name, from a fixed set.
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
