"""Opens, reads and closes the library over and over, every third opening failing; says what is open then."""

import contextlib
import gc
import json
import os
import sys
import threading
from pathlib import Path

from nodewarden.devices.nvml import NvmlLibrary
from nodewarden.errors import DeviceError


def used() -> dict[str, int]:
    gc.collect()
    rss_kb = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(), "rss_kb": rss_kb}  # noqa: PTH208


if __name__ == "__main__":
    versions = Path(sys.argv[1])
    library = NvmlLibrary()
    seen = {}
    for cycle in range(1, 2001):
        versions.write_text("550" if cycle % 3 else "590")  # a module that our library does not fit
        with contextlib.suppress(DeviceError):
            library.open()
            for device in library.devices()[cycle % 8 :]:
                device.read_fast()
                if cycle % 50 == 0:
                    device.read_slow()
                break
            library.close()
        if cycle in {200, 2000}:
            seen[cycle] = used()
    print(json.dumps(seen))  # noqa: T201
