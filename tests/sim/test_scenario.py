"""Scenarios: all that ship are sound, and a bad one says everything that is wrong with it."""

from pathlib import Path

import pytest

from nodewarden.errors import ConfigError
from nodewarden.sim.cooling import Fault, flows, inlet_rise_c
from nodewarden.sim.scenario import load_scenario, plant_for, scenario_names


def test_every_scenario_that_ships_can_be_loaded_and_the_demos_tell_their_story() -> None:
    assert "fan-bank" in scenario_names()
    for name in scenario_names():
        scenario = load_scenario(name)
        assert scenario.fault or scenario.lie
        assert max(what.at_s for what in (*scenario.fault, *scenario.lie)) < scenario.duration_s
    for name in ("fan-bank", "hot-aisle", "pump"):
        assert load_scenario(name).told


def test_an_unknown_scenario_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigError, match="fan-bank"):
        load_scenario("fan-bnak")


def test_all_mistakes_of_a_scenario_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'title = "x"\nduration_s = 60\n'
        '[[fault]]\nkind = "all_fans"\nat_s = 90\nvalue = 1.5\n'
        '[[fault]]\nkind = "fan_bank"\nat_s = 10\nuntil_s = 5\nlanes = [9]\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_scenario(str(path))
    text = str(caught.value)
    for part in ("at_s 90", "value 1.5", "until_s 5", "lanes [9]"):
        assert part in text


def test_a_warm_scenario_begins_under_load_and_without_its_fault() -> None:
    plant = plant_for(load_scenario("fan-bank"))
    assert plant.scenario_s == 0.0
    assert all(gpu.junction_c > 60.0 and gpu.mean_w > 600.0 for gpu in plant.gpus)
    plant.step()
    assert plant.flows == (1.0, 1.0, 1.0, 1.0)


def test_faults_arrive_and_are_repaired_when_the_scenario_says() -> None:
    bank = Fault(kind="fan_bank", at_s=10.0, until_s=20.0, value=0.2, ramp_s=2.0, lanes=(0, 1))
    assert flows([bank], 9.9) == (1.0, 1.0, 1.0, 1.0)
    assert flows([bank], 11.0) == (0.6, 0.6, 1.0, 1.0)
    assert flows([bank], 15.0) == pytest.approx((0.2, 0.2, 1.0, 1.0))
    assert flows([bank], 30.0) == (1.0, 1.0, 1.0, 1.0)
    hot = Fault(kind="hot_aisle", at_s=0.0, value=20.0, ramp_s=100.0)
    assert inlet_rise_c([hot], 50.0) == pytest.approx(10.0)
    assert flows([hot], 50.0) == (1.0, 1.0, 1.0, 1.0)
