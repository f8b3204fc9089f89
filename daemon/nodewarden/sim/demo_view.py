"""How the demo looks: one table that a tired person understands at 80 columns, and likes at 140."""

from collections.abc import Sequence

from rich.box import HORIZONTALS
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nodewarden.sim.scenario import Scenario
from nodewarden.sim.told import plainly
from nodewarden.sim.watch import GpuSample, Sample, Told

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"
LADDER = ("normal", "notify", "cap", "throttle", "checkpoint", "pause", "drain")
LADDER_STYLE = ("green", "cyan", "yellow", "yellow", "magenta", "red", "red")
CAUSES = {
    "thermal": "too little cooling",
    "stale": "no fresh reading",
    "node_power": "node's budget",
    "outlets": "PDU limit",
    "manual": "asked by a person",
    "lease": "lease",
    "failsafe": "fail-safe",
}
SLOWDOWNS = {"hw_slowdown": "HARDWARE SLOWDOWN", "hw_thermal": "HARDWARE SLOWDOWN", "sw_thermal": "the driver slows it"}
NEWEST = 3
COOL_MARGIN_C = 10.0

# Scales of the sparklines: what is drawn lowest and highest.
MARGIN_SCALE = (-2.0, 24.0)
POWER_SCALE = (100.0, 720.0)
CAP_SCALE = (200.0, 700.0)


def spark(values: Sequence[float | None], width: int, scale: tuple[float, float], *, ascii_only: bool = False) -> str:
    """The last stretch of `values` as `width` bars; a gap is a space. All of them are squeezed into the width."""
    if width <= 0 or not values:
        return " " * max(0, width)
    bars = ASCII_BARS if ascii_only else BARS
    low, high = scale
    out = []
    cells = min(width, len(values))
    for cell in range(cells):
        part = [v for v in values[cell * len(values) // cells : (cell + 1) * len(values) // cells] if v is not None]
        if not part:
            out.append(" ")
            continue
        share = (min(part) - low) / (high - low)
        out.append(bars[min(len(bars) - 1, max(0, int(share * len(bars))))])
    return "".join(out).rjust(width)


def margin_style(margin_c: float | None) -> str:
    """Green far from the limit, yellow near it, red at it."""
    if margin_c is None:
        return "dim"
    if margin_c < 1.0:
        return "bold red"
    return "yellow" if margin_c < 6.0 else "green"


def clock_text(at_s: float) -> str:
    """Scenario time as m:ss."""
    whole = max(0, int(at_s))
    return f"{whole // 60}:{whole % 60:02}"


def what_of(gpu: GpuSample) -> Text:
    """One GPU's last column: why it is capped or slow, in words."""
    if gpu.state != "ok":
        return Text(gpu.state.upper(), "bold red")
    for name, words in SLOWDOWNS.items():
        if name in gpu.slow:
            return Text(words, "bold red" if words.isupper() else "red")
    if gpu.paced_by is not None:
        return Text(f"pace of {gpu.paced_by}", "cyan")
    if gpu.cause == "thermal" and gpu.margin_c is not None and gpu.margin_c >= COOL_MARGIN_C:
        return Text("power comes back", "cyan")
    if gpu.cause is not None:
        return Text(CAUSES.get(gpu.cause, gpu.cause), "yellow")
    return Text("full power", "dim")


class DemoView:
    """Renders the newest of `samples` with the history before it.

    Args:
        scenario: for its title and the words of its story.
        armed: False = the same scenario, and nobody does anything.
        speed: scenario seconds per real second, shown to people.
        ascii_only: for terminals that cannot show block characters.
    """

    def __init__(self, scenario: Scenario, *, armed: bool = True, speed: float = 1.0, ascii_only: bool = False) -> None:
        self._speed = speed
        self._scenario = scenario
        self._armed = armed
        self._ascii = ascii_only

    def told(self, at_s: float) -> str:
        """The story's line for this moment."""
        lines = [line.text for line in self._scenario.told if line.at_s <= at_s]
        return lines[-1] if lines else "getting ready"

    def render(self, samples: Sequence[Sample], events: Sequence[Told], width: int) -> Group:
        """The whole picture at `width` columns."""
        now = samples[-1]
        return Group(self._head(now, width), self._gpus(samples, width), self._foot(samples, events, width))

    def _head(self, now: Sample, width: int) -> Panel:
        line = Text(no_wrap=True, overflow="ellipsis")
        if self._armed:
            line.append("armed", "green")
            line.append(": Nodewarden protects this node")
        else:
            line.append("NOT ARMED", "bold yellow")
            line.append(": Nodewarden only watches, nobody protects this node")
        happening = Text(self.told(now.at_s), "bold", no_wrap=True, overflow="ellipsis")
        return Panel(
            Group(happening, line),
            title="Nodewarden demo",
            title_align="left",
            subtitle=self._progress(now),
            subtitle_align="right",
            width=width,
            border_style="cyan",
        )

    def _progress(self, now: Sample) -> str:
        speed = f", time runs {self._speed:g} times as fast" if self._speed != 1.0 else ""
        return (
            f"simulated heat, real software; {clock_text(now.at_s)} of {clock_text(self._scenario.duration_s)}{speed}"
        )

    def _gpus(self, samples: Sequence[Sample], width: int) -> Table:
        now = samples[-1]
        bars = max(6, min(30, (width - 50) // 3))
        table = Table(box=HORIZONTALS, width=width, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("GPU", justify="right", width=3)
        table.add_column("margin", width=bars + 5, no_wrap=True)
        table.add_column("power", width=bars + 6, no_wrap=True)
        table.add_column("cap", width=bars + 6, no_wrap=True)
        table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
        for gpu in now.gpus:
            history = [s.gpus[gpu.index] for s in samples if gpu.index < len(s.gpus)]
            cap_style = "yellow" if gpu.cause is not None else "dim"
            table.add_row(
                str(gpu.index),
                self._cell(gpu.margin_c, "°", 3, [g.margin_c for g in history], bars, MARGIN_SCALE).stylize_all(
                    margin_style(gpu.margin_c)
                ),
                self._cell(gpu.power_w, " W", 3, [g.power_w for g in history], bars, POWER_SCALE).stylize_all("cyan"),
                self._cell(gpu.cap_w, " W", 3, [g.cap_w for g in history], bars, CAP_SCALE).stylize_all(cap_style),
                what_of(gpu),
            )
        return table

    def _cell(
        self,
        value: float | None,
        unit: str,
        digits: int,
        history: Sequence[float | None],
        bars: int,
        scale: tuple[float, float],
    ) -> "_Cell":
        number = "-".rjust(digits) if value is None else f"{value:{digits}.0f}"
        if self._ascii:
            unit = unit.replace("°", "C")
        return _Cell(f"{number}{unit} {spark(history, bars, scale, ascii_only=self._ascii)}")

    def _foot(self, samples: Sequence[Sample], events: Sequence[Told], width: int) -> Table:
        now = samples[-1]
        bars = max(8, min(20, width - 70))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column("", style="bold", no_wrap=True, width=7)
        table.add_column("", no_wrap=True, overflow="ellipsis", width=width - 10)
        table.add_row("ladder", self._ladder(now))
        table.add_row("job", self._job(samples, bars))
        table.add_row("PDU", self._pdu(now))
        shown = plainly(events)[-NEWEST:]
        for i in range(NEWEST):
            text = Text(no_wrap=True, overflow="ellipsis")
            if i < len(shown):
                text.append(f"{clock_text(shown[i].at_s)}  ", "dim")
                text.append(shown[i].text)
            table.add_row("newest" if i == 0 else "", text)
        return table

    def _ladder(self, now: Sample) -> Text:
        text = Text()
        for level, name in enumerate(LADDER):
            if level:
                text.append(" > ", "dim")
            here = level == now.ladder
            text.append(f"{level} {name}" if here else name, f"bold {LADDER_STYLE[level]}" if here else "dim")
        return text

    def _job(self, samples: Sequence[Sample], bars: int) -> Text:
        now = samples[-1]
        if now.job_state is None:
            return Text("no job is connected", "dim")
        rate = "-" if now.steps_per_s is None else f"{now.steps_per_s:.2f}"
        history = [sample.steps_per_s for sample in samples]
        text = Text(f"step {now.step if now.step is not None else '-'}  {rate} steps/s ")
        text.append(spark(history, bars, (0.0, 0.5), ascii_only=self._ascii), "cyan")
        text.append(" ")
        if now.duty < 0.995:
            text.append(f"throttled to {now.duty:.0%}", "yellow")
        else:
            text.append(now.job_state, "green" if now.job_state == "running" else "yellow")
        if now.checkpoint_age_s is not None:
            text.append(f"  saved {now.checkpoint_age_s:.0f} s ago", "magenta")
        return text

    def _pdu(self, now: Sample) -> Text:
        if now.pdu_w is None:
            return Text("no reading yet", "dim")
        if now.pdu_limit_w is None:
            return Text(f"{now.pdu_w:.0f} W")
        share = now.pdu_w / now.pdu_limit_w
        cells = 20
        full = min(cells, round(share * cells))
        text = Text(f"{now.pdu_w:.0f} W of {now.pdu_limit_w:.0f} W ")
        on, off = ("#", ".") if self._ascii else ("█", "░")
        text.append(on * full, "red" if share > 1 else "cyan")
        text.append(off * (cells - full), "dim")
        return text


class _Cell(Text):
    """A text whose style is set in passing."""

    def stylize_all(self, style: str) -> "_Cell":
        """Give all of it one style; itself."""
        self.stylize(style)
        return self


def plain_line(sample: Sample) -> str:
    """One line of progress for a pipe or a log."""
    margins = [gpu.margin_c for gpu in sample.gpus if gpu.margin_c is not None]
    caps = [gpu.cap_w for gpu in sample.gpus if gpu.cap_w is not None]
    parts = [
        f"{clock_text(sample.at_s)}",
        f"{LADDER[sample.ladder]:<10}",
        f"lowest margin {min(margins):.0f} C" if margins else "no margins",
        f"caps {min(caps):.0f}-{max(caps):.0f} W" if caps else "no caps",
    ]
    if sample.pdu_w is not None:
        parts.append(f"PDU {sample.pdu_w:.0f} W")
    if sample.step is not None:
        rate = f", {sample.steps_per_s:.2f}/s" if sample.steps_per_s is not None else ""
        parts.append(f"step {sample.step}{rate}")
    return "  ".join(parts)
