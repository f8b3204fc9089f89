"""The sampling loop: absolute deadlines, so that nothing drifts and nothing bursts after a pause.

An overrun skips ticks and counts them. What is read, and where it goes, is the sources' business.
"""

import zlib
from collections.abc import Awaitable, Callable

import structlog

from nodewarden.clock import Clock

log = structlog.get_logger("nodewarden.sampling")


class Progress:
    """When a loop last turned; health and the watchdog are computed from it (F51).

    Attributes:
        period_s: how often it should turn.
        critical: a stall of this loop stops the watchdog's food; others only degrade.
        turned_s: clock time of the last finished turn.
        skipped: ticks that an overrun has cost.
        on_turn: told the seconds that a turn took and the ticks that its overrun cost.
    """

    def __init__(
        self,
        period_s: float,
        now_s: float,
        *,
        critical: bool = False,
        on_turn: Callable[[float, int], None] | None = None,
    ) -> None:
        self.period_s = period_s
        self.critical = critical
        self.turned_s = now_s
        self.skipped = 0
        self._on_turn = on_turn

    def turned(self, took_s: float, missed: int = 0) -> None:
        """Account for one turn."""
        self.skipped += missed
        if self._on_turn is not None:
            self._on_turn(took_s, missed)


def spread_offset_s(node_name: str, source: str, period_s: float) -> float:
    """A start offset within the period, from the names: nodes of one rack do not poll one PDU at the same moment."""
    return zlib.crc32(f"{node_name}/{source}".encode()) / 2**32 * period_s


async def every(
    clock: Clock,
    progress: Progress,
    tick: Callable[[], Awaitable[None]],
    *,
    offset_s: float = 0.0,
) -> None:
    """Run `tick` at absolute deadlines for ever; the next deadline is the previous one plus the period.

    An overrun or a pause of the process skips the missed ticks and counts them. `tick` must keep its own deadlines; an
    exception in it is logged and counted, the loop goes on.
    """
    deadline_s = clock.now_s() + offset_s
    while True:
        await clock.sleep_until(deadline_s)
        began_s = clock.now_s()
        try:
            await tick()
        except Exception:
            log.exception("tick_failed", loop=getattr(tick, "__qualname__", repr(tick)))
        else:
            progress.turned_s = clock.now_s()
        took_s = clock.now_s() - began_s
        deadline_s += progress.period_s
        late_s = clock.now_s() - deadline_s
        missed = int(late_s // progress.period_s) + 1 if late_s > 0 else 0
        deadline_s += missed * progress.period_s
        progress.turned(took_s, missed)
