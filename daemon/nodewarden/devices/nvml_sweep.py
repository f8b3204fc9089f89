"""One read of one GPU: what the read functions ask with, and where their answers go. Each quantity fails for itself."""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from nodewarden.devices.nvml_calls import Field, NvmlCalls
from nodewarden.errors import DeviceError, DeviceLostError, NotSupportedError
from nodewarden.model.quantity import Labels

ALL_LINKS = 0xFFFFFFFF
"""The scope that means the sum over all NVLinks."""


class Sweep:
    """The answers of one read.

    Attributes:
        more: quantity -> values of its labels -> value in SI units, or the reason why there is none.
        last: the call or field that was answered last.
    """

    def __init__(self, nvml: NvmlCalls, handle: Any, wanted: Iterable[Field] = ()) -> None:
        self.nvml = nvml
        self.handle = handle
        self.more: dict[str, dict[Labels, float | str]] = {}
        self._ways: dict[str, dict[str | Field, None]] = {}
        self.last: str | Field = ""
        ids = list(wanted)
        self._fields = dict(zip(ids, nvml.fields(handle, ids), strict=True)) if ids else {}

    def call(self, name: str, *args: Any) -> Any:
        """One call on this GPU; raises DeviceError and its kinds."""
        answer = self.nvml.call(name, self.handle, *args)
        self.last = name
        return answer

    def fill(self, name: str, structure_name: str) -> Any:
        """One of the calls that fill a structure of the binding and answer with nothing."""
        structure = self.nvml.named(structure_name)()
        self.call(name, ctypes.byref(structure))
        return structure

    def first(self, *ways: Callable[[], Any]) -> Any:
        """The first of several ways that this library knows and this board answers.

        Raises the error that says most where none does: that the board has none, before that a call is unknown.
        """
        said: NotSupportedError | None = None
        for way in ways:
            try:
                return way()
            except NotSupportedError as error:
                if said is None or said.reason == "not_in_driver":
                    said = error
        raise said or NotSupportedError("no such call")

    def field(self, wanted: Field) -> float:
        """One of the fields that were asked for at the beginning; raises DeviceError and its kinds."""
        value = self._fields.get(wanted)
        if value is None:
            raise NotSupportedError(f"field {wanted}: was not asked for", "off")
        if isinstance(value, DeviceError):
            raise value
        self.last = wanted
        return value

    def outcome(self, wanted: Field) -> float | DeviceError | None:
        """What a field answered, as it is."""
        return self._fields.get(wanted)

    def put(self, quantity: str, ask: Callable[[], float], *labels: str) -> None:
        """Take one value, or the reason why there is none; a lost GPU ends the read."""
        values = self.more.setdefault(quantity, {})
        try:
            values[labels] = float(ask())
        except DeviceLostError:
            raise
        except DeviceError as error:
            values[labels] = error.reason
        else:
            self.came_from(quantity)

    def put_call(
        self, quantity: str, labels: Labels, name: str, *args: Any, convert: Callable[[Any], float] = float
    ) -> None:
        """Take the answer of one call."""
        self.put(quantity, lambda: convert(self.call(name, *args)), *labels)

    def give(self, quantity: str, value: float, *labels: str) -> None:
        """Take a value that the last call has brought beside others."""
        self.more.setdefault(quantity, {})[labels] = float(value)
        self.came_from(quantity)

    def came_from(self, quantity: str, way: str | Field | None = None) -> None:
        """Note the call or field that gave a quantity, the last one if none is named."""
        self._ways.setdefault(quantity, {})[self.last if way is None else way] = None

    @property
    def calls(self) -> dict[str, str]:
        """Quantity -> the calls that gave it, in words."""
        return {quantity: _in_words(list(ways)) for quantity, ways in self._ways.items()}

    def lacks(self, quantities: Iterable[str], error: DeviceError) -> None:
        """What would have given all of these has failed."""
        for quantity in quantities:
            self.more.setdefault(quantity, {})[()] = error.reason

    def ask(self, quantities: Iterable[str], way: Callable[[], Any]) -> Any:
        """The answer that several quantities are taken from; None where it failed, with the reason noted for them."""
        try:
            return way()
        except DeviceLostError:
            raise
        except DeviceError as error:
            self.lacks(quantities, error)
            return None


def _in_words(ways: list[str | Field]) -> str:
    """Such as "nvmlDeviceGetClockInfo", "field 82", "fields 3 to 6", "field 164 per link"."""
    plain = sorted(way for way in ways if isinstance(way, int))
    scoped: dict[int, list[int]] = {}
    for way in ways:
        if isinstance(way, tuple):
            scoped.setdefault(way[0], []).append(way[1])
    words = [way for way in ways if isinstance(way, str) and way]
    if len(plain) == 1:
        words.append(f"field {plain[0]}")
    elif plain:
        words.append(f"fields {plain[0]} to {plain[-1]}")
    for field, scopes in scoped.items():
        one = "all links" if scopes == [ALL_LINKS] else f"scope {scopes[0]}"
        words.append(f"field {field} {one if len(scopes) == 1 else 'per link'}")
    return ", ".join(words)
