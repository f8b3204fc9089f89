"""The quick read of one GPU: temperatures and instant power, ten times a second, so in as little time as can be.

The structures are made once and filled again and again, and the functions are called without the binding's own
wrappers, which would cost three times as much as the calls.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from nodewarden.devices.gpu_library import QuickValues
from nodewarden.devices.nvml_calls import UNION, NvmlCalls
from nodewarden.errors import DeviceError, DeviceLostError, NotSupportedError
from nodewarden.units import watts_from_mw

_HBM_C, _POWER_INSTANT_MW = 82, 186


class _Call:
    """One function with its arguments; `answer` takes the value out of what it has filled."""

    def __init__(self, nvml: NvmlCalls, name: str, arguments: tuple[Any, ...], answer: Callable[[], float]) -> None:
        self._nvml = nvml
        self._name = name
        self._function = nvml.function(name)
        self._arguments = arguments
        self._answer = answer

    def __call__(self) -> float:
        """Raises DeviceError and its kinds."""
        code = self._function(*self._arguments)
        if code:
            self._nvml.refuse(code, self._name)
        return self._answer()


class QuickReader:
    """What this GPU does not have is found out once and not asked for again until it is opened anew."""

    def __init__(self, nvml: NvmlCalls, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._junction = [self._temperature_v, self._temperature]
        self._margin = [self._margin_temperature]
        self._fields = [self._field_values]
        self._calls: dict[str, _Call] = {}

    def read(self) -> QuickValues:
        """See `GpuDevice.read_quick`."""
        out = QuickValues(junction_c=self._one("junction", self._junction), margin_c=self._one("margin", self._margin))
        if self._one("fields", self._fields) is not None:
            out.hbm_c = _value_of(self._array[0])
            instant_mw = _value_of(self._array[1])
            if instant_mw is not None:
                out.power_instant_w = watts_from_mw(instant_mw)
        return out

    def _one(self, name: str, ways: list[Callable[[], _Call]]) -> float | None:
        """The value of the first way that the library has and the board answers."""
        while ways:
            try:
                call = self._calls.get(name)
                if call is None:
                    call = self._calls[name] = ways[0]()
                return call()
            except DeviceLostError:
                raise
            except NotSupportedError:
                del ways[0]
                self._calls.pop(name, None)
            except DeviceError:
                return None
        return None

    def _temperature_v(self) -> _Call:
        filled = self._nvml.named("c_nvmlTemperature_v1_t")()
        filled.version = self._nvml.named("nvmlTemperature_v1")
        arguments = (self._handle, ctypes.byref(filled))
        return _Call(self._nvml, "nvmlDeviceGetTemperatureV", arguments, lambda: float(filled.temperature))

    def _temperature(self) -> _Call:
        filled = ctypes.c_uint()
        arguments = (self._handle, ctypes.c_int(0), ctypes.byref(filled))
        return _Call(self._nvml, "nvmlDeviceGetTemperature", arguments, lambda: float(filled.value))

    def _margin_temperature(self) -> _Call:
        filled = self._nvml.named("c_nvmlMarginTemperature_v1_t")()
        filled.version = self._nvml.named("nvmlMarginTemperature_v1")
        arguments = (self._handle, ctypes.byref(filled))
        return _Call(self._nvml, "nvmlDeviceGetMarginTemperature", arguments, lambda: float(filled.marginTemperature))

    def _field_values(self) -> _Call:
        self._array = (self._nvml.named("c_nvmlFieldValue_t") * 2)()
        for filled, number in zip(self._array, (_HBM_C, _POWER_INSTANT_MW), strict=True):
            filled.fieldId = number
        arguments = (self._handle, ctypes.c_int(2), self._array)
        return _Call(self._nvml, "nvmlDeviceGetFieldValues", arguments, lambda: 0.0)


def _value_of(filled: Any) -> float | None:
    """The value of one field, taken by its own type; None where it has a failure of its own."""
    if filled.nvmlReturn or not 0 <= filled.valueType < len(UNION):
        return None
    return float(getattr(filled.value, UNION[filled.valueType]))
