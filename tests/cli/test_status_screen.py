"""The screen of `nodectl status`: golden on every width, unharmed by whatever is missing or strange."""

import copy
import html
import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.api.status import status_document, status_without_agent
from nodewarden.api.view import View
from nodewarden.cli.output import Screen, columns_of, shorten
from nodewarden.cli.status_screen import status_lines, stopped_lines
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.gpuhelper.wire import LedgerEntry
from support.golden import assert_golden
from support.node_views import NOW_S, WALL_S, blind, calm, degraded, hot, uuid_of

ROOT = Path(__file__).parents[2]
VIEWS = {"calm": calm, "degraded": degraded, "hot": hot, "blind": blind}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def document_of(view: View) -> dict:
    return json.loads(msgspec.json.encode(status_document(view)))


def plain_screen(width: int = 80, *, colour: bool = False, unicode: bool = True) -> Screen:
    return Screen(width=width, colour=colour, unicode=unicode)


def stopped_document() -> dict:
    entry = LedgerEntry(uuid=uuid_of(5), prior_w=700, w=540, cause="thermal", protects="gpu", since_s=NOW_S - 60)
    return json.loads(msgspec.json.encode(status_without_agent("gpu-node-07", WALL_S, NOW_S, [entry])))


@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize("name", VIEWS)
def test_the_screen_is_the_golden_one(name, width):
    lines = status_lines(document_of(VIEWS[name]()), plain_screen(width))
    assert_golden(f"status-{name}-{width}.txt", "\n".join(lines) + "\n")


def test_the_screen_of_a_stopped_agent_is_the_golden_one():
    why = "the agent is not running: there is no /run/nodewarden/control/control.sock"
    lines = stopped_lines(stopped_document(), why, plain_screen())
    assert_golden("status-stopped-80.txt", "\n".join(lines) + "\n")


def test_the_document_is_the_golden_one():
    assert_golden("status.json", json.dumps(document_of(hot()), indent=2) + "\n")


@pytest.mark.parametrize("name", VIEWS)
def test_colour_changes_nothing_but_colour(name):
    document = document_of(VIEWS[name]())
    coloured = [ESCAPES.sub("", line).rstrip() for line in status_lines(document, plain_screen(colour=True))]
    assert coloured == status_lines(document, plain_screen())
    assert any("\x1b[" in line for line in status_lines(document, plain_screen(colour=True)))


@pytest.mark.parametrize("name", VIEWS)
def test_without_unicode_everything_is_ascii(name):
    lines = status_lines(document_of(VIEWS[name]()), plain_screen(unicode=False))
    assert "\n".join(lines).isascii()
    assert "\n".join(lines).isprintable() or len(lines) > 1


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140])
@pytest.mark.parametrize("name", VIEWS)
def test_no_line_is_wider_than_the_screen(name, width):
    lines = status_lines(document_of(VIEWS[name]()), plain_screen(width))
    too_wide = [line for line in lines if columns_of(line) > max(width, 36)]  # four columns are always shown
    assert too_wide == []


def every_null(document: dict):
    """The document with one leaf after the other null, as a peer of another version might send it."""
    nullable = {
        "gpus": "index junction_c hbm_c margin_to_max_op_c power_w cap_w cap utilisation slow age_s",
        "pdus": "power_w outlets_w limit_w age_s",
        "jobs": "step steps_per_s last_checkpoint_age_s",
    }
    for part, keys in nullable.items():
        for key in keys.split():
            changed = copy.deepcopy(document)
            for thing in changed[part]:
                thing[key] = None
            yield f"{part}.{key}", changed
    for key in ("armed", "health", "ladder"):
        yield key, copy.deepcopy(document) | {key: None}


@pytest.mark.parametrize(("key", "document"), list(every_null(document_of(hot()))))
def test_one_field_of_each_kind_may_be_null(key, document):
    for width in (40, 80, 140):
        text = "\n".join(status_lines(document, plain_screen(width)))
        assert "None" not in text, key
        assert "slurm-4711" in text


def test_the_worst_problem_comes_first_with_what_to_do():
    lines = status_lines(document_of(hot()), plain_screen(140))
    assert "CRITICAL" in lines[0]
    assert lines[2].startswith("✖ GPU 2")
    assert lines[3].startswith("  → look at dmesg")


def test_old_readings_are_not_shown_as_if_they_were_new():
    later = msgspec.structs.replace(calm(), now_s=NOW_S + 30, wall_s=WALL_S + 30)
    text = "\n".join(status_lines(document_of(later), plain_screen()))
    assert "no news 30 s" in text
    assert "66°C" not in text


def test_names_from_outside_cannot_move_the_cursor_or_break_the_table():
    document = document_of(hot())
    document["node"] = "evil\x1b[2Jname"
    document["jobs"][0]["id"] = "job\x1b]0;title\x07\n\nrm -rf"
    document["pdus"][0]["name"] = "机架十二甲" * 3 + "\u202e"
    document["problems"][0]["text"] = "bad\x1b[31m text\x00"
    for width in (40, 80, 140):
        lines = status_lines(document, plain_screen(width))
        assert all("\x1b" not in line and "\n" not in line and "\x00" not in line for line in lines)
        assert all(columns_of(line) <= width for line in lines)


def test_wide_characters_keep_the_columns_straight():
    rows = [[Cell("机架"), Cell("1")], [Cell("rack"), Cell("2")]]
    lines = table_lines(plain_screen(), [Column("NAME"), Column("N")], rows)
    assert lines == ["NAME  N", "机架  1", "rack  2"]


def test_a_text_is_shortened_by_columns_not_by_characters():
    assert shorten("abcdef", 4) == "abc…"
    assert columns_of(shorten("机架十二甲", 4)) <= 4
    assert shorten("abc", 3) == "abc"


@settings(max_examples=200, deadline=None)
@given(
    widths=st.lists(st.integers(0, 40), min_size=1, max_size=7),
    ranks=st.lists(st.integers(1, 9), min_size=7, max_size=7),
    shrink=st.lists(st.booleans(), min_size=7, max_size=7),
    screen=st.integers(20, 150),
)
def test_a_table_never_outgrows_the_screen_while_it_may_leave_columns_out(widths, ranks, shrink, screen):
    columns = [Column(f"C{i}", rank=ranks[i], shrink=shrink[i]) for i in range(len(widths))]
    lines = table_lines(plain_screen(screen), columns, [[Cell("x" * width) for width in widths]])
    assert all(columns_of(line) <= screen for line in lines)


def test_a_wider_screen_never_shows_less():
    document = document_of(hot())
    screens = [status_lines(document, plain_screen(width)) for width in (40, 60, 80, 100, 140)]
    counts = [len(next(line for line in lines if line.startswith("GPU  JUNC")).split()) for lines in screens]
    assert all(a <= b for a, b in pairwise(counts)), counts


def test_the_same_problem_of_many_gpus_is_told_once():
    document = document_of(hot())
    one = document["problems"][1]
    document["problems"] = [
        one | {"text": f"GPU {i} capped at 200 W: its outlets", "advice": f"nodectl explain {i}"} for i in (6, 0, 1, 5)
    ]
    lines = status_lines(document, plain_screen())
    assert lines[2:4] == ["▲ GPUs 0, 1, 5, 6 capped at 200 W: its outlets", "  → nodectl explain GPU"]
    assert "\n".join(lines).count("capped at 200 W") == 1
    document["problems"] = [one | {"text": f"GPU {i} capped"} for i in range(8)]
    assert status_lines(document, plain_screen())[2] == "▲ GPUs 0 to 7 capped"


def test_while_disarmed_the_ladder_says_what_would_be():
    view = msgspec.structs.replace(hot(), armed=False, health="ok", problems=())
    assert (
        "disarmed: only watching  ladder 3: would slow the job" in status_lines(document_of(view), plain_screen(140))[0]
    )


def test_the_picture_in_docs_shows_this_screen():
    svg = (ROOT / "docs" / "pictures" / "status.svg").read_text(encoding="utf-8")
    drawn = html.unescape(re.sub(r"<[^>]*>", " ", svg)).replace("\xa0", " ").split()
    shown = " ".join(status_lines(document_of(hot()), plain_screen(108))).split()
    assert set(shown) <= set(drawn), "run: scripts/picture-status"
    assert "http" not in re.sub(r'xmlns="[^"]*"|<!--.*?-->', "", svg)
