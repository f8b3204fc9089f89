"""The table of the driver's error numbers (Xid): what each means, how bad it is, when it is over. Data in `xids.toml`.

A site's own file has the same form and says only what is different: single keys of a row, or new rows.
"""

import functools
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

PACKAGED = Path(__file__).with_name("xids.toml")
MAX_FILE_BYTES = 1 << 20
MAX_CODE = 65535

Severity = Literal["application", "warning", "critical"]
_Text = Annotated[str, Meta(min_length=1, max_length=400)]


class XidRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row.

    Attributes:
        severity: "application" (the job's own doing; the GPU is not blamed), "warning" or "critical".
        clears: "quiet": over after `quiet_s` seconds without another one; "reset": after a reset, reload or reboot.
        quiet_s: None = 600 s for an application's, else 3600 s.
    """

    name: _Text
    severity: Severity
    meaning: _Text
    advice: _Text
    clears: Literal["quiet", "reset"] = "quiet"
    quiet_s: Annotated[float, Meta(ge=1, le=90 * 86400)] | None = None

    @property
    def over_after_s(self) -> float | None:
        """Seconds without another one after which it is over; None = only a reset ends it."""
        if self.clears == "reset":
            return None
        return self.quiet_s if self.quiet_s is not None else 600.0 if self.severity == "application" else 3600.0


class XidTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows; `unknown` stands for every code that has none. The keys of `xid` are the codes."""

    version: Annotated[str, Meta(min_length=1, max_length=64)]
    unknown: XidRow
    xid: dict[str, XidRow]

    def row(self, code: int) -> XidRow:
        """What is known of a code."""
        return self.xid.get(str(code), self.unknown)

    @property
    def codes(self) -> list[int]:
        """All that have a row of their own, in order."""
        return sorted(int(code) for code in self.xid)


class TableError(ValueError):
    """A table that cannot be used; `mistakes` has all of them, one line each."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def load_table(path: Path | None = None) -> XidTable:
    """The packaged table, with the rows of the file at `path` over it. Raises TableError with every mistake."""
    packaged = _packaged()
    if path is None:
        return _converted(packaged)
    import tomllib  # noqa: PLC0415 - the GPU helper knows the rows by their type only: less memory

    from nodewarden.config_check import Mistake, check, dotted  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise TableError([f"{path}: is larger than 1 MiB, which no table needs"])
        own = tomllib.loads(raw.decode())
    except OSError as error:
        raise TableError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TableError([f"{path}: not valid TOML: {error}"]) from None
    rows = own.get("xid", {})
    if not isinstance(rows, dict):
        raise TableError([f"{path}: xid: found no table, allowed: tables such as [xid.79]"])
    mistakes = [
        f'{path}: xid.{code}: found "{code[:20]}", allowed: a number from 1 to {MAX_CODE}'
        for code in rows
        if not (code.isascii() and code.isdigit() and 1 <= int(code[:9]) <= MAX_CODE)
    ]
    unknown = packaged["unknown"]
    merged = {
        **packaged,
        **own,
        "unknown": _over(unknown, own.get("unknown", {})),
        "xid": {
            **packaged["xid"],
            **{code: _over(packaged["xid"].get(code, unknown), row) for code, row in rows.items()},
        },
    }
    found = check({**merged, "xid": {}}, XidTable, _no_hook)
    for code, row in merged["xid"].items():
        if isinstance(row, dict):
            found += check(row, XidRow, _no_hook, ("xid", code))
        else:
            found.append(Mistake(("xid", code), "found no table, allowed: a table such as [xid.79]"))
    mistakes += [f"{path}: {dotted(mistake.path)}: {mistake.text}" for mistake in found]
    if mistakes:
        raise TableError(mistakes)
    version = own.get("version", f"{packaged['version']} with {path.name}")
    return _converted({**merged, "version": version})


def _over(base: Any, own: Any) -> Any:
    """Single keys replaced; a severity of its own brings its own way of clearing unless that is given, too."""
    if not isinstance(own, dict) or not isinstance(base, dict):
        return own
    if "severity" in own and "clears" not in own:
        base = {key: value for key, value in base.items() if key not in {"clears", "quiet_s"}}
        if own["severity"] == "critical":
            base["clears"] = "reset"
    return {**base, **own}


def _no_hook(kind: type, value: Any) -> Any:
    raise NotImplementedError


def _converted(document: dict[str, Any]) -> XidTable:
    return msgspec.convert(document, XidTable)


@functools.cache
def _packaged() -> dict[str, Any]:
    import tomllib  # noqa: PLC0415

    return tomllib.loads(PACKAGED.read_text(encoding="utf-8"))
