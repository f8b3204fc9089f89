"""The kernel's log as the NVIDIA driver writes it: reading /dev/kmsg, and what its lines say of GPUs and NVSwitches.

One record of /dev/kmsg is "priority,sequence,microseconds,flags;text", as the kernel's documentation of dev-kmsg says;
the time is the kernel's monotonic clock. Anything else is skipped: nothing that is written there can do harm here.
"""

import errno
import os
import re
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from nodewarden.devices.nvidia_proc import same_bus_id

KERNEL_LOG = Path("/dev/kmsg")
MAX_TEXT = 240
_MAX_RECORD = 8192  # of the kernel: CONSOLE_EXT_LOG_MAX
_MAX_PENDING = 1 << 16

Kind = Literal["xid", "sxid", "off_bus"]


class Record(msgspec.Struct, frozen=True):
    """One message: its number, which never repeats within a boot, its CLOCK_MONOTONIC seconds, its text."""

    number: int
    at_s: float
    text: str


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """What a line says of a device.

    Attributes:
        kind: "xid" of a GPU; "sxid" of an NVSwitch; "off_bus", the words without a code.
        code: the number of the Xid or SXid; 79 for "off_bus", which is what it is called elsewhere.
        pid, process: of the job, where the line names them.
    """

    kind: Kind
    bus_id: str
    code: int
    text: str
    pid: int | None = None
    process: str = ""


_RECORD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f.]{2,4})[^)]*\): (\d{1,5})(?!\d),?\s*(.*)"
)
_SXID = re.compile(r"nvidia-nvswitch\d*: SXid \(PCI:([0-9A-Fa-f:.]{7,16})\): (\d{1,6})(?!\d),?\s*(.*)")
_JOB = re.compile(r"pid='?(\d{1,10}|<unknown>)'?, (?:name='?([^,']*)'?,?\s*)?")
_NAMED = re.compile(r"NVRM: (?:The NVIDIA )?GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_OFF_BUS = "fallen off the bus"
OFF_BUS_XID = 79


def record_of(raw: bytes) -> Record | None:
    """One record of /dev/kmsg, None when it is none (a continuation with the device's keys, or garbage)."""
    found = _RECORD.match(raw)
    if found is None:
        return None
    # further lines of a record are the device's keys; line breaks inside the text are escaped
    text = found[4].partition(b"\n")[0].replace(b"\\x0a", b" ").decode("utf-8", "replace")
    return Record(int(found[2]), int(found[3]) / 1e6, text)


class Reader:
    """Finds complaints in texts, one after another: the words "fallen off the bus" may come lines after the address."""

    def __init__(self) -> None:
        self._named = ""
        self._named_for = 0

    def complaint(self, text: str) -> Complaint | None:
        """What this line says, None when it says nothing of a fault."""
        if "NVRM" not in text and "SXid" not in text:
            return None
        xid = _XID.search(text)
        if xid is not None:
            rest = xid[3]
            job = _JOB.match(rest)
            pid = int(job[1]) if job is not None and job[1].isdigit() else None
            process = (job[2] or "") if job is not None else ""
            return Complaint(
                kind="xid",
                bus_id=whole_bus_id(xid[1]),
                code=int(xid[2]),
                text=_clean(rest[job.end() :] if job is not None else rest),
                pid=pid,
                process="" if process == "<unknown>" else _clean(process)[:32],
            )
        sxid = _SXID.search(text)
        if sxid is not None:
            return Complaint(kind="sxid", bus_id=whole_bus_id(sxid[1]), code=int(sxid[2]), text=_clean(sxid[3]))
        named = _NAMED.search(text)
        if named is not None:
            self._named, self._named_for = whole_bus_id(named[1]), 4
        self._named_for -= 1
        if _OFF_BUS in text and self._named_for >= 0:
            self._named_for = 0
            return Complaint(kind="off_bus", bus_id=self._named, code=OFF_BUS_XID, text="GPU has fallen off the bus")
        return None


def whole_bus_id(text: str) -> str:
    """One spelling of a PCI address, with its function: an Xid line leaves that out."""
    bus_id = same_bus_id(text)
    return bus_id if "." in bus_id else f"{bus_id}.0"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:MAX_TEXT].strip()


class KernelLog:
    """The open log. Blocking calls have deadlines; `path` may also be a FIFO or a file, for tests.

    Attributes:
        lost: messages that the kernel overwrote before they were read.
    """

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        """Raises OSError (PermissionError without CAP_SYSLOG where the node restricts it)."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._rest = b""
        self._next: int | None = None
        self.lost = 0

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)

    def wait(self, timeout_s: float) -> bool:
        """True when there may be something to read."""
        return any(what & select.POLLIN for _, what in self._poll.poll(timeout_s * 1000))

    def read(self, limit: int = 2000) -> Iterator[Record]:
        """What is there now, at most so many records; never blocks. Raises OSError."""
        for _ in range(limit):
            try:
                raw = os.read(self._fd, _MAX_RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before it was read; the next read goes on behind it
                    continue
                if error.errno == errno.EINVAL:  # a record that is longer than our buffer is skipped by the kernel
                    continue
                raise
            if not raw:
                return
            *lines, self._rest = (self._rest + raw).split(b"\n")
            if len(self._rest) > _MAX_PENDING:
                self._rest = b""
            for line in lines:
                record = record_of(line)
                if record is not None:
                    if self._next is not None and record.number > self._next:
                        self.lost += record.number - self._next
                    self._next = record.number + 1
                    yield record
