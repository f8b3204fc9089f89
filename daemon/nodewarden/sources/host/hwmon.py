"""hwmon chips (temperatures, fans, power) and the NVMe drives among them.

Facts are the kernel's: Documentation/hwmon/sysfs-interface (millidegrees, rpm, microwatts) and its driver
drivers/nvme/host/hwmon.c (temp1 is the composite temperature, its max and crit are the drive's WCTEMP and CCTEMP,
temp1_alarm the drive's temperature warning). Chips are known by driver and device: N of hwmonN changes between boots.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from nodewarden.devices.sysfs import Sysfs, natural
from nodewarden.model.host import Drive, HostSensor, SensorKind
from nodewarden.model.readings import Absent, Reading

CLASS: Final = "/sys/class/hwmon"
NVME_CLASS: Final = "/sys/class/nvme"
MAX_SENSORS: Final = 512
MAX_DRIVES: Final = 64
MAX_DRIVE_SENSORS: Final = 16
MAX_NAME: Final = 64
PLAN_S: Final = 60.0

MIN_C, MAX_C = 1.0, 125.0
"""What electronics in a room can have (F20): 0, 127, 128, 255 and 655 are markers of sensors that are not there."""
MIN_LIMIT_C, MAX_LIMIT_C = 20.0, 126.0
MAX_RPM = 60_000.0
"""65535 is a fan without a tachometer."""
MAX_W = 100_000.0

_CHANNEL = re.compile(r"^(temp|fan|power)(\d{1,4})_(input|average)$", re.ASCII)
_KINDS: dict[str, SensorKind] = {"temp": "temperature", "fan": "fan", "power": "power"}
# The firmware's own name, or the number of its sensor: those of modules begin with 64.
_MODULE = re.compile(r"module|^sensor(?:6[4-9]|[7-9]\d|\d{3,})$", re.ASCII | re.IGNORECASE)
_HWMON = re.compile(r"^hwmon\d+$", re.ASCII)
_NVME = re.compile(r"^nvme\d+$", re.ASCII)
_WALK_FOLDERS = 20_000
_WALK_DEPTH = 16


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """Where one value of a chip is."""

    kind: SensorKind
    name: str
    path: str
    max_c: float | None = None
    critical_c: float | None = None


class Chip(msgspec.Struct, frozen=True, kw_only=True):
    """One hwmon folder; `device` is the path of the device that it belongs to, empty where it belongs to none."""

    folder: str
    driver: str
    id: str
    device: str
    channels: tuple[Channel, ...]


class Hwmon:
    """All chips. What hardly ever changes (labels, thresholds) is read when the chips change, and every `PLAN_S`.

    Attributes:
        dropped: channels and drives past the bounds, at the last read.
        module_c: temperature of optical modules by the path of the network card's device.
    """

    def __init__(self, files: Sysfs) -> None:
        self._files = files
        self._names: list[str] = []
        self._chips: list[Chip] = []
        self._planned_s: float | None = None
        self._turned: set[tuple[str, str]] = set()
        self._drives: dict[str, tuple[str, str]] = {}
        self.dropped = 0
        self.module_c: dict[str, Reading[float]] = {}

    def read(self, now_s: float) -> tuple[tuple[HostSensor, ...], tuple[Drive, ...]]:
        """All sensors and drives as they are now. Never raises for a sick file."""
        names = self._files.names(CLASS)
        if names != self._names or self._planned_s is None or not 0 <= now_s - self._planned_s < PLAN_S:
            self._chips = self._plan(self._folders(names))
            self._drives = self._find_drives()
            self._names, self._planned_s = names, now_s
        sensors: list[HostSensor] = []
        of_drive: dict[str, list[HostSensor]] = {}
        modules: dict[str, Reading[float]] = {}
        for chip in self._chips:
            values = [self._sensor(chip, channel, now_s) for channel in chip.channels]
            if chip.driver == "nvme" and _NVME.match(_last(chip.device)):
                of_drive[_last(chip.device)] = values
            else:
                sensors += values
            if chip.driver == "mlx5":
                for sensor in values:
                    if _MODULE.search(sensor.name) and isinstance(sensor.value, Reading):
                        modules[chip.device] = sensor.value
        self.module_c = modules
        names = sorted(self._drives.keys() | of_drive.keys(), key=natural)
        self.dropped = max(0, len(sensors) - MAX_SENSORS) + max(0, len(names) - MAX_DRIVES)
        drives = [self._drive(name, of_drive.get(name, [])) for name in names[:MAX_DRIVES]]
        return tuple(sensors[:MAX_SENSORS]), tuple(drives)

    # What is there -------------------------------------------------------------------------------------------------

    def _folders(self, names: list[str]) -> list[str]:
        if names or "hwmon" in self._files.names("/sys/class"):
            return [f"{CLASS}/{name}" for name in names if _HWMON.match(name)]
        return sorted(self._walk("/sys/devices"), key=natural)  # a recording without the links of /sys/class

    def _walk(self, top: str) -> Iterator[str]:
        pending, seen = [top], 0
        while pending and seen < _WALK_FOLDERS:
            folder = pending.pop()
            for name in self._files.names(folder):
                path = f"{folder}/{name}"
                seen += 1
                if _HWMON.match(name) and self._files.text_or(f"{path}/name"):
                    yield path
                elif path.count("/") < _WALK_DEPTH and self._files.target(path) == path:
                    pending.append(path)

    def _plan(self, folders: list[str]) -> list[Chip]:
        chips: list[Chip] = []
        used: dict[str, int] = {}
        for folder in folders:
            driver = _clean(self._files.text_or(f"{folder}/name", "unknown"))
            device = self._device(folder)
            named = driver if not device else _clean(_last(device))
            if driver not in named:
                named = f"{driver}-{named}"
            used[named] = used.get(named, 0) + 1
            ident = named if used[named] == 1 else f"{named}#{used[named]}"
            chips.append(
                Chip(folder=folder, driver=driver, id=ident, device=device, channels=tuple(self._channels(folder)))
            )
        return chips

    def _device(self, folder: str) -> str:
        itself, linked = self._files.target(folder), self._files.target(f"{folder}/device")
        if linked != f"{itself}/device":
            return linked
        parent = itself.rpartition("/")[0].removesuffix("/hwmon")
        return "" if parent in {"/sys/class", "/sys/devices/virtual"} else parent

    def _channels(self, folder: str) -> Iterator[Channel]:
        names = self._files.names(folder)
        taken: set[tuple[str, str]] = set()
        for name in names:
            match = _CHANNEL.match(name)
            if match is None or (match[3] == "input" and f"{match[1]}{match[2]}_average" in names):
                continue  # the mean where there is one
            stem = f"{match[1]}{match[2]}"
            label = _clean(self._files.text_or(f"{folder}/{stem}_label")) or stem
            if (match[1], label) in taken:
                label = f"{label} ({stem})"
            taken.add((match[1], label))
            is_temperature = match[1] == "temp"
            yield Channel(
                kind=_KINDS[match[1]],
                name=label,
                path=f"{folder}/{name}",
                max_c=self._limit_c(f"{folder}/{stem}_max") if is_temperature else None,
                critical_c=self._limit_c(f"{folder}/{stem}_crit") if is_temperature else None,
            )

    def _limit_c(self, path: str) -> float | None:
        """A threshold, None where there is none or a marker for "not set" (such as 65261.85 or 127)."""
        number = self._files.number(path, "limit", 0.0, per=1e3, low=-1e9, high=1e9)
        return number.value if isinstance(number, Reading) and MIN_LIMIT_C <= number.value <= MAX_LIMIT_C else None

    def _find_drives(self) -> dict[str, tuple[str, str]]:
        """Model and state of each drive."""
        return {
            name: (
                _clean(self._files.text_or(f"{NVME_CLASS}/{name}/model")),
                _clean(self._files.text_or(f"{NVME_CLASS}/{name}/state")),
            )
            for name in self._files.names(NVME_CLASS)
            if _NVME.match(name)
        }

    # What it says --------------------------------------------------------------------------------------------------

    def _sensor(self, chip: Chip, channel: Channel, now_s: float) -> HostSensor:
        number = self._files.number
        if channel.kind == "temperature":
            value = number(channel.path, "temperature", now_s, per=1e3, low=MIN_C, high=MAX_C)
        elif channel.kind == "fan":
            value = number(channel.path, "fan", now_s, high=MAX_RPM)
            key = (chip.id, channel.name)
            if isinstance(value, Reading) and value.value > 0:
                self._turned.add(key)
            elif isinstance(value, Reading) and key not in self._turned:
                value = Absent("never_turned")  # a header without a fan reads 0 as well
        else:
            # The meter of a machine that runs this cannot say 0; a supply without mains can.
            low = 1e-6 if chip.driver == "power_meter" else 0.0
            value = number(channel.path, "power", now_s, per=1e6, low=low, high=MAX_W)
        return HostSensor(
            chip=chip.id,
            kind=channel.kind,
            name=channel.name,
            value=value,
            max_c=channel.max_c,
            critical_c=channel.critical_c,
        )

    def _drive(self, name: str, sensors: list[HostSensor]) -> Drive:
        composite = next((sensor for sensor in sensors if sensor.name in {"Composite", "temp1"}), None)
        model, state = self._drives.get(name, ("", ""))
        folder = next((chip.folder for chip in self._chips if chip.driver == "nvme" and _last(chip.device) == name), "")
        alarm = self._files.text_or(f"{folder}/temp1_alarm") if folder else ""
        return Drive(
            name=name,
            model=model,
            state=state,
            composite_c=composite.value if composite is not None else Absent("not_supported"),
            sensors={s.name: s.value for s in sensors[: MAX_DRIVE_SENSORS + 1] if s is not composite},
            warning_c=composite.max_c if composite is not None else None,
            critical_c=composite.critical_c if composite is not None else None,
            alarm={"0": False, "1": True}.get(alarm),
        )


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _clean(text: str) -> str:
    """A label as people and metrics can have it: printable, one line, not endless."""
    return "".join(c if c.isprintable() else "?" for c in text)[:MAX_NAME].strip()
