"""Draws a run as one SVG of four panels over the same seconds: margin, caps, speed, ladder. No library, no font."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from nodewarden.sim.boards import BOARDS
from nodewarden.sim.scenario import Scenario
from nodewarden.sim.simulate import LADDER, Run

WIDTH: Final = 960
LEFT: Final = 88
RIGHT: Final = 104
TOP: Final = 114
GAP: Final = 34
BOTTOM: Final = 44
# Eight hues that people with any colour vision tell apart (Okabe and Ito), dark enough on white.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a17a00", "#56b4e9", "#5b4fa2", "#444444")
INK: Final = "#1f2933"
SOFT: Final = "#6b7785"
GRID: Final = "#e6eaee"
FAULT: Final = "#fdf1dc"
DANGER: Final = "#c0392b"
STYLE: Final = (
    "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px;fill:#1f2933}"
    ".h{font-size:18px;font-weight:600}.s{fill:#6b7785}.p{font-size:13px;font-weight:600}"
    ".l{fill:none;stroke-width:1.6;stroke-linejoin:round}"
)


class Panel(NamedTuple):
    """One panel: its place, and the values at its lower and upper edge."""

    top: float
    height: float
    low: float
    high: float

    def y(self, value: float) -> float:
        """Where a value is drawn; clipped to the panel."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.top + self.height * (1.0 - share)


class _Drawing:
    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self.parts: list[str] = []

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / self.duration_s

    def text(self, x: float, y: float, words: str, *, kind: str = "", anchor: str = "start", fill: str = "") -> None:
        colour = f' style="fill:{fill}"' if fill else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{colour}>{escape(words)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashes}/>')

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>')

    def curve(
        self,
        panel: Panel,
        points: Sequence[tuple[float, float]],
        colour: str,
        *,
        steps: bool = False,
        dash: str = "",
        name: str = "",
    ) -> None:
        path, last = [], None
        for at_s, value in points:
            x, y = self.x(at_s), panel.y(value)
            if steps and last is not None:
                path.append(f"H{x:.1f}")
            if not steps or y != last:
                path.append(f"{'M' if last is None else 'L'}{x:.1f} {y:.1f}")
            last = y
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        title = f"<title>{escape(name)}</title>" if name else ""
        self.parts.append(f'<path class="l" d="{"".join(path)}" stroke="{colour}"{dashes}>{title}</path>')

    def frame(self, panel: Panel, title: str, ticks: Sequence[tuple[float, str]]) -> None:
        right = WIDTH - RIGHT
        for value, words in ticks:
            y = panel.y(value)
            self.line(LEFT, y, right, y, GRID)
            self.text(LEFT - 8, y + 4, words, kind="s", anchor="end")
        self.text(LEFT, panel.top - (26 if panel.top == TOP else 8), title, kind="p")


def draw(scenario: Scenario, run: Run, alone: Run | None = None) -> str:
    """The SVG document; `alone` is the same scenario without control, drawn dashed where it tells something."""
    board = BOARDS[scenario.board]
    slowdown_c = board.max_op_c - board.slowdown_c
    margin = Panel(TOP, 170, slowdown_c - 2.0, 30.0)
    caps = Panel(margin.top + margin.height + GAP, 130, board.min_w - 20, board.max_w + 20)
    speed = Panel(caps.top + caps.height + GAP, 100, 0.0, 1.05)
    ladder = Panel(speed.top + speed.height + GAP, 110, 0.0, 6.3)
    bottom = ladder.top + ladder.height
    d = _Drawing(scenario.duration_s)
    height = bottom + BOTTOM
    d.box(0, 0, WIDTH, height, "#ffffff")
    d.text(LEFT, 32, scenario.title, kind="h")
    cooling = {"air": "air", "liquid": "liquid"}[scenario.plant]
    d.text(LEFT, 52, f"8 x {board.name}, {cooling}, {'armed' if run.armed else 'no control'}: simulated", kind="s")
    _faults(d, scenario, margin.top, bottom)

    d.frame(margin, "Margin to max-operating, °C", [(c, f"{c}") for c in (0, 10, 20, 30)])
    d.box(
        LEFT, margin.y(slowdown_c), WIDTH - LEFT - RIGHT, margin.top + margin.height - margin.y(slowdown_c), "#f9dedb"
    )
    d.line(LEFT, margin.y(0), WIDTH - RIGHT, margin.y(0), "#e0a030", dash="5 3")
    d.line(LEFT, margin.y(slowdown_c), WIDTH - RIGHT, margin.y(slowdown_c), DANGER)
    d.text(WIDTH - RIGHT + 8, margin.y(0) + 1, "max-operating", kind="s")
    d.text(WIDTH - RIGHT + 8, margin.y(slowdown_c) + 10, "slowdown", fill=DANGER)
    if alone is not None:
        worst = [(tick.at_s, min(tick.margins_c)) for tick in alone.ticks]
        d.curve(margin, worst, "#9aa5b1", dash="4 3", name="hottest GPU without control")
    for gpu in range(len(COLOURS)):
        d.curve(margin, [(tick.at_s, tick.margins_c[gpu]) for tick in run.ticks], COLOURS[gpu], name=f"GPU {gpu}")

    step_w = 100 if board.max_w <= 500 else 200
    watts = range(int(board.min_w // step_w * step_w), int(board.max_w) + 1, step_w)
    d.frame(caps, "Power cap, W", [(w, f"{w}") for w in (*watts, int(board.max_w)) if w >= board.min_w])
    for gpu in range(len(COLOURS)):
        points = [(tick.at_s, tick.caps_w[gpu]) for tick in run.ticks]
        d.curve(caps, points, COLOURS[gpu], steps=True, name=f"GPU {gpu}")

    d.frame(speed, "Speed of the job, share of full clock x duty", [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")])
    if alone is not None:
        d.curve(speed, [(tick.at_s, tick.speed) for tick in alone.ticks], "#9aa5b1", dash="4 3", name="without control")
    d.curve(speed, [(tick.at_s, tick.speed * tick.duty) for tick in run.ticks], COLOURS[0], name="speed")

    d.frame(ladder, "Ladder", [(level, name) for level, name in enumerate(LADDER)])
    d.curve(ladder, [(tick.at_s, tick.level) for tick in run.ticks], "#b03a7a", steps=True, name="ladder")

    _seconds(d, bottom)
    _legend(d, margin.top, with_alone=alone is not None)
    body = "\n".join(d.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img"><title>{escape(scenario.title)}</title>\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _faults(d: _Drawing, scenario: Scenario, top: float, bottom: float) -> None:
    """Shade what is wrong while it is, and name it above the panels."""
    marks: list[tuple[str, float, float | None]] = [(f.kind, f.at_s, f.until_s) for f in scenario.fault]
    marks += [(f"GPU {lie.gpu}'s sensor {lie.kind}", lie.at_s, lie.until_s) for lie in scenario.lie]
    for row, (name, from_s, until_s) in enumerate(marks):
        end_s = min(until_s if until_s is not None else scenario.duration_s, scenario.duration_s)
        at_s = max(0.0, from_s)
        d.box(d.x(at_s), top, d.x(end_s) - d.x(at_s), bottom - top, FAULT)
        d.text(d.x(at_s), top - 6 - 13 * row, name.replace("_", " "), fill="#9a6a00")


def _seconds(d: _Drawing, bottom: float) -> None:
    every_s = next(s for s in (10, 30, 60, 120, 300, 600, 1800, 3600, 1e9) if d.duration_s / s <= 12)
    at_s = 0.0
    while at_s <= d.duration_s:
        d.line(d.x(at_s), bottom, d.x(at_s), bottom + 4, SOFT)
        d.text(d.x(at_s), bottom + 18, f"{at_s:.0f}{' s' if at_s == 0 else ''}", kind="s", anchor="middle")
        at_s += every_s
    d.line(LEFT, bottom, WIDTH - RIGHT, bottom, SOFT)


def _legend(d: _Drawing, top: float, *, with_alone: bool) -> None:
    x = WIDTH - RIGHT + 8
    for gpu, colour in enumerate(COLOURS):
        y = top + 6 + 14 * gpu
        d.box(x, y - 1.5, 16, 3, colour)
        d.text(x + 22, y + 4, f"GPU {gpu}")
    if with_alone:
        d.line(WIDTH - RIGHT - 130, 50, WIDTH - RIGHT - 106, 50, "#9aa5b1", dash="4 3")
        d.text(WIDTH - RIGHT, 54, "without control", kind="s", anchor="end")
