"""Conditions of the host: where they hold, what they say, and that they wait before they say it."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodewarden.model.host import HostSnapshot
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import HelperStatus, NodeSnapshot, SourceStatus
from nodewarden_alerts import ConditionEngine, Facts, advice_of, health_of
from support.host_values import a_host

NOW_S = 10_000.0
AT_S = NOW_S - 2
HELPER = HelperStatus(state="ok", driver="ok", can_write=True)


def facts(host: HostSnapshot, *, read_s: float = AT_S) -> Facts:
    source = SourceStatus(name="host", up=True, last_success_s=read_s, stale_after_s=30.0)
    return Facts(snapshot=NodeSnapshot(host=host, helper=HELPER, sources={"host": source}), armed=True)


def told(host: HostSnapshot, *, lasting_s: float = 300.0) -> dict[str, str]:
    """What is told after it has been so for a while."""
    engine = ConditionEngine()
    engine.evaluate(facts(host), NOW_S - lasting_s)
    return {problem.code: problem.text for problem in engine.evaluate(facts(host), NOW_S)}


def port(index: int = 0, **changes: Any) -> HostSnapshot:
    host = a_host(NOW_S)
    ports = list(host.ports)
    ports[index] = replace(ports[index], **changes)
    return replace(host, ports=tuple(ports))


def reading(value: float) -> Reading[float]:
    return Reading(value, AT_S)


def test_a_sound_host_is_not_mentioned() -> None:
    assert told(a_host(NOW_S)) == {}
    assert told(HostSnapshot()) == {}


def test_a_hot_drive_is_told_after_half_a_minute() -> None:
    host = a_host(NOW_S)
    hot = replace(host, drives=(replace(host.drives[0], composite_c=reading(80.5)),))
    assert told(hot, lasting_s=20) == {}
    assert told(hot)["nvme_hot"].startswith("NVMe drive nvme0 at 80 degC, its limit is 80 degC: it slows down or may")
    warns = replace(host, drives=(replace(host.drives[0], composite_c=Absent(), warning_c=None, alarm=True),))
    assert told(warns)["nvme_hot"].startswith("NVMe drive nvme0: it slows down or may since ")


def test_a_sensor_at_its_critical_threshold_is_told() -> None:
    host = a_host(NOW_S)
    hot = replace(host, sensors=(replace(host.sensors[0], value=reading(100)),))
    assert told(hot)["host_sensor_critical"].startswith("coretemp.0 Package id 0 at 100 degC, critical is 100 degC")
    assert told(replace(host, sensors=(replace(host.sensors[0], value=reading(99.9)),))) == {}
    assert told(replace(host, sensors=(replace(host.sensors[0], value=Failed("implausible", AT_S)),))) == {}


def test_a_processor_that_goes_on_being_throttled_is_told_after_two_minutes() -> None:
    host = a_host(NOW_S)
    slow = replace(host, packages=(replace(host.packages[1], throttles_lately=reading(7)),))
    assert told(slow, lasting_s=100) == {}
    assert told(slow)["cpu_throttled"].startswith("CPU 1 throttled for heat, 7 events in the last minute since")


def test_a_port_that_was_active_and_is_down_is_told_since_it_went_down() -> None:
    down = {"state": reading(1), "state_name": "DOWN", "physical_state_name": "Polling", "down_since_s": NOW_S - 95}
    said = told(port(**down), lasting_s=0)
    assert said["ib_port_down"].startswith("InfiniBand port mlx5_0/1 is down (DOWN, Polling) since")
    assert told(port(2, **down), lasting_s=0)["ib_port_down"].startswith("RoCE port mlx5_2/1 is down")
    assert told(port(**down | {"down_since_s": NOW_S - 10}), lasting_s=0) == {}


def test_a_port_of_a_card_that_is_gone_is_told_and_one_that_nobody_can_read_is_not() -> None:
    gone = port(state=Failed("gone", NOW_S - 95), down_since_s=NOW_S - 95)
    assert told(gone)["ib_port_down"].startswith("network port mlx5_0/1 is gone since")
    assert told(port(state=Failed("hung", NOW_S - 95), down_since_s=NOW_S - 95)) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"errors_lately": reading(340)}, "InfiniBand port mlx5_0/1: 340 link errors in 5 minutes"),
        ({"flaps_lately": reading(3)}, "InfiniBand port mlx5_0/1: went down 3 times in 10 minutes"),
        ({"errors_lately": reading(99), "flaps_lately": reading(1)}, None),
    ],
)
def test_a_port_with_errors_or_flaps_is_told(changes: dict[str, Any], said: str | None) -> None:
    found = told(port(**changes), lasting_s=0)
    assert found.get("ib_port_errors", "").startswith(said or "")
    assert bool(found) == bool(said)


def test_memory_that_all_wait_for_is_mentioned_and_makes_nothing_degraded() -> None:
    host = a_host(NOW_S)
    waits = tuple(
        replace(each, share={10: reading(0.5), 60: reading(0.25), 300: reading(0.1)}) for each in host.pressure
    )
    engine = ConditionEngine()
    engine.evaluate(facts(replace(host, pressure=waits)), NOW_S - 100)
    (problem,) = engine.evaluate(facts(replace(host, pressure=waits)), NOW_S)
    assert problem.text.startswith("everything on this node waits for memory 25% of the time since")
    assert (problem.code, health_of([problem])) == ("memory_pressure", "ok")


def test_a_file_that_hangs_is_named() -> None:
    host = replace(a_host(NOW_S), hung=("/sys/class/hwmon/hwmon7/temp2_input",))
    assert told(host)["host_file_hung"].startswith("/sys/class/hwmon/hwmon7/temp2_input does not answer since")


def test_old_readings_tell_nothing() -> None:
    host = a_host(NOW_S)
    hot = replace(host, drives=(replace(host.drives[0], composite_c=reading(99)),))
    engine = ConditionEngine()
    for now_s in (NOW_S - 100, NOW_S):
        assert engine.evaluate(facts(hot, read_s=now_s - 31), now_s) == []


def test_each_has_advice() -> None:
    codes = ("nvme_hot", "host_sensor_critical", "cpu_throttled", "ib_port_down", "ib_port_errors", "memory_pressure")
    assert all(len(advice_of(code)) > 20 for code in (*codes, "host_file_hung"))
