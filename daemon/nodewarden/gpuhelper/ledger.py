"""The ledger: what limit each GPU had before us, and what we asked for last, on disk before every hardware write.

One fixed-size, preallocated file on tmpfs. Each GPU owns a row of two slots; a write goes to the older slot, so a kill
at any instant leaves the record before it. A slot counts only if its CRC holds, and only in the boot that wrote it:
caps and boots end together.

    file = 32 rows, row = 2 slots, slot = 512 bytes: magic, sequence, boot id, key, numbers, texts, CRC

Row keys are GPU uuids, and one row ("agent") for what the last agent asked to happen if it falls silent.
"""

import math
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

import msgspec

from nodewarden.errors import NodewardenError
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.units import mw_from_watts, watts_from_mw

SLOT_BYTES = 512
ROWS = 32
FILE_BYTES = ROWS * 2 * SLOT_BYTES
LOOK_EVERY = 60
"""Every so many checks the contents are compared even if nothing seems to have been written since the last."""

AGENT_KEY = "agent"

_MAGIC = b"NWLEDG02"
_NO_MW = -1
# magic, sequence, boot id, key, open, confirmed, protects, state, armed, uid, prior, w, previous, keep, since, written,
# expires, cause, pending; then manual (0 = nothing, as in the padding of older files), padding and the CRC
_SLOT = struct.Struct("<8sQ36s96sBBBBBIqqqqddd64s120s")
_MANUAL = struct.Struct("<q")
_CRC = struct.Struct("<I")
_PROTECTS = ("none", "gpu", "breaker")
_STATES = ("owned", "kept", "foreign", "vanished")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LedgerError(NodewardenError):
    """The ledger cannot be written."""


class Record(msgspec.Struct, kw_only=True):
    """One row's newest record.

    Attributes:
        entry: what the wire shows of it.
        confirmed: the board was read back at `entry.w` after this record was written.
        armed: only for the "agent" row.
        is_open: False = nothing of ours is in force.
    """

    entry: LedgerEntry
    confirmed: bool = False
    armed: bool = False
    is_open: bool = True


def boot_id() -> str:
    """This boot's id; empty where the kernel gives none (then every record counts as this boot's)."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()[:36]
    except OSError:
        return ""


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Open entries of this boot by uuid, without the helper. Damage of any kind costs only the damaged rows."""
    boot = boot_id()
    records = _newest(_contents(path))
    return [
        record.entry
        for key, (_, record_boot, record) in sorted(records.items())
        if record.is_open and record_boot == boot and key != AGENT_KEY
    ]


class Ledger:
    """The helper's own ledger. Not thread-safe: `caps` calls it under one lock.

    Args:
        path: of the file; created if missing.
        boot: id of this boot.
    """

    def __init__(self, path: Path, boot: str | None = None) -> None:
        self.path = path
        self.boot = boot_id() if boot is None else boot
        self.records: dict[str, Record] = {}
        self.of_other_boots: list[LedgerEntry] = []
        self._fd = -1
        self._rows: dict[str, int] = {}
        self._closes_unwritten: dict[str, Record] = {}
        self._slots: dict[int, tuple[int, int]] = {}  # row -> (slot written last, its sequence)
        self._as_left: tuple[int, int, int, int] | None = None  # what `stat` says while nobody else has written
        self._checks = 0

    @property
    def is_open(self) -> bool:
        """Whether it can be written as far as known."""
        return self._fd >= 0

    def open(self) -> None:
        """Open or create the file and load this boot's records; entries of other boots are kept apart and closed.

        Records that were taken in memory while the file could not be written are written now. Raises LedgerError.
        """
        in_memory = dict(self.records)
        try:
            self._open_file()
            contents = os.pread(self._fd, FILE_BYTES, 0)
        except OSError as error:
            self.close()
            raise LedgerError(f"ledger {self.path}: {error.strerror or error}") from error
        self._rows.clear()
        self._slots.clear()
        self.of_other_boots = []
        for key, (row, boot, record) in _newest(contents).items():
            if boot != self.boot:
                if record.is_open and key != AGENT_KEY:
                    self.of_other_boots.append(record.entry)
            elif record.is_open:
                self._rows[key] = row
                if key not in self._closes_unwritten:
                    self.records.setdefault(key, record)
        for slot, sequence, _, _, _ in _valid_slots(contents):
            row = slot // 2
            if sequence >= self._slots.get(row, (0, -1))[1]:
                self._slots[row] = (slot, sequence)
        for entry in self.of_other_boots:
            self._erase(entry.uuid, contents)
        for key, record in (self._closes_unwritten | in_memory).items():
            if record.is_open or key in self._rows:
                self.write(key, record)
        self._closes_unwritten.clear()

    def _open_file(self) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self.path, flags)
        except FileNotFoundError:
            # Readers never see a half-made file: it gets its name when it is whole.
            scratch = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # with the rest of it, it was removed
            scratch.unlink(missing_ok=True)
            fd = os.open(scratch, flags | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.posix_fallocate(fd, 0, FILE_BYTES)
                os.fchmod(fd, 0o644)
                scratch.rename(self.path)
            except OSError:
                os.close(fd)
                scratch.unlink(missing_ok=True)
                raise
        self._fd = fd
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a regular file; remove it")
        if os.fstat(fd).st_size < FILE_BYTES:
            os.posix_fallocate(fd, 0, FILE_BYTES)
        os.fchmod(fd, 0o644)

    def close(self) -> None:
        """Close the file; records stay in memory."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def is_in_place(self) -> bool:
        """Whether the path still names the file that we write, and the file still says what we wrote."""
        if self._fd < 0:
            return False
        try:
            there, ours = self.path.lstat(), os.fstat(self._fd)
        except OSError:
            return False
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino) or there.st_size < FILE_BYTES:
            return False
        self._checks += 1
        if _marks(ours) == self._as_left and self._checks % LOOK_EVERY:
            return True
        try:
            contents = os.pread(self._fd, FILE_BYTES, 0)
        except OSError:
            return False
        on_file = {(slot, sequence, key) for slot, sequence, _, key, _ in _valid_slots(contents)}
        is_right = all((*self._slots.get(row, (-1, 0)), key) in on_file for key, row in self._rows.items())
        self._as_left = _marks(ours) if is_right else None
        return is_right

    def write(self, key: str, record: Record) -> None:
        """Put one record in place of the row's last. Raises LedgerError; the record is kept in memory all the same."""
        if record.is_open:
            self.records[key] = record
            self._closes_unwritten.pop(key, None)
        else:
            self.records.pop(key, None)
            self._closes_unwritten[key] = record  # until it is on file
        try:
            row = self._row_of(key)
            last_slot, sequence = self._slots.get(row, (row * 2 + 1, 0))
            slot = last_slot ^ 1
            data = _pack(key, record, self.boot, sequence + 1)
            # One write within one page: tmpfs copies it whole, and a torn one fails its CRC beside the intact slot.
            # No fsync: what must survive is the death of this process, and a power failure ends the caps as well.
            untouched = _marks(os.fstat(self._fd)) == self._as_left
            written = os.pwrite(self._fd, data, slot * SLOT_BYTES)
            self._as_left = _marks(os.fstat(self._fd)) if untouched else None
        except (OSError, struct.error) as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error
        if written != SLOT_BYTES:
            raise LedgerError(f"ledger {self.path}: only {written} of {SLOT_BYTES} bytes were written")
        self._slots[row] = (slot, sequence + 1)
        if not record.is_open:
            self._rows.pop(key, None)
            self._closes_unwritten.pop(key, None)

    def _row_of(self, key: str) -> int:
        if self._fd < 0:
            raise OSError(0, "not open")
        row = self._rows.get(key)
        if row is None:
            taken = set(self._rows.values())
            row = next((row for row in range(ROWS) if row not in taken), None)
            if row is None:
                raise OSError(0, f"all {ROWS} rows are in use")
            self._rows[key] = row
        return row

    def _erase(self, key: str, contents: bytes) -> None:
        """Close an entry of another boot in this boot's name."""
        for slot, _, _, slot_key, record in _valid_slots(contents):
            if slot_key == key and slot // 2 not in self._rows.values():
                self._rows[key] = slot // 2
                self.write(key, Record(entry=record.entry, is_open=False))
                return


def _marks(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _contents(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, FILE_BYTES, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _valid_slots(contents: bytes) -> Iterator[tuple[int, int, str, str, Record]]:
    """Slot number, sequence, boot id, key and record of every slot whose CRC holds."""
    for slot in range(min(len(contents) // SLOT_BYTES, ROWS * 2)):
        data = contents[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
        if data[:8] != _MAGIC:
            continue
        (crc,) = _CRC.unpack_from(data, SLOT_BYTES - _CRC.size)
        if crc != zlib.crc32(data[: SLOT_BYTES - _CRC.size]):
            continue
        yield slot, *_unpack(data)


def _newest(contents: bytes) -> dict[str, tuple[int, str, Record]]:
    """Key -> (row, boot id, record): the newest slot of each row, and of each key the newest row."""
    rows: dict[int, tuple[int, str, str, Record]] = {}
    for slot, sequence, boot, key, record in _valid_slots(contents):
        row = slot // 2
        if row not in rows or sequence > rows[row][0]:
            rows[row] = (sequence, boot, key, record)
    newest: dict[str, tuple[int, str, Record]] = {}
    for row, (_, boot, key, record) in rows.items():
        known = newest.get(key)
        if known is None or _rank(record) > _rank(known[2]):
            newest[key] = (row, boot, record)
    return newest


def _rank(record: Record) -> tuple[float, bool]:
    return record.entry.written_at_s, record.is_open


def _text(words: str, size: int) -> bytes:
    return words.encode()[:size].decode(errors="ignore").encode()


def _mw(w: float | None) -> int:
    return _NO_MW if w is None else mw_from_watts(w)


def _w(mw: int) -> float | None:
    return None if mw == _NO_MW else watts_from_mw(mw)


def _pack(key: str, record: Record, boot: str, sequence: int) -> bytes:
    entry = record.entry
    body = _SLOT.pack(
        _MAGIC,
        sequence,
        boot.encode(),
        _text(key, 96),
        record.is_open,
        record.confirmed,
        _PROTECTS.index(entry.protects),
        _STATES.index(entry.state),
        record.armed,
        entry.owner_uid,
        mw_from_watts(entry.prior_w),
        mw_from_watts(entry.w),
        _mw(entry.previous_w),
        _mw(entry.keep_w),
        entry.since_s,
        entry.written_at_s,
        math.nan if entry.expires_at_s is None else entry.expires_at_s,
        _text(entry.cause, 64),
        _text(entry.pending or "", 120),
    )
    body += _MANUAL.pack(0 if entry.manual_w is None else mw_from_watts(entry.manual_w))
    body = body.ljust(SLOT_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(zlib.crc32(body))


def _unpack(data: bytes) -> tuple[int, str, str, Record]:
    fields = _SLOT.unpack_from(data)
    (manual_mw,) = _MANUAL.unpack_from(data, _SLOT.size)
    _, sequence, boot, key, is_open, confirmed, protects, state, armed, uid = fields[:10]
    prior_mw, mw, previous_mw, keep_mw, since_s, written_at_s, expires_at_s, cause, pending = fields[10:]

    def words(raw: bytes) -> str:
        return raw.rstrip(b"\0").decode(errors="replace")

    entry = LedgerEntry(
        uuid=words(key),
        prior_w=watts_from_mw(prior_mw),
        w=watts_from_mw(mw),
        previous_w=_w(previous_mw),
        keep_w=_w(keep_mw),
        protects=cast("Literal['none', 'gpu', 'breaker']", _PROTECTS[min(protects, 2)]),
        cause=words(cause),
        owner_uid=uid,
        since_s=since_s,
        written_at_s=written_at_s,
        expires_at_s=None if math.isnan(expires_at_s) else expires_at_s,
        manual_w=watts_from_mw(manual_mw) if manual_mw else None,
        pending=words(pending) or None,
        state=_STATES[min(state, len(_STATES) - 1)],
    )
    record = Record(entry=entry, confirmed=bool(confirmed), armed=bool(armed), is_open=bool(is_open))
    return sequence, words(boot), words(key), record
