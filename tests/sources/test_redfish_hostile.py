"""A BMC that is slow, forgets sessions, answers garbage, sends elsewhere: what it costs, and that it is said."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.api.bmc_details import measured
from nodewarden.clock import BootClock
from nodewarden.devices.redfish import Access, RedfishClient
from nodewarden.devices.redfish_tls import fingerprint_of, shown_certificate
from nodewarden.errors import DeviceError
from nodewarden.sources.bmc.decode import decode
from nodewarden.sources.bmc.source import RedfishSource
from nodewarden.sources.bmc.tree import Resource, Tree
from nodewarden.sources.bmc.walk import Walk
from nodewarden.store import SnapshotStore
from sources.conftest import HandClock
from support.brokers import Authority
from support.redfish import Bmc

ROOT = "/redfish/v1"
POWER = f"{ROOT}/Chassis/1/Power"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def machine(watts: object = 900) -> dict[str, Any]:
    return {
        ROOT: {"Chassis": link(f"{ROOT}/Chassis"), "RedfishVersion": "1.11.0"},
        f"{ROOT}/Chassis": {"Members": [link(f"{ROOT}/Chassis/1")]},
        f"{ROOT}/Chassis/1": {"Id": "1", "Power": link(POWER), "Thermal": link(f"{ROOT}/Chassis/1/Thermal")},
        POWER: {"PowerControl": [{"PowerConsumedWatts": watts}], "PowerSupplies": []},
        f"{ROOT}/Chassis/1/Thermal": {
            "Temperatures": [{"Name": "Inlet Temp", "ReadingCelsius": 24, "Status": {"State": "Enabled"}}],
            "Fans": [{"Name": "Fan 1", "Reading": 5400, "ReadingUnits": "RPM", "Status": {"State": "Enabled"}}],
        },
    }


def client_of(bmc: Bmc, **changes: Any) -> RedfishClient:
    timeout_s = changes.pop("timeout_s", 10.0)
    return RedfishClient(Access(bmc.url, changes.pop("user", "monitor"), changes.pop("password", "hidden"), **changes),
                         timeout_s=timeout_s)  # fmt: skip


async def test_one_session_serves_many_requests_and_is_ended() -> None:
    with Bmc(machine()) as bmc:
        async with client_of(bmc) as client:
            for _ in range(5):
                assert (await client.get(POWER))["PowerControl"]
            assert bmc.tokens == {"token-1"}
        bmc.wait_for_logout()
    assert bmc.logins == 1
    assert {method for method, _ in bmc.requests} == {"GET", "POST", "DELETE"}
    assert all(path.startswith(f"{ROOT}/SessionService/Sessions") for method, path in bmc.requests if method != "GET")


async def test_a_session_that_the_bmc_forgot_is_replaced_once() -> None:
    with Bmc(machine()) as bmc:
        async with client_of(bmc) as client:
            await client.get(POWER)
            bmc.tokens.clear()
            assert await client.get(POWER)
    assert bmc.logins == 2


async def test_a_bmc_without_sessions_is_read_with_basic_authentication() -> None:
    with Bmc(machine(), sessions=False) as bmc:
        async with client_of(bmc) as client:
            assert await client.get(POWER)
            assert await client.get(POWER)
    assert [method for method, _ in bmc.requests].count("POST") == 1


async def test_a_wrong_password_is_named_without_being_told() -> None:
    with Bmc(machine()) as bmc:
        async with client_of(bmc, password="guess-1234") as client:
            with pytest.raises(DeviceError) as refused:
                await client.get(POWER)
    assert refused.value.reason == "refused"
    assert "'monitor'" in str(refused.value)
    assert "guess" not in str(refused.value)
    assert "guess" not in repr(Access(bmc.url, "monitor", "guess-1234"))


async def test_requests_that_come_at_once_go_one_after_the_other() -> None:
    with Bmc(machine()) as bmc:
        async with client_of(bmc) as client:
            await asyncio.gather(*(client.get(POWER) for _ in range(8)))
    assert bmc.busiest == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, {}, b"<html>"), "no_answer"),
        ((200, {}, b"[1, 2]"), "no_answer"),
        ((200, {}, b"[" * 100_000), "no_answer"),
        ((200, {}, b"\xff\xfe"), "no_answer"),
        ((500, {}, b"{}"), "no_answer"),
        ((503, {}, b"{}"), "busy"),
        ((0, {}, b""), "unreachable"),
        ((302, {"Location": POWER}, b""), "no_answer"),
        ((302, {"Location": "http://192.0.2.1/"}, b""), "no_answer"),
        ((302, {}, b""), "no_answer"),
    ],
)
async def test_a_bad_answer_is_an_error_with_a_reason(answer: tuple[int, dict[str, str], bytes], reason: str) -> None:
    with Bmc(machine()) as bmc:
        bmc.answer = lambda path: answer if path == POWER else None
        async with client_of(bmc) as client:
            with pytest.raises(DeviceError) as failed:
                await client.get(POWER)
            bmc.answer = lambda _: None
            assert await client.get(POWER)  # and it goes on
    assert failed.value.reason == reason
    assert bmc.url in str(failed.value)


async def test_a_redirect_to_a_trailing_slash_is_followed() -> None:
    with Bmc(machine()) as bmc:
        bmc.answer = lambda path: (308, {"Location": f"{POWER}/"}, b"") if path == POWER else None
        async with client_of(bmc) as client:
            assert await client.get(POWER)


async def test_a_bmc_that_hangs_is_given_up_after_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts in the kernel, and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with RedfishClient(Access(url, "", ""), timeout_s=0.3) as client:
            with pytest.raises(DeviceError) as failed:
                await client.get(ROOT)
    assert failed.value.reason == "timeout"


async def test_nobody_there_is_said() -> None:
    async with RedfishClient(Access("http://127.0.0.1:9", "", ""), timeout_s=5) as client:
        with pytest.raises(DeviceError) as failed:
            await client.get(ROOT)
    assert failed.value.reason == "unreachable"


@pytest.mark.parametrize("url", ["ftp://bmc", "https://", "https://u:p@bmc", "https://bmc/redfish", "bmc"])
def test_an_address_that_cannot_be_one_is_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(ValueError, match="https://HOST"):
        Access(url, "", "")


async def test_links_that_lead_in_circles_or_away_are_read_once_or_not_at_all() -> None:
    resources = machine()
    resources[f"{ROOT}/Chassis"]["Members"] *= 40
    resources[f"{ROOT}/Chassis"]["Members"] += [link(f"{ROOT}/Chassis"), link("http://192.0.2.1/x"), link("//x"), {}, 7]
    resources[f"{ROOT}/Chassis/1"]["PowerSubsystem"] = link(f"{ROOT}/Chassis/1/")
    with Bmc(resources) as bmc:
        async with client_of(bmc) as client:
            walk = Walk(client.get, BootClock())
            found = decode(await walk.run())
    assert found.chassis_power_w == 900
    paths = [path for method, path in bmc.requests if method == "GET"]
    assert len(paths) == len(set(paths)) <= 6
    assert all(path.startswith(ROOT) for path in paths)


async def test_values_of_any_type_are_a_number_or_nothing() -> None:
    for watts, expected in (("612.5", 612.5), ("null", None), (True, None), ([], None), (0, None), (float(7), 7.0)):
        with Bmc(machine(watts)) as bmc:
            async with client_of(bmc) as client:
                assert decode(await Walk(client.get, BootClock()).run()).chassis_power_w == expected


async def test_an_expanded_collection_costs_one_request_and_one_that_is_not_costs_each_member() -> None:
    for works in (True, False):
        resources = machine()
        sensors = f"{ROOT}/Chassis/1/Sensors"
        resources[ROOT]["ProtocolFeaturesSupported"] = {"ExpandQuery": {"Levels": True, "MaxLevels": 1}}
        resources[f"{ROOT}/Chassis/1"] = {"Sensors": link(sensors)}
        members = [
            {**link(f"{sensors}/{n}"), "Name": f"GPU {n} Temp", "ReadingType": "Temperature", "Reading": 40 + n,
             "Status": {"State": "Enabled"}}
            for n in range(6)
        ]  # fmt: skip
        resources |= {member["@odata.id"]: member for member in members}
        resources[sensors] = {"Members": members if works else [link(each["@odata.id"]) for each in members]}
        with Bmc(resources) as bmc:
            async with client_of(bmc) as client:
                found = decode(await Walk(client.get, BootClock()).run())
        assert [each.value_c for each in found.temperatures] == [40, 41, 42, 43, 44, 45]
        singles = [path for _, path in bmc.requests if path.startswith(f"{sensors}/")]
        assert len(singles) == (0 if works else 6)


@pytest.mark.parametrize("hours", [24, -24], ids=["valid", "expired"])
def test_a_certificate_is_trusted_by_its_fingerprint_alone_and_no_other(tmp_path: Path, hours: float) -> None:
    site = Authority("site")
    with Bmc(machine(), tls=site.issue(tmp_path, "bmc", hours=hours)) as bmc:
        right = fingerprint_of(shown_certificate("127.0.0.1", bmc.port, 5))

        async def read(**access: Any) -> Any:
            async with client_of(bmc, **access) as client:
                return await client.get(POWER)

        assert asyncio.run(read(fingerprint=right.upper()))
        strangers: list[dict[str, str]] = [{"fingerprint": "ab" * 32}, {}]
        if hours > 0:
            assert asyncio.run(read(ca=str(site.write(tmp_path))))
        else:
            strangers.append({"ca": str(site.write(tmp_path))})
        for access in strangers:
            before = bmc.logins
            with pytest.raises(DeviceError) as refused:
                asyncio.run(read(**access))
            assert refused.value.reason == "refused"
            assert "fingerprint" in str(refused.value)
            assert bmc.logins == before, "no password goes to a stranger"


async def test_a_source_reads_totals_again_keeps_what_is_fresh_and_forgets_a_silent_bmc(clock: HandClock) -> None:
    """F03: values of a source that is gone are not served for ever."""
    store = SnapshotStore(clock, lambda: ())
    with Bmc(machine()) as bmc:
        source = RedfishSource(client_of(bmc, timeout_s=2.0), store, clock, period_s=10.0, name="n/bmc")
        await source.read()
        assert (store.bmc.chassis_power_w, store.bmc.inlet_c) == (900, 24)
        walked = len(bmc.requests)
        bmc.resources[POWER] = {"PowerControl": [{"PowerConsumedWatts": 1200}]}
        await source.read()
        assert store.bmc.chassis_power_w == 1200
        assert len(bmc.requests) - walked == 2, "only what gave values is asked again"
        bmc.answer = lambda _: (500, {}, b"")
        await source.read()
        assert store.bmc.chassis_power_w == 1200
        assert store.records["bmc"].status().reason == "no_answer"
        clock.time_s += 100
        await source.read()
        assert store.bmc.chassis_power_w is None
        bmc.answer = lambda _: None
        clock.time_s += 100
        await source.read()
        assert store.bmc.chassis_power_w == 1200
        await source.close()
        bmc.wait_for_logout()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["Name", "Status", "State", "Health", "Reading", "ReadingType", "ReadingUnits", "PowerControl", "PowerSupplies",
         "Redundancy", "RedundancySet", "Mode", "MinNumNeeded", "Temperatures", "Fans", "ReadingCelsius", "Thresholds",
         "PowerConsumedWatts", "@odata.id", "Metrics", "OutputPowerWatts", "DataSourceUri", "SpeedPercent", "Links"]
    ), inner, max_size=6),
    max_leaves=25,
)  # fmt: skip
KINDS = ("root", "chassis", "power", "thermal", "sensor", "supply", "supply_metrics", "power_subsystem", "fan",
         "leak_detector", "coolant", "environment", "system", "manager")  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.dictionaries(st.text(max_size=4), JSON, max_size=2), JSON), max_size=6
    )
)
def test_no_document_makes_decoding_fail(parts: list[tuple[str, dict[str, Any], Any]]) -> None:
    tree = Tree()
    for n, (kind, extra, document) in enumerate(parts):
        body = {**(document if isinstance(document, dict) else {}), **extra}
        tree[f"/redfish/v1/{n}"] = Resource(f"/redfish/v1/{n}", kind, "/redfish/v1/Chassis/1", body, float(n))
    found = decode(tree)
    assert all(each.value_c == each.value_c for each in found.temperatures)
    json.dumps(measured(found), allow_nan=False)  # and what is shown of it is JSON
    msgspec.json.encode(measured(found))


def test_words_and_counts_of_a_group_are_bounded() -> None:
    group = {"Mode": [{"Member": float("nan"), "x" * 999: "y" * 999}, 7] * 50, "MinNumNeeded": 1e300,
             "MaxNumSupported": -1}  # fmt: skip
    tree = Tree(p=Resource("p", "power", "c", {"Redundancy": [group], "PowerSupplies": [{"Name": "a"}]}, 1.0))
    found = decode(tree).redundancy[0]
    assert (found.min_needed, found.max_supported) == (None, None)
    assert len(msgspec.json.encode(found)) < 2_000
