"""Errors that the driver and the kernel told of GPUs (Xid) and NVSwitches (SXid), as everybody else sees them.

All times are CLOCK_BOOTTIME seconds.
"""

import msgspec

from nodewarden.xid_table import XidRow


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One error number of one GPU, from its first event until it is over.

    Attributes:
        count: events since `first_s`.
        over_s: when it is over if no other comes; None = after a reset.
        text, pid, process: of the newest event that had them.
    """

    code: int
    row: XidRow
    count: int
    first_s: float
    last_s: float
    over_s: float | None
    text: str = ""
    pid: int | None = None
    process: str = ""


class GpuXids(msgspec.Struct, frozen=True, kw_only=True):
    """All errors of one GPU.

    Attributes:
        total: events ever counted here, also over restarts and reboots.
        by_code: the same by number; the rarest share "other" when there are too many.
        by_source: events that each source told ("nvml", "kernel"); one event told by both is in both.
        last_s: of the newest event; before this boot it is negative.
        incidents: what is not over, the worst first.
    """

    total: int = 0
    by_code: dict[str, int] = {}
    by_source: dict[str, int] = {}
    last_s: float | None = None
    incidents: tuple[Incident, ...] = ()


class SwitchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one NVSwitch, by its PCI address; `fatal` says so of the newest."""

    by_code: dict[str, int] = {}
    last_code: int = 0
    last_s: float = 0.0
    last_text: str = ""
    fatal: bool = False
