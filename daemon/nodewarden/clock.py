"""Time, injected: loops wait and measure through a `Clock`, so that the twin can run two minutes in seconds.

Ages, leases, expiries and ttls use CLOCK_BOOTTIME, which counts suspend and never jumps with the wall clock and is the
same in every process of the node. The wall clock is for people only: log lines, payloads, `since`.
"""

import time
from typing import Protocol


def boot_now_s() -> float:
    """Seconds on CLOCK_BOOTTIME now."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(Protocol):
    """Where a loop gets its time from."""

    def now_s(self) -> float:
        """Seconds on CLOCK_BOOTTIME; for every interval, age, lease and deadline."""
        ...

    def wall_s(self) -> float:
        """Unix time in seconds; only shown, never subtracted."""
        ...

    async def sleep_until(self, deadline_s: float) -> None:
        """Return when `now_s()` has reached `deadline_s`; at once (after one turn of the loop) if it has passed."""
        ...

    def real_s(self, seconds: float) -> float:
        """How long `seconds` of this clock take on the event loop's own clock (for `asyncio.timeout`)."""
        ...


class BootClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        """Seconds since boot, suspend included."""
        return boot_now_s()

    def wall_s(self) -> float:
        """Unix time."""
        return time.time()

    async def sleep_until(self, deadline_s: float) -> None:
        """Wait for an absolute deadline on CLOCK_BOOTTIME."""
        import asyncio  # noqa: PLC0415 - the GPU helper shares this clock and has no event loop: 6 MB less

        # The loop sleeps on CLOCK_MONOTONIC, which stops in suspend: after a resume the rest is slept in one go less.
        await asyncio.sleep(max(0.0, deadline_s - self.now_s()))

    def real_s(self, seconds: float) -> float:
        """One second is one second."""
        return seconds


class ScaledClock:
    """A clock that runs `speed` times as fast as the machine's (demo and tests; production uses `BootClock`).

    Args:
        speed: seconds of this clock per real second.
        origin_s: CLOCK_BOOTTIME at which this clock shows the same time; processes that share it agree on the time.
    """

    def __init__(self, speed: float, origin_s: float) -> None:
        self.speed = speed
        self.origin_s = origin_s
        self._wall_origin_s = time.time() - (boot_now_s() - origin_s)

    def now_s(self) -> float:
        """Scaled seconds since boot."""
        return self.origin_s + (boot_now_s() - self.origin_s) * self.speed

    def wall_s(self) -> float:
        """Unix time that runs at the same speed."""
        return self._wall_origin_s + (self.now_s() - self.origin_s)

    async def sleep_until(self, deadline_s: float) -> None:
        """Wait for an absolute deadline of this clock."""
        import asyncio  # noqa: PLC0415 - as above

        await asyncio.sleep(max(0.0, deadline_s - self.now_s()) / self.speed)

    def real_s(self, seconds: float) -> float:
        """Scaled seconds are shorter."""
        return seconds / self.speed
