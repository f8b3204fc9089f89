"""`nodectl simulate`: the verdict of a scenario, its picture, its exit code."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodewarden.cli.simulate import simulate
from nodewarden.sim.scenario import load_scenario, scenario_names

GOLDEN = Path(__file__).parent / "golden" / "simulate-pump-stop-disarmed.txt"


def test_the_verdict_of_a_stopped_pump_without_control_reads_like_its_golden() -> None:
    done = CliRunner().invoke(simulate, ["pump-stop", "--disarmed"])
    assert done.exit_code == 1
    assert done.stdout == GOLDEN.read_text(encoding="utf-8")


def test_the_same_pump_with_control_is_safe_and_says_what_would_have_been(tmp_path: Path) -> None:
    done = CliRunner().invoke(simulate, ["pump-stop", "--json", "--out", str(tmp_path / "plots")])
    assert done.exit_code == 0
    verdict = json.loads(done.stdout)
    assert verdict["safe"]
    assert verdict["worst_margin_c"] > -1.0
    assert verdict["top_level"] >= 4
    assert verdict["alone"]["boards_lost"] >= 1
    picture = ET.fromstring(Path(verdict["picture"]).read_text(encoding="utf-8"))  # noqa: S314 - our own file
    names = {title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")}
    assert {"GPU 0", "GPU 7", "speed", "ladder", "hottest GPU without control"} <= names
    words = " ".join(text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text"))
    for word in ("Margin to max-operating", "Power cap, W", "Speed of the job", "Ladder", "pump stop", "slowdown"):
        assert word in words


def test_every_curve_of_the_picture_stays_on_the_page(tmp_path: Path) -> None:
    CliRunner().invoke(simulate, ["cold-plate", "--out", str(tmp_path)])
    picture = ET.fromstring((tmp_path / "cold-plate.svg").read_text(encoding="utf-8"))  # noqa: S314 - our own file
    _, _, width, height = (float(part) for part in picture.attrib["viewBox"].split())
    paths = list(picture.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) >= 19
    for path in paths:
        points = path.attrib["d"].replace("M", "L").split("L")[1:]
        for point in points:
            x, y = (float(part) for part in point.split("H")[0].split())
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_all_scenarios_are_listed_with_a_title() -> None:
    listed = json.loads(CliRunner().invoke(simulate, ["--list", "--json"]).stdout)
    assert [entry["name"] for entry in listed] == scenario_names()
    kinds = {fault.kind for name in scenario_names() for fault in load_scenario(name).fault}
    assert {"fan", "fan_bank", "all_fans", "fan_hunting", "hot_aisle", "clogged_filter"} <= kinds
    assert {"pump_degraded", "pump_stop", "leak", "cold_plate", "paste"} <= kinds


def test_a_scenario_of_ones_own_runs_and_its_mistakes_are_told_together(tmp_path: Path) -> None:
    good = tmp_path / "mine.toml"
    good.write_text('title = "Nothing"\nduration_s = 20\n')
    done = CliRunner().invoke(simulate, [str(good)])
    assert done.exit_code == 0
    assert "SAFE" in done.stdout
    bad = tmp_path / "bad.toml"
    bad.write_text(
        'title = "x"\nduration_s = 20\nr_factor = 9\n[[fault]]\nkind = "paste"\nat_s = 5\nvalue = 0.5\ngpu = 8\n'
        '[[lie]]\nkind = "nan"\ngpu = 11\n'
    )
    error = CliRunner().invoke(simulate, [str(bad)]).exception
    for words in ("r_factor: 9 is not allowed", "value 0.5 is no factor", "gpu 8 does not exist", "gpu [11]"):
        assert words in str(error)


@pytest.mark.parametrize("arguments", [[], ["--seed", "-1", "pump"]])
def test_without_a_scenario_or_with_an_odd_seed_the_usage_is_told(arguments: list[str]) -> None:
    done = CliRunner().invoke(simulate, arguments)
    assert done.exit_code == 2
    assert "nodectl simulate --list" in done.output or "x>=0" in done.output
