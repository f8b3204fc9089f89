"""Lines of the kernel's log: what they say of GPUs and switches, and that no line can do harm."""

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.devices.kernel_log import Complaint, KernelLog, Reader, record_of
from support.kernel_log import KernelLogFile
from support.wait import wait_for


def only(text: str) -> Complaint:
    found = Reader().complaint(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "bus_id", "code", "pid", "process", "rest"),
    [
        (
            "NVRM: Xid (PCI:0000:61:00): 62, pid=1234, name=python3, 32b5(30b0) 00000000",
            "0000:61:00.0", 62, 1234, "python3", "32b5(30b0) 00000000",
        ),
        (
            "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "0000:91:00.0", 79, None, "", "GPU has fallen off the bus.",
        ),
        ("NVRM: Xid (PCI:0001:C8:00 GPU-I:05): 13, pid=9, Warp Exception", "0001:c8:00.0", 13, 9, "", "Warp Exception"),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00.0", 14, None, "", "Channel 00000001"),
        ("NVRM: Xid (PCI:00000000:07:00.0): 48", "0000:07:00.0", 48, None, "", ""),
        (
            "NVRM: Xid (PCI:0000:9d:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
            "0000:9d:00.0", 154, None, "", "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
        ),
    ],
)  # fmt: skip
def test_an_xid_line_gives_gpu_code_job_and_words(
    text: str, bus_id: str, code: int, pid: int | None, process: str, rest: str
) -> None:
    found = only(text)
    assert found == Complaint(kind="xid", bus_id=bus_id, code=code, text=rest, pid=pid, process=process)


def test_an_sxid_line_gives_the_switch() -> None:
    found = only("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)")
    assert (found.kind, found.bus_id, found.code) == ("sxid", "0000:c1:00.0", 28006)
    assert found.text.startswith("Non-fatal, Link 46")


def test_off_the_bus_without_a_code_is_found_in_one_line_and_over_several() -> None:
    """F04, variant C: no Xid at all."""
    assert only("NVRM: GPU 0000:3e:00.0: GPU has fallen off the bus.").bus_id == "0000:3e:00.0"
    reader = Reader()
    lines = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    found = [each for line in lines if (each := reader.complaint(line)) is not None]
    assert [(each.kind, each.bus_id) for each in found] == [("off_bus", "0000:b3:00.0")]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU at PCI:0000:61:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  590.48.01",
        "usb 1-1: new device, Xid (PCI:0000:61:00): 62",
        "NVRM: Xid (PCI:zz): 62",
        "NVRM: Xid (PCI:0000:61:00): ",
        "EXT4-fs (md127p3): re-mounted",
    ],
)
def test_other_lines_say_nothing(text: str) -> None:
    assert Reader().complaint(text) is None


@given(st.binary(max_size=300))
def test_garbage_is_no_record_or_a_harmless_one(raw: bytes) -> None:
    record = record_of(raw)
    reader = Reader()
    for text in (raw.decode("utf-8", "replace"), record.text if record is not None else ""):
        found = reader.complaint(text)
        assert found is None or found.text.isprintable()


@given(st.text(max_size=200))
def test_words_of_a_line_are_short_and_printable(words: str) -> None:
    line = "NVRM: Xid (PCI:0000:61:00): 31, " + words.replace("\n", " ")
    found = Reader().complaint(line)
    assert found is None or (found.code == 31 and len(found.text) <= 240 and found.text.isprintable())


def test_a_file_is_read_as_it_grows_and_gaps_are_counted(tmp_path: Path) -> None:
    log = KernelLogFile(tmp_path / "kmsg")
    log.write("one", "two")
    opened = KernelLog(log.path)
    assert [record.text for record in opened.read()] == ["one", "two"]
    log.raw(b" SUBSYSTEM=pci\n\xff\xfe,garbage\n4,999999999999999999999999,1,-;x\n")
    log.number += 5  # the kernel overwrote five before we came
    log.write("three")
    assert [(record.number, record.text) for record in opened.read()] == [(8, "three")]
    assert opened.lost == 5
    opened.close()


def test_a_fifo_gives_records_that_arrive_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    opened = KernelLog(path)
    log = KernelLogFile(tmp_path / "kmsg")
    whole = log.record("first") + log.record("second")
    writer = threading.Thread(target=lambda: path.write_bytes(whole[:20]))
    writer.start()
    assert wait_for(lambda: opened.wait(0.1), 5, "the first piece")
    assert list(opened.read()) == []
    writer.join()
    writer = threading.Thread(target=lambda: path.write_bytes(whole[20:]))
    writer.start()
    texts: list[str] = []
    wait_for(lambda: texts.extend(record.text for record in opened.read()) or len(texts) == 2, 5, "both records")
    writer.join()
    assert texts == ["first", "second"]
    opened.close()


def test_what_the_kernel_overwrote_before_it_was_read_is_a_gap_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KernelLogFile(tmp_path / "kmsg")
    log.write("one")
    opened = KernelLog(log.path)
    assert [record.text for record in opened.read()] == ["one"]
    log.number += 40
    log.write("two")
    refusals = [OSError(errno.EPIPE, "overrun"), OSError(errno.EINVAL, "too long"), BlockingIOError()]
    real = os.read

    def read(fd: int, size: int) -> bytes:  # as /dev/kmsg answers
        if refusals:
            raise refusals.pop(0)
        return real(fd, size)

    monkeypatch.setattr(os, "read", read)
    assert list(opened.read()) == []
    assert [record.text for record in opened.read()] == ["two"]
    assert opened.lost == 40
    opened.close()
