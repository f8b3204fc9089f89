"""What single BMC families do: where sessions are made, pages, forbidden resources, one model without the other."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from nodewarden.clock import BootClock
from nodewarden.devices.redfish import Access, RedfishClient
from nodewarden.errors import DeviceError
from nodewarden.model.bmc import BmcSnapshot
from nodewarden.sources.bmc.decode import decode
from nodewarden.sources.bmc.source import RedfishSource
from nodewarden.sources.bmc.walk import Walk
from nodewarden.store import SnapshotStore
from sources.conftest import HandClock
from support.redfish import TREES, Bmc

ROOT = "/redfish/v1"
CHASSIS = f"{ROOT}/Chassis/Node0"
POWER = f"{CHASSIS}/Power"
SENSORS = f"{CHASSIS}/Sensors"
ENABLED = {"State": "Enabled", "Health": "OK"}
Resources = dict[str, Any]


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def machine(chassis: Iterable[str] = ("Power",), **resources: Any) -> Resources:
    """One chassis with these links; further resources by their path below it."""
    return {
        ROOT: {"Chassis": link(f"{ROOT}/Chassis"), "RedfishVersion": "1.11.0"},
        f"{ROOT}/Chassis": {"Members": [link(CHASSIS)]},
        CHASSIS: {"Id": "Node0", **{name: link(f"{CHASSIS}/{name}") for name in chassis}},
        POWER: {"PowerControl": [{"PowerConsumedWatts": 900}]},
        **{f"{CHASSIS}/{path}": document for path, document in resources.items()},
    }


def sensors(*rows: Resources) -> Resources:
    """A collection of sensors and its members."""
    members = {f"Sensors/{number}": row for number, row in enumerate(rows)}
    return {"Sensors": {"Members": [link(f"{CHASSIS}/{path}") for path in members]}, **members}


def temperature(name: str, value: float) -> Resources:
    return {"Name": name, "ReadingType": "Temperature", "ReadingUnits": "Cel", "Reading": value, "Status": ENABLED}


def client_of(bmc: Bmc, timeout_s: float = 10.0) -> RedfishClient:
    return RedfishClient(Access(bmc.url, "monitor", "hidden"), timeout_s=timeout_s)


async def read(resources: Resources) -> BmcSnapshot:
    with Bmc(resources) as bmc:
        async with client_of(bmc) as client:
            return decode(await Walk(client.get, BootClock()).run())


@pytest.mark.parametrize("place", ["/redfish/v1/Sessions", "/redfish/v1/SessionService/Sessions/"])
async def test_a_session_is_made_where_the_service_root_says(place: str) -> None:
    resources = machine()
    resources[ROOT]["Links"] = {"Sessions": link(place)}
    with Bmc(resources) as bmc:
        bmc.answer_login = lambda path: None if path == place else (405, {}, b"")
        async with client_of(bmc) as client:
            assert await client.get(POWER)
        bmc.wait_for_logout()
    assert [path for method, path in bmc.requests if method == "POST"] == [place]


async def test_a_login_that_is_sent_on_to_a_trailing_slash_is_followed() -> None:
    usual = f"{ROOT}/SessionService/Sessions"
    with Bmc(machine()) as bmc:
        bmc.answer_login = lambda path: (308, {"Location": f"{usual}/"}, b"") if path == usual else None
        async with client_of(bmc) as client:
            assert await client.get(POWER)
    assert bmc.logins == 1


async def test_no_password_follows_a_login_to_another_server() -> None:
    with Bmc(machine()) as stranger, Bmc(machine()) as bmc:
        bmc.answer_login = lambda _: (307, {"Location": f"{stranger.url}{ROOT}/SessionService/Sessions"}, b"")
        async with client_of(bmc) as client:
            with pytest.raises(DeviceError, match="sends elsewhere"):
                await client.get(POWER)
    assert stranger.requests == []


async def test_a_resource_that_never_lets_us_in_costs_its_own_values_and_no_sessions() -> None:
    for status in (401, 403):
        with Bmc(machine(("Power", "Thermal"))) as bmc:
            bmc.answer = lambda path, status=status: (status, {}, b"{}") if path.endswith("/Thermal") else None  # type: ignore[misc]
            async with client_of(bmc) as client:
                for _ in range(3):
                    walk = Walk(client.get, BootClock())
                    assert decode(await walk.run()).chassis_power_w == 900
                    assert list(walk.failed) == [f"{CHASSIS}/Thermal"]
                assert len(bmc.tokens) == 1, "the session before was ended"
        assert bmc.logins <= 2


async def test_an_account_that_may_read_nothing_is_no_empty_machine() -> None:
    with Bmc(machine()) as bmc:
        bmc.answer = lambda path: (403, {}, b"{}") if path != ROOT else None
        async with client_of(bmc) as client:
            with pytest.raises(DeviceError, match="check user") as failed:
                await Walk(client.get, BootClock()).run()
    assert failed.value.reason == "forbidden"


async def test_a_connection_that_the_bmc_closed_is_made_again_at_once() -> None:
    with Bmc(machine()) as bmc:
        drops = iter([(0, {}, b"")])
        bmc.answer = lambda path: next(drops, None) if path == POWER else None
        async with client_of(bmc) as client:
            assert await client.get(POWER)
    assert bmc.logins == 1


async def test_a_bmc_that_hangs_amid_a_walk_is_not_waited_for_a_hundred_times() -> None:
    asked: list[str] = []
    rows = sensors(*(temperature(f"T{number}", 30) for number in range(50)))
    resources = machine(("Power", "Sensors"), **rows)

    async def get(path: str) -> dict[str, Any]:
        asked.append(path)
        if path.startswith(f"{SENSORS}/"):
            raise DeviceError("it does not answer", "timeout")
        found: dict[str, Any] = resources[path]
        return found

    with pytest.raises(DeviceError, match="does not answer"):
        await Walk(get, BootClock()).run()
    assert sum(path.startswith(f"{SENSORS}/") for path in asked) == 3


async def test_a_collection_in_pages_is_read_to_its_end() -> None:
    rows = sensors(*(temperature(f"GPU {number} Temp", 40 + number) for number in range(6)))
    resources = machine(("Sensors",), **rows)
    members = resources[SENSORS]["Members"]
    pages = {
        SENSORS: {"Members": members[:2], "Members@odata.nextLink": f"{SENSORS}?$skip=2"},
        f"{SENSORS}?$skip=2": {"Members": members[2:4], "Members@odata.nextLink": f"{SENSORS}?$skip=4"},
        f"{SENSORS}?$skip=4": {"Members": members[4:]},
    }
    for forgets_to_skip in (False, True):
        asked: list[str] = []

        async def get(path: str, asked: list[str] = asked, plain: bool = forgets_to_skip) -> dict[str, Any]:
            asked.append(path)
            found: dict[str, Any] = pages.get(path.partition("?")[0] if plain else path) or resources[path]
            return found

        found = decode(await Walk(get, BootClock()).run())
        values = [each.value_c for each in found.temperatures]
        assert values == ([40, 41] if forgets_to_skip else [40, 41, 42, 43, 44, 45])
        assert len(asked) <= 12


async def test_cray_nodes_have_voltages_in_power_and_all_else_in_sensors() -> None:
    """The node's input is the sensor named Node; sensors carry no Status."""
    rows = sensors(
        {"Name": "Node", "ReadingType": "Power", "ReadingUnits": "W", "Reading": 1210.5},
        {"Name": "Inlet Temp", "ReadingType": "Temperature", "ReadingUnits": "Cel", "Reading": 21},
    )
    resources = machine(("Power", "Sensors"), **rows)
    resources[POWER] = {"Voltages": [{"Name": "12V", "ReadingVolts": 12.1}]}
    found = await read(resources)
    assert found.chassis_power_w == 1210.5
    assert [(each.location, each.value_c) for each in found.temperatures] == [("inlet", 21)]


async def test_an_event_that_is_typed_as_a_temperature_is_none() -> None:
    event = {"Name": "PCIe 1 OverTemp", "ReadingType": "Temperature", "ReadingUnits": "", "Reading": 0}
    found = await read(machine(("Sensors",), **sensors(event, {**event, "Name": "Intrusion"}, temperature("CPU", 40))))
    assert [each.name for each in found.temperatures] == ["CPU"]
    assert found.missing == ()


@pytest.mark.skipif(not TREES.is_dir(), reason="the recorded trees are not beside the repository")
@pytest.mark.parametrize(
    "name", ["dell_r650_idrac9-hotspare", "lenovo_sr670v2_xcc", "nvidia_dgx-h100_ami", "supermicro_gb300_openbmc"]
)
async def test_firmware_that_drops_the_old_model_shows_the_same_machine(name: str) -> None:
    oracle = json.loads((TREES / name / "ORACLE.json").read_text())
    resources = {}
    for file in (TREES / name).rglob("index.json"):
        document = json.loads(file.read_text())
        for gone in ("Power", "Thermal"):
            document.pop(gone, None)
        resources["/".join([ROOT, *file.parent.relative_to(TREES / name).parts])] = document

    async def get(path: str) -> dict[str, Any]:
        if path not in resources:
            raise DeviceError(f"there is no {path}", "not_found")
        return resources[path]

    found = decode(await Walk(get, BootClock()).run())
    assert sorted(each.name for each in found.temperatures) == sorted(each["name"] for each in oracle["temperatures"])
    assert len(found.margins) == len(oracle["margins_not_temperatures"])
    assert len(found.fans) == len(oracle["fans"])
    assert found.chassis_power_w == pytest.approx(oracle["chassis_power_w"], rel=0.05)


async def test_ilo4_words_are_understood() -> None:
    resources = machine(
        ("Power", "Thermal"),
        Thermal={
            "Fans": [{"FanName": "Fan 1", "CurrentReading": 31, "Units": "Percent", "Status": ENABLED}],
            "Temperatures": [
                {"Name": "01-Inlet Ambient", "CurrentReading": 22, "ReadingCelsius": 22, "Status": ENABLED},
                {"Name": "05-P1 DIMM 1-8", "CurrentReading": 0, "ReadingCelsius": 0, "Status": {"State": "Absent"}},
            ],
        },
    )
    resources[POWER] = {"PowerConsumedWatts": 310, "PowerSupplies": [{"LastPowerOutputWatts": 150, "Status": ENABLED}]}
    found = await read(resources)
    assert found.chassis_power_w == 310
    assert [(each.name, each.percent, each.rpm) for each in found.fans] == [("Fan 1", 31, None)]
    assert found.inlet_c == 22
    assert len(found.temperatures) == 1


async def test_a_machine_with_the_new_model_only_has_supplies_groups_and_fans() -> None:
    psus = f"{CHASSIS}/PowerSubsystem/PowerSupplies"
    supply = {"Name": "PSU 1", "PowerCapacityWatts": 3000, "Status": ENABLED, "Metrics": link(f"{psus}/1/Metrics")}
    asleep = {"Name": "PSU 2", "Status": {"State": "Sleep", "Health": "OK"}, "PowerCapacityWatts": 3000}
    group = {"Name": "PSUs", "RedundancyType": "NPlusM", "MinNeededInGroup": 1, "MaxSupportedInGroup": 2,
             "RedundancyGroup": [link(f"{psus}/1"), link(f"{psus}/2")], "Status": ENABLED}  # fmt: skip
    found = await read(machine(
        ("PowerSubsystem", "ThermalSubsystem", "EnvironmentMetrics"),
        **{
            "PowerSubsystem": {"PowerSupplies": link(psus), "PowerSupplyRedundancy": [group]},
            "PowerSubsystem/PowerSupplies": {"Members": [link(f"{psus}/1"), link(f"{psus}/2")]},
            "PowerSubsystem/PowerSupplies/1": supply,
            "PowerSubsystem/PowerSupplies/1/Metrics": {"InputPowerWatts": {"Reading": "812.5"},
                                                       "OutputPowerWatts": {"Reading": 770}},
            "PowerSubsystem/PowerSupplies/2": asleep,
            "ThermalSubsystem": {"Fans": link(f"{CHASSIS}/ThermalSubsystem/Fans")},
            "ThermalSubsystem/Fans": {"Members": [link(f"{CHASSIS}/ThermalSubsystem/Fans/1")]},
            "ThermalSubsystem/Fans/1": {"Name": "Fan 1", "Status": ENABLED,
                                        "SpeedPercent": {"Reading": 40, "SpeedRPM": 9100}},
            "EnvironmentMetrics": {"PowerWatts": {"Reading": 815}},
        },
    ))  # fmt: skip
    assert found.chassis_power_w == 815
    assert [(each.name, each.present, each.input_w, each.output_w, each.redundancy) for each in found.psus] == [
        ("PSU 1", True, 812.5, 770, "PSUs"),
        ("PSU 2", True, None, None, "PSUs"),
    ]
    assert [(each.members, each.min_needed) for each in found.redundancy] == [(2, 1)]
    assert [(each.percent, each.rpm) for each in found.fans] == [(40, 9100)]
    assert found.is_redundancy_lost is False


async def test_totals_stay_fresh_while_hundreds_of_sensors_are_read(clock: HandClock) -> None:
    """A DGX answers 500 requests in four minutes; its power must not be four minutes old."""
    rows = sensors(*(temperature(f"GPU {number} Temp", 40) for number in range(60)))
    store = SnapshotStore(clock, lambda: ())
    oldest_s = 0.0
    with Bmc(machine(("Power", "Sensors"), **rows)) as bmc:

        def slow(_path: str) -> None:
            nonlocal oldest_s
            clock.time_s += 1.0  # a second for each answer
            if store.bmc.chassis_power_w is not None:
                oldest_s = max(oldest_s, clock.time_s - store.bmc.chassis_power_at_s)

        bmc.answer = slow
        source = RedfishSource(client_of(bmc), store, clock, period_s=10.0, name="n/bmc")
        await source.read()
        assert len(store.bmc.temperatures) == 60
        assert 1.0 < oldest_s < 20.0
        clock.time_s += 3600
        await source.read()  # the walk of the next hour: what was known stays while it goes on
        await source.close()
    assert len(store.bmc.temperatures) == 60
    assert store.records["bmc"].up


async def test_what_came_too_late_in_a_walk_is_looked_for_again_soon(clock: HandClock) -> None:
    store = SnapshotStore(clock, lambda: ())
    with Bmc(machine()) as bmc:
        bmc.answer = lambda path: (503, {}, b"") if path == POWER else None
        source = RedfishSource(client_of(bmc), store, clock, period_s=10.0, name="n/bmc")
        await source.read()
        assert store.bmc.chassis_power_w is None
        bmc.answer = lambda _: None
        clock.time_s += 301
        await source.read()
        await source.close()
    assert store.bmc.chassis_power_w == 900
