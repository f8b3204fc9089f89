"""NVLink of one GPU: state, bytes, errors, speed and the other end of each link, mostly by the one field call.

Counters of a link that is not active are not read: their 0 would look like a quiet link (F19).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from nodewarden.devices.nvml_calls import Field, NvmlCalls
from nodewarden.devices.nvml_sweep import ALL_LINKS, Sweep
from nodewarden.errors import DeviceError, DeviceLostError
from nodewarden.model.snapshot import LinkState
from nodewarden.units import bytes_from_kib, bytes_per_s_from_mbps

MAX_LINKS = 18  # where the board does not say how many NVLinks it has
_MOST_LINKS = 36
_COUNT: Final = 91
_STATE, _SPEED, _COMMON_SPEED = 165, 164, 90
_TX_KIB, _RX_KIB, _RAW_TX_KIB, _RAW_RX_KIB = 138, 139, 140, 141
_TX_BYTES, _RX_BYTES = 202, 204  # boards after Hopper count payload bytes here
_TOTAL_ERRORS: Final = {"replay": 52, "recovery": 59, "crc_flit": 38, "crc_data": 45, "ecc_data": 160}
# Number for nvmlDeviceGetNvLinkErrorCounter, and the fields of links 0 and 6: the fields end at link 11.
_ERRORS: Final = {
    "replay": (0, 46, 108),
    "recovery": (1, 53, 114),
    "crc_flit": (2, 32, 96),
    "crc_data": (3, 39, 102),
    "ecc_data": (4, 148, 154),
}
_REMOTE_TYPES: Final = {0: "gpu", 1: "npu", 2: "switch"}
_SLOW: Final = ("nvlink_total_transmit_bytes", "nvlink_total_receive_bytes", "nvlink_total_errors")
_RARE: Final = ("nvlink_errors", "nvlink_speed", "nvlink_info")
_RAW: Final = {"nvlink_raw_transmit_bytes": _RAW_TX_KIB, "nvlink_raw_receive_bytes": _RAW_RX_KIB}


def _error_field(kind: str, link: int) -> int | None:
    _, first, seventh = _ERRORS[kind]
    return first + link if link < 6 else seventh + link - 6 if link < 12 else None


class Links:
    """The links of one GPU, from one read to the next: how many there are, and where they lead."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._ends: dict[int, tuple[str, str]] = {}

    def fields(self, nvml: NvmlCalls, handle: Any, *, rare: bool, raw: bool) -> list[Field]:
        """What to ask for in the one field call. Costs a call of its own where the number of links is looked up."""
        if self._count is None or rare:
            self._count = _count_links(nvml, handle)
        if not self._count:
            return []
        of_each = [_STATE, _TX_KIB, _RX_KIB, *(_RAW.values() if raw else ()), *((_SPEED,) if rare else ())]
        wanted: list[Field] = [(field, link) for link in range(self._count) for field in of_each]
        wanted += [(_TX_KIB, ALL_LINKS), (_RX_KIB, ALL_LINKS), *_TOTAL_ERRORS.values()]
        if rare:
            fields = (_error_field(kind, link) for link in range(self._count) for kind in _ERRORS)
            wanted += [_COMMON_SPEED, *(field for field in fields if field is not None)]
        return wanted

    def read(self, sweep: Sweep, *, rare: bool, raw: bool) -> tuple[tuple[LinkState, ...], str | None]:
        """State and bytes of every link, and why there are none of either; all else goes into the sweep."""
        states: dict[int, bool] = {}
        failed: DeviceError | None = None
        for link in range(self._count or 0):
            try:
                states[link] = bool(sweep.first(partial(sweep.field, (_STATE, link)), partial(_state, sweep, link)))
                sweep.came_from("nvlink_up")
            except DeviceLostError:
                raise
            except DeviceError as error:
                failed = error
        if not states:
            reason = "not_supported" if failed is None else failed.reason
            sweep.lacks((*_SLOW, *_RAW, *(_RARE if rare else ())), DeviceError("no link answers", reason))
            return (), reason
        active = [link for link, is_active in states.items() if is_active]
        sent = _counters(sweep, "nvlink_transmit_bytes", active, _TX_KIB, _TX_BYTES)
        received = _counters(sweep, "nvlink_receive_bytes", active, _RX_KIB, _RX_BYTES)
        _total(sweep, "nvlink_total_transmit_bytes", _TX_KIB, sent)
        _total(sweep, "nvlink_total_receive_bytes", _RX_KIB, received)
        for kind, field in _TOTAL_ERRORS.items():
            sweep.put("nvlink_total_errors", partial(sweep.field, field), kind)
        for quantity, field in _RAW.items():
            if not raw:
                sweep.lacks((quantity,), DeviceError("not asked for", "off"))
            for link in active if raw else ():
                sweep.put(quantity, partial(_kib, sweep, field, link), str(link))
        if rare:
            self._read_rare(sweep, active)
        counts = [*sent.values(), *received.values()]
        failures = [count for count in counts if isinstance(count, str)]
        return (
            tuple(
                LinkState(link, is_active, _known(sent.get(link)), _known(received.get(link)))
                for link, is_active in states.items()
            ),
            failures[0] if failures and len(failures) == len(counts) else None,
        )

    def _read_rare(self, sweep: Sweep, active: Sequence[int]) -> None:
        for gone in self._ends.keys() - set(active):
            del self._ends[gone]  # a link that comes back may lead elsewhere
        for link in active:
            for kind in _ERRORS:
                sweep.put("nvlink_errors", partial(_errors, sweep, kind, link), str(link), kind)
            sweep.put("nvlink_speed", partial(_speed, sweep, link), str(link))
            if link not in self._ends:
                self._ends[link] = (_remote_type(sweep, link), _remote_bus_id(sweep, link))
            sweep.last = "nvmlDeviceGetNvLinkRemoteDeviceType"
            sweep.give("nvlink_info", 1.0, str(link), *self._ends[link])
        if not active:
            sweep.lacks(_RARE, DeviceError("no link is active", "no_link"))


def _count_links(nvml: NvmlCalls, handle: Any) -> int:
    """As the board says, else as many as answer."""
    (count,) = nvml.fields(handle, (_COUNT,))
    if not isinstance(count, DeviceError):
        return max(0, min(int(count), _MOST_LINKS))
    for link in range(MAX_LINKS):
        try:
            nvml.call("nvmlDeviceGetNvLinkState", handle, link)
        except DeviceLostError:
            raise
        except DeviceError:
            return link
    return MAX_LINKS


def _state(sweep: Sweep, link: int) -> float:
    return float(sweep.call("nvmlDeviceGetNvLinkState", link))


def _kib(sweep: Sweep, field: int, link: int) -> float:
    return bytes_from_kib(float(sweep.field((field, link))))


def _counters(sweep: Sweep, quantity: str, active: Sequence[int], kib: int, plain: int) -> dict[int, float | str]:
    """The byte counter of every active link, or the reason why there is none."""
    found: dict[int, float | str] = {}
    for link in active:
        try:
            found[link] = _kib(sweep, kib, link)
            sweep.came_from(quantity)
        except DeviceLostError:
            raise
        except DeviceError as error:
            found[link] = error.reason
    if not active or not all(value == "not_supported" for value in found.values()):
        return found
    newer = sweep.nvml.fields(sweep.handle, [(plain, link) for link in active])
    for link, value in zip(active, newer, strict=True):
        if not isinstance(value, DeviceError):
            found[link] = float(value)
            sweep.came_from(quantity, (plain, link))
    return found


def _total(sweep: Sweep, quantity: str, field: int, parts: dict[int, float | str]) -> None:
    """All links together: as the driver adds them up, else the sum where no part of it is missing (F18)."""
    numbers = [value for value in parts.values() if not isinstance(value, str) and value >= 0]

    def total() -> float:
        if len(numbers) < len(parts) or not parts:
            reasons = [value for value in parts.values() if isinstance(value, str)]
            raise DeviceError(
                "a part of the sum is missing", reasons[0] if reasons else "implausible" if parts else "no_link"
            )
        try:
            return _kib(sweep, field, ALL_LINKS)
        except DeviceLostError:
            raise
        except DeviceError:
            sweep.last = "the sum of the links"
            return sum(numbers)

    sweep.put(quantity, total)


def _errors(sweep: Sweep, kind: str, link: int) -> float:
    number, field = _ERRORS[kind][0], _error_field(kind, link)

    def call() -> float:
        return float(sweep.call("nvmlDeviceGetNvLinkErrorCounter", link, number))

    value: float = call() if field is None else sweep.first(partial(sweep.field, field), call)
    return value


def _speed(sweep: Sweep, link: int) -> float:
    mbps: float = sweep.first(partial(sweep.field, (_SPEED, link)), partial(sweep.field, _COMMON_SPEED))
    return bytes_per_s_from_mbps(mbps)


def _remote_type(sweep: Sweep, link: int) -> str:
    try:
        return _REMOTE_TYPES.get(int(sweep.call("nvmlDeviceGetNvLinkRemoteDeviceType", link)), "unknown")
    except DeviceLostError:
        raise
    except DeviceError:
        return "unknown"


def _remote_bus_id(sweep: Sweep, link: int) -> str:
    try:
        bus_id = sweep.call("nvmlDeviceGetNvLinkRemotePciInfo", link).busId
    except DeviceLostError:
        raise
    except DeviceError:
        return ""
    return bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id)


def _known(value: float | str | None) -> float | None:
    return None if isinstance(value, str) else value
