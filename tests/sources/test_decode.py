"""The decoder: whatever a device sends, it never raises and never makes a number of what is none."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.sources.pdu.decode import Columns, Decoded, columns_of, decode, scalars_of, store
from nodewarden.sources.pdu.profile import MARKERS, Field, Guard, Profile, Table, number, state, text
from nodewarden.sources.pdu.registry import PROFILES, candidates

anything: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.integers(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.binary(max_size=40),
    st.text(max_size=20),
    st.sampled_from([b"notsupported", b"  12.4", b"0x1F", b"1e9", b"\xff\xfe", b"1\x00"]),
)
indices = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


def names(profile: Profile) -> list[str]:
    return columns_of(profile) + [oid.rpartition(".")[0] for oid in scalars_of(profile)]


def columns(profile: Profile, index: st.SearchStrategy[str], value: st.SearchStrategy[Any]) -> Any:
    def build(entries: list[tuple[str, str, Any]]) -> Columns:
        built: Columns = {}
        for column, at, raw in entries:
            built.setdefault(column, {})[at] = raw
        return built

    return st.lists(st.tuples(st.sampled_from(names(profile)), index, value), max_size=30).map(build)


def numbers(found: Decoded) -> list[float]:
    rows = [row for kind in found.rows.values() for row in kind]
    quantities = [value for row in rows for key, value in row.items() if key not in {"index", "number"}]
    return [value for value in [*quantities, *found.scalars.values()] if isinstance(value, int | float)]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_garbage_never_raises_and_stays_within_physics(profile: Profile) -> None:
    @settings(deadline=None, max_examples=40)
    @given(columns(profile, st.one_of(indices, st.sampled_from(["0", "1", "2", "1.1"])), anything))
    def check(garbage: Columns) -> None:
        found = decode(profile, garbage)
        assert all(abs(value) <= 1e15 for value in numbers(found))

    check()


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_marker_never_becomes_a_number(profile: Profile) -> None:
    """F34."""
    markers = st.sampled_from([*sorted(MARKERS | profile.absent), None])

    @settings(deadline=None, max_examples=40)
    @given(columns(profile, st.sampled_from(["0", "1", "2", "1.1", "1.2"]), markers))
    def check(only_markers: Columns) -> None:
        assert numbers(decode(profile, only_markers)) == []

    check()


def plain(fields: dict[str, tuple[Field, ...]], **more: Any) -> Profile:
    table = Table(rows="outlets", keys=("9.1",), fields=fields, **more)
    return Profile(name="x", vendor="X", prefixes=(), probe=(), scalars={}, tables=(table,))


def only_row(profile: Profile, given_columns: Columns) -> dict[str, Any]:
    (row,) = decode(profile, given_columns).of("outlets")
    return row


@pytest.mark.parametrize(
    ("raw", "amps"),
    [
        (b"  12.4", 12.4), (b"12.4\x00", 12.4), (b"124", 124.0), (b"12,4", None), (b"", None), (b"N/A", None),
        (b"0x1F", None),
        (b"12.4.1", None), (b"12.4 A", None), (b"1e3", None), (b"--", None), (124, None), (b"\xb212", None),
    ],
)  # fmt: skip
def test_a_number_written_as_text_is_read_whole_or_not_at_all(raw: Any, amps: float | None) -> None:
    """F40."""
    profile = plain({"current_a": (number("9.1", text=True),)})
    assert only_row(profile, {"9.1": {"1": raw}})["current_a"] == amps


@pytest.mark.parametrize(
    ("raw", "watts"),
    [(b"0.061kW", 61), (b"61 W", 61), (b"61VA", None), (b"61", None), (b"-", None), (b"kW", None), (61, None)],
)
def test_a_unit_in_the_text_is_taken_at_its_word(raw: Any, watts: float | None) -> None:
    """F33."""
    profile = plain({"power_w": (number("9.1", units={"kW": 1000.0, "W": 1.0}),)})
    assert only_row(profile, {"9.1": {"1": raw}})["power_w"] == watts


def test_a_number_where_text_was_given_is_no_number() -> None:
    assert only_row(plain({"power_w": (number("9.1"),)}), {"9.1": {"1": b"230"}})["power_w"] is None


def test_decimal_digits_come_from_the_device_and_their_absence_is_no_reading() -> None:
    """F32."""
    profile = plain({"current_a": (number("9.4", suffix="1", digits="9.7"),)})
    values: Columns = {"9.1": {"3": 1}, "9.4": {"3.1": 1301}, "9.7": {"3.1": 3}}
    assert only_row(profile, values)["current_a"] == 1.301
    assert only_row(profile, {**values, "9.7": {}})["current_a"] is None
    assert only_row(profile, {**values, "9.7": {"3.1": 99}})["current_a"] is None


def test_a_temperature_is_in_celsius_whatever_the_device_is_set_to() -> None:
    profile = plain({"internal_temp_c": (number("9.1", 0.1, fahrenheit=("9.9", 1)),)})
    assert only_row(profile, {"9.1": {"1": 680}, "9.9": {"0": 1}})["internal_temp_c"] == 20
    assert only_row(profile, {"9.1": {"1": 200}, "9.9": {"0": 0}})["internal_temp_c"] == 20
    assert only_row(profile, {"9.1": {"1": 680}, "9.9": {"1": 1, "0": 0}})["internal_temp_c"] == 20


def test_a_value_counts_only_while_the_device_says_that_it_is_good() -> None:
    profile = plain({"power_w": (number("9.1", guard=Guard("9.2", frozenset({0}))),)})
    assert only_row(profile, {"9.1": {"1": 50}, "9.2": {"1": 0}})["power_w"] == 50
    assert only_row(profile, {"9.1": {"1": 50}, "9.2": {"1": 2}})["power_w"] is None
    assert only_row(profile, {"9.1": {"1": 50}})["power_w"] == 50


def test_what_no_rack_can_carry_is_rejected_and_counted() -> None:
    found = decode(plain({"voltage_v": (number("9.1"),)}), {"9.1": {"1": 65535}})
    assert (found.of("outlets")[0]["voltage_v"], found.rejected) == (None, ["voltage_v"])
    below = decode(plain({"power_w": (number("9.1", absent=frozenset()),)}), {"9.1": {"1": -26}})
    assert (below.of("outlets")[0]["power_w"], below.rejected) == (None, ["power_w"])
    signed = decode(plain({"power_w": (number("9.1", signed=True),)}), {"9.1": {"1": -26}})
    assert signed.of("outlets")[0]["power_w"] == -26


def test_rows_of_an_index_with_several_parts_are_numbered_by_the_chosen_part() -> None:
    profile = plain({"name": (text("9.3"),), "state": (state("9.1", {0: "off", 1: "on"}),)}, index_part=-1)
    values: Columns = {"9.1": {"1.2": 0, "1.10": 1, "1.9": 5}, "9.3": {"1.2": b"two \x07"}}
    rows = decode(profile, values).of("outlets")
    assert [(row["index"], row["state"]) for row in rows] == [(2, "off"), (9, None), (10, "on")]
    assert rows[0]["name"] == "two"


def test_values_read_by_name_land_in_their_columns() -> None:
    into: Columns = {"1.2": {"3.1": 5}}
    store(into, {"1.2.3.1": 6, "1.2.3.2": 7, "9.9.0": 1}, into)
    assert into == {"1.2": {"3.1": 6, "3.2": 7}, "9.9": {"0": 1}}


def test_the_longest_prefix_wins_and_a_longer_number_is_no_prefix() -> None:
    assert [profile.name for profile in candidates("1.3.6.1.4.1.318.1.3.4.6")] == ["apc-rpdu2"]
    assert candidates("1.3.6.1.4.1.318.1.3.4.66") == []
    assert candidates("") == candidates(None) == []


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_profile_can_be_found_and_asks_for_little_at_a_time(profile: Profile) -> None:
    assert profile.probe, "a sysObjectID alone is not believed"
    assert all(candidates(prefix)[0] is profile for prefix in profile.prefixes)
    assert all(column.replace(".", "").isdigit() for column in names(profile))
