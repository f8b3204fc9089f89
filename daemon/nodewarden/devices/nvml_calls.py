"""Calls into NVML and its error codes. pynvml itself is imported by `devices.nvml` alone and handed in."""

import ctypes
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from nodewarden.errors import DeviceError, DeviceLostError, DeviceTimeoutError, NoPermissionError, NotSupportedError

# Members of NVML's value union by its own type number.
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_LOST_CODES = (15, 16)  # GPU_IS_LOST, RESET_REQUIRED
UNKNOWN_CODE = 999
_NO_PERMISSION_CODE = 4
INVALID_ARGUMENT_CODE = 2
REASONS = {
    1: "driver_not_loaded",  # UNINITIALIZED: the driver went away under us
    2: "invalid_argument",
    3: "not_supported",
    6: "not_found",
    9: "driver_not_loaded",
    10: "timeout",
    12: "library_not_found",
    13: "not_supported",  # FUNCTION_NOT_FOUND: an older library than the binding
    18: "version_mismatch",
    21: "no_data",
    25: "not_supported",  # ARGUMENT_VERSION_MISMATCH: an older library than the structure
    26: "not_supported",  # DEPRECATED: the driver dropped it
    999: "unknown_error",
}
DRIVER_REASONS = frozenset({"driver_not_loaded", "version_mismatch", "library_not_found"})
"""Reasons that concern the whole library: everything must be opened again."""


def _error(code: int, what: str) -> DeviceError:
    if code in _LOST_CODES:
        return DeviceLostError(f"{what}: the GPU is lost or needs a reset (NVML {code})")
    if code == _NO_PERMISSION_CODE:
        return NoPermissionError(f"{what}: no permission")
    reason = REASONS.get(code, "error")
    if reason == "not_supported":
        return NotSupportedError(f"{what}: not supported (NVML {code})")
    if reason == "timeout":
        return DeviceTimeoutError(f"{what}: time-out in the driver")
    return DeviceError(f"{what}: {reason.replace('_', ' ')} (NVML {code})", reason)


def _unknown_field(error: DeviceError, what: str) -> DeviceError:
    """An id that the driver finds invalid is one that it does not know yet."""
    return NotSupportedError(f"{what}: not known") if error.reason == REASONS[INVALID_ARGUMENT_CODE] else error


class NvmlCalls:
    """pynvml, with our errors. One per process and open library."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        # Functions that this library does not export, by name and number of arguments: with more, the binding may look
        # for a newer one.
        self._absent: set[tuple[str, int]] = set()

    def call(self, name: str, *args: Any) -> Any:
        """One call; raises DeviceError and its kinds only."""
        known_as = (name, len(args))
        if known_as in self._absent:
            raise NotSupportedError(f"{name}: not in this library")
        function = getattr(self._module, name, None)
        if function is None:
            self._absent.add(known_as)
            raise NotSupportedError(f"{name}: not in this binding")
        try:
            return function(*args)
        except self._module.NVMLError as error:
            code = int(getattr(error, "value", UNKNOWN_CODE))
            if code == self._module.NVML_ERROR_FUNCTION_NOT_FOUND:
                self._absent.add(known_as)
            raise _error(code, name) from error
        except self._module.NVMLLibraryMismatchError as error:  # not an NVMLError
            self._absent.add(known_as)
            raise NotSupportedError(f"{name}: the library is older than the binding") from error
        except (AttributeError, TypeError, ValueError, ctypes.ArgumentError) as error:
            raise DeviceError(f"{name}: unexpected answer: {error}") from error

    def lacks(self, name: str, arguments: int) -> bool:
        """Whether this call is known not to be in the library."""
        return (name, arguments) in self._absent

    def first(self, handle: Any, *names_and_args: tuple[Any, ...]) -> Any:
        """The first of several spellings that this library has; the error of the last one where none has."""
        for position, (name, *args) in enumerate(names_and_args):
            try:
                return self.call(name, handle, *args)
            except NotSupportedError:
                if position == len(names_and_args) - 1:
                    raise
        raise NotSupportedError("no such call")

    def fields(self, handle: Any, ids: Sequence[int | tuple[int, int]]) -> list[float | DeviceError]:
        """Several fields in one driver call; each has its own result."""
        name = "nvmlDeviceGetFieldValues"
        try:
            raw = self.call(name, handle, ids)
        except DeviceLostError:
            raise
        except DeviceError as error:
            if len(ids) > 1 and error.reason in {"not_supported", "invalid_argument"} and not self.lacks(name, 2):
                # A library may refuse all for the sake of one that it does not know.
                return [result for wanted in ids for result in self.fields(handle, (wanted,))]
            return [_unknown_field(error, f"fields {list(ids)}")] * len(ids)
        results: list[float | DeviceError] = []
        for wanted, item in zip(ids, raw, strict=True):
            if item.nvmlReturn:
                failure = _error(item.nvmlReturn, f"field {wanted}")
                if isinstance(failure, DeviceLostError):
                    raise failure
                results.append(_unknown_field(failure, f"field {wanted}"))
            elif item.valueType < len(_UNION):
                results.append(getattr(item.value, _UNION[item.valueType]))
            else:
                results.append(DeviceError(f"field {wanted}: unknown value type {item.valueType}"))
        return results

    @property
    def memory_v2(self) -> int:
        """Version word of the newer memory structure."""
        return int(getattr(self._module, "nvmlMemory_v2", 0x02000028))
