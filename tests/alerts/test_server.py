"""The conditions of the server, from plain readings of its BMC."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodewarden.model.bmc import BmcSnapshot, Coolant, Fan, LeakDetector, Redundancy, Supply, Temperature
from nodewarden.model.snapshot import SourceStatus
from nodewarden_alerts import server

from .test_conditions import NOW_S, Facts, facts

PAIR = Redundancy(name="Group 1", members=2, health="OK")


def told(*, up: bool = True, age_s: float = 5.0, **changes: Any) -> Facts:
    base = facts()
    source = SourceStatus(
        name="bmc", up=up, last_success_s=NOW_S - age_s, stale_after_s=90.0, reason=None if up else "timeout"
    )
    bmc = BmcSnapshot(taken_at_s=NOW_S - age_s, **changes)
    sources = {**base.snapshot.sources, "bmc": source}
    return replace(base, snapshot=replace(base.snapshot, bmc=bmc, sources=sources))


def supply(**changes: Any) -> Supply:
    return Supply(**{"name": "PSU1", "id": "0", "present": True, "health": "OK", **changes})


def test_a_supply_without_input_costs_the_redundancy() -> None:
    """The plug is out: Critical and not Enabled, as iDRAC and iLO tell it."""
    seen = told(psus=(supply(), supply(name="PSU2", id="1", health="Critical", line_v=0.0)), redundancy=(PAIR,))
    assert [each.what for each in server.supply_failed(seen, NOW_S)] == [
        "power supply PSU2 (1): Critical, 0 V at its input"
    ]
    assert [each.what for each in server.redundancy_lost(seen, NOW_S)] == [
        "power supplies are no longer redundant: PSU2"
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"psus": (supply(), supply(id="1", present=False, health="Warning"))},  # an empty bay
        {"psus": (supply(), supply(id="1", present=None, health=None))},
        {"psus": (supply(), supply(id="1", input_w=5.0, output_w=0.0))},  # a hot spare asleep
        {
            "fans": (
                Fan(name="Fan 1", present=True, health=None, rpm=0.0),
                Fan(name="Fan 2", present=False, health="Critical"),
            )
        },
        {"leak": (LeakDetector(name="a", state="OK", status_state="Enabled"), LeakDetector(name="b", state="Absent"))},
        {"flow": (Coolant(name="in", flow_lpm=8.0, rated_flow_lpm=10.0), Coolant(name="out", flow_lpm=1.0))},
        {"temperatures": (Temperature(name="Inlet", location="inlet", value_c=30.0, upper_critical_c=42.0),)},
        {"temperatures": (Temperature(name="Exhaust", location="exhaust", value_c=90.0, upper_critical_c=80.0),)},
    ],
)
def test_what_is_well_asleep_absent_or_unknown_is_no_problem(changes: dict[str, Any]) -> None:
    seen = told(redundancy=(PAIR,), **changes)
    found = [each for find in ALL for each in find(seen, NOW_S)]
    assert found == []


ALL = (
    server.supply_failed,
    server.redundancy_lost,
    server.fan_failed,
    server.leak_detected,
    server.leak_detection_lost,
    server.flow_low,
    server.inlet_hot,
    server.unreachable,
)


def test_each_sick_thing_is_named_with_its_reading() -> None:
    seen = told(
        redundancy=(replace(PAIR, health="Critical"),),
        fans=(Fan(name="Fan 3B", present=True, health="Critical", rpm=0.0),),
        leak=(
            LeakDetector(name="ColdPlate", state="Critical", status_state="Enabled", health="OK"),
            LeakDetector(name="Manifold", state="OK", status_state="UnavailableOffline"),
        ),
        flow=(Coolant(name="primary", flow_lpm=3.0, rated_flow_lpm=10.0),),
        temperatures=(Temperature(name="Inlet", location="inlet", value_c=40.5, upper_critical_c=42.0),),
    )
    assert [each.what for find in ALL for each in find(seen, NOW_S)] == [
        "power supplies are no longer redundant",
        "fan Fan 3B: Critical, 0 rpm",
        "leak detector ColdPlate says Critical",
        "leak detector Manifold does not watch (UnavailableOffline)",
        "coolant primary flows at 3.0 l/min, rated 10.0",
        "inlet air at 40 degC, critical is 42 degC",
    ]


def test_what_a_bmc_said_before_it_fell_silent_is_no_problem_but_its_silence_is() -> None:
    """F03: a stale alarm is no alarm."""
    seen = told(up=False, age_s=500.0, leak=(LeakDetector(name="a", state="Critical", status_state="Enabled"),))
    assert not list(server.leak_detected(seen, NOW_S))
    assert [each.what for each in server.unreachable(seen, NOW_S)] == ["the BMC does not answer (timeout)"]
    assert not list(server.unreachable(facts(), NOW_S)), "none is configured"
