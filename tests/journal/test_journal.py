"""The journal keeps what was committed, survives a damaged file and a full disk, and says when it is degraded."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nodewarden.journal import Entry, Journal, read_entries


def entry(code: str, wall_s: float = 1e9) -> Entry:
    return Entry(wall_s=wall_s, boot_s=5.0, kind="event", code=code, uuid=None, text=f"text of {code}", data={"w": 540})


def codes(path: Path) -> list[str]:
    return [row.code for _, row in read_entries(path)]


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", max_age_s=1e12)
    for number in range(20):
        journal.append(entry(f"e{number}"))
    assert journal.flush()
    journal.close()
    assert codes(journal.path) == [f"e{number}" for number in range(20)]
    assert read_entries(journal.path, after_id=18, limit=1)[0][1].data == {"w": 540}


def test_a_committed_entry_survives_kill_minus_nine(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from nodewarden.journal import Entry, Journal
        journal = Journal(Path({str(path)!r}), max_age_s=1e12)
        for number in range(1000000):
            journal.append(Entry(wall_s=1e9, boot_s=1.0, kind="event", code=f"e{{number}}", uuid=None, text=""))
            assert journal.flush()
            print(number, flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last == 50:
            process.send_signal(signal.SIGKILL)
            break
    last = max([last, *(int(line) for line in process.stdout)])
    process.wait()
    process.stdout.close()
    kept = read_entries(path, limit=10_000)
    assert [row.code for _, row in kept][: last + 1] == [f"e{number}" for number in range(last + 1)]


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 400, b"\0" * 8192])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(tmp_path: Path, content: bytes) -> None:
    """F70: 0 bytes, garbage, zeros."""
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    journal = Journal(path, max_age_s=1e12)
    journal.append(entry("after"))
    assert journal.flush()
    journal.close()
    assert codes(path) == ["after"]
    aside = [file for file in tmp_path.iterdir() if "damaged" in file.name]
    assert len(aside) == (1 if content else 0)
    assert all(file.read_bytes() == content for file in aside)


def test_a_cut_file_never_stops_the_writer(tmp_path: Path) -> None:
    """F70: power loss cut the file in the middle."""
    path = tmp_path / "journal.db"
    journal = Journal(path, max_age_s=1e12)
    for number in range(500):
        journal.append(entry(f"e{number}"))
    journal.close()
    whole = path.read_bytes()
    for extra in ("-wal", "-shm"):
        path.with_name(path.name + extra).unlink(missing_ok=True)
    path.write_bytes(whole[: len(whole) // 2 + 100])
    again = Journal(path, max_age_s=1e12)
    again.append(entry("after"))
    again.flush()
    again.close()
    assert "after" in [row.code for _, row in read_entries(path, limit=10_000)]


def test_a_full_disk_degrades_the_journal_and_it_recovers(tmp_path: Path) -> None:
    """F70: the directory cannot be written; entries wait in memory; nothing raises into the caller."""
    folder = tmp_path / "state"
    problems: list[str | None] = []
    journal = Journal(folder / "journal.db", max_age_s=1e12, on_problem=problems.append)
    journal.append(entry("one"))
    assert not journal.flush()
    assert journal.problem is not None
    assert "journal.db" in journal.problem
    assert [row.code for row in journal.recent()] == ["one"]
    folder.mkdir()
    journal.append(entry("two"))
    journal.close()
    assert codes(folder / "journal.db") == ["one", "two"]
    assert problems[-1] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_file_system_loses_nothing_that_fits_later(tmp_path: Path) -> None:
    """F70: ENOSPC in the middle; space comes back."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    try:
        journal = Journal(folder / "journal.db", max_age_s=1e12)
        journal.append(entry("first"))
        assert journal.flush()
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        for number in range(200):
            journal.append(entry(f"e{number}" + "x" * 500))
        assert not journal.flush()
        assert journal.problem is not None
        filler.unlink()
        journal.close()
        kept = codes(folder / "journal.db")
        assert len(kept) == 200
        assert len(read_entries(folder / "journal.db", limit=1000)) == 201
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_old_and_surplus_entries_are_pruned(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, max_age_s=1e12, max_entries=10)
    for number in range(1500):
        journal.append(entry(f"e{number}"))
        if number % 500 == 499:
            journal.flush()
    journal.close()
    again = Journal(path, max_age_s=1e12, max_entries=10)
    again.append(entry("last"))
    again.close()
    kept = codes(path)
    assert len(kept) <= 11
    assert kept[-1] == "last"


def test_reading_a_missing_or_foreign_file_gives_nothing(tmp_path: Path) -> None:
    assert read_entries(tmp_path / "none.db") == []
    (tmp_path / "odd.db").write_text("hello")
    assert read_entries(tmp_path / "odd.db") == []


def test_an_entry_that_cannot_be_written_as_it_is_stops_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", max_age_s=1e12)
    for data in ({"w": float("nan")}, {("a", "b"): 1}, {"w": 10**400}):
        journal.append(Entry(wall_s=1e9, boot_s=5.0, kind="event", code="odd", uuid="\ud800", text="\udcff", data=data))
    journal.append(entry("after"))
    assert journal.flush()
    journal.close()
    assert codes(journal.path) == ["odd", "odd", "odd", "after"]


def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    """What goes to a removed file is lost without a word from SQLite."""
    journal = Journal(tmp_path / "journal.db", max_age_s=1e12)
    journal.append(entry("before"))
    assert journal.flush()
    for path in tmp_path.iterdir():
        path.unlink()
    journal.append(entry("after"))
    assert journal.flush()
    journal.close()
    assert codes(journal.path) == ["after"]


def test_a_row_with_damaged_data_is_shown_as_damaged(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", max_age_s=1e12)
    journal.append(entry("good"))
    assert journal.flush()
    journal.close()
    with contextlib.closing(sqlite3.connect(journal.path)) as db, db:
        db.execute("UPDATE entries SET data = '{\"w\": 5'")
    assert [row.data for _, row in read_entries(journal.path)] == [{"damaged": '{"w": 5'}]
