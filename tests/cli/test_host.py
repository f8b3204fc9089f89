"""`nodectl host`: golden on two widths, right where things are missing, and JSON that says why."""

import json
import os

import pytest
from msgspec.structs import replace

from nodewarden.api.host_details import host_document
from nodewarden.cli.host import host_lines
from nodewarden.cli.main import main
from nodewarden.cli.output import Screen, columns_of
from nodewarden.model.host import HostSensor, HostSnapshot
from nodewarden.model.readings import Absent, Failed, Reading
from support.fake_node import served
from support.golden import assert_golden
from support.host_values import a_host
from support.node_views import NOW_S, blind, calm


def view_of(host: HostSnapshot):
    view = calm()
    return replace(view, snapshot=replace(view.snapshot, host=host))


def sick() -> HostSnapshot:
    """A hot drive, a throttled processor, a port down, one with errors, a chip that hangs, no helper."""
    host = a_host(NOW_S)
    at_s = NOW_S - 2
    first, second, *others = host.ports
    down = replace(first, state=Reading(1.0, at_s), state_name="DOWN", physical_state=Reading(2.0, at_s),
                   physical_state_name="Polling", down_since_s=NOW_S - 95)  # fmt: skip
    noisy = replace(second, errors_lately=Reading(340.0, at_s), flaps_lately=Reading(3.0, at_s))
    hung = HostSensor(chip="mlx5-0000:c1:00.0", kind="temperature", name="Module0", value=Failed("hung", at_s))
    return replace(
        host,
        packages=(replace(host.packages[0], throttles_lately=Reading(42.0, at_s)), host.packages[1]),
        drives=(
            replace(host.drives[0], composite_c=Reading(81.0, at_s), alarm=True),
            replace(host.drives[1], state="dead"),
        ),
        zones=(),
        zones_reason="helper_missing",
        ports=(down, noisy, *others),
        sensors=(*host.sensors, hung),
        hung=("/sys/class/hwmon/hwmon7/temp2_input",),
        dropped=3,
    )


@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize(("name", "host"), [("calm", a_host(NOW_S)), ("sick", sick())])
def test_the_screen_is_the_golden_one(name: str, host: HostSnapshot, width: int) -> None:
    lines = host_lines(Screen(width=width, colour=False, unicode=True), host_document(view_of(host)))
    assert max(columns_of(line) for line in lines) <= width
    assert_golden(f"host-{name}-{width}.txt", "\n".join(lines) + "\n")


def test_colour_is_only_where_something_is_wrong() -> None:
    def loud(host: HostSnapshot) -> str:
        lines = host_lines(Screen(width=140, colour=True, unicode=True), host_document(view_of(host)))
        return "\n".join(line for line in lines if "\033[33m" in line or "\033[1;31m" in line)

    assert loud(a_host(NOW_S)) == ""
    for word in ("mlx5_0/1", "mlx5_1/1", "81 °C", "42 in the last minute", "does not answer"):
        assert word in loud(sick())


def test_the_verb_prints_a_table_or_json(capsys) -> None:
    with served(calm(), own_uid=os.getuid()) as there:
        assert main(["--runtime-dir", str(there.runtime), "host"]) == 0
        assert capsys.readouterr().out.startswith("CPU ")
        assert main(["--runtime-dir", str(there.runtime), "host", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cpu_power_w"] == 456.3
    assert [(cpu["temperature_c"], cpu["power_w"], cpu["dram_w"]) for cpu in document["processors"]] == [
        (61, 231.4, 28.2),
        (64, 224.9, None),
    ]
    assert document["ports"][0]["transmit_bytes"] == 4e12
    assert document["ports"][3]["active"] is False


def test_what_is_missing_is_null_with_its_reason(capsys) -> None:
    document = host_document(view_of(sick()))
    assert (document["cpu_power_w"], document["power_reason"]) == (None, "helper_missing")
    (silent,) = [sensor for sensor in document["sensors"] if sensor["name"] == "Module0"]
    assert (silent["value"], silent["reason"]) == (None, "hung")


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (blind(), "The host is not read: sampling.host_s is 0"),
        (view_of(HostSnapshot()), "The host was not read yet"),
        (view_of(HostSnapshot(taken_at_s=NOW_S - 1)), "This host shows no sensors"),
    ],
)
def test_a_host_that_tells_nothing_says_so(view, said: str) -> None:
    lines = host_lines(Screen(width=80, colour=False, unicode=True), host_document(view))
    assert said in "\n".join(lines)


def test_old_readings_are_called_old() -> None:
    lines = host_lines(Screen(width=80, colour=False, unicode=True), host_document(view_of(a_host(NOW_S - 60))))
    assert lines[-1] == "read 62 s ago, too old to rely on"


def test_reasons_that_the_screen_has_no_words_for_are_shown_as_they_are() -> None:
    host = replace(a_host(NOW_S), zones=(), zones_reason="helper_failed")
    text = "\n".join(host_lines(Screen(width=80, colour=False, unicode=False), host_document(view_of(host))))
    assert "CPU power: helper failed" in text
    assert text.isascii()
    assert host.cpu_power_w == Absent("helper_failed")
