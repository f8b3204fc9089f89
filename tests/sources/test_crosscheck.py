"""The cross-check: real devices are not doubted, a wrong unit is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.sources.pdu.crosscheck import suspects
from support.real import recordings_dir


@pytest.mark.real
def test_no_quantity_of_any_real_device_is_doubted_but_those_that_the_oracle_doubts() -> None:
    entries = json.loads((recordings_dir() / "ORACLE.json").read_text())["recordings"]
    doubted = {entry["file"]: suspects(entry, entry["phases"], entry["outlets"]) for entry in entries}
    assert {file: paths for file, paths in doubted.items() if paths} == {}
    assert len(doubted) >= 29


def test_kilowatts_in_an_object_of_watts_are_doubted() -> None:
    """F32."""
    phase = {"voltage_v": 230, "current_a": 7.2, "power_w": 1}
    assert suspects({"total_power_w": 1}, [phase]) == ["phases[0].power_w", "total_power_w"]


def test_low_load_where_meters_round_to_nothing_is_not_doubted() -> None:
    assert suspects({"total_power_w": 20}, [{"voltage_v": 230, "current_a": 0.0, "power_w": 0}]) == []
    assert suspects({"total_power_w": 0}, [{"voltage_v": 230, "current_a": 0.4, "power_w": 0}]) == []


def test_whole_amperes_beside_fine_watts_blame_the_current() -> None:
    phase = {"voltage_v": 230, "current_a": 1.0, "power_w": 900, "apparent_va": 950, "power_factor": 0.95}
    assert suspects({}, [phase]) == ["phases[0].current_a"]


def test_a_total_that_is_ten_times_its_phases_is_doubted() -> None:
    phases = [{"voltage_v": 230, "current_a": 9.0, "power_w": 2000, "power_factor": 0.97}] * 3
    assert suspects({"total_power_w": 6040}, phases) == []
    assert suspects({"total_power_w": 60400}, phases) == ["total_power_w"]
    assert suspects({"total_power_w": 604}, phases) == ["total_power_w"]


def test_outlets_that_carry_more_than_the_whole_pdu_are_doubted() -> None:
    outlets = [{"power_w": 2500.0}, {"power_w": 0.0}, {"power_w": None}]
    assert suspects({"total_power_w": 2500}, (), outlets) == []
    assert suspects({"total_power_w": 250}, (), outlets) == ["outlets[0].power_w"]


watts = st.floats(400, 20000)
factors = st.floats(0.5, 1.0)
volts = st.sampled_from([110.0, 120.0, 208.0, 230.0, 240.0])


@given(watts, factors, volts, st.sampled_from([0.001, 0.01, 0.1, 10.0, 1000.0]))
def test_a_wrong_power_of_ten_is_seen_and_right_values_are_not_doubted(
    power_w: float, factor: float, voltage_v: float, wrong: float
) -> None:
    """F32."""
    phase: dict[str, Any] = {
        "voltage_v": voltage_v,
        "current_a": round(power_w / factor / voltage_v, 1),
        "apparent_va": round(power_w / factor, -1),
        "power_w": round(power_w, -1),
        "power_factor": round(factor, 2),
    }
    assert suspects({"total_power_w": 2 * phase["power_w"]}, [phase, phase]) == []
    off = {**phase, "power_w": phase["power_w"] * wrong}
    assert "phases[0].power_w" in suspects({}, [off, phase])
