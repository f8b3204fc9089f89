"""Every recorded BMC, served by sushy-static and read over the wire, says what its oracle says."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from nodewarden.api.bmc_details import measured
from nodewarden.sources.bmc.discovery import discover
from support.redfish import TREES, RecordedBmc

pytestmark = pytest.mark.skipif(not TREES.is_dir(), reason="the recorded trees are not beside the repository")
NAMES = sorted(path.parent.name for path in TREES.glob("*/ORACLE.json"))
Row = dict[str, Any]


def by_path(row: Row) -> str:
    return str(row["path"])


def by_name(row: Row) -> str:
    return str(row["name"])


KEYS: dict[str, tuple[Callable[[Row], str], tuple[str, ...]]] = {
    "psus": (by_name, ("present", "input_w", "output_w", "capacity_w", "line_v", "health", "redundancy")),
    "redundancy": (by_name, ("mode", "min_needed", "max_supported", "members", "health", "state")),
    "temperatures": (by_path, ("name", "location", "value_c", "upper_critical_c", "physical_context")),
    "margins_not_temperatures": (by_path, ("name", "margin_c")),
    "absent_or_null": (by_name, ("state", "reading")),
    "fans": (by_name, ("present", "rpm", "percent", "health")),
    "leak": (by_path, ("name", "state", "type", "health", "status_state")),
    "flow": (by_path, ()),
    "power_sensors": (by_path, ("name", "value_w")),
    "energy_sensors": (by_path, ("name", "value", "unit")),
    "gpus": (
        by_name,
        (*("power_w", "memory_power_w", "temp_c", "memory_temp_c", "thermal_margin_c", "energy_j", "voltage_v"),),
    ),
}


def table(rows: list[Row], key: Callable[[Row], str], fields: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Rows as comparable tuples; supplies of iLO share one name, so their order counts within a name."""
    return sorted(((key(row), *(row.get(field) for field in fields)) for row in rows), key=repr)


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_bmc_reads_as_its_oracle_says(name: str) -> None:
    oracle = json.loads((TREES / name / "ORACLE.json").read_text())
    with RecordedBmc(TREES / name) as served:
        found = measured(await discover(served.url, "", "", ca="", fingerprint="", timeout_s=30.0))
    assert found["chassis_power_w"] == oracle["chassis_power_w"]
    assert found["suspect"] == []
    for key, (identity, fields) in KEYS.items():
        # The whole numbers of the oracle are equal to our floats; rows of the same name are compared as a multiset.
        got, wanted = table(found[key], identity, fields), table(oracle.get(key, []), identity, fields)
        assert {repr(row) for row in normal(got)} == {repr(row) for row in normal(wanted)}, key
        assert len(got) == len(wanted), key


def normal(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [
        tuple(float(cell) if isinstance(cell, int) and not isinstance(cell, bool) else cell for cell in row)
        for row in rows
    ]


def test_there_are_trees() -> None:
    assert len(NAMES) >= 12
