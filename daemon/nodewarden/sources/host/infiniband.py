"""InfiniBand and RoCE ports.

Facts are the kernel's: Documentation/ABI/stable/sysfs-class-infiniband (port_*_data in units of 4 octets whatever the
lane count; several error counters are narrow and stick at their top) and drivers/infiniband/hw/mlx5 (hw_counters;
`lifespan` there is a cache time, not a counter).
"""

import re
from typing import Final

from nodewarden.devices.sysfs import Number, Sysfs
from nodewarden.model.host import IbPort
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.host.trend import Growth

CLASS: Final = "/sys/class/infiniband"
MAX_PORTS: Final = 32
MAX_ERRORS: Final = 64
ERRORS_LATELY_S: Final = 300.0
FLAPS_LATELY_S: Final = 600.0
UNITS_PER_BYTE: Final = 0.25
"""port_xmit_data and port_rcv_data are octets divided by 4."""

_PORT = re.compile(r"^\d{1,3}$", re.ASCII)
_DEVICE = re.compile(r"^[A-Za-z0-9_.\-]{1,64}$", re.ASCII)
_STATE = re.compile(r"^(\d{1,2}): ?([ -~]{0,32})$", re.ASCII)
_RATE = re.compile(r"^(\d{1,6}(?:\.\d{1,3})?) Gb/sec", re.ASCII)
_COUNTER = re.compile(r"^[A-Za-z0-9_]{1,48}$", re.ASCII)
# Not errors: traffic, which has its own fields, and settings.
_TRAFFIC = re.compile(r"_(data|packets|bytes)(_64)?$|_pkts$|^lifespan$|^rx_.*_(requests|connect)$")
# A sound link counts none of these, and each is seen at once by what runs over it.
LINK_ERRORS: Final = (
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
)


class Infiniband:
    """All ports, and which of them were active since the agent started."""

    def __init__(self, files: Sysfs) -> None:
        self._files = files
        self._present: set[tuple[str, int]] = set()
        self._down_since_s: dict[tuple[str, int], float] = {}
        self._errors: dict[tuple[str, int], dict[str, Growth]] = {}
        self._flaps: dict[tuple[str, int], Growth] = {}
        self.dropped = 0

    def read(self, now_s: float, module_c: dict[str, Reading[float]]) -> tuple[IbPort, ...]:
        """All ports.

        Args:
            now_s: the time of the readings.
            module_c: temperature of optical modules by the path of the device, as hwmon has them.
        """
        ports: list[IbPort] = []
        self.dropped = 0
        for device in self._files.names(CLASS):
            numbers = [n for n in self._files.names(f"{CLASS}/{device}/ports") if _PORT.match(n)]
            if not _DEVICE.match(device):
                continue
            room = MAX_PORTS - len(ports)
            self.dropped += max(0, len(numbers) - room)
            where = self._files.target(f"{CLASS}/{device}/device")
            # The hwmon of a card has one module: that of its only port.
            module = module_c.get(where, Absent("not_supported")) if len(numbers) == 1 else Absent("not_supported")
            ports += [self._port(device, int(number), number, now_s, module) for number in numbers[:room]]
        here = {(port.device, port.port) for port in ports}
        ports += [self._missing(key, now_s) for key in sorted(self._present - here)[: MAX_PORTS - len(ports)]]
        return tuple(ports)

    def _missing(self, key: tuple[str, int], now_s: float) -> IbPort:
        """A port that was active and is no longer there: its card is gone, or nothing of it answers."""
        if self._files.is_hung(f"{CLASS}/{key[0]}/ports"):
            why = Failed("hung", now_s)
        else:
            why = Failed("gone", self._down_since_s.setdefault(key, now_s))
        return IbPort(
            device=key[0],
            port=key[1],
            present=True,
            down_since_s=self._down_since_s.get(key),
            state=why,
            physical_state=why,
        )

    def _port(self, device: str, port: int, spelt: str, now_s: float, module_c: Number) -> IbPort:
        files, folder = self._files, f"{CLASS}/{device}/ports/{spelt}"
        key = (device, port)
        state, state_name = self._state(f"{folder}/state", now_s)
        physical, physical_name = self._state(f"{folder}/phys_state", now_s)
        if isinstance(state, Reading):
            if state.value == 4:
                self._present.add(key)
                self._down_since_s.pop(key, None)
            elif key in self._present:
                self._down_since_s.setdefault(key, now_s)
        netdev = next(iter(files.names(f"{CLASS}/{device}/device/net")), "")
        counters = f"{folder}/counters"
        errors = self._counters(counters, now_s) | self._counters(f"{folder}/hw_counters", now_s)
        downs: Number = errors.get("link_downed", Absent())
        link_layer = _words(files.text_or(f"{folder}/link_layer"))
        if link_layer == "Ethernet" and netdev:  # RoCE counts link_downed nowhere; its network interface does
            downs = files.number(f"/sys/class/net/{netdev}/carrier_down_count", "counter", now_s)
            if isinstance(downs, Reading):
                errors["carrier_down"] = downs
        return IbPort(
            device=device,
            port=port,
            link_layer=link_layer,
            board=_words(files.text_or(f"{CLASS}/{device}/board_id")),
            firmware=_words(files.text_or(f"{CLASS}/{device}/fw_ver")),
            netdev=_words(netdev),
            state=state,
            state_name=state_name,
            physical_state=physical,
            physical_state_name=physical_name,
            present=key in self._present,
            down_since_s=self._down_since_s.get(key),
            rate_bytes_per_s=self._rate(f"{folder}/rate", now_s),
            transmit_bytes=self._counter(f"{counters}/port_xmit_data", now_s, UNITS_PER_BYTE),
            receive_bytes=self._counter(f"{counters}/port_rcv_data", now_s, UNITS_PER_BYTE),
            transmit_packets=self._counter(f"{counters}/port_xmit_packets", now_s),
            receive_packets=self._counter(f"{counters}/port_rcv_packets", now_s),
            errors=errors,
            errors_lately=self._lately(key, errors),
            flaps_lately=self._flaps.setdefault(key, Growth(FLAPS_LATELY_S)).add(downs),
            module_c=module_c,
        )

    def _state(self, path: str, now_s: float) -> tuple[Number, str]:
        """Number and words of "4: ACTIVE"."""
        files = self._files
        try:
            match = _STATE.match(files.text(path))
        except OSError as error:
            return Failed("hung" if isinstance(error, TimeoutError) else "io_error", now_s), ""
        if match is None:
            files.rejected["state"] = files.rejected.get("state", 0) + 1
            return Failed("not_understood", now_s), ""
        return Reading(float(match[1]), now_s), match[2].strip()

    def _rate(self, path: str, now_s: float) -> Number:
        """Bytes per second of "100 Gb/sec (4X EDR)"; the number holds for all lanes together."""
        match = _RATE.match(self._files.text_or(path))
        if match is None or float(match[1]) == 0:
            return Absent("not_supported")
        return Reading(float(match[1]) * 1e9 / 8, now_s)

    def _counter(self, path: str, now_s: float, per: float = 1.0) -> Number:
        return self._files.number(path, "counter", now_s, per=per)

    def _counters(self, folder: str, now_s: float) -> dict[str, Number]:
        """All error and congestion counters of a folder that count."""
        found: dict[str, Number] = {}
        for name in self._files.names(folder)[: 2 * MAX_ERRORS]:
            if _COUNTER.match(name) and not _TRAFFIC.search(name) and len(found) < MAX_ERRORS:
                number = self._counter(f"{folder}/{name}", now_s)
                if isinstance(number, Reading):
                    found[name] = number
        return found

    def _lately(self, key: tuple[str, int], errors: dict[str, Number]) -> Number:
        growths = self._errors.setdefault(key, {})
        grown = [
            growths.setdefault(name, Growth(ERRORS_LATELY_S)).add(errors[name])
            for name in LINK_ERRORS
            if name in errors
        ]
        readings = [number for number in grown if isinstance(number, Reading)]
        if not readings:
            return grown[0] if grown else Absent("not_supported")
        return Reading(sum(reading.value for reading in readings), readings[0].taken_at_s)


def _words(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:64]
