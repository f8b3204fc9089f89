"""NVIDIA's management library as a `GpuLibrary`: the only place that imports pynvml.

Loading, enumeration and shutdown live here; calls and error codes in `nvml_calls`, what is read of one GPU in
`nvml_device`.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodewarden.devices.gpu_library import GpuDevice, GpuIdentity
from nodewarden.devices.nvml_calls import NvmlCalls
from nodewarden.devices.nvml_device import NvmlDevice
from nodewarden.errors import DeviceError, DeviceLostError

log = logging.getLogger("nodewarden.gpu")


class NvmlLibrary:
    """The library that pynvml finds (`libnvidia-ml.so.1`); a `gpu_library.GpuLibrary`.

    Args:
        monotonic_s: the clock of the mean power; never the wall clock.
        kernel_list: one entry per GPU that the kernel driver knows; a library that is open may not learn of new ones.
    """

    def __init__(
        self, monotonic_s: Callable[[], float] = time.monotonic, kernel_list: Path = Path("/proc/driver/nvidia/gpus")
    ) -> None:
        self._monotonic_s = monotonic_s
        self._kernel_list = kernel_list
        self._kernel_count = 0
        self._nvml: NvmlCalls | None = None
        self._devices: dict[str, NvmlDevice] = {}
        self._count: int | None = None
        self.trouble = ""
        self.driver_version = ""

    def open(self) -> None:
        """See `GpuLibrary.open`."""
        try:
            import pynvml  # noqa: PLC0415 - a node without GPUs, and everyone who imports this module, needs none
        except ImportError as error:
            raise DeviceError("the Python package nvidia-ml-py is not installed", "library_not_found") from error
        nvml = NvmlCalls(pynvml)
        try:
            nvml.call("nvmlInit")
        except DeviceError as error:
            raise _explained(error) from error
        self._nvml = nvml
        self._kernel_count = self._count_in_kernel()
        try:
            version = nvml.call("nvmlSystemGetDriverVersion")
            self.driver_version = version.decode(errors="replace") if isinstance(version, bytes) else str(version)
        except DeviceError:
            self.driver_version = ""

    def close(self) -> None:
        """See `GpuLibrary.close`."""
        for device in self._devices.values():
            device.drop()
        self._devices.clear()
        self._count = None
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            try:
                nvml.call("nvmlShutdown")
            except DeviceError as error:
                log.warning("library_shutdown_failed reason=%s", error.reason)

    def devices(self) -> list[GpuDevice]:
        """See `GpuLibrary.devices`."""
        nvml = self._nvml
        if nvml is None:
            raise DeviceError("the library is not open", "driver_not_loaded")
        count = int(nvml.call("nvmlDeviceGetCount"))
        if count != self._count or self.trouble:
            found: dict[str, NvmlDevice] = {}
            trouble = []
            for index in range(count):
                try:
                    device = self._find(nvml, index)
                except DeviceError as error:  # one lost GPU does not hide the others
                    trouble.append(f"GPU at index {index}: {error}")
                else:
                    found[device.identity.uuid] = device
            self._devices, self._count, self.trouble = found, count, "; ".join(trouble)
        appeared = self._count_in_kernel() - self._kernel_count
        if appeared > 0:
            self.trouble = f"{appeared} GPUs appeared since the library was opened"
        return sorted(self._devices.values(), key=lambda device: device.identity.index)

    def _count_in_kernel(self) -> int:
        try:
            return sum(1 for _ in self._kernel_list.iterdir())
        except OSError:
            return 0

    def _find(self, nvml: NvmlCalls, index: int) -> NvmlDevice:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        uuid = _text(nvml.call("nvmlDeviceGetUUID", handle))
        if not uuid:
            raise DeviceError("has no uuid")

        def told(name: str, pick: Callable[[Any], Any] = lambda answer: answer) -> str:
            try:
                return _text(pick(nvml.call(name, handle)))
            except DeviceLostError:
                raise
            except DeviceError:
                return ""

        identity = GpuIdentity(
            uuid=uuid,
            index=index,
            model=told("nvmlDeviceGetName"),
            pci_bus_id=told("nvmlDeviceGetPciInfo", lambda pci: pci.busId),
        )
        known = self._devices.get(uuid)
        if known is not None:
            known.identity = identity
            return known
        return NvmlDevice(nvml, handle, identity, self._monotonic_s)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _explained(error: DeviceError) -> DeviceError:
    """What went wrong when opening, in words that say what to do."""
    words = {
        "library_not_found": "libnvidia-ml.so.1 not found: is the NVIDIA driver installed?",
        "driver_not_loaded": "the NVIDIA kernel driver is not loaded",
        "version_mismatch": "the driver library and the loaded kernel module differ in version (after an upgrade?): "
        "reload the module or reboot the node",
    }
    text = words.get(error.reason)
    return error if text is None else DeviceError(text, error.reason)
