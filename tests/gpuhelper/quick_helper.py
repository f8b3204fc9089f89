"""The real helper on the real library with a faster clock and, if given, another /proc/driver/nvidia.

quick_helper.py RUNTIME_DIR LOCK_DIR SPEED ORIGIN_S [KERNEL_DIR]
"""

import logging
import os
import sys
from pathlib import Path

from nodewarden.clock import ScaledClock
from nodewarden.devices.nvidia_proc import KernelList
from nodewarden.devices.nvml import NvmlLibrary
from nodewarden.gpuhelper.server import serve

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    runtime_dir, lock_dir, speed, origin_s, *kernel_dir = sys.argv[1:]
    status = serve(
        NvmlLibrary(kernel=KernelList(*map(Path, kernel_dir))),
        runtime_dir=Path(runtime_dir),
        lock_dir=Path(lock_dir),
        clock=ScaledClock(float(speed), float(origin_s)),
    )
    sys.stderr.flush()
    os._exit(status)
