"""What a server's management controller (BMC) tells: power, supplies, temperatures, fans, leaks, coolant. Frozen data.

All times are CLOCK_BOOTTIME seconds. None is always "not known", never zero, off or healthy.
"""

from typing import Any, Literal

import msgspec

Location = Literal[
    "inlet", "exhaust", "cpu", "gpu", "gpu_memory", "gpu_board", "nvswitch",
    "memory", "nic", "storage", "psu", "vr", "power_distribution", "board",
]  # fmt: skip

HEALTHY = frozenset({"ok"})
SICK = frozenset({"warning", "critical"})


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """One power supply.

    Attributes:
        id: unique within the BMC.
        present: None where the BMC does not say.
        input_w, output_w: watts; a sleeping hot spare has an output of 0.
        capacity_w: what it may give. line_v: of its input.
        health: as the BMC words it (OK, Warning, Critical).
        redundancy: the name of its group.
        taken_at_s: when it was read.
    """

    name: str
    id: str
    present: bool | None = None
    input_w: float | None = None
    output_w: float | None = None
    capacity_w: float | None = None
    line_v: float | None = None
    health: str | None = None
    redundancy: str | None = None
    path: str = ""
    taken_at_s: float = 0.0

    @property
    def is_failed(self) -> bool:
        """It is there and not well, a missing input among the reasons."""
        return bool(self.present) and (self.health or "").lower() in SICK


class Redundancy(msgspec.Struct, frozen=True, kw_only=True):
    """One group of supplies or fans that back each other, as the BMC reports it (iDRAC8 has a list as mode)."""

    name: str | None
    of: Literal["supplies", "fans"] = "supplies"
    mode: str | list[Any] | None = None
    min_needed: int | None = None
    max_supported: int | None = None
    members: int = 0
    health: str | None = None
    state: str | None = None
    taken_at_s: float = 0.0


class Temperature(msgspec.Struct, frozen=True, kw_only=True):
    """One temperature; `location` is told by its name, because PhysicalContext is often wrong."""

    name: str
    location: Location
    value_c: float
    upper_critical_c: float | None = None
    health: str | None = None
    physical_context: str | None = None
    path: str = ""
    taken_at_s: float = 0.0


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """A distance to a limit that the BMC calls a temperature; degrees Celsius, in the BMC's own direction."""

    name: str
    margin_c: float
    path: str = ""
    taken_at_s: float = 0.0


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A temperature sensor without a value."""

    name: str
    state: str | None
    reading: float | None
    path: str = ""


class Fan(msgspec.Struct, frozen=True, kw_only=True):
    """One fan rotor; rpm or percent, as the BMC gives it."""

    name: str
    present: bool | None = None
    rpm: float | None = None
    percent: float | None = None
    health: str | None = None
    path: str = ""
    taken_at_s: float = 0.0


class LeakDetector(msgspec.Struct, frozen=True, kw_only=True):
    """One leak detector; `state` is its DetectorState, true only while `status_state` is Enabled or not said."""

    name: str
    state: str | None
    type: str | None = None
    health: str | None = None
    status_state: str | None = None
    path: str = ""
    taken_at_s: float = 0.0

    @property
    def is_leaking(self) -> bool | None:
        """None where it does not watch."""
        state = (self.state or "").lower()
        if self.status_state not in {None, "Enabled"} or state in {"", "unavailable", "absent"}:
            return None
        return state != "ok"


class Coolant(msgspec.Struct, frozen=True, kw_only=True):
    """Where coolant enters or leaves: litres per minute, degrees Celsius, kilopascals, kilowatts."""

    name: str
    flow_lpm: float | None = None
    rated_flow_lpm: float | None = None
    supply_c: float | None = None
    return_c: float | None = None
    delta_kpa: float | None = None
    heat_kw: float | None = None
    health: str | None = None
    path: str = ""
    taken_at_s: float = 0.0


class PowerSensor(msgspec.Struct, frozen=True, kw_only=True):
    """Power of a part; parts of the whole, never to be added to it."""

    name: str
    value_w: float
    path: str = ""
    taken_at_s: float = 0.0


class EnergySensor(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of a part since it began to count."""

    name: str
    value: float
    unit: str = "J"
    path: str = ""
    taken_at_s: float = 0.0


class GpuModule(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the BMC sees it, past the driver."""

    name: str
    power_w: float | None = None
    memory_power_w: float | None = None
    temp_c: float | None = None
    memory_temp_c: float | None = None
    thermal_margin_c: float | None = None
    energy_j: float | None = None
    voltage_v: float | None = None
    taken_at_s: float = 0.0


class BmcSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one BMC told.

    Attributes:
        source: how it was asked.
        chassis_power_w: input of the whole machine; `chassis_power_from` says where it stands.
        taken_at_s: the newest answer; 0 = none yet.
    """

    source: Literal["redfish", "ipmi", "snmp"] = "redfish"
    vendor: str = ""
    model: str = ""
    bmc: str = ""
    redfish_version: str | None = None
    chassis_power_w: float | None = None
    chassis_power_from: str | None = None
    chassis_power_at_s: float = 0.0
    psus: tuple[Supply, ...] = ()
    redundancy: tuple[Redundancy, ...] = ()
    temperatures: tuple[Temperature, ...] = ()
    margins: tuple[Margin, ...] = ()
    missing: tuple[Missing, ...] = ()
    fans: tuple[Fan, ...] = ()
    leak: tuple[LeakDetector, ...] = ()
    flow: tuple[Coolant, ...] = ()
    power_sensors: tuple[PowerSensor, ...] = ()
    energy_sensors: tuple[EnergySensor, ...] = ()
    gpus: tuple[GpuModule, ...] = ()
    taken_at_s: float = 0.0

    @property
    def inlet_c(self) -> float | None:
        """The hottest chassis inlet."""
        return max((each.value_c for each in self.temperatures if each.location == "inlet"), default=None)

    @property
    def leaks(self) -> tuple[str, ...]:
        """Names of detectors that found a leak."""
        return tuple(each.name for each in self.leak if each.is_leaking)

    @property
    def failed_supplies(self) -> tuple[str, ...]:
        """Names of supplies that are there and not well."""
        return tuple(each.name for each in self.psus if each.is_failed)

    @property
    def failed_fans(self) -> tuple[str, ...]:
        """Names of fans that are there and not well."""
        return tuple(each.name for each in self.fans if each.present and (each.health or "").lower() in SICK)

    @property
    def is_redundancy_lost(self) -> bool | None:
        """True where a group of supplies is not whole by its own word, or a supply failed; None = not known."""
        groups = [each for each in self.redundancy if each.of == "supplies" and each.state != "Disabled"]
        if any((each.health or "").lower() in SICK for each in groups):
            return True  # also with one member left: the other one was pulled
        return bool(self.failed_supplies) if any(each.members > 1 for each in groups) else None
