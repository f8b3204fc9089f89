"""The demo on a screen, in a pipe, as JSON, as a picture; and its exit status."""

import io
import json
import re
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.terminal_theme import MONOKAI
from rich.text import Text

from nodewarden.errors import ConfigError
from nodewarden.sim.demo import Demo, Interrupted, interruptible
from nodewarden.sim.demo_view import DemoView, clock_text, plain_line
from nodewarden.sim.scenario import load_scenario
from nodewarden.sim.stage import StageError
from nodewarden.sim.story import Story, as_json
from nodewarden.sim.told import plainly
from nodewarden.sim.watch import ControlError, Sample, Watcher

SPEED = 3.5  # seven minutes of the node's life in two
FAST_SPEED = 25.0
PLAIN_EVERY_S = 15.0
NARROWEST = 60
PICTURE_WIDTH = 100


class Screen:
    """Where progress goes: a live table on a terminal, plain lines in a pipe, nothing for a program."""

    def __init__(self, view: DemoView, *, quiet: bool) -> None:
        self._view = view
        self._quiet = quiet
        self.console = Console()
        self.is_live = self.console.is_terminal and not quiet and self.console.width >= NARROWEST
        self._live = Live(console=self.console, auto_refresh=False) if self.is_live else None
        self._next_line_s = 0.0
        self._events = 0

    def news(self, text: str) -> None:
        """What is being prepared."""
        if not self._quiet:
            self.console.print(f"... {text}", style="dim", highlight=False)

    def sample(self, watcher: Watcher, sample: Sample) -> None:
        """A new sample: draw it."""
        if self._live is not None:
            self._live.start()
            self._live.update(self._view.render(watcher.samples, watcher.events, self.console.width), refresh=True)
        elif not self._quiet:
            for event in plainly(watcher.events[self._events :]):
                click.echo(f"{clock_text(event.at_s)}  - {event.text}")
            self._events = len(watcher.events)
            if sample.at_s >= self._next_line_s:
                self._next_line_s = sample.at_s + PLAIN_EVERY_S
                click.echo(plain_line(sample))

    def close(self) -> None:
        """Leave the last picture where it is."""
        if self._live is not None:
            self._live.stop()

    def story(self, story: Story) -> None:
        """The ending, in words or as JSON."""
        if self._quiet:
            click.echo(json.dumps(as_json(story), indent=2, ensure_ascii=False))
            return
        self.console.print()
        self.console.print(f"{story.title}: the story", style="bold", highlight=False)
        for sentence in story.sentences:
            if self.is_live:
                self.console.print(Padding(Text(sentence), (0, 0, 0, 2)))
            else:
                click.echo(f"  {sentence}")


def run_demo(*, fast: bool, seed: int, armed: bool, as_document: bool, scenario: str, picture: Path | None) -> None:
    """Everything behind `nodectl demo`; ends the program with 1 or 128 + signal where it does not end well."""
    try:
        script = load_scenario(scenario)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    speed = FAST_SPEED if fast else SPEED
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    view = DemoView(script, armed=armed, speed=speed, ascii_only=not encoding.startswith("utf"))
    screen = Screen(view, quiet=as_document)
    watchers: list[Watcher] = []

    def on_sample(watcher: Watcher, sample: Sample) -> None:
        watchers[:] = [watcher]
        screen.sample(watcher, sample)

    play = Demo(
        scenario=script,
        name=str(Path(scenario).resolve()) if scenario.endswith(".toml") else scenario,  # the twin runs elsewhere
        seed=seed,
        armed=armed,
        speed=speed,
        on_news=screen.news,
        on_sample=on_sample,
    )
    try:
        with interruptible():
            try:
                story = play.run()
            finally:
                screen.close()
    except Interrupted as interrupted:
        click.echo("The demo was ended; nothing is left behind.", err=True)
        sys.exit(128 + interrupted.number)
    except (StageError, ControlError, OSError) as error:
        click.echo(f"The demo broke down: {error}", err=True)
        sys.exit(1)
    if picture is not None:
        repaired_s = [fault.until_s for fault in script.fault if fault.until_s is not None]
        draw(picture, view, watchers[0], before_s=min(repaired_s, default=script.duration_s))
    screen.story(story)


def draw(path: Path, view: DemoView, watcher: Watcher, *, before_s: float) -> None:
    """The picture for the README: the last moment before scenario second `before_s`, when most has happened."""
    samples = [sample for sample in watcher.samples if sample.at_s < before_s]
    events = [event for event in watcher.events if event.at_s < before_s]
    console = Console(
        record=True, width=PICTURE_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(view.render(samples, events, PICTURE_WIDTH))
    svg = console.export_svg(title="nodectl demo", theme=MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # nothing is fetched to show it
    path.write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")
