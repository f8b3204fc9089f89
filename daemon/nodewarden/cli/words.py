"""How numbers, ages and times of day are written for people; a missing one is a dash."""

from datetime import datetime

DASH = "\u2013"


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


def clock(time: object) -> str:
    """RFC 3339 as this machine's wall clock shows it; with the date when it is not today's."""
    try:
        at = datetime.fromisoformat(str(time)).astimezone()
    except (ValueError, OverflowError):
        return str(time)
    is_today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
