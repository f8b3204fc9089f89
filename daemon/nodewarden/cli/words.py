"""How numbers, ages and times of day are written for people; a missing one is a dash."""

from datetime import datetime
from typing import Any

DASH = "\u2013"
CAUSES = {
    "thermal": "heat",
    "node_power": "node power",
    "outlets": "outlet limit",
    "manual": "by hand",
    "lease": "lease",
    "failsafe": "fail-safe",
    "stale": "old readings",
    "none": "rising back",
}


def number(value: float | None, unit: str, digits: int = 0) -> str:
    """`540 W`, or a dash."""
    return DASH if value is None else f"{value:.{digits}f}{unit}"


def age(seconds: float | None) -> str:
    """`3 s`, `14 min`, `2 h`, or a dash."""
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def gpu_name(thing: dict[str, Any]) -> str:
    """How people call the GPU of a document with `index` and `uuid`: "GPU 5" where the index is known."""
    index = thing.get("index")
    return thing["uuid"] if index is None else f"GPU {index}"


def cause(cap: dict[str, Any]) -> str:
    """Why a cap of the status document is what it is, in a word or two."""
    if cap.get("paced_by"):
        return f"pace of {cap['paced_by']}"
    return CAUSES.get(cap["cause"], str(cap["cause"] or DASH).replace("_", " "))


def clock(time: object) -> str:
    """RFC 3339 as this machine's wall clock shows it; with the date when it is not today's."""
    try:
        at = datetime.fromisoformat(str(time)).astimezone()
    except (ValueError, OverflowError):
        return str(time)
    is_today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
