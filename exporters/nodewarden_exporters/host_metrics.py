"""The rows of the metric table that describe the host: sensors, drives, processors, pressure, network ports."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from nodewarden.model.host import (
    CpuPackage,
    Drive,
    HostSensor,
    HostSnapshot,
    IbPort,
    Number,
    PowerZone,
    Pressure,
    SensorKind,
)
from nodewarden.model.readings import Reading
from nodewarden_exporters.metric import row
from nodewarden_exporters.readers import Reader, Sample

_host = partial(row, "host_", scope="host")
_ib = partial(row, "infiniband_", scope="host")

_CHIP = ("chip", "sensor")
_DRIVE = ("drive",)
_PACKAGE = ("package",)
_ZONE = ("zone",)
_PORT = ("device", "port")


def _each(things: str, labels: Callable[[Any], tuple[str, ...]], field: str) -> Reader:
    """One line per thing, from one of its fields; a plain value is as old as the sweep."""

    def read(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
        for thing in getattr(host, things):
            value = getattr(thing, field)
            if value is not None:
                yield labels(thing), _aged(value, host)

    return read


def _of_sensors(kind: SensorKind, field: str) -> Reader:
    def read(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
        for sensor in host.sensors:
            value = getattr(sensor, field)
            if sensor.kind == kind and value is not None:
                yield _chip(sensor), _aged(value, host)

    return read


def _aged(value: float | Number, host: HostSnapshot) -> Number:
    return Reading(float(value), host.taken_at_s) if isinstance(value, float | int) else value


def _chip(sensor: HostSensor) -> tuple[str, ...]:
    return (sensor.chip, sensor.name)


def _drive(drive: Drive) -> tuple[str, ...]:
    return (drive.name,)


def _package(package: CpuPackage) -> tuple[str, ...]:
    return (str(package.package),)


def _zone(zone: PowerZone) -> tuple[str, ...]:
    return (zone.name,)


def _port(port: IbPort) -> tuple[str, ...]:
    return (port.device, str(port.port))


def _pressure(pressure: Pressure) -> tuple[str, ...]:
    return (pressure.resource, pressure.kind)


def _drive_info(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
    for drive in host.drives:
        yield (drive.name, drive.model), Reading(1, host.taken_at_s)


def _drive_sensors(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
    for drive in host.drives:
        for name, value in drive.sensors.items():
            yield (drive.name, name), value


def _shares(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
    for pressure in host.pressure:
        for window_s, share in pressure.share.items():
            yield (*_pressure(pressure), f"{window_s}s"), share


def _port_info(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
    for port in host.ports:
        yield (*_port(port), port.link_layer, port.board, port.firmware, port.netdev), Reading(1, host.taken_at_s)


def _port_up(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
    for port in host.ports:
        if isinstance(port.state, Reading):
            yield _port(port), Reading(int(port.state.value == 4), port.state.taken_at_s)


def _port_events(host: HostSnapshot, _now_s: float) -> Iterator[Sample]:
    for port in host.ports:
        for name, count in port.errors.items():
            yield (*_port(port), name), count


def _cpu_power(host: HostSnapshot, _now_s: float) -> Iterable[Sample]:
    return (((), host.cpu_power_w),)


def _hung(host: HostSnapshot, _now_s: float) -> Iterable[Sample]:
    return (((), Reading(len(host.hung), host.taken_at_s)),) if host.taken_at_s else ()


HOST_METRICS = (
    _host("sensor_celsius", "Temperature of the sensor, degrees Celsius.", _of_sensors("temperature", "value"), _CHIP),
    _host("sensor_max_celsius", "The chip's own upper threshold.", _of_sensors("temperature", "max_c"), _CHIP),
    _host("sensor_critical_celsius", "The chip's own threshold.", _of_sensors("temperature", "critical_c"), _CHIP),
    _host("fan_rpm", "Speed of the fan, revolutions per minute.", _of_sensors("fan", "value"), _CHIP),
    _host("sensor_power_watts", "Power that the chip measures, watts.", _of_sensors("power", "value"), _CHIP),
    _host("nvme_info", "What the drive is; always 1.", _drive_info, ("drive", "model")),
    _host(
        "nvme_celsius",
        "Composite temperature of the drive, which it acts on itself.",
        _each("drives", _drive, "composite_c"),
        _DRIVE,
    ),
    _host("nvme_sensor_celsius", "Single sensors of the drive.", _drive_sensors, ("drive", "sensor")),
    _host(
        "nvme_warning_celsius",
        "Composite temperature above which the drive slows down or may.",
        _each("drives", _drive, "warning_c"),
        _DRIVE,
    ),
    _host(
        "nvme_critical_celsius",
        "Composite temperature above which the drive may stop.",
        _each("drives", _drive, "critical_c"),
        _DRIVE,
    ),
    _host("nvme_alarm", "1 while the drive itself warns of its temperature.", _each("drives", _drive, "alarm"), _DRIVE),
    _host(
        "cpu_core_throttles_total",
        "Thermal events of the cores of the socket, each core once.",
        _each("packages", _package, "core_throttles"),
        _PACKAGE,
    ),
    _host(
        "cpu_package_throttles_total",
        "Thermal events of the whole socket.",
        _each("packages", _package, "package_throttles"),
        _PACKAGE,
    ),
    _host(
        "cpu_throttled_seconds_total",
        "Time for which the socket was throttled, seconds.",
        _each("packages", _package, "throttled_s"),
        _PACKAGE,
    ),
    _host("cpu_power_watts", "All processor sockets together, without DRAM, watts.", _cpu_power),
    _host(
        "power_watts",
        "Power of the RAPL zone, watts; a zone named PARENT/CHILD is part of its parent, except dram.",
        _each("zones", _zone, "power_w"),
        _ZONE,
    ),
    _host(
        "energy_joules_total",
        "Energy through the RAPL zone since the agent started, joules.",
        _each("zones", _zone, "energy_j"),
        _ZONE,
    ),
    _host(
        "pressure_ratio",
        "Share of time in which some or all (full) tasks waited for the resource.",
        _shares,
        ("resource", "kind", "window"),
    ),
    _host(
        "pressure_seconds_total",
        "Time in which some or all (full) tasks waited for the resource, seconds.",
        _each("pressure", _pressure, "total_s"),
        ("resource", "kind"),
    ),
    _host("files_hung", "Files of /sys and /proc whose read does not come back.", _hung),
    _ib(
        "info",
        "What the port is; always 1.",
        _port_info,
        (*_PORT, "link_layer", "board", "firmware", "netdev"),
    ),
    _ib("up", "1 while the port is active.", _port_up, _PORT),
    _ib("state", "State of the port by the kernel's number, 4 = active.", _each("ports", _port, "state"), _PORT),
    _ib(
        "physical_state",
        "Physical state by the kernel's number, 5 = link up.",
        _each("ports", _port, "physical_state"),
        _PORT,
    ),
    _ib(
        "rate_bytes_per_second",
        "Rate of the link as negotiated, all lanes together, bytes per second.",
        _each("ports", _port, "rate_bytes_per_s"),
        _PORT,
    ),
    _ib("transmit_bytes_total", "Bytes sent (RDMA only on RoCE).", _each("ports", _port, "transmit_bytes"), _PORT),
    _ib("receive_bytes_total", "Bytes received (RDMA only on RoCE).", _each("ports", _port, "receive_bytes"), _PORT),
    _ib("transmit_packets_total", "Packets sent.", _each("ports", _port, "transmit_packets"), _PORT),
    _ib("receive_packets_total", "Packets received.", _each("ports", _port, "receive_packets"), _PORT),
    _ib(
        "events_total",
        "Errors and congestion by the kernel's names of the counters.",
        _port_events,
        (*_PORT, "counter"),
    ),
    _ib(
        "module_celsius",
        "Temperature of the optical module or cable, where the firmware tells.",
        _each("ports", _port, "module_c"),
        _PORT,
    ),
)
