"""Calls into NVML and its error codes. pynvml itself is imported by `devices.nvml` alone and handed in."""

import _ctypes
import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from nodewarden.errors import DeviceError, DeviceLostError, DeviceTimeoutError, NoPermissionError, NotSupportedError

# Members of NVML's value union by its own type number.
UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_LOST_CODES = {15: "it has fallen off the bus (NVML 15)", 16: "it needs a reset (NVML 16)"}
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
    13: "not_in_driver",  # FUNCTION_NOT_FOUND: an older library than the binding
    18: "version_mismatch",
    21: "no_data",
    25: "not_in_driver",  # ARGUMENT_VERSION_MISMATCH: an older library than the structure
    26: "deprecated",  # the driver dropped it
    999: "unknown_error",
}
MOST_FIELDS = 128
"""Asked for in one call; the header names no bound, and nobody is known to ask for more at once."""
_INVALID = REASONS[INVALID_ARGUMENT_CODE]
Field = int | tuple[int, int]
"""A field id, or one with its scope."""
DRIVER_REASONS = frozenset({"driver_not_loaded", "version_mismatch", "library_not_found"})
"""Reasons that concern the whole library: everything must be opened again."""


def _error(code: int, what: str) -> DeviceError:
    if code in _LOST_CODES:
        return DeviceLostError(_LOST_CODES[code])
    if code == _NO_PERMISSION_CODE:
        return NoPermissionError(f"{what}: no permission")
    reason = REASONS.get(code, "error")
    if reason in {"not_supported", "not_in_driver", "deprecated"}:
        return NotSupportedError(f"{what}: {reason.replace('_', ' ')} (NVML {code})", reason)
    if reason == "timeout":
        return DeviceTimeoutError(f"{what}: time-out in the driver")
    return DeviceError(f"{what}: {reason.replace('_', ' ')} (NVML {code})", reason)


def _unknown_field(wanted: Field) -> NotSupportedError:
    """An id that the driver finds invalid is one that it does not know yet."""
    return NotSupportedError(f"field {wanted}: not known", "not_in_driver")


def _field_result(wanted: Field, item: Any) -> float | DeviceError:
    if item.nvmlReturn:
        failure = _error(item.nvmlReturn, f"field {wanted}")
        if isinstance(failure, DeviceLostError):
            raise failure
        return _unknown_field(wanted) if failure.reason == _INVALID else failure
    if 0 <= item.valueType < len(UNION):
        value: float = getattr(item.value, UNION[item.valueType])
        return value
    return DeviceError(f"field {wanted}: unknown value type {item.valueType}")


def unload(module: Any) -> bool:
    """Have pynvml forget the library, so that its next init loads the file that is installed then.

    Never while another call is in flight. Returns whether the library has left our memory: the loader gives a library
    that has not once more.
    """
    library, module.nvmlLib = module.nvmlLib, None
    module._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - pynvml has no way to say it
    if library is not None:
        _ctypes.dlclose(library._handle)  # noqa: SLF001
    try:
        return "libnvidia-ml.so" not in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


class NvmlCalls:
    """pynvml, with our errors. One per process and open library."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        # Functions that this library does not export, by name and number of arguments: with more, the binding may look
        # for a newer one.
        self._absent: set[tuple[str, int]] = set()
        self._unknown: set[Field] = set()  # fields for whose sake the library refuses all

    def call(self, name: str, *args: Any) -> Any:
        """One call; raises DeviceError and its kinds only."""
        known_as = (name, len(args))
        if known_as in self._absent:
            raise NotSupportedError(f"{name}: not in this library", "not_in_driver")
        function = getattr(self._module, name, None)
        if function is None:
            self._absent.add(known_as)
            raise NotSupportedError(f"{name}: not in this binding", "not_in_driver")
        try:
            return function(*args)
        except self._module.NVMLError as error:
            code = int(getattr(error, "value", UNKNOWN_CODE))
            if code == self._module.NVML_ERROR_FUNCTION_NOT_FOUND:
                self._absent.add(known_as)
            raise _error(code, name) from error
        except self._module.NVMLLibraryMismatchError as error:  # not an NVMLError
            self._absent.add(known_as)
            raise NotSupportedError(f"{name}: the library is older than the binding", "not_in_driver") from error
        except (AttributeError, TypeError, ValueError, ctypes.ArgumentError) as error:
            raise DeviceError(f"{name}: unexpected answer: {error}") from error

    def function(self, name: str) -> Any:
        """A function of the library as it is, which answers with a code. Raises NotSupportedError where it has none."""
        try:
            return self._module._nvmlGetFunctionPointer(name)  # noqa: SLF001 - the binding's own cache of them
        except self._module.NVMLError as error:
            raise NotSupportedError(f"{name}: not in this library", "not_in_driver") from error

    def lacks(self, name: str, arguments: int) -> bool:
        """Whether this call is known not to be in the library."""
        return (name, arguments) in self._absent

    def fields(self, handle: Any, ids: Sequence[Field]) -> list[float | DeviceError]:
        """Several fields in one driver call; each has its own result, taken by its own type (F17)."""
        if len(ids) > MOST_FIELDS:
            return [*self.fields(handle, ids[:MOST_FIELDS]), *self.fields(handle, ids[MOST_FIELDS:])]
        known = [wanted for wanted in ids if wanted not in self._unknown] if self._unknown else ids
        if len(known) < len(ids):
            results = dict(zip(known, self.fields(handle, known), strict=True)) if known else {}
            return [results[wanted] if wanted in results else _unknown_field(wanted) for wanted in ids]
        name = "nvmlDeviceGetFieldValues"
        try:
            raw = self.call(name, handle, ids)
        except DeviceLostError:
            raise
        except DeviceError as error:
            if not isinstance(error, NotSupportedError) and error.reason != _INVALID:
                return [error] * len(ids)
            if len(ids) == 1 or self.lacks(name, 2):
                return [_unknown_field(ids[0]) if error.reason == _INVALID else error] * len(ids)
            # A library may refuse all for the sake of one that it does not know; which one is remembered.
            singly = [result for wanted in ids for result in self.fields(handle, (wanted,))]
            if not all(isinstance(result, DeviceError) for result in singly):
                self._unknown |= {
                    wanted
                    for wanted, result in zip(ids, singly, strict=True)
                    if isinstance(result, DeviceError) and result.reason == "not_in_driver"
                }
            return singly
        return [_field_result(wanted, item) for wanted, item in zip(ids, raw, strict=True)]

    @staticmethod
    def refuse(code: int, what: str) -> NoReturn:
        """Raise what NVML's `code` means, where it comes in a structure."""
        raise _error(code, what)

    def named(self, name: str) -> Any:
        """A structure or constant of the binding, by its name. Raises NotSupportedError where it has none."""
        found = getattr(self._module, name, None)
        if found is None:
            raise NotSupportedError(f"{name}: not in this binding", "not_in_driver")
        return found

    @property
    def memory_v2(self) -> int:
        """Version word of the newer memory structure."""
        return int(getattr(self._module, "nvmlMemory_v2", 0x02000028))
