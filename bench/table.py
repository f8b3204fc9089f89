"""Rows of results: what was measured, the number, and the aim or what it is compared with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    what: str
    result: str
    note: str = ""


def show(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    wide = max(len(row.what) for row in rows)
    number = max(len(row.result) for row in rows)
    for row in rows:
        print(f"  {row.what:<{wide}}  {row.result:>{number}}  {row.note}".rstrip(), flush=True)
