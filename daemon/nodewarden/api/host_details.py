"""The document behind `nodectl host`: all that is known of the host. Missing is null, with the reason beside it."""

from typing import Any

from nodewarden.api.status import SCHEMA, rfc3339, tidy
from nodewarden.api.view import View
from nodewarden.model.host import Drive, HostSensor, HostSnapshot, IbPort, Number, ZoneKind
from nodewarden.model.readings import Reading

Document = dict[str, Any]
STALE_S = 30.0
_PACKAGE_SENSORS = ("Package id {}", "Physical id {}")


def host_document(view: View) -> Document:
    """Processors, drives, ports, sensors and pressure."""
    host = view.snapshot.host
    source = view.snapshot.sources.get("host")
    age_s = view.now_s - host.taken_at_s if host.taken_at_s else None
    return {
        "schema": SCHEMA,
        "node": view.node_name,
        "time": rfc3339(view.wall_s),
        "age_s": tidy(age_s),
        "stale": age_s is None or age_s > (STALE_S if source is None else source.stale_after_s),
        "on": source is not None,
        "cpu_power_w": _shown(host.cpu_power_w),
        "power_reason": _reason(host.cpu_power_w),
        "processors": [_processor(host, package) for package in _packages(host)],
        "zones": [
            {
                "zone": zone.name,
                "kind": zone.kind,
                "package": zone.package,
                "power_w": _shown(zone.power_w),
                "energy_j": _shown(zone.energy_j),
                "reason": _reason(zone.power_w),
            }
            for zone in host.zones
        ],
        "drives": [_drive(drive) for drive in host.drives],
        "ports": [_port(view, port) for port in host.ports],
        "sensors": [_sensor(sensor) for sensor in host.sensors],
        "pressure": [
            {
                "resource": pressure.resource,
                "kind": pressure.kind,
                **{f"share_{window_s}s": _shown(share, 4) for window_s, share in pressure.share.items()},
                "total_s": _shown(pressure.total_s),
            }
            for pressure in host.pressure
        ],
        "hung": list(host.hung),
        "dropped": host.dropped,
    }


def _packages(host: HostSnapshot) -> list[int]:
    counted = {package.package for package in host.packages}
    powered = {zone.package for zone in host.zones if zone.package is not None}
    return sorted(counted | powered)


def _processor(host: HostSnapshot, number: int) -> Document:
    names = [name.format(number) for name in _PACKAGE_SENSORS]
    sensor = next((s for s in host.sensors if s.kind == "temperature" and s.name in names), None)
    package = next((package for package in host.packages if package.package == number), None)
    return {
        "package": number,
        "temperature_c": _shown(sensor.value) if sensor else None,
        "critical_c": sensor.critical_c if sensor else None,
        "power_w": _power(host, number, "package"),
        "dram_w": _power(host, number, "dram"),
        "core_throttles": _shown(package.core_throttles) if package else None,
        "package_throttles": _shown(package.package_throttles) if package else None,
        "throttled_s": _shown(package.throttled_s) if package else None,
        "throttles_lately": _shown(package.throttles_lately) if package else None,
    }


def _power(host: HostSnapshot, number: int, kind: ZoneKind) -> float | None:
    """Of all zones of that kind on one socket (some have several dies); None where one of them is missing."""
    powers = [zone.power_w for zone in host.zones if zone.package == number and zone.kind == kind]
    known = [power.value for power in powers if isinstance(power, Reading)]
    return tidy(sum(known)) if powers and len(known) == len(powers) else None


def _drive(drive: Drive) -> Document:
    return {
        "name": drive.name,
        "model": drive.model,
        "state": drive.state,
        "composite_c": _shown(drive.composite_c),
        "reason": _reason(drive.composite_c),
        "warning_c": tidy(drive.warning_c),
        "critical_c": tidy(drive.critical_c),
        "alarm": drive.alarm,
        "sensors": {name: _shown(value) for name, value in drive.sensors.items()},
    }


def _port(view: View, port: IbPort) -> Document:
    return {
        "device": port.device,
        "port": port.port,
        "link_layer": port.link_layer,
        "netdev": port.netdev or None,
        "board": port.board,
        "firmware": port.firmware,
        "state": port.state_name or None,
        "physical_state": port.physical_state_name or None,
        "reason": _reason(port.state),
        "active": port.state.value == 4 if isinstance(port.state, Reading) else None,
        "was_active": port.present,
        "down_for_s": None if port.down_since_s is None else tidy(view.now_s - port.down_since_s),
        "down_since": None if port.down_since_s is None else rfc3339(view.unix_s(port.down_since_s)),
        "rate_bytes_per_s": _shown(port.rate_bytes_per_s),
        "transmit_bytes": _shown(port.transmit_bytes),
        "receive_bytes": _shown(port.receive_bytes),
        "transmit_packets": _shown(port.transmit_packets),
        "receive_packets": _shown(port.receive_packets),
        "errors_lately": _shown(port.errors_lately),
        "flaps_lately": _shown(port.flaps_lately),
        "events": {name: _shown(count) for name, count in port.errors.items()},
        "module_c": _shown(port.module_c),
    }


def _sensor(sensor: HostSensor) -> Document:
    return {
        "chip": sensor.chip,
        "name": sensor.name,
        "kind": sensor.kind,
        "value": _shown(sensor.value),
        "reason": _reason(sensor.value),
        "max_c": tidy(sensor.max_c),
        "critical_c": tidy(sensor.critical_c),
    }


def _shown(number: Number, digits: int = 1) -> float | None:
    return tidy(number.value, digits) if isinstance(number, Reading) else None


def _reason(number: Number) -> str | None:
    return None if isinstance(number, Reading) else number.reason
