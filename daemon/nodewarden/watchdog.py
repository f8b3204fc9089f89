"""Feeds the service manager's watchdog, from the progress of the loops and never from a mere timer (F51)."""

import os
from collections.abc import Callable

import structlog

from nodewarden import sdnotify
from nodewarden.clock import Clock

log = structlog.get_logger("nodewarden.agent")

LONGEST_PERIOD_S = 5.0
"""Also where no watchdog is set: the status line is told at least so often."""


async def feed(clock: Clock, stalled: Callable[[], list[str]], status: Callable[[], str]) -> None:
    """Feed it while nothing is stalled, for ever; the status line is told when it changes.

    Args:
        clock: of the loops.
        stalled: names of the loops without which the agent is as good as dead, and that do not turn.
        status: one line for people.
    """
    watchdog_us = int(os.environ.get("WATCHDOG_USEC", "0") or 0)
    period_s = min(watchdog_us / 2e6, LONGEST_PERIOD_S) if watchdog_us else LONGEST_PERIOD_S  # twice per time-out
    told = ""
    deadline_s = clock.now_s()
    while True:
        deadline_s = max(deadline_s + period_s, clock.now_s())
        await clock.sleep_until(deadline_s)
        names = stalled()
        line = f"stalled: {', '.join(names)}" if names else status()
        food = {} if names else {"WATCHDOG": "1"}
        if names:
            log.error("loop_stalled", loops=",".join(names))
        if names or line != told:
            food["STATUS"] = line
        sdnotify.notify(**food)
        told = line
