"""A device as a .snmprec file for a bug report: its numbers and types as they are, nothing that says whose it is.

Numbers are kept. Texts are kept only when they are a number, made of words of measurement, or the model; every other
text becomes x of the same length, which is all that a decoder can need of it. Addresses become documentation ones.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from nodewarden.devices.snmp import SnmpDevice, Value

Object = tuple[str, int, Value]  # OID, type as in a .snmprec file, value

_SYSTEM: Final = "1.3.6.1.2.1.1"
_ENTERPRISES: Final = "1.3.6.1.4.1"
# Below mib-2 only what says what the device measures: no interfaces, addresses, routes or connections.
_STANDARD: Final = ("1.3.6.1.2.1.33", "1.3.6.1.2.1.47.1.1.1", "1.3.6.1.2.1.99.1.1")
_MAX_OBJECTS: Final = 20_000

_PRIVATE_SYSTEM: Final = ("4", "5", "6")  # contact, name, location
_DESCRIPTION: Final = "1.3.6.1.2.1.1.1.0"

_NUMBER: Final = re.compile(
    r"\s*[+-]?\d{1,7}(?:[.,]\d{1,6})?\s*(?:%|[kKMm]?(?:W|VA|VAR|Wh|VAh|A|V|Hz)|[CF]|[Dd]eg\S{0,2})?\s*"
)
_VOCABULARY: Final = """
a ac access active activepower air alarm amp ampere amperes amps analog angle apparent average b bank branch breaker
c capacity category cb celsius circuit closed command consumption contact cord counter crest critical current custom
degree degrees delay delta desc descname description detector device digital door duration enable enabled energy env
environment error external f factor fahrenheit fail failed fan fault flow frequency fuse fuses general group high
humidity hysteresis hz id in index info inlet input internal io k kva kw kwh l l1 l2 l3 lc leakage level limit line
ll ln load logging low lowcrit lower lowwarn main max maximum measured member members meter min minimum minutes
module monitoring n na name neutral no noload none normal not notsupported of off offset ok on open or out outlet
outlets output over overload pdu peak percent phase pole port power present quality rating rcm reactive reading real
relay reset residual rms rpm runtime s scale sec seconds sensor sensors set setpoint socket source speed state
status strip sum supply support supported switch switched temp temperature tempsensor time to total type under unit
units unknown upper v va value var variables vars volt voltage volts w warning watt watts wh wye x y yes z
"""
_WORDS: Final = frozenset(_VOCABULARY.split())
# How devices call their parts: "L1", "C12", "AA:L". Too short for a serial number or a name.
_PART: Final = re.compile(r"[A-Z]{1,2}\d{0,3}(?:[:.][A-Z]{0,2}\d{0,2})?(?:-[LN]\d?(?:/N)?)?")
_SECRETS: Final = re.compile(
    r"(?i)(?:\b(?:s/?n|serial(?: ?(?:no|number))?|mac)\b\s*[:=#.]?\s*\S+)"
    r"|(?:\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b)"
    r"|(?:\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.))"
    r"|(?:\S+@\S+)"
    r"|(?:\b[\w-]+(?:\.[\w-]+)*\.(?:com|net|org|edu|gov|local|lan|internal|example|de|fr|uk|io|eu)\b)"
)
_HEX_TEXT: Final = frozenset(b"0123456789abcdefABCDEF")


async def record(device: SnmpDevice, *, deadline_s: float) -> list[Object]:
    """Walk what says what the device is and measures: system, its vendor's branch, UPS-MIB, ENTITY-SENSOR-MIB.

    Args:
        device: to ask.
        deadline_s: for each of the branches.

    Raises:
        DeviceError: as for `SnmpDevice.get`.
    """
    found = [
        each
        for each in await device.walk_types(_SYSTEM, deadline_s=deadline_s, max_rows=64)
        if len(each[0].split(".")) == 9  # sysORTable says nothing
    ]
    for root in _STANDARD:
        found += await device.walk_types(root, deadline_s=deadline_s, max_rows=_MAX_OBJECTS)
    found += await device.walk_types(_ENTERPRISES, deadline_s=deadline_s, max_rows=_MAX_OBJECTS)
    return found


def lines_of(objects: Iterable[Object], keep: Sequence[str] = ()) -> list[str]:
    """The lines of the file, in its order, without what says whose device it is.

    Args:
        objects: as from `record`.
        keep: texts that stay although they are no measurement, such as the model.
    """
    listed = list(objects)
    hidden = _names(listed)
    neutral: dict[tuple[int, ...], str] = {}
    for oid, tag, value in listed:
        key = _without_text(tuple(int(part) for part in oid.split(".")))
        neutral[key] = f"{'.'.join(map(str, key))}|{_line(oid, tag, value, hidden, keep)}"
    return [neutral[key] for key in sorted(neutral)]


def _names(objects: Iterable[Object]) -> list[str]:
    """What the owner called the device: it may be in other texts too."""
    names = []
    for oid, _, value in objects:
        if oid.startswith(f"{_SYSTEM}.") and oid.split(".")[8:] in ([part, "0"] for part in _PRIVATE_SYSTEM):
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
            names += [word for word in (text.strip(), *text.split()) if len(word) > 2]
    return sorted(set(names), key=len, reverse=True)


def _line(oid: str, tag: int, value: Value, hidden: Sequence[str], keep: Sequence[str]) -> str:
    if tag == 64:
        return "64|192.0.2.1"
    if isinstance(value, bytes):
        if tag == 68:
            return f"68x|{value.hex()}"
        private = oid.startswith(f"{_SYSTEM}.") and oid.split(".")[8] in _PRIVATE_SYSTEM
        return _text(value, hidden, keep, private=private, described=oid == _DESCRIPTION)
    return f"{tag}|{'' if value is None else value}"


def _text(value: bytes, hidden: Sequence[str], keep: Sequence[str], *, private: bool, described: bool) -> str:
    """A text as it may be shown: itself, or x of the same length; bytes that are no text become zeros."""
    words = value.decode("utf-8", "replace")
    if not all(32 <= byte < 127 for byte in value):
        stripped = value.rstrip(b"\0")
        if stripped and all(32 <= byte < 127 for byte in stripped):
            shown = _shown(stripped.decode(), hidden, keep, private=private, described=described)
            return f"4x|{shown.encode().hex()}{'00' * (len(value) - len(stripped))}"
        return f"4x|{'00' * len(value)}"
    return f"4|{_shown(words, hidden, keep, private=private, described=described)}"


def _shown(words: str, hidden: Sequence[str], keep: Sequence[str], *, private: bool, described: bool) -> str:
    if not words.strip() or (not private and words.strip() in keep):
        return words
    if private:
        return _crossed(words)
    if described or any(len(kept) > 3 and kept in words for kept in keep):
        shown = _SECRETS.sub(lambda match: _crossed(match[0]), words)
        for name in hidden:
            shown = shown.replace(name, "x" * len(name)) if name not in keep else shown
        return shown
    return words if _NUMBER.fullmatch(words) or _PART.fullmatch(words) or _measures(words) else _crossed(words)


def _measures(words: str) -> bool:
    """True for texts like "Phase L1.Voltage.Value", "notSupported", "Bank 2", "kWh"."""
    for text in (words, re.sub(r"([a-z])([A-Z])", r"\1 \2", words)):
        tokens = [token.lower() for token in re.split(r"[^A-Za-z0-9]+", text) if token]
        known = [token in _WORDS for token in tokens]
        if (
            len(words) <= 64
            and any(known)
            and all(token in _WORDS or re.fullmatch(r"\d\d?", token) for token in tokens)
        ):
            return True
    return False


def _crossed(words: str) -> str:
    """The same shape: x for each letter and digit."""
    return re.sub(r"[^\s]", "x", words)


def _without_text(oid: tuple[int, ...]) -> tuple[int, ...]:
    """An OID whose index spells a MAC address as text (Chatsworth): zeros instead, told apart by their last digits."""
    for position, length in enumerate(oid):
        text = oid[position + 1 : position + 1 + length]
        if length == 12 and len(text) == 12 and set(text) <= _HEX_TEXT and any(part > 57 for part in text):
            number = f"{sum(text) % 10000:012d}".encode()
            return (*oid[: position + 1], *number, *oid[position + 13 :])
    return oid
