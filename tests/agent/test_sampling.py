"""Loops keep absolute deadlines, skip what they missed, and survive a tick that raises."""

import asyncio

import pytest

from nodewarden.sampling import Progress, every, spread_offset_s


class StepClock:
    """A clock that moves only when something sleeps or a test says so."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.slept_until: list[float] = []

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return self.time_s

    async def sleep_until(self, deadline_s: float) -> None:
        self.slept_until.append(deadline_s)
        self.time_s = max(self.time_s, deadline_s)
        await asyncio.sleep(0)

    def real_s(self, seconds: float) -> float:
        return seconds


class Enough(BaseException):
    """Ends a loop that runs for ever; not an Exception, so that the loop does not swallow it."""


async def run(clock: StepClock, progress: Progress, costs_s: list[float], *, fail_at: int | None = None) -> list[float]:
    began: list[float] = []

    async def tick() -> None:
        if len(began) == len(costs_s):
            raise Enough
        cost_s = costs_s[len(began)]
        began.append(clock.time_s)
        clock.time_s += cost_s
        if fail_at == len(began):
            raise ValueError("a source must never do this")

    with pytest.raises(Enough):
        await every(clock, progress, tick)
    return began


async def test_deadlines_do_not_drift_when_ticks_take_time() -> None:
    clock = StepClock()
    began = await run(clock, Progress(1.0, 100.0), [0.3, 0.7, 0.1, 0.9, 0.2])
    assert began == [100.0, 101.0, 102.0, 103.0, 104.0]


async def test_an_overrun_skips_ticks_and_counts_them() -> None:
    clock = StepClock()
    progress = Progress(1.0, 100.0)
    began = await run(clock, progress, [0.1, 3.5, 0.1, 0.1])
    assert began == [100.0, 101.0, 105.0, 106.0]
    assert progress.skipped == 3


async def test_a_pause_of_ninety_seconds_is_followed_by_no_burst() -> None:
    """F56: SIGSTOP for 90 s."""
    clock = StepClock()
    progress = Progress(1.0, 100.0)
    began = await run(clock, progress, [0.1, 90.0, 0.1, 0.1, 0.1])
    assert began == [100.0, 101.0, 192.0, 193.0, 194.0]
    assert progress.skipped == 90


async def test_a_tick_that_raises_does_not_end_the_loop_and_makes_no_progress() -> None:
    clock = StepClock()
    progress = Progress(1.0, 0.0)
    began = await run(clock, progress, [0.1, 0.1, 0.1], fail_at=3)
    assert len(began) == 3
    assert progress.turned_s == pytest.approx(101.1)


def test_nodes_of_one_rack_start_at_different_moments() -> None:
    offsets = {spread_offset_s(f"gpu-node-{number:02}", "pdu/rack12-a", 5.0) for number in range(20)}
    assert len(offsets) == 20
    assert all(0 <= offset < 5.0 for offset in offsets)
