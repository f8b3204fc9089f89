"""A BMC's Redfish resources as they were read, and how to take values out of them. Pure.

Firmware writes numbers as strings, "null" as a word, NaN, and leaves out what the schema wants: nothing of it raises.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

Document = Mapping[str, Any]
MAX_NAME: Final = 120


class Resource(msgspec.Struct, frozen=True):
    """One resource.

    Attributes:
        path: as it was linked, without a trailing slash.
        kind: what it was linked as, such as "thermal", "sensor".
        chassis: path of the chassis (or other machine part) that it was reached from.
        document: its JSON object.
        taken_at_s: when it was read, CLOCK_BOOTTIME seconds.
    """

    path: str
    kind: str
    chassis: str
    document: Document
    taken_at_s: float


class Tree(dict[str, Resource]):
    """Resources by path, in the order in which they were found."""

    def of(self, kind: str, chassis: str | None = None) -> Iterator[Resource]:
        """All of one kind, of one chassis if given."""
        for resource in self.values():
            if resource.kind == kind and chassis in {None, resource.chassis}:
                yield resource

    def first(self, kind: str) -> Document:
        """The first one's document; empty where there is none."""
        return next((resource.document for resource in self.of(kind)), {})


def number(value: object) -> float | None:
    """A finite number, also from a string; None for everything else. An object with a Reading counts as that."""
    if isinstance(value, Mapping):
        value = value.get("Reading")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def positive(value: object) -> float | None:
    """A number above zero: where zero stands for "none"."""
    found = number(value)
    return found if found is not None and found > 0 else None


def text(value: object) -> str | None:
    """A short line of text, or None; the word "null" is none."""
    if not isinstance(value, str):
        return None
    line = " ".join("".join(char if char.isprintable() else " " for char in value[: 4 * MAX_NAME]).split())[:MAX_NAME]
    return line if line and line.lower() not in {"null", "n/a"} else None


def part(document: object, key: str) -> Document:
    """A member that should be an object; empty for anything else."""
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def rows(document: object, key: str) -> list[Document]:
    """A member that should be a list of objects, without all else."""
    found = document.get(key) if isinstance(document, Mapping) else None
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def health(document: Document) -> str | None:
    """Status.Health, in the BMC's words."""
    return text(part(document, "Status").get("Health"))


def state(document: Document) -> str | None:
    """Status.State, in the BMC's words."""
    return text(part(document, "Status").get("State"))


def linked(document: object) -> str | None:
    """The path behind a link, without fragment and trailing slash; None for what is no path of this server."""
    path = document.get("@odata.id") if isinstance(document, Mapping) else None
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//") or len(path) > 1024:
        return None
    if not path.isprintable() or " " in path:
        return None
    return path.partition("#")[0].rstrip("/") or None
