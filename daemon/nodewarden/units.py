"""Unit conversions: one place, used on the line that reads a device. Past that line everything is in SI base units.

Degrees Celsius are the exception (nobody reads kelvin); clocks are hertz, ratios are 0 to 1.
"""


def watts_from_mw(milliwatts: float) -> float:
    """NVML speaks milliwatts."""
    return milliwatts / 1000


def mw_from_watts(watts: float) -> int:
    """Milliwatts for NVML, rounded to the nearest."""
    return round(watts * 1000)


def joules_from_mj(millijoules: float) -> float:
    """NVML's energy counter is in millijoules."""
    return millijoules / 1000


def hertz_from_mhz(megahertz: float) -> float:
    """NVML's clocks are in MHz."""
    return megahertz * 1e6


def bytes_from_kib(kibibytes: float) -> float:
    """NVML's NVLink data counters are in KiB (1024 bytes)."""
    return kibibytes * 1024


def ratio_from_percent(percent: float) -> float:
    """Percent to the ratio that Prometheus wants."""
    return percent / 100


def seconds_from_ns(nanoseconds: float) -> float:
    """NVML's clocks-event counters are in nanoseconds."""
    return nanoseconds / 1e9


def bytes_per_s_from_mbps(megabytes_per_s: float) -> float:
    """NVML's link speeds are in MBps (10^6 bytes per second)."""
    return megabytes_per_s * 1e6


def bytes_per_s_from_mibps(mebibytes_per_s: float) -> float:
    """GPM's rates are in MiB per second."""
    return mebibytes_per_s * 1048576


def kwh_from_joules(joules: float) -> float:
    """Kilowatt-hours from joules."""
    return joules / 3.6e6
