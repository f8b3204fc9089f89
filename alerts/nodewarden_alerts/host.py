"""Conditions of the host itself: sensors, drives, processors, network ports, memory. Pure: facts in, findings out."""

from collections.abc import Iterator

from nodewarden.model.host import HostSnapshot, IbPort, Number
from nodewarden.model.readings import Failed, Reading
from nodewarden_alerts.facts import Facts, Finding

THROTTLED_S = 120.0
"""A short burst at the start of a job is no fault of the cooling."""
HOT_S = 30.0
PORT_DOWN_S = 30.0
ERRORS_LATELY = 100.0
"""In five minutes. A link within its specification has a symbol error in an hour or so."""
FLAPS_LATELY = 2.0
"""In ten minutes; once is somebody at the cable."""
MEMORY_FULL = 0.10
MEMORY_S = 60.0


def _host(facts: Facts, now_s: float) -> HostSnapshot:
    """The host's readings while they are fresh, else none."""
    source = facts.snapshot.sources.get("host")
    return HostSnapshot() if source is not None and source.is_stale(now_s) else facts.snapshot.host


def _value(number: Number) -> float | None:
    return number.value if isinstance(number, Reading) else None


def sensor_critical(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A sensor is at the threshold that its chip calls critical."""
    for sensor in _host(facts, now_s).sensors:
        value = _value(sensor.value)
        if value is not None and sensor.critical_c is not None and value >= sensor.critical_c:
            yield Finding(
                what=f"{sensor.chip} {sensor.name} at {value:.0f} degC, critical is {sensor.critical_c:.0f} degC",
                key=f"{sensor.chip}/{sensor.name}",
            )


def drive_hot(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A drive is as hot as it says it should not be, or warns of its temperature itself."""
    for drive in _host(facts, now_s).drives:
        value = _value(drive.composite_c)
        is_over = value is not None and drive.warning_c is not None and value >= drive.warning_c
        if drive.alarm or is_over:
            at = "" if value is None else f" at {value:.0f} degC"
            limit = "" if drive.warning_c is None else f", its limit is {drive.warning_c:.0f} degC"
            yield Finding(what=f"NVMe drive {drive.name}{at}{limit}: it slows down or may", key=drive.name)


def cpu_throttled(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A processor goes on being throttled for heat."""
    for package in _host(facts, now_s).packages:
        lately = _value(package.throttles_lately)
        if lately:
            yield Finding(
                what=f"CPU {package.package} throttled for heat, {lately:.0f} events in the last minute",
                key=str(package.package),
            )


def port_down(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A port that was active is not."""
    for port in _host(facts, now_s).ports:
        if port.down_since_s is None:
            continue
        if isinstance(port.state, Reading):
            state = ", ".join(word for word in (port.state_name, port.physical_state_name) if word)
            what = f"{_kind(port)} port {port.name} is down ({state})"
        elif isinstance(port.state, Failed) and port.state.reason == "gone":
            what = f"network port {port.name} is gone"
        else:
            continue  # nobody knows
        yield Finding(what=what, since_s=port.down_since_s, key=port.name)


def port_errors(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A port that is up counts errors or goes up and down."""
    for port in _host(facts, now_s).ports:
        errors, flaps = _value(port.errors_lately) or 0.0, _value(port.flaps_lately) or 0.0
        said = [f"{errors:.0f} link errors in 5 minutes"] if errors >= ERRORS_LATELY else []
        said += [f"went down {flaps:.0f} times in 10 minutes"] if flaps >= FLAPS_LATELY else []
        if said:
            yield Finding(what=f"{_kind(port)} port {port.name}: {', '.join(said)}", key=port.name)


def _kind(port: IbPort) -> str:
    return "RoCE" if port.link_layer == "Ethernet" else "InfiniBand"


def memory_pressure(facts: Facts, now_s: float) -> Iterator[Finding]:
    """All tasks together wait for memory for much of the time."""
    for pressure in _host(facts, now_s).pressure:
        if (pressure.resource, pressure.kind) == ("memory", "full"):
            share = _value(pressure.share[60])
            if share is not None and share >= MEMORY_FULL:
                yield Finding(what=f"everything on this node waits for memory {share:.0%} of the time")


def file_hung(facts: Facts, now_s: float) -> Iterator[Finding]:
    """A driver does not answer for one of its files; its name is enough to know which."""
    del now_s
    for path in facts.snapshot.host.hung[:4]:
        yield Finding(what=f"{path} does not answer", done="what it would tell is missing", key=path)
