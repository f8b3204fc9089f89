"""The form of a vendor profile: a table of which object is which of our quantities, in which unit. Data, no code.

A profile has scalars (one value per device) and tables (rows: units, phases, banks, outlets, probes). A quantity may
have several fields, the best one first; the first that gives a value wins. How a field is read is the engine's affair.

Covered here because vendors need it: scale per field or from a column of decimal digits (Raritan), fixed tails of an
index (Raritan's sensor types), indices such as unit.phase (Enlogic), rows chosen by another column (legacy APC, Eaton),
rows or values that count only while a column says so (availability, data quality), temperature units told by the device
(Server Technology, Vertiv), texts with units ("0.061kW"), state enums, and not-available markers.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

SYS_DESCR, SYS_OBJECT_ID, SYS_UP_TIME = "1.3.6.1.2.1.1.1", "1.3.6.1.2.1.1.2", "1.3.6.1.2.1.1.3"

# "fast": with the totals; "slow": with the outlets; "once": at detection only
Poll = Literal["fast", "slow", "once"]
Kind = Literal["number", "text", "state"]

# Integers that mean "no value" wherever they appear.
MARKERS = frozenset({2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1})
# Texts that mean it.
TEXT_MARKERS = frozenset(
    {"", "-", "--", "n/a", "na", "notsupported", "not supported", "not-support", "unknown", "none"}
)


class Guard(msgspec.Struct, frozen=True):
    """Something counts only while this column, at the same index, holds one of `values`.

    Attributes:
        column: without index.
        values: what it must hold; or must not, with `deny`.
        suffix: fixed tail of the index in that column, as in `Field`.
        deny: turn it round.
        missing: what is decided where the column has no value.
    """

    column: str
    values: frozenset[int]
    suffix: str = ""
    deny: bool = False
    missing: bool = True


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Where one quantity is and how it is written there.

    Attributes:
        column: OID without the index of the row.
        suffix: what follows the index of the row; for a scalar, all of the index.
        scale: our unit per count.
        digits: column of decimal digits at the same index; divides by ten for each.
        units: for numbers written as text with a unit: which units are allowed and our unit for one of each.
        text: the number is written as text without a unit.
        states: for an enum: our word for each number; others are unknown.
        pattern: for a text: a regular expression whose first group is the value.
        blank: for a text: an empty one is a value too (a name that nobody has given).
        absent: integers that mean "no value" here; None = those of the profile.
        signed: values below zero are real.
        fahrenheit: column that tells the unit of degrees, of this row or once for the device, and what says Fahrenheit.
        guard: the value counts only while this holds.
        poll: how often it is worth reading.
        rank: of two that do not fit into the fast GET, the lower goes first.
    """

    column: str
    kind: Kind = "number"
    suffix: str = ""
    scale: float = 1.0
    digits: str = ""
    units: Mapping[str, float] = {}
    text: bool = False
    states: Mapping[int, str] = {}
    pattern: str = ""
    blank: bool = False
    absent: frozenset[int] | None = None
    signed: bool = False
    fahrenheit: tuple[str, int] | None = None
    guard: Guard | None = None
    poll: Poll = "slow"
    rank: int = 50


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one kind. Two tables of one kind are joined by the index of their rows, the first one's values first.

    Attributes:
        rows: "units", "phases", "banks", "outlets", "inlet_temps_c", "humidity_pct", or another list of the device.
        keys: columns whose indices say which rows there are.
        key_suffix: fixed tail of those indices that is not part of the row's.
        fields: for each quantity the fields that may give it.
        id: how a row is called: {index}, its parts {0} {1}, {number} from the field of that name, {label} likewise.
        index_part: which part of the index is the number of the row (outlets), -1 the last.
        ordinal: the number of a row is its position, because the index has two parts that only together are unique
            (module 2, outlet 1); how the device spells it is printed beside it.
        where: only these rows.
        count: column with the number of such things per unit; where it is there and all zero, the table is not used.
        sums: quantity -> kind of rows and their quantity: the sum over the rows whose index begins with this one's,
            where all of them are known.
        fallback: only used where no table before it gave a row of this kind.
    """

    rows: str
    keys: tuple[str, ...]
    key_suffix: str = ""
    fields: Mapping[str, tuple[Field, ...]]
    id: str = "{index}"
    index_part: int = -1
    ordinal: bool = False
    where: Guard | None = None
    count: str = ""
    sums: Mapping[str, tuple[str, str]] = {}
    fallback: bool = False


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One family of devices.

    Attributes:
        name: for people and tests, such as "apc-rpdu2".
        prefixes: of sysObjectID; the longest match over all profiles is tried first.
        probe: objects of which at least one must have a value, with their index.
        absent: integers that mean "no value" in this family.
        totals_from: kinds of rows that a missing total is made from (summed, or taken from the only row), in order.
        derived: the totals for which that is right.
        estimates: total -> scalar that the device computes rather than measures; used last and marked.
        model: where the device does not tell its own.
    """

    name: str
    vendor: str
    prefixes: tuple[str, ...]
    probe: tuple[str, ...]
    scalars: Mapping[str, tuple[Field, ...]]
    tables: tuple[Table, ...]
    kind: str = "pdu"
    absent: frozenset[int] = frozenset({-1})
    totals_from: tuple[str, ...] = ("units",)
    derived: tuple[str, ...] = ("total_power_w", "apparent_power_va", "energy_wh", "power_factor", "frequency_hz")
    estimates: Mapping[str, str] = {}
    model: str | None = None


def number(column: str, scale: float = 1.0, **more: object) -> Field:
    """A number: `value * scale` is in our unit. `more` are attributes of `Field`."""
    return msgspec.structs.replace(Field(column=column, scale=scale), **more)


def text(column: str, suffix: str = "", pattern: str = "") -> Field:
    """A text, read once."""
    return Field(column=column, kind="text", suffix=suffix, pattern=pattern, poll="once")


def name(column: str) -> Field:
    """What people have called a row; read once."""
    return Field(column=column, kind="text", blank=True, poll="once")


def state(column: str, states: Mapping[int, str], poll: Poll = "slow", suffix: str = "") -> Field:
    """An enum in words; numbers that are not in `states` are unknown."""
    return Field(column=column, kind="state", states=states, poll=poll, suffix=suffix, rank=80)
