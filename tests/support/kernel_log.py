"""A kernel log for tests: records as /dev/kmsg gives them, in a file that a helper reads while it grows."""

import time
from pathlib import Path


class KernelLogFile:
    """Appends records. Numbers rise by themselves; the time is the kernel's monotonic clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.path.touch()

    def record(self, text: str, *, at_s: float | None = None) -> bytes:
        """One record, not written."""
        at_us = round((time.monotonic() if at_s is None else at_s) * 1e6)
        self.number += 1
        return f"4,{self.number},{at_us},-;{text}\n".encode()

    def write(self, *texts: str, at_s: float | None = None) -> None:
        """The kernel says this."""
        with self.path.open("ab") as file:
            file.write(b"".join(self.record(text, at_s=at_s) for text in texts))

    def xid(self, bus_id: str, code: int, rest: str = "pid=4711, name=python, Ch 00000008", *, times: int = 1) -> None:
        """The driver's line for an Xid of the GPU at this PCI address, in the driver's spelling of it."""
        domain, bus, _ = bus_id.split(":")
        self.write(*[f"NVRM: Xid (PCI:{domain[-4:]}:{bus.lower()}:00): {code}, {rest}"] * times)

    def raw(self, data: bytes) -> None:
        """Anything."""
        with self.path.open("ab") as file:
            file.write(data)
