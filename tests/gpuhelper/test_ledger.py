"""The ledger file by itself: what a kill, damage or another boot leaves of it."""

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.gpuhelper.ledger import FILE_BYTES, ROWS, SLOT_BYTES, Ledger, LedgerError, Record, boot_id, read_ledger
from nodewarden.gpuhelper.wire import LedgerEntry

watts = st.integers(min_value=1, max_value=2_000_000).map(lambda mw: mw / 1000)
seconds = st.floats(min_value=0, max_value=1e9)
uuids = st.sampled_from([f"GPU-{letter * 8}" for letter in string.ascii_lowercase[:10]])
entries = st.builds(
    LedgerEntry,
    uuid=uuids,
    prior_w=watts,
    w=watts,
    previous_w=st.none() | watts,
    keep_w=st.none() | watts,
    protects=st.sampled_from(["none", "gpu", "breaker"]),
    cause=st.text(max_size=10),
    owner_uid=st.integers(min_value=0, max_value=2**32 - 1),
    since_s=seconds,
    written_at_s=seconds,
    expires_at_s=st.none() | seconds,
    manual_w=st.none() | watts,
    pending=st.none() | st.text(alphabet=string.printable.strip(), min_size=1, max_size=20),
    state=st.sampled_from(["owned", "kept", "foreign"]),
)


def entry_of(uuid: str, w: float = 350.0, **rest: object) -> LedgerEntry:
    return LedgerEntry(uuid=uuid, prior_w=700.0, w=w, **rest)  # type: ignore[arg-type]


def opened(folder: Path, boot: str | None = None) -> Ledger:
    ledger = Ledger(folder / "gpu-ledger", boot)
    ledger.open()
    return ledger


@given(entry=entries.filter(lambda entry: "\0" not in entry.cause))
@settings(max_examples=60, deadline=None)
def test_an_entry_comes_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, entry: LedgerEntry) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    opened(folder).write(entry.uuid, Record(entry=entry, confirmed=True))
    assert read_ledger(folder / "gpu-ledger") == [entry]


@given(st.lists(st.tuples(uuids, watts, st.booleans()), min_size=1, max_size=30), st.integers(0, SLOT_BYTES - 1))
@settings(max_examples=60, deadline=None)
def test_a_write_torn_at_any_byte_leaves_the_state_before_it_or_after_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float, bool]], torn_at: int
) -> None:
    """F24: kill -9 at any instant leaves a consistent ledger."""
    folder = tmp_path_factory.mktemp("ledger")
    ledger = opened(folder)
    expected: dict[str, float] = {}
    before, whole_before = b"", {}
    for number, (uuid, w, is_open) in enumerate(steps):
        before, whole_before = ledger.path.read_bytes(), dict(expected)
        entry = entry_of(uuid, w, written_at_s=float(number))
        ledger.write(uuid, Record(entry=entry, is_open=is_open))
        if is_open:
            expected[uuid] = w
        else:
            expected.pop(uuid, None)
    after = ledger.path.read_bytes()
    assert {entry.uuid: entry.w for entry in read_ledger(ledger.path)} == expected
    changed = [slot for slot in range(ROWS * 2) if _slot(before, slot) != _slot(after, slot)]
    assert len(changed) == 1
    at = changed[0] * SLOT_BYTES
    ledger.path.write_bytes(before[:at] + after[at : at + torn_at] + before[at + torn_at :])
    left = {entry.uuid: entry.w for entry in read_ledger(ledger.path)}
    assert left in (whole_before, expected)


def _slot(contents: bytes, slot: int) -> bytes:
    return contents[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]


@given(st.lists(st.tuples(st.integers(0, FILE_BYTES - 1), st.integers(1, 255)), max_size=40), st.data())
@settings(max_examples=60, deadline=None)
def test_damage_costs_only_the_damaged_rows(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    ledger = opened(folder)
    names = [f"GPU-{number}" for number in range(8)]
    for name in names:
        ledger.write(name, Record(entry=entry_of(name)))
    contents = bytearray(ledger.path.read_bytes())
    damaged = set()
    for place, flip in flips:
        contents[place] ^= flip
        damaged.add(place // SLOT_BYTES // 2)
    size = data.draw(st.sampled_from([FILE_BYTES, FILE_BYTES, 3 * SLOT_BYTES, 0]))
    ledger.path.write_bytes(bytes(contents[:size]))
    whole_rows = {row for row in range(8) if row not in damaged and (row * 2 + 2) * SLOT_BYTES <= size}
    found = {entry.uuid for entry in read_ledger(ledger.path)}
    assert {names[row] for row in whole_rows} <= found <= set(names)
    reopened = Ledger(ledger.path)
    reopened.open()
    reopened.write("GPU-new", Record(entry=entry_of("GPU-new")))
    assert "GPU-new" in {entry.uuid for entry in read_ledger(ledger.path)}


def test_a_missing_ledger_has_no_entries(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "nothing") == []


def test_the_file_has_its_full_size_from_the_start_and_everyone_may_read_it(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    status = ledger.path.stat()
    assert (status.st_size, status.st_mode & 0o7777) == (FILE_BYTES, 0o644)
    assert status.st_blocks * 512 >= FILE_BYTES
    for number in range(100):
        ledger.write("GPU-a", Record(entry=entry_of("GPU-a", 200.0 + number, written_at_s=float(number))))
    assert ledger.path.stat().st_size == FILE_BYTES


def test_entries_of_another_boot_are_closed_and_kept_apart(tmp_path: Path) -> None:
    opened(tmp_path, boot="another-boot").write("GPU-a", Record(entry=entry_of("GPU-a")))
    assert read_ledger(tmp_path / "gpu-ledger") == []
    ledger = opened(tmp_path)
    assert [entry.uuid for entry in ledger.of_other_boots] == ["GPU-a"]
    assert not ledger.records
    assert not opened(tmp_path).of_other_boots
    assert ledger.boot == boot_id() != "another-boot"


def test_a_closed_entry_stays_closed_when_its_row_serves_another_gpu_and_back(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for number in range(2 * ROWS):
        name = f"GPU-{number % 3}"
        ledger.write(name, Record(entry=entry_of(name, written_at_s=2.0 * number)))
        ledger.write(name, Record(entry=entry_of(name, written_at_s=2.0 * number + 1), is_open=False))
        assert read_ledger(ledger.path) == []


def test_more_gpus_than_rows_are_refused_and_the_others_stay(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for number in range(ROWS):
        ledger.write(f"GPU-{number}", Record(entry=entry_of(f"GPU-{number}")))
    with pytest.raises(LedgerError, match="in use"):
        ledger.write("GPU-one-more", Record(entry=entry_of("GPU-one-more")))
    assert len(read_ledger(ledger.path)) == ROWS


def test_something_else_in_the_ledgers_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpu-ledger").mkdir()
    with pytest.raises(LedgerError):
        opened(tmp_path)
    (tmp_path / "gpu-ledger").rmdir()
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "gpu-ledger").symlink_to(target)
    with pytest.raises(LedgerError):
        opened(tmp_path)
    assert target.read_bytes() == b"precious"


def test_a_removed_file_is_noticed_and_made_again_with_all_entries(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.write("GPU-a", Record(entry=entry_of("GPU-a")))
    assert ledger.is_in_place()
    ledger.path.unlink()
    assert not ledger.is_in_place()
    ledger.close()
    ledger.open()
    assert [entry.uuid for entry in read_ledger(ledger.path)] == ["GPU-a"]


@pytest.mark.parametrize("damage", [b"\0" * FILE_BYTES, b"\xa5" * FILE_BYTES, b"\xa5" * 3 * SLOT_BYTES])
def test_a_file_that_somebody_wrote_into_is_noticed_and_made_right(tmp_path: Path, damage: bytes) -> None:
    """While a cap is in force the file must say so at any moment: the helper may be killed in the next."""
    ledger = opened(tmp_path)
    for uuid in ("GPU-a", "GPU-b"):
        ledger.write(uuid, Record(entry=entry_of(uuid)))
    ledger.write("GPU-b", Record(entry=entry_of("GPU-b", written_at_s=1.0), is_open=False))
    with ledger.path.open("r+b") as file:
        file.write(damage)
    assert not ledger.is_in_place()
    ledger.close()
    ledger.open()
    assert [entry.uuid for entry in read_ledger(ledger.path)] == ["GPU-a"]
    assert ledger.is_in_place()


def test_an_entry_that_could_not_be_closed_on_file_is_closed_when_the_file_is_back(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.write("GPU-a", Record(entry=entry_of("GPU-a")))
    ledger.close()
    with pytest.raises(LedgerError):
        ledger.write("GPU-a", Record(entry=entry_of("GPU-a", written_at_s=1.0), is_open=False))
    assert [entry.uuid for entry in read_ledger(ledger.path)] == ["GPU-a"]
    ledger.open()
    assert read_ledger(ledger.path) == []
    assert not ledger.records


def test_a_reader_never_sees_a_half_made_file(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert list(tmp_path.iterdir()) == [ledger.path]
