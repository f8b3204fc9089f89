"""From what a device answered to quantities in our units, by a profile. Pure; never raises on what a device sends.

A value that is missing, is a not-available marker, is outside what the physics allows or is not written as the profile
says has no value; it is never turned into a number.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nodewarden.devices.snmp import Rows, Value
from nodewarden.sources.pdu.profile import MARKERS, TEXT_MARKERS, Field, Guard, Profile, Table

Columns = dict[str, Rows]  # column -> index -> value, as read

# What the physics of a rack allows, by the last part of a quantity's name.
_LIMITS = {
    "w": (-1e6, 1e6),
    "va": (-1e6, 1e6),
    "wh": (0.0, 1e12),
    "vah": (0.0, 1e12),
    "a": (0.0, 5000.0),
    "ma": (0.0, 5e6),
    "v": (0.0, 1000.0),
    "hz": (10.0, 1000.0),
    "c": (-40.0, 125.0),
    "pct": (0.0, 100.0),
    "factor": (-1.0, 1.0),
}
_ADDITIVE = ("total_power_w", "apparent_power_va", "energy_wh")
TOTALS = (*_ADDITIVE, "power_factor", "frequency_hz")
# What a total is called in the rows that it is made from.
_IN_ROWS = {"total_power_w": ("total_power_w", "power_w"), "apparent_power_va": ("apparent_power_va", "apparent_va")}
_NUMBER = re.compile(r"([+-]?\d{1,15}(?:\.\d{1,9})?)\s*(\S*)")


class Used(msgspec.Struct, frozen=True):
    """Where a value came from: enough to read it again.

    Attributes:
        oid: with index.
        outlet: number of the outlet, None for everything else.
        guard: object that says whether the value counts, to be read with it.
    """

    oid: str
    field: Field
    quantity: str
    outlet: int | None = None
    guard: str | None = None

    def oids(self) -> list[str]:
        """All that has to be read for this value."""
        return [self.oid] if self.guard is None else [self.oid, self.guard]


class Decoded(msgspec.Struct, kw_only=True):
    """A device in our units. Rows are mappings of quantity to value; None = the device has no value for it.

    Attributes:
        scalars: of the whole device, totals included.
        rows: by kind, in the order of their indices.
        estimated: key paths that the device computed from configured values.
        rejected: quantities whose value was outside what the physics allows.
        used: where the values came from.
        silent: objects that the device has and that give no value now, such as a marker while it starts.
    """

    scalars: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]]
    estimated: list[str] = []
    rejected: list[str] = []
    used: list[Used] = []
    silent: list[Used] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The rows of one kind, none if the device has none."""
        return self.rows.get(kind, [])


def columns_of(profile: Profile) -> list[str]:
    """Every column that the profile wants, those of one table beside each other."""
    wanted: list[str] = []
    for table in profile.tables:
        wanted += [*table.keys, *([table.where.column] if table.where else []), *([table.count] if table.count else [])]
        for field in (field for alternatives in table.fields.values() for field in alternatives):
            wanted += [field.column, *([field.digits] if field.digits else [])]
            wanted += [field.guard.column] if field.guard else []
            wanted += [field.fahrenheit[0]] if field.fahrenheit else []
    return list(dict.fromkeys(wanted))


def scalars_of(profile: Profile) -> list[str]:
    """Single objects, with index, that the profile wants."""
    wanted: list[str] = []
    for alternatives in profile.scalars.values():
        wanted += [f"{field.column}.{field.suffix}" for field in alternatives]
    return list(dict.fromkeys(wanted))


def store(columns: Columns, oids: Mapping[str, Value], known: Iterable[str] = ()) -> None:
    """Put values read by name into `columns`; `known` are columns, for indices of more than one part."""
    prefixes = sorted(known, key=len, reverse=True)
    for oid, value in oids.items():
        for prefix in prefixes:
            if oid.startswith(prefix + "."):
                columns.setdefault(prefix, {})[oid[len(prefix) + 1 :]] = value
                break
        else:
            column, _, index = oid.rpartition(".")
            columns.setdefault(column, {})[index] = value


def decode(profile: Profile, columns: Columns) -> Decoded:
    """Everything that the profile finds in `columns`."""
    found = Decoded(scalars={}, rows={}, estimated=[], rejected=[], used=[], silent=[])
    for quantity, alternatives in profile.scalars.items():
        found.scalars[quantity] = _first(profile, columns, quantity, alternatives, "", None, found)
    if profile.model is not None and found.scalars.get("model") is None:
        found.scalars["model"] = profile.model
    joined: dict[str, dict[str, dict[str, Any]]] = {}
    for table in profile.tables:
        if table.fallback and joined.get(table.rows):
            continue
        if table.count and _all_zero(columns.get(table.count, {})):
            continue
        _rows(profile, table, columns, joined.setdefault(table.rows, {}), found)
    for table in profile.tables:
        _sums(table, joined)
    for kind, rows in joined.items():
        found.rows[kind] = list(rows.values())
    _totals(profile, found)
    return found


def value_of(profile: Profile, columns: Columns, quantity: str, field: Field, index: str, found: Decoded) -> Any:
    """One field at one index, or None."""
    full = _join(index, field.suffix)
    raw = columns.get(field.column, {}).get(full)
    if raw is None or (field.guard is not None and not _passes(field.guard, columns, index)):
        return None
    if field.kind == "text":
        return _text(raw, field)
    if field.kind == "state":
        return field.states.get(raw) if isinstance(raw, int) else None
    absent = profile.absent if field.absent is None else field.absent
    if isinstance(raw, int) and (raw in absent or raw in MARKERS):
        return None
    amount = _amount(raw, field)
    if amount is None:
        return None
    amount *= field.scale
    if field.digits:
        digits = columns.get(field.digits, {}).get(full)
        if not isinstance(digits, int) or not 0 <= digits <= 9:
            return None
        amount /= 10**digits
    if field.fahrenheit is not None:
        column, told = columns.get(field.fahrenheit[0], {}), field.fahrenheit[1]
        if column.get(index, column.get("0")) == told:
            amount = round((amount - 32) / 1.8, 2)
    low, high = _LIMITS.get(quantity.rpartition("_")[2], (-1e15, 1e15))
    if quantity == "value":  # probes: the limits of degrees hold for a percentage too
        low, high = _LIMITS["c"]
    if not low <= amount <= high or (amount < 0 and not field.signed and quantity != "value"):
        found.rejected.append(quantity)
        return None
    amount = round(amount, 6)
    return int(amount) if amount == int(amount) else amount


def _first(
    profile: Profile,
    columns: Columns,
    quantity: str,
    alternatives: tuple[Field, ...],
    index: str,
    outlet: int | None,
    found: Decoded,
) -> Any:
    for field in alternatives:
        value = value_of(profile, columns, quantity, field, index, found)
        at = _join(index, field.suffix)
        if value is None and columns.get(field.column, {}).get(at) is None:
            continue
        guard = None
        if field.guard is not None:
            there = _join(index, field.guard.suffix)
            if there in columns.get(field.guard.column, {}):
                guard = f"{field.guard.column}.{there}"
        used = Used(f"{field.column}.{at}", field, quantity, outlet, guard)
        if value is not None:
            found.used.append(used)
            return value
        found.silent.append(used)
    return None


def _rows(profile: Profile, table: Table, columns: Columns, joined: dict[str, dict[str, Any]], found: Decoded) -> None:
    indices = {index for key in table.keys for index in columns.get(key, {})}
    if table.key_suffix:
        tail = f".{table.key_suffix}"
        indices = {index.removesuffix(tail) for index in indices if index.endswith(tail)}
    if table.where is not None:
        indices = {index for index in indices if _passes(table.where, columns, index)}
    for position, index in enumerate(sorted(indices, key=_order), start=1):
        parts = index.split(".")
        number = position if table.ordinal else int(parts[table.index_part])
        outlet = number if table.rows == "outlets" else None
        values = {
            quantity: _first(profile, columns, quantity, alternatives, index, outlet, found)
            for quantity, alternatives in table.fields.items()
        }
        row = joined.get(index)
        if row is None:
            words = {name: values.get(name) for name in ("number", "label", "unit")}
            words["number"] = number if words["number"] is None else words["number"]
            words["label"] = index if words["label"] is None else words["label"]
            try:
                label = table.id.format(*parts, index=index, **words)
            except IndexError:  # an index with fewer parts than the table's
                label = index
            joined[index] = {"index": number, "id": label, **({"spelt": index} if table.ordinal else {}), **values}
        else:
            for quantity, value in values.items():
                if row.get(quantity) is None:
                    row[quantity] = value


def _sums(table: Table, joined: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Fill what a row is the sum of; never from some of its parts only."""
    for quantity, (kind, part) in table.sums.items():
        for index, row in joined.get(table.rows, {}).items():
            parts = [each.get(part) for at, each in joined.get(kind, {}).items() if at.startswith(f"{index}.")]
            known = [value for value in parts if value is not None]
            if row.get(quantity) is None and known and len(known) == len(parts):
                row[quantity] = sum(known)


def _totals(profile: Profile, found: Decoded) -> None:
    for total in TOTALS:
        if found.scalars.setdefault(total, None) is None and total in profile.derived:
            found.scalars[total] = _total(profile, found, total)
    for total, scalar in profile.estimates.items():
        if found.scalars.get(total) is None and found.scalars.get(scalar) is not None:
            found.scalars[total] = found.scalars[scalar]
            found.estimated.append(total)


def _total(profile: Profile, found: Decoded, total: str) -> Any:
    """The only row's value, or the sum of all rows where a sum means something. Never the sum of some of them."""
    for kind in profile.totals_from:
        rows = found.of(kind)
        for quantity in _IN_ROWS.get(total, (total,)):
            values = [row.get(quantity) for row in rows]
            numbers = [value for value in values if value is not None]
            if not numbers or len(numbers) != len(values):
                continue
            if len(numbers) == 1 or (total == "frequency_hz" and len(set(numbers)) == 1):
                return numbers[0]
            if total in _ADDITIVE:
                return round(sum(numbers), 6)
    return None


def _amount(raw: Value, field: Field) -> float | None:
    """The number in a raw value; None unless all of it is written as the field says (F40)."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return float(raw) if not (field.units or field.text) else None
    if not isinstance(raw, bytes) or not (field.units or field.text):
        return None
    match = _NUMBER.fullmatch(raw.decode("latin-1").strip("\0 \t\r\n"))
    if match is None:
        return None
    unit = match[2]
    if field.units:
        return float(match[1]) * field.units[unit] if unit in field.units else None
    return float(match[1]) if not unit else None


def _text(raw: Value, field: Field) -> str | None:
    """Printable text, at most 64 characters; None for what vendors write when there is none."""
    if isinstance(raw, bytes):
        words = raw.decode("utf-8", "replace")
    elif isinstance(raw, int | str):
        words = str(raw)
    else:
        return None
    if field.pattern:
        match = re.search(field.pattern, words[:512])
        words = match[1] if match else ""
    words = "".join(character for character in words if character.isprintable())[:64]
    if field.blank and not words.strip():
        return words
    words = words.strip()
    return None if words.lower() in TEXT_MARKERS else words


def _passes(guard: Guard, columns: Columns, index: str) -> bool:
    value = columns.get(guard.column, {}).get(_join(index, guard.suffix))
    if value is None:
        return guard.missing
    return (value in guard.values) != guard.deny


def _all_zero(rows: Rows) -> bool:
    """True when the device counts its own parts and has none of these."""
    counts = [count for count in rows.values() if isinstance(count, int)]
    return bool(counts) and all(count == 0 for count in counts)


def _join(index: str, suffix: str) -> str:
    return f"{index}.{suffix}" if index and suffix else index or suffix


def _order(index: str) -> tuple[int, ...]:
    return tuple(int(part) for part in index.split("."))
