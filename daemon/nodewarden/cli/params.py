"""Kinds of arguments that people type: lengths of time, watts, percent; and the options that every verb has."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from nodewarden.cli.connection import DEFAULT_TIMEOUT_S

Function = TypeVar("Function", bound=Callable[..., Any])

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """`90s`, `10m`, `1h30m` -> seconds."""

    name = "TIME"

    def __init__(self, low_s: float, high_s: float) -> None:
        self.low_s = low_s
        self.high_s = high_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; refuses a bare number: of what?"""
        if isinstance(value, float | int):
            return float(value)
        text = str(value).strip().lower()
        if not _DURATION.fullmatch(text):
            self.fail(f"{value!r} is not a length of time; allowed: 90s, 10m, 1h, 1h30m", param, ctx)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))
        if not self.low_s <= seconds <= self.high_s:
            self.fail(f"{value} is out of range; allowed: {self.low_s:g}s to {self.high_s / 3600:g}h", param, ctx)
        return seconds


class Percent(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """`85` or `85%` -> 0.85."""

    name = "PERCENT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Share of time."""
        text = str(value).strip().removesuffix("%")
        try:
            percent = float(text)
        except ValueError:
            percent = -1.0
        if not 5 <= percent <= 100:
            self.fail(f"{value!r} is not a share of time; allowed: 5 to 100 percent (100 = not throttled)", param, ctx)
        return percent / 100


class Watts(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """A number of watts."""

    name = "W"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Watts; whether the board accepts them the agent knows."""
        try:
            watts = float(value)
        except ValueError:
            watts = -1.0
        if not 0 < watts <= 10_000:
            self.fail(f"{value!r} is not a power; allowed: watts as a number, such as 540", param, ctx)
        return watts


def json_option(function: Function) -> Function:
    """`--json` after the verb."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def timeout_option(function: Function) -> Function:
    """`--timeout` in seconds."""
    return timeout_option_of(DEFAULT_TIMEOUT_S)(function)


def timeout_option_of(default_s: float) -> Callable[[Function], Function]:
    """`--timeout` for a verb that takes longer than others."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.05, 600),
        default=default_s,
        show_default=True,
        metavar="S",
        help="Give up after so many seconds.",
    )


def reason_option(function: Function) -> Function:
    """`--reason`, kept in the journal."""
    return click.option("--reason", default="", metavar="TEXT", help="Why; kept in the journal.")(function)


def yes_option(function: Function) -> Function:
    """`--yes`: scripts give it to every verb that changes something; only `restore` has a question to skip."""
    return click.option("--yes", is_flag=True, expose_value=False, help="Never ask (only restore ever does).")(function)


def change_options(function: Function) -> Function:
    """What every verb takes that changes something: `--json`, `--timeout`, `--reason`, `--yes`."""
    return json_option(timeout_option(reason_option(yes_option(function))))


def runtime_of(ctx: click.Context) -> Path:
    """The runtime directory that was asked for."""
    found: Path = ctx.find_root().obj
    return found
