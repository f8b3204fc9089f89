"""Discovery over real SNMP (snmpsim): recordings of real devices against the right answers, and small own ones."""

import json
import re
from typing import Any

import pytest

from nodewarden.devices.snmp import SnmpEngine
from nodewarden.errors import NotSupportedError
from nodewarden.sources.pdu.discovery import discover
from support.real import recordings_dir
from support.servers import SnmpSimulator

SUPPORTED = (
    "apc_ap8959eu3",
    "apc_ap7900b",
    "apc_apdu10150sm",
    "apc_epdu1132m",
    "raritan_px4",
    "raritan_px2-temp",
    "raritan_dominion-px",
    "eaton_ema114-10",
    "vertiv_mg02e4w1",
    "servertech_cw-24v2",
    "servertech_switched8i",
    "cyberpower_pdu44005",
    "tripplite_pdumv30hvnetlx",
    "hpe_mapdu-pdu2",
    "hpe_pdu-mgmt-module",
    "panduit_p24d40m",
    "gude_epc1202",
    "rnx_rn3214",
    "schleifenbauer_dpm27e",
    "ups_generex-cs141",
    "ups_huawei-ups2000",
    "ups_eaton-connectups",
)
# The recording has a placeholder instead of the model, or the oracle describes it in other words than the device.
OTHER_MODEL = {"apc_apdu10150sm", "raritan_px4", "raritan_px2-temp", "servertech_switched8i", "hpe_mapdu-pdu2"}
OTHER_MODEL |= {"schleifenbauer_dpm27e", "ups_huawei-ups2000"}
ALSO_VERSION_1 = ("apc_ap8959eu3", "apc_ap7900b")
NOT_PRINTED = {"file", "profile", "source", "notes", "unsure", "oids", "total_power_basis", "suspect"}


def oracle(name: str) -> dict[str, Any]:
    entries = json.loads((recordings_dir() / "ORACLE.json").read_text())["recordings"]
    return next(entry for entry in entries if entry["file"] == f"{name}.snmprec")


def differences(right: Any, ours: Any, path: str, unsure: list[dict[str, Any]]) -> list[str]:
    """Every difference, as readable lines. Paths that the oracle is not sure of are compared with its tolerance."""
    generic = re.sub(r"\[\d+\]", "[*]", path)
    doubt = next((entry for entry in unsure if entry["path"] == generic), None)
    if isinstance(right, dict):
        assert isinstance(ours, dict), path
        return [
            line
            for key, value in right.items()
            if key in ours or value not in (None, [])
            for line in differences(value, ours.get(key, "missing"), f"{path}.{key}".lstrip("."), unsure)
        ]
    if isinstance(right, list):
        if not isinstance(ours, list) or len(ours) != len(right):
            return [f"{path}: {ours!r}, right: {right!r}"]
        return [line for n, value in enumerate(right) for line in differences(value, ours[n], f"{path}[{n}]", unsure)]
    if doubt is not None and "tolerance" not in doubt:
        return []
    if doubt is not None and isinstance(right, int | float) and isinstance(ours, int | float):
        return [] if abs(ours - right) <= doubt["tolerance"] else [f"{path}: {ours!r}, right: {right!r}"]
    if isinstance(right, str):
        right = right.strip()  # snmpsim drops the blanks at the end of a line
    return [] if ours == right else [f"{path}: {ours!r}, right: {right!r}"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "version"), [*((name, "2c") for name in SUPPORTED), *((name, "1") for name in ALSO_VERSION_1)]
)
async def test_a_real_device_is_read_as_the_oracle_says(
    name: str, version: Any, real_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    """F33: watts, volt-amperes, amperes and watt-hours each under its own name."""
    right = oracle(name)
    ours = await discover("127.0.0.1", real_simulator.port, version=version, community=name, engine=snmp)

    for key in ("sysObjectID", "vendor", "kind"):
        assert ours[key] == right[key]
    assert name in OTHER_MODEL or ours["model"] in right["model"] or right["model"] in ours["model"]
    measured = {key: value for key, value in right.items() if key not in NOT_PRINTED | {"model"}}
    assert differences(measured, ours, "", right["unsure"]) == []
    assert ours["suspect"] == right.get("suspect", [])
    assert set(ours) - set(right) <= {"estimated", "suspect"}, "no key that the oracle does not have"
    assert not (NOT_PRINTED - {"suspect"}) & set(ours)


@pytest.mark.real
async def test_watts_computed_from_a_configured_voltage_are_marked_as_estimated(
    real_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    ours = await discover("127.0.0.1", real_simulator.port, community="apc_ap7900b", engine=snmp)
    assert (ours["total_power_w"], ours["estimated"]) == (312, ["total_power_w"])
    measured = await discover("127.0.0.1", real_simulator.port, community="apc_ap8959eu3", engine=snmp)
    assert measured["estimated"] == []


async def read(name: str, simulator: SnmpSimulator, snmp: SnmpEngine, version: Any = "2c") -> dict[str, Any]:
    return await discover("127.0.0.1", simulator.port, version=version, community=name, engine=snmp)


@pytest.mark.parametrize("version", ["2c", "1"])
async def test_three_phases_six_banks_and_24_metered_outlets_are_read(
    version: Any, own_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    ours = await read("apc_three_phase_metered", own_simulator, snmp, version)
    scalars = ("model", "total_power_w", "apparent_power_va", "power_factor", "energy_wh")
    assert {key: ours[key] for key in scalars} == {
        "model": "AP8681", "total_power_w": 6120, "apparent_power_va": 6400, "power_factor": 0.96,
        "energy_wh": 123456700
    }  # fmt: skip
    columns = ("id", "voltage_v", "current_a", "power_w", "load_state")
    assert [tuple(row[key] for key in columns) for row in ours["phases"]] == [
        ("L1", 230, 9.2, 2100, "normal"), ("L2", 231, 8.8, 2000, "nearOverload"), ("L3", 229, 9, 2020, "overload"),
    ]  # fmt: skip
    assert [(row["id"], row["current_a"]) for row in ours["banks"]] == [(f"B{n}", 4 + n / 10) for n in range(1, 7)]
    assert [row["load_state"] for row in ours["banks"]] == ["normal"] * 5 + ["nearOverload"]
    assert [row["index"] for row in ours["outlets"]] == list(range(1, 25)), "in the order of numbers, not of text"
    assert ours["outlets"][6] == {
        "index": 7, "name": "node 7", "current_a": 1.1, "voltage_v": None, "power_w": 255, "apparent_va": None,
        "energy_wh": 100700, "state": "on",
    }  # fmt: skip
    assert (ours["outlets"][23]["state"], ours["outlets"][23]["power_w"]) == ("off", 0), "off and measured: a real zero"
    assert ours["inlet_temps_c"] == [{"id": "1", "value": 24.1}]
    assert ours["humidity_pct"] == [{"id": "1", "value": 38}]
    assert ours["suspect"] == []


async def test_no_way_of_saying_not_available_becomes_a_number(own_simulator: SnmpSimulator, snmp: SnmpEngine) -> None:
    ours = await read("apc_markers", own_simulator, snmp)
    assert [ours[total] for total in ("total_power_w", "apparent_power_va", "power_factor", "energy_wh")] == [None] * 4
    assert ours["units"] == [
        {"id": "1", "total_power_w": None, "apparent_power_va": None, "energy_wh": None, "power_factor": None,
         "load_state": "notsupported"}
    ]  # fmt: skip
    assert ours["phases"] == [
        {"id": "L1", "voltage_v": None, "current_a": 2.5, "power_w": None, "apparent_va": None, "power_factor": None,
         "energy_wh": None, "load_state": None}
    ]  # fmt: skip
    assert [row["power_w"] for row in ours["outlets"]] == [None, None, None, 120]
    assert [row["energy_wh"] for row in ours["outlets"]] == [None] * 4
    assert [row["current_a"] for row in ours["outlets"]] == [None, None, None, 0.6]
    assert [row["state"] for row in ours["outlets"]] == ["off", "on", None, "on"], "an unknown state is not off"
    assert ours["outlets"][0]["name"] == "out 1", "the name of the next table, not the text notsupported"


async def test_a_device_of_the_first_generation_alone_is_read(own_simulator: SnmpSimulator, snmp: SnmpEngine) -> None:
    ours = await read("apc_first_generation", own_simulator, snmp)
    assert (ours["model"], ours["total_power_w"], ours["estimated"]) == ("AP7868", 2288, ["total_power_w"])
    assert ours["configured_line_voltage_v"] == 208
    assert [(row["id"], row["current_a"], row["load_state"]) for row in ours["phases"]] == [
        ("L1", 4, "normal"), ("L2", 3.1, "normal"), ("L3", 3.9, "nearOverload"),
    ]  # fmt: skip
    assert [(row["id"], row["current_a"], row["load_state"]) for row in ours["banks"]] == [
        ("B1", 5.2, "low"), ("B2", 5.8, "overload"),
    ]  # fmt: skip
    assert [(row["name"], row["state"], row["current_a"]) for row in ours["outlets"]] == [
        ("old 1", "on", 1), ("old 2", "off", 2), ("old 3", "on", 3),
    ]  # fmt: skip


async def test_chained_devices_are_units_and_no_partial_sum_is_a_total(
    own_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    ours = await read("apc_chained", own_simulator, snmp)
    assert [(row["id"], row["total_power_w"], row["energy_wh"]) for row in ours["units"]] == [
        ("1", 3000, 500000), ("2", 1500, None),
    ]  # fmt: skip
    assert (ours["total_power_w"], ours["apparent_power_va"]) == (4500, 4700)
    assert ours["energy_wh"] is None, "the second unit has no energy meter"
    assert ours["power_factor"] is None, "two units have no common power factor"
    assert ours["outlets"] == [], "the device counts no metered outlets"


@pytest.mark.parametrize("name", ["apc_without_sysobjectid", "apc_foreign_sysobjectid"])
async def test_an_empty_or_lying_sysobjectid_falls_back_to_probing(
    name: str, own_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    ours = await read(name, own_simulator, snmp)
    assert (ours["vendor"], ours["total_power_w"], ours["phases"][0]["current_a"]) == ("APC", 1000, 4.4)


async def test_contradictions_are_suspect_and_still_shown(own_simulator: SnmpSimulator, snmp: SnmpEngine) -> None:
    ours = await read("apc_contradictory", own_simulator, snmp)
    assert ours["suspect"] == ["phases[0].power_w", "total_power_w", "outlets[1].power_w"]
    assert ours["total_power_w"] == 600


async def test_an_unknown_device_is_named_and_the_error_says_what_to_do(
    own_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    with pytest.raises(NotSupportedError) as raised:
        await read("not_a_pdu", own_simulator, snmp)
    text = str(raised.value)
    assert "1.3.6.1.4.1.9.1.2494" in text
    assert '"SwitchSoftware, Version 17.3"' in text
    assert "snmpwalk" in text
    with pytest.raises(NotSupportedError, match="community's view"):
        await read("apc_without_objects", own_simulator, snmp)


async def test_raritan_sensors_are_scaled_by_their_own_digits_and_unavailable_ones_are_none(
    own_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    ours = await read("raritan_three_poles", own_simulator, snmp)
    assert (ours["model"], ours["total_power_w"], ours["power_factor"], ours["frequency_hz"]) == (
        "PX3-5190R", 1050, 0.97, 60,
    )  # fmt: skip
    assert [(row["id"], row["voltage_v"], row["current_a"], row["power_w"]) for row in ours["phases"]] == [
        ("L1", 120.1, 5.213, 600), ("L2", 119.9, 4.1, 450), ("L3", 120, 0.012, 0),
    ]  # fmt: skip
    assert [(row["id"], row["current_a"]) for row in ours["banks"]] == [("C1", 2.613), ("C2", 2.6)]
    columns = ("index", "name", "current_a", "power_w", "power_factor", "state")
    assert [tuple(row[key] for key in columns) for row in ours["outlets"]] == [
        (1, "node 7", 2.6, 512, None, "on"), (2, "2", 2.601, 520, None, "off"),
    ]  # fmt: skip
    assert ours["inlet_temps_c"] == [{"id": "1.1", "value": 25}, {"id": "1.3", "value": -5.5}]
    assert ours["humidity_pct"] == [{"id": "1.2", "value": 41}]
    assert ours["suspect"] == []


async def test_eaton_rows_of_neutral_totals_and_voltages_between_lines_are_no_phases(
    own_simulator: SnmpSimulator, snmp: SnmpEngine
) -> None:
    ours = await read("eaton_three_phases", own_simulator, snmp)
    assert (ours["total_power_w"], ours["power_factor"], ours["frequency_hz"]) == (4100, -0.953, 50)
    columns = ("id", "voltage_v", "current_a", "power_w", "energy_wh")
    assert [tuple(row[key] for key in columns) for row in ours["phases"]] == [
        ("L1", 230.1, 6.21, 1370, 1), ("L2", 230.9, 6.19, 1365, 2), ("L3", 229.5, 6.3, 1372, 3),
    ]  # fmt: skip
    assert [(row["current_a"], row["power_w"], row["state"]) for row in ours["outlets"]] == [
        (0.79, 175, "on"), (0, 0, "off"), (None, None, None),
    ]  # fmt: skip
    assert [(row["id"], row["power_w"]) for row in ours["banks"]] == [("group 0.1", 220), ("group 0.2", 440)]
    assert ours["inlet_temps_c"] == [{"id": "0.1", "value": 22.5}], "72.5 F; the second probe is not connected"
    assert ours["humidity_pct"] == [{"id": "0.1", "value": 43.5}]
    assert ours["suspect"] == []
