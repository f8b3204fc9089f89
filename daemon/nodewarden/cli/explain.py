"""`nodectl explain`: the agent's explanation, printed for somebody who was just woken up."""

from typing import Any

import click

from nodewarden.cli.connection import ask
from nodewarden.cli.output import Screen, clean, emit, emit_json, screen
from nodewarden.cli.params import json_option, runtime_of, timeout_option
from nodewarden.cli.words import clock


@click.command()
@click.argument("gpu", required=False, metavar="[GPU]")
@json_option
@timeout_option
@click.pass_context
def explain(ctx: click.Context, gpu: str | None, as_json: bool, timeout_s: float) -> None:
    """What is wrong, what was done, why, what would lift it, how to undo it.

    GPU is an index, a uuid (or its beginning), or all. Without it: the node and every GPU that is not simply fine.

    \b
    Examples:
      nodectl explain
      nodectl explain 5
    """
    document = ask(runtime_of(ctx), "explain", {"gpu": gpu} if gpu is not None else {}, timeout_s)
    if as_json:
        emit_json(document)
    else:
        emit("\n".join(explain_lines(document, screen())))


def explain_lines(document: dict[str, Any], where: Screen) -> list[str]:
    """The explanation as paragraphs."""
    style = {"ok": "ok", "degraded": "degraded"}.get(document["health"], "critical")
    head = f"{clean(document['node'])}  {document['health'].upper()}"
    lines = [where.paint(where.fit(head), style), *_paragraph(where, document["headline"])]
    if document["ladder"] > 0 or not document["armed"]:
        ladder = f"ladder {document['ladder']}: {document['ladder_text']}."
        armed = (
            "The node is armed," if document["armed"] else "The node is disarmed, nothing is changed by itself. Armed:"
        )
        lines += _paragraph(where, f"{armed} {ladder}")
    for gpu in document["gpus"]:
        lines += ["", *[where.paint(line, "bold") for line in _paragraph(where, gpu["headline"])]]
        lines += _section(where, "What we did", gpu["done"])
        lines += _section(where, "Why", gpu["why"])
        if gpu["lifts_when"]:
            lines += _section(where, "What lifts it", [gpu["lifts_when"]])
        lines += _section(where, "How to undo it by hand", gpu["undo"], command=True)
    if document["problems"]:
        lines += ["", where.paint("Everything that is wrong", "bold")]
        from nodewarden.cli.status_screen import grouped, worst_first  # noqa: PLC0415

        for problem in grouped(worst_first(document["problems"])):
            since = f" (since {clock(problem['since'])})" if " since " not in problem["text"] else ""
            lines += _paragraph(where, f"{problem['text']}{since}", "  - ", "    ")
            if problem["advice"]:
                lines += _paragraph(where, f"do: {problem['advice']}", "    ", "    ")
    if document["jobs"]:
        lines += ["", where.paint("Jobs", "bold")]
        for job in document["jobs"]:
            lines += _paragraph(where, job, "  - ", "    ")
    return lines


def _section(where: Screen, title: str, texts: list[str], *, command: bool = False) -> list[str]:
    if not texts:
        return []
    lines = [f"  {title}:"]
    for text in texts:
        lines += [where.fit(f"    {clean(text)}")] if command else _paragraph(where, text, "    - ", "      ")
    return lines


def _paragraph(where: Screen, text: str, first: str = "", rest: str = "") -> list[str]:
    return [where.fit(line) for line in where.wrap(text, first, rest)]
