"""Xid events of NVML: which GPUs have them, registration, and the wait for the next."""

import ctypes
import logging
from collections.abc import Iterable
from typing import Any

from nodewarden.devices.gpu_library import XidEvent
from nodewarden.devices.nvml_calls import NvmlCalls
from nodewarden.devices.nvml_device import NvmlDevice
from nodewarden.errors import DeviceError, DeviceTimeoutError, NotSupportedError

log = logging.getLogger("nodewarden.gpu")

XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError of nvml.h
MAX_BURST = 1000


class NvmlEvents:
    """One event set of one open library; `wait` is called by one thread, never while the library is closed."""

    def __init__(self, nvml: NvmlCalls) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # of the GPUs that we asked for, by the address in their handle
        self._registered = 0

    def wait(self, devices: Iterable[NvmlDevice], timeout_s: float) -> list[XidEvent]:
        """What has happened, or nothing after `timeout_s`; GPUs that are new here are registered first.

        Raises NotSupportedError where no GPU has such events, DeviceError.
        """
        if self._set is None:
            self._set = self._nvml.call("nvmlEventSetCreate")
        for device in devices:
            self._register(device)
        if not self._uuids:
            raise DeviceError("no GPU is known yet", "no_data")
        if not self._registered:
            raise NotSupportedError("no GPU has Xid events")
        events: list[XidEvent] = []
        while len(events) < MAX_BURST:
            try:
                data = self._nvml.call("nvmlEventSetWait_v2", self._set, 0 if events else round(timeout_s * 1000))
            except DeviceTimeoutError:
                break
            except DeviceError:
                self.close()  # what is wrong with it we do not know: the next wait begins with a new one
                if not events:
                    raise
                break
            if int(data.eventType) & XID_CRITICAL_ERROR:
                events.append(XidEvent(uuid=self._uuids.get(_address(data.device), ""), xid=int(data.eventData)))
        return events

    def _register(self, device: NvmlDevice) -> None:
        address = _address(device.handle)
        if address in self._uuids:
            return
        self._uuids[address] = device.identity.uuid
        try:
            supported = int(self._nvml.call("nvmlDeviceGetSupportedEventTypes", device.handle))
            if supported & XID_CRITICAL_ERROR:  # one bit that a GPU lacks refuses all of them
                self._nvml.call("nvmlDeviceRegisterEvents", device.handle, XID_CRITICAL_ERROR, self._set)
                self._registered += 1
        except DeviceError as error:
            log.warning("no_xid_events uuid=%s reason=%s", device.identity.uuid, error.reason)

    def close(self) -> None:
        """Before the library is shut down."""
        events, self._set = self._set, None
        self._uuids.clear()
        self._registered = 0
        if events is not None:
            try:
                self._nvml.call("nvmlEventSetFree", events)
            except DeviceError as error:
                log.warning("event_set_not_freed reason=%s", error.reason)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
