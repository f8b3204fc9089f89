"""The one way tests wait: look at something observable every 20 ms until it is so, or say what never came."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY_S = 0.02


def wait_for(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """The first true answer of `condition`; AssertionError naming `what` when there is none in `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last answer: {answer!r}")
        time.sleep(_LOOK_EVERY_S)


async def ask_until(question: Callable[[], Awaitable[T]], timeout_s: float, what: str) -> T:
    """`wait_for` where looking itself has to be awaited."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = await question()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last answer: {answer!r}")
        await asyncio.sleep(_LOOK_EVERY_S)


async def wait_for_async(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """`wait_for` for a test that runs on the event loop."""

    async def look() -> T:
        return condition()

    return await ask_until(look, timeout_s, what)
