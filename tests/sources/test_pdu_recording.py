"""Recordings for bug reports: they decode as the device does, and say nothing of whose it is."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.devices.snmp import Community, SnmpEngine
from nodewarden.sources.pdu import registry
from nodewarden.sources.pdu.decode import Columns, columns_of, decode, scalars_of, store
from nodewarden.sources.pdu.discovery import discover
from nodewarden.sources.pdu.profile import Profile
from nodewarden.sources.pdu.recording import Object, lines_of, record
from support.real import recordings_dir
from support.servers import SnmpSimulator
from support.snmp_agents import Agent, load_recording

from .conftest import OWN_RECORDINGS, recording

KEPT = {"state", "load_state", "model", "id"}


def objects_in(lines: list[str]) -> list[Object]:
    found: list[Object] = []
    for line in lines:
        oid, tag, value = line.split("|", 2)
        number = int(tag.rstrip("x"))
        content: Any = value
        if number in {4, 68}:
            content = bytes.fromhex(value) if tag.endswith("x") else value.encode()
        elif number == 5:
            content = None
        elif number not in {6, 64}:
            content = int(value)
        found.append((oid, number, content))
    return found


def columns_from(objects: list[Object], profile: Profile) -> Columns:
    values = {oid: value for oid, _, value in objects}
    columns: Columns = {}
    store(columns, {oid: values.get(oid) for oid in scalars_of(profile)})
    for column in columns_of(profile):
        prefix = f"{column}."
        columns[column] = {oid[len(prefix) :]: value for oid, value in values.items() if oid.startswith(prefix)}
    return columns


def measured(thing: Any) -> Any:
    """What was decoded, without texts that an owner may have chosen."""
    if isinstance(thing, dict):
        known = {key: measured(value) for key, value in thing.items() if key in KEPT or not isinstance(value, str)}
        if isinstance(known.get("model"), str):
            known["model"] = known["model"].partition("S/N")[0].partition(", xxx")[0].removesuffix(", ")
        return known
    return [measured(each) for each in thing] if isinstance(thing, list) else thing


def all_recordings() -> list[Path]:
    folder = OWN_RECORDINGS.parents[2] / "shared" / "snmp"
    return sorted([*OWN_RECORDINGS.glob("*.snmprec"), *folder.glob("*.snmprec")])


@pytest.mark.parametrize("path", all_recordings(), ids=lambda path: path.stem)
def test_a_neutral_recording_decodes_as_the_device_did(path: Path) -> None:
    if OWN_RECORDINGS not in path.parents:
        recordings_dir()
    original = objects_in(path.read_text().splitlines())
    object_id = next((value for oid, _, value in original if oid == "1.3.6.1.2.1.1.2.0"), None)
    for profile in registry.candidates(str(object_id)) or list(registry.PROFILES):
        before = decode(profile, columns_from(original, profile))
        if not any(row.get("power_w") or row.get("current_a") for rows in before.rows.values() for row in rows):
            continue  # not the profile of this device
        keep = [str(before.scalars["model"])] if before.scalars.get("model") else []
        after = decode(profile, columns_from(objects_in(lines_of(original, keep)), profile))
        assert measured(after.scalars) == measured(before.scalars)
        assert measured(after.rows) == measured(before.rows)


OWNED: list[Object] = [
    ("1.3.6.1.2.1.1.1.0", 4, b"APC Card (MB:v4.1.0 MN:AP8959EU3 HR:05 SN: 5A1234E12345 MD:1/2/15) rack12-pdu.acme.com"),
    ("1.3.6.1.2.1.1.4.0", 4, b"Jane Doe <jane@acme.com>"),
    ("1.3.6.1.2.1.1.5.0", 4, b"rack12-pdu"),
    ("1.3.6.1.2.1.1.6.0", 4, b"Hall 3, Zurich"),
    ("1.3.6.1.4.1.318.1.1.26.2.1.3.1", 4, b"rack12-pdu"),
    ("1.3.6.1.4.1.318.1.1.26.2.1.8.1", 4, b"AP8959EU3"),
    ("1.3.6.1.4.1.318.1.1.26.2.1.9.1", 4, b"5A1234E12345"),
    ("1.3.6.1.4.1.318.1.1.26.9.4.3.1.3.1", 4, b"gpu-node-07 PSU1"),
    ("1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.1", 66, 1234),
    ("1.3.6.1.4.1.318.2.1.1", 64, "10.20.30.40"),
    ("1.3.6.1.4.1.318.2.1.2", 4, b"\x00\xc0\xb7\x11\x22\x33"),
    ("1.3.6.1.4.1.318.2.1.3", 4, b"00:c0:b7:11:22:33"),
    ("1.3.6.1.4.1.318.2.1.4", 4, b"10.20.30.40"),
    ("1.3.6.1.4.1.318.2.1.5", 4, b"1234567890123"),
    ("1.3.6.1.4.1.318.2.1.6", 4, b" 12.5 kW"),
    ("1.3.6.1.4.1.318.2.1.7", 4, b"Phase L1.Voltage.Value"),
    ("1.3.6.1.4.1.318.2.1.8", 4, "Büro Süd".encode()),
    ("1.3.6.1.4.1.30932.1.10.1.3.110.1.3.12." + ".".join(str(ord(c)) for c in "00C0B7112233"), 65, 77),
]  # fmt: skip


def test_nothing_that_says_whose_it_is_is_left() -> None:
    text = "\n".join(lines_of(OWNED, keep=["AP8959EU3"]))
    for secret in (
        "Jane", "acme", "rack12", "Zurich", "5A1234E12345", "gpu-node", "10.20.30.40", "c0b7112233", "c0:b7",
        "1234567890", "B7112233", ".".join(str(ord(c)) for c in "C0B7112233"), "ro S",
    ):  # fmt: skip
        assert secret not in text, secret
    for kept in (
        "MN:AP8959EU3",
        "|4|AP8959EU3",
        "|66|1234",
        " 12.5 kW",
        "Phase L1.Voltage.Value",
        "|64|192.0.2.1",
        "|65|77",
    ):
        assert kept in text, kept


@given(st.lists(st.tuples(st.integers(1, 40), st.binary(max_size=40)), max_size=20, unique_by=lambda each: each[0]))
def test_any_bytes_give_lines_that_can_be_read_back_with_the_same_lengths(texts: list[tuple[int, bytes]]) -> None:
    objects: list[Object] = [(f"1.3.6.1.4.1.99.{number}", 4, value) for number, value in texts]
    back = objects_in(lines_of(objects))
    assert [oid for oid, _, _ in back] == sorted(
        (oid for oid, _, _ in objects), key=lambda oid: int(oid.split(".")[-1])
    )
    assert {oid: len(value) for oid, _, value in back if isinstance(value, bytes)} == {
        oid: len(value) for oid, _, value in objects if isinstance(value, bytes)
    }


async def test_a_device_is_walked_and_its_replay_by_snmpsim_is_discovered_the_same(
    snmp: SnmpEngine, tmp_path: Path
) -> None:
    objects = load_recording(recording("apc_three_phase_metered"))
    with Agent(objects) as peer:
        device = snmp.device("127.0.0.1", peer.port, Community("public"), timeout_s=10.0)
        lines = lines_of(await record(device, deadline_s=60), keep=["AP8681"])
        before = await discover("127.0.0.1", peer.port, community="public", timeout_s=10.0, engine=snmp)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "replay.snmprec").write_text("\n".join(lines) + "\n")
    with SnmpSimulator(tmp_path / "data", tmp_path) as simulator:
        after = await discover("127.0.0.1", simulator.port, community="replay", timeout_s=10.0, engine=snmp)
    assert measured(after) == measured(before)
    assert after["total_power_w"] == 6120
    assert len(lines) >= len([oid for oid in objects if oid[:7] == (1, 3, 6, 1, 4, 1, 318)])
