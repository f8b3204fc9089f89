"""Compares a parsed TOML table with the Structs of the configuration and reports every mistake, not only the first.

Knows types, ranges, unknown keys and lines; knows nothing of what the keys mean.
"""

import difflib
import math
import re
import types
from collections.abc import Callable
from datetime import date, time
from typing import Any

import msgspec
import msgspec.inspect as mi

Path = tuple[str | int, ...]
DecHook = Callable[[type, Any], Any]

_SHOWN_CHARS = 60
_CREDENTIALS_IN_URL = re.compile(r"//[^/@\s]*@")
_HEADER = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
_KEY_PART = re.compile(r""""([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+)""")


class Mistake(msgspec.Struct, frozen=True):
    """One mistake: where, and what was found and is allowed."""

    path: Path
    text: str


def dotted(path: Path) -> str:
    """`pdu[1].limit_w`, as people write it."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
            continue
        word = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"'
        out += f".{word}" if out else word
    return out


def found(value: object) -> str:
    """The value as the message shows it: short, with its kind, without credentials in URLs."""
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "a table"
        case list():
            return "a list"
        case str():
            text = _CREDENTIALS_IN_URL.sub("//***@", value)
            if len(text) > _SHOWN_CHARS:
                text = text[:_SHOWN_CHARS] + "…"
            return f'the text "{text}"'
        case int() | float():
            return str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
        case date() | time():
            return f"the date or time {value}"
        case _:
            return f"a {type(value).__name__}"


def allowed(kind: mi.Type) -> str:
    """What a key accepts, in words."""
    match kind:
        case mi.Metadata(type=inner, extra_json_schema=extra):
            said = (extra or {}).get("description")
            text = allowed(inner)
            return f"{text} ({said})" if said else text
        case mi.BoolType():
            return "true or false"
        case mi.IntType(ge=low, le=high):
            return _ranged("a whole number", low, high)
        case mi.FloatType(ge=low, le=high):
            return _ranged("a number", low, high)
        case mi.StrType(max_length=longest):
            return "a text" + (f" of at most {longest} characters" if longest else "")
        case mi.LiteralType(values=values):
            return "one of " + ", ".join(f'"{v}"' for v in values)
        case mi.UnionType(types=kinds):
            return " or ".join(allowed(k) for k in kinds if not isinstance(k, mi.NoneType))
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item):
            return f"a list, each {allowed(item)}"
        case mi.StructType() | mi.DictType():
            return "a table"
        case _:
            return "a text"


def _ranged(noun: str, low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return noun
    if high is None:
        return f"{noun} of at least {low:.15g}"
    return f"{noun} from {low:.15g} to {high:.15g}" if low is not None else f"{noun} of at most {high:.15g}"


def check(table: dict[str, Any], struct: type[msgspec.Struct], dec_hook: DecHook, path: Path = ()) -> list[Mistake]:
    """Every mistake of `table` measured by `struct`; an empty list means that `msgspec.convert` succeeds."""
    mistakes: list[Mistake] = []
    fields = {f.name: f for f in msgspec.structs.fields(struct)}
    known = [name for name, f in fields.items() if not is_filled_later(f.type)]
    for key, value in table.items():
        here = (*path, key)
        if key not in known:
            mistakes.append(Mistake(here, _unknown(key, known)))
            continue
        mistakes += _check_value(value, fields[key].type, dec_hook, here)
    mistakes += [
        Mistake((*path, name), f"is missing, needed: {allowed(mi.type_info(fields[name].type))}")
        for name in known
        if fields[name].required and name not in table
    ]
    return mistakes


def _check_value(value: object, annotation: Any, dec_hook: DecHook, here: Path) -> list[Mistake]:
    kind = mi.type_info(annotation)
    bare = _bare(kind)
    if isinstance(bare, mi.StructType):
        if not isinstance(value, dict):
            shown = "a text" if isinstance(value, str) else found(value)  # may be a secret in the wrong place
            keys = [f.name for f in msgspec.structs.fields(bare.cls) if not is_filled_later(f.type)]
            return [Mistake(here, f"found {shown}, allowed: a table with {', '.join(keys)}")]
        return check(value, bare.cls, dec_hook, here)
    if isinstance(bare, mi.ListType | mi.VarTupleType):
        if not isinstance(value, list):
            return [Mistake(here, f"found {found(value)}, allowed: {allowed(kind)}")]
        item = _item_annotation(annotation)
        return [m for i, v in enumerate(value) for m in _check_value(v, item, dec_hook, (*here, i))]
    if isinstance(bare, mi.CustomType):  # a secret: its value is never shown
        if not isinstance(value, str) or not value:
            return [Mistake(here, "found no text, allowed: a text that is not empty")]
        return []
    finite = not isinstance(value, float) or math.isfinite(value)
    try:
        if finite:
            msgspec.convert(value, annotation, dec_hook=dec_hook)
            return []
    except (msgspec.ValidationError, OverflowError):
        pass
    return [Mistake(here, f"found {found(value)}, allowed: {allowed(kind)}")]


def _bare(kind: mi.Type) -> mi.Type:
    """Without metadata and without `| None`: TOML has no null."""
    while True:
        if isinstance(kind, mi.Metadata):
            kind = kind.type
        elif isinstance(kind, mi.UnionType):
            rest = [k for k in kind.types if not isinstance(k, mi.NoneType)]
            if len(rest) != 1:
                return kind
            kind = rest[0]
        else:
            return kind


def allowed_for(annotation: Any) -> str:
    """What a field of this type accepts, in words."""
    bare = _bare(mi.type_info(annotation))
    if isinstance(bare, mi.StructType):
        parts = [f for f in msgspec.structs.fields(bare.cls) if not is_filled_later(f.type)]
        return "a table: " + "; ".join(f"{f.name}: {allowed_for(f.type)}" for f in parts)
    return allowed(mi.type_info(annotation))


def struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """The Struct behind a table or a list of tables, None for a plain value."""
    bare = _bare(mi.type_info(annotation))
    if isinstance(bare, mi.ListType | mi.VarTupleType):
        bare = _bare(bare.item_type)
    return bare.cls if isinstance(bare, mi.StructType) else None


def is_filled_later(annotation: Any) -> bool:
    """True for what the loader fills in and the file may not have."""
    kind = mi.type_info(annotation)
    return isinstance(kind, mi.Metadata) and bool((kind.extra or {}).get("filled"))


def _item_annotation(annotation: Any) -> Any:
    """`T` of `tuple[T, ...]`, through Annotated and unions."""
    if hasattr(annotation, "__metadata__"):
        return _item_annotation(annotation.__origin__)
    if isinstance(annotation, types.UnionType):
        return _item_annotation(next(a for a in annotation.__args__ if a is not type(None)))
    return annotation.__args__[0]


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    stem = [k for k in known if k.startswith(f"{key}_")]  # the unit forgotten: `limit` for `limit_w`
    guess = near or stem
    hint = f'did you mean "{guess[0]}"?' if guess else f"allowed: {', '.join(known) or 'nothing'}"
    return f"is not a known key; {hint}"


def line_of(text: str, path: Path) -> int | None:
    """The line (from 1) where the key, or the nearest table that holds it, is written; None when it is not found."""
    wanted = list(path)
    best: tuple[int, int] | None = None  # (how many parts match, line)
    counts: dict[tuple[str | int, ...], int] = {}
    table: list[str | int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        here: list[str | int] | None = None
        if header := _HEADER.match(line):
            table = _resolve(_parts(header[2]), counts, is_array=header[1] == "[[")
            here = table
        elif key := _KEY.match(line):
            here = [*table, *_parts(key[1])]
        if here is None or here != wanted[: len(here)]:
            continue
        if best is None or len(here) > best[0]:
            best = (len(here), number)
    return best[1] if best else None


def _parts(key: str) -> list[str]:
    return [a or b or c for a, b, c in _KEY_PART.findall(key)]


def _resolve(parts: list[str], counts: dict[tuple[str | int, ...], int], *, is_array: bool) -> list[str | int]:
    """A header's path with the index of each array of tables on the way."""
    out: list[str | int] = []
    for depth, part in enumerate(parts, start=1):
        out.append(part)
        name = tuple(out)
        if depth == len(parts) and is_array:
            counts[name] = counts.get(name, -1) + 1
        if name in counts:
            out.append(counts[name])
    return out
