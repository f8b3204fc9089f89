"""NVIDIA's management library as a `GpuLibrary`: the only place that imports pynvml.

Loading, enumeration and shutdown live here; calls and error codes in `nvml_calls`, what is read of one GPU in
`nvml_device`.
"""

import importlib
import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import ModuleType
from typing import Any

from nodewarden.devices.gpu_library import GpuDevice, GpuIdentity, XidEvent
from nodewarden.devices.nvidia_proc import KernelList, open_device_files, same_bus_id
from nodewarden.devices.nvml_calls import NvmlCalls, unload
from nodewarden.devices.nvml_device import NvmlDevice
from nodewarden.devices.nvml_events import NvmlEvents
from nodewarden.errors import DeviceError, DeviceLostError

log = logging.getLogger("nodewarden.gpu")


class NvmlLibrary:
    """The library that pynvml finds (`libnvidia-ml.so.1`); a `gpu_library.GpuLibrary`.

    Args:
        monotonic_s: the clock of the mean power; never the wall clock.
        kernel: what the driver lists in /proc; a library that is open may not learn of new GPUs.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic, kernel: KernelList | None = None) -> None:
        self._monotonic_s = monotonic_s
        self._kernel = kernel or KernelList()
        self._kernel_count = 0
        self._bus_ids: set[str] = set()  # of every GPU ever seen
        self._spared: set[str] = set()  # bus ids
        self._nvml: NvmlCalls | None = None
        self._events: NvmlEvents | None = None
        self._devices: dict[str, NvmlDevice] = {}
        self._count: int | None = None
        self.trouble = ""
        self.driver_version = ""

    def open(self, spared: Sequence[GpuIdentity] = ()) -> None:
        """See `GpuLibrary.open`."""
        self._spared = {same_bus_id(gpu.pci_bus_id) for gpu in spared}
        self._bus_ids |= self._spared
        try:
            pynvml = _import_pynvml()
        except ImportError as error:
            raise DeviceError("the Python package nvidia-ml-py is not installed", "library_not_found") from error
        nvml = NvmlCalls(pynvml)
        try:
            nvml.call("nvmlInit")
        except DeviceError as error:
            if error.reason != "version_mismatch":
                raise _explained(error) from error
            nvml = self._loaded_anew(pynvml, error)
        self._nvml = nvml
        self._events = NvmlEvents(nvml)
        self._kernel_count = len(self._kernel.bus_ids())
        try:
            version = nvml.call("nvmlSystemGetDriverVersion")
            self.driver_version = version.decode(errors="replace") if isinstance(version, bytes) else str(version)
        except DeviceError:
            self.driver_version = ""

    def _loaded_anew(self, module: ModuleType, mismatch: DeviceError) -> NvmlCalls:
        """After an upgrade we still have the library of before in memory: let go of it, and load what is there now."""
        is_gone = unload(module)
        nvml = NvmlCalls(module)
        try:
            nvml.call("nvmlInit")
        except DeviceError as error:
            if error.reason == mismatch.reason and not is_gone:
                raise DeviceError(
                    "the driver was exchanged, and the library of before cannot be unloaded: "
                    "systemctl restart nodewarden-gpu",
                    error.reason,
                ) from error
            raise _explained(error) from error
        log.warning("library_loaded_anew")
        return nvml

    def close(self) -> None:
        """See `GpuLibrary.close`."""
        for device in self._devices.values():
            device.drop()
        self._devices.clear()
        self._count = None
        nvml, self._nvml = self._nvml, None
        events, self._events = self._events, None
        if events is not None:
            events.close()
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
            for name, handle_of in self._ways(nvml, count):
                try:
                    device = self._find(nvml, handle_of)
                except DeviceError as error:  # one lost GPU does not hide the others
                    trouble.append(f"GPU at {name}: {error}")
                else:
                    found[device.identity.uuid] = device
                    self._bus_ids.add(same_bus_id(device.identity.pci_bus_id))
            self._devices, self._count, self.trouble = found, count, "; ".join(trouble)
        appeared = len(self._kernel.bus_ids()) - self._kernel_count
        if appeared > 0:
            self.trouble = f"{appeared} GPUs appeared since the library was opened"
        return sorted(self._devices.values(), key=lambda device: device.identity.index)

    def _ways(self, nvml: NvmlCalls, count: int) -> Iterator[tuple[str, Callable[[], tuple[Any, int]]]]:
        """How each GPU is reached: by index, or, since that touches them all, by PCI address when some are spared.

        NVML attaches to a GPU, which opens its device file, when a handle for it is asked for.
        """
        if not self._spared:
            for index in range(count):

                def by_index(index: int = index) -> tuple[Any, int]:
                    return nvml.call("nvmlDeviceGetHandleByIndex", index), index

                yield f"index {index}", by_index
            return
        for bus_id in sorted({*self._bus_ids, *self._kernel.bus_ids()} - self._spared - {""}):

            def by_address(bus_id: str = bus_id) -> tuple[Any, int]:
                handle = nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode())
                return handle, int(nvml.call("nvmlDeviceGetIndex", handle))

            yield bus_id, by_address

    def _find(self, nvml: NvmlCalls, handle_of: Callable[[], tuple[Any, int]]) -> NvmlDevice:
        handle, index = handle_of()
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

        minor = told("nvmlDeviceGetMinorNumber")
        identity = GpuIdentity(
            uuid=uuid,
            index=index,
            model=told("nvmlDeviceGetName"),
            pci_bus_id=told("nvmlDeviceGetPciInfo", lambda pci: pci.busId),
            minor=int(minor) if minor.isdigit() else None,
        )
        known = self._devices.get(uuid)
        if known is not None:
            known.identity = identity
            return known
        return NvmlDevice(nvml, handle, identity, self._monotonic_s)

    def wait_for_errors(self, timeout_s: float) -> list[XidEvent]:
        """See `GpuLibrary.wait_for_errors`."""
        events = self._events
        if events is None:
            raise DeviceError("the library is not open", "driver_not_loaded")
        return events.wait(list(self._devices.values()), timeout_s)

    def held_files(self) -> list[str]:
        """See `GpuLibrary.held_files`."""
        files = open_device_files()
        if self._nvml is None:
            return sorted(files)
        ours = {device.identity.minor for device in self._devices.values()}
        if None in ours:
            return []  # which file is whose cannot be told
        return sorted(path for path, minor in files.items() if minor is not None and minor not in ours)

    def traces(self, gpu: GpuIdentity) -> Hashable:
        """See `GpuLibrary.traces`."""
        return self._kernel.traces(gpu.pci_bus_id, gpu.minor)


def _import_pynvml() -> ModuleType:
    """A node without GPUs, and everyone who imports this module, needs none.

    On Windows pynvml looks for its library by ctypes.util, which would cost the helper 2 MB here.
    """
    name = "ctypes.util"
    is_there = name in sys.modules
    if not is_there:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].find_library = None  # type: ignore[attr-defined]
    try:
        return importlib.import_module("pynvml")
    finally:
        if not is_there:
            del sys.modules[name]


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
