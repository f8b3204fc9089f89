"""What the host itself tells: its sensors, drives, processors, pressure, network ports. Frozen data.

All times are CLOCK_BOOTTIME seconds. Base units; temperatures in degrees Celsius.
"""

from typing import Literal

import msgspec

from nodewarden.model.readings import Absent, Failed, Reading

Number = Reading[float] | Absent | Failed
SensorKind = Literal["temperature", "fan", "power"]
ZoneKind = Literal["package", "dram", "core", "uncore", "psys", "other"]

_NOT_READ = Absent("not_read")


class HostSensor(msgspec.Struct, frozen=True, kw_only=True):
    """One hwmon channel.

    Attributes:
        chip: driver and device, such as "coretemp.0", "nvme0", "mlx5-0000:c1:00.0"; it survives a reboot.
        name: its label, or "temp1" where it has none; unique within chip and kind.
        value: degrees Celsius, rpm or watts.
        max_c, critical_c: the chip's own thresholds, None where it has none or a marker in their place.
    """

    chip: str
    kind: SensorKind
    name: str
    value: Number
    max_c: float | None = None
    critical_c: float | None = None


class Drive(msgspec.Struct, frozen=True, kw_only=True):
    """One NVMe drive, as far as sysfs tells (its SMART log, with the time it was throttled, takes an admin command).

    Attributes:
        name: such as "nvme0".
        state: "live" as the kernel has it; empty where it does not say.
        composite_c: the temperature that the drive itself acts on.
        sensors: single sensors by label.
        warning_c, critical_c: above the first it slows down or may, above the second it may stop.
        alarm: the drive's own temperature warning; None where it says nothing.
    """

    name: str
    model: str = ""
    state: str = ""
    composite_c: Number = _NOT_READ
    sensors: dict[str, Number] = {}
    warning_c: float | None = None
    critical_c: float | None = None
    alarm: bool | None = None


class CpuPackage(msgspec.Struct, frozen=True, kw_only=True):
    """One processor socket.

    Attributes:
        core_throttles: thermal events of its cores since boot, each core counted once.
        package_throttles: thermal events of the whole package since boot.
        throttled_s: seconds for which the package was throttled since boot, where the kernel counts them.
        throttles_lately: how much the two counts grew within the last minute or so.
    """

    package: int
    core_throttles: Number = _NOT_READ
    package_throttles: Number = _NOT_READ
    throttled_s: Number = _NOT_READ
    throttles_lately: Number = _NOT_READ


class PowerZone(msgspec.Struct, frozen=True, kw_only=True):
    """One RAPL zone.

    Attributes:
        zone: the kernel's id, such as "intel-rapl:0:1".
        name: "package-0", "dram"; of a sub-zone with its parent, such as "package-0/core".
        kind: "package" and "dram" are added up, "core" and "uncore" are parts of the package, "psys" is the whole
            platform: never added to the others.
        package: the socket, None where it belongs to none.
        energy_j: since we first read it; wraps of the counter are undone.
        power_w: mean since the read before.
    """

    zone: str
    name: str
    kind: ZoneKind
    package: int | None = None
    energy_j: Number = _NOT_READ
    power_w: Number = _NOT_READ


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """Pressure stall of one resource: the share of time in which some, or all ("full"), tasks waited for it.

    Attributes:
        resource: "cpu", "memory", "io" or "irq".
        kind: "some" or "full".
        share: 0 to 1 over the last 10, 60 and 300 s.
        total_s: seconds since boot.
    """

    resource: str
    kind: str
    share: dict[int, Number] = {}
    total_s: Number = _NOT_READ


class IbPort(msgspec.Struct, frozen=True, kw_only=True):
    """One InfiniBand or RoCE port.

    Attributes:
        device, port: its identity, such as "mlx5_0", 1.
        link_layer: "InfiniBand" or "Ethernet" (RoCE).
        state, physical_state: the kernel's numbers (4 = active, 5 = link up) and, beside them, its words.
        present: it was active at least once since the agent started; a port that never was is no port that is down.
        down_since_s: since when a present port is not active; None while it is.
        rate_bytes_per_s: of the link as negotiated.
        transmit_bytes, receive_bytes, transmit_packets, receive_packets: since the counters were reset.
        errors: error and congestion counters by their kernel names; a counter that the port does not keep is missing.
        errors_lately: how much those that a sound link does not count grew within the last five minutes.
        flaps_lately: how often the link went down within the last ten minutes.
        module_c: temperature of its optical module or cable, where the firmware tells.
    """

    device: str
    port: int
    link_layer: str = ""
    board: str = ""
    firmware: str = ""
    netdev: str = ""
    state: Number = _NOT_READ
    state_name: str = ""
    physical_state: Number = _NOT_READ
    physical_state_name: str = ""
    present: bool = False
    down_since_s: float | None = None
    rate_bytes_per_s: Number = _NOT_READ
    transmit_bytes: Number = _NOT_READ
    receive_bytes: Number = _NOT_READ
    transmit_packets: Number = _NOT_READ
    receive_packets: Number = _NOT_READ
    errors: dict[str, Number] = {}
    errors_lately: Number = _NOT_READ
    flaps_lately: Number = _NOT_READ
    module_c: Number = _NOT_READ

    @property
    def name(self) -> str:
        """How people call it: "mlx5_0/1"."""
        return f"{self.device}/{self.port}"


class HostSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The newest readings of the host.

    Attributes:
        taken_at_s: when the sweep ended; 0 = never.
        zones_reason: why there is no RAPL zone, such as "not_supported" in a virtual machine or "helper_missing".
        hung: files whose read does not come back; what they would tell is missing, the rest is not.
        dropped: sensors, drives or ports beyond what one node may have.
    """

    taken_at_s: float = 0.0
    sensors: tuple[HostSensor, ...] = ()
    drives: tuple[Drive, ...] = ()
    packages: tuple[CpuPackage, ...] = ()
    zones: tuple[PowerZone, ...] = ()
    zones_reason: str | None = None
    pressure: tuple[Pressure, ...] = ()
    ports: tuple[IbPort, ...] = ()
    hung: tuple[str, ...] = ()
    dropped: int = 0

    @property
    def cpu_power_w(self) -> Number:
        """All processor packages together (without DRAM), for the policy; as old as the oldest of them."""
        return self._sum_of("package")

    @property
    def dram_power_w(self) -> Number:
        """All DRAM zones together."""
        return self._sum_of("dram")

    @property
    def inlet_c(self) -> Number:
        """The hottest of the host's sensors that measure the air coming in, where one says so; for the policy."""
        found = [
            sensor.value
            for sensor in self.sensors
            if sensor.kind == "temperature"
            and isinstance(sensor.value, Reading)
            and any(word in sensor.name.lower() for word in ("inlet", "ambient"))
        ]
        return max(found, key=lambda reading: reading.value, default=Absent("not_supported"))

    def _sum_of(self, kind: ZoneKind) -> Number:
        powers = [zone.power_w for zone in self.zones if zone.kind == kind]
        readings = [power for power in powers if isinstance(power, Reading)]
        if powers and len(readings) == len(powers):
            return Reading(sum(power.value for power in readings), min(power.taken_at_s for power in readings))
        missing = [power for power in powers if not isinstance(power, Reading)]
        return missing[0] if missing else Absent(self.zones_reason or "not_supported")
