"""Thermal throttling of the processors, and pressure stall information.

Facts are the kernel's: arch/x86/kernel/cpu/mce/therm_throt.c (both counts per logical processor; the package's is the
same on each of them) and Documentation/accounting/psi.rst (shares in percent, totals in microseconds; "full" of the
cpu means nothing for a whole system and reads 0).
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from nodewarden.devices.sysfs import Number, Sysfs
from nodewarden.model.host import CpuPackage, Pressure
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.host.trend import Growth

CPUS: Final = "/sys/devices/system/cpu"
PRESSURE: Final = "/proc/pressure"
MAX_CPUS: Final = 2048
MAX_PACKAGES: Final = 16
PLAN_S: Final = 60.0
LATELY_S: Final = 60.0
WINDOWS_S: Final = (10, 60, 300)

_CPU = re.compile(r"^cpu\d+$", re.ASCII)
_LINE = re.compile(
    r"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=(\d{1,3}\.\d\d) avg300=(\d{1,3}\.\d\d) total=(\d{1,20})$", re.ASCII
)


class _Core(msgspec.Struct, frozen=True):
    """One logical processor that counts."""

    folder: str
    package: int
    core: int


class Throttling:
    """Throttle counts of each package. A core that went offline keeps what it had counted."""

    def __init__(self, files: Sysfs) -> None:
        self._files = files
        self._cores: list[_Core] = []
        self._planned_s: float | None = None
        self._of_core: dict[tuple[int, int], Reading[float]] = {}
        self._growth: dict[int, Growth] = {}

    def read(self, now_s: float) -> tuple[CpuPackage, ...]:
        """All packages; none where the processor does not count (AMD, virtual machines)."""
        if self._planned_s is None or not 0 <= now_s - self._planned_s < PLAN_S:
            self._cores = list(self._find())
            self._planned_s = now_s
        newest: dict[tuple[int, int], Reading[float]] = {}
        first: dict[int, str] = {}
        missing: dict[int, Number] = {}
        for cpu in self._cores:
            number = self._files.number(f"{cpu.folder}/core_throttle_count", "throttles", now_s)
            first.setdefault(cpu.package, cpu.folder)
            if not isinstance(number, Reading):
                missing.setdefault(cpu.package, number)
                continue
            key = (cpu.package, cpu.core)  # both threads of a core count the same event
            known = newest.get(key)
            newest[key] = number if known is None or number.value > known.value else known
        self._of_core |= newest
        return tuple(
            self._package(package, folder, missing.get(package, Absent("not_supported")), now_s)
            for package, folder in sorted(first.items())[:MAX_PACKAGES]
        )

    def _find(self) -> Iterator[_Core]:
        names = [name for name in self._files.names(CPUS) if _CPU.match(name)]
        for name in names[:MAX_CPUS]:
            folder = f"{CPUS}/{name}"
            if not self._files.names(f"{folder}/thermal_throttle"):
                continue
            package = self._files.number(f"{folder}/topology/physical_package_id", "topology", 0.0, high=65535)
            core = self._files.number(f"{folder}/topology/core_id", "topology", 0.0, high=1e6)
            if isinstance(package, Reading):
                number = core.value if isinstance(core, Reading) else float(name[3:])
                yield _Core(f"{folder}/thermal_throttle", int(package.value), int(number))

    def _package(self, package: int, folder: str, missing: Number, now_s: float) -> CpuPackage:
        cores = [reading for (of, _), reading in self._of_core.items() if of == package]
        whole = self._files.number(f"{folder}/package_throttle_count", "throttles", now_s)
        in_cores = Reading(sum(core.value for core in cores), now_s) if cores else missing
        counted = [number.value for number in (whole, in_cores) if isinstance(number, Reading)]
        lately = self._growth.setdefault(package, Growth(LATELY_S))
        return CpuPackage(
            package=package,
            core_throttles=in_cores,
            package_throttles=whole,
            throttled_s=self._files.number(f"{folder}/package_throttle_total_time_ms", "throttles", now_s, per=1e3),
            throttles_lately=lately.add(Reading(sum(counted), now_s) if len(counted) == 2 else Absent("not_read")),
        )


def read_pressure(files: Sysfs, now_s: float) -> tuple[Pressure, ...]:
    """Pressure of all resources that the kernel counts; none where it does not (psi=0)."""
    found: list[Pressure] = []
    for resource in ("cpu", "memory", "io", "irq"):
        try:
            text = files.text(f"{PRESSURE}/{resource}")
        except OSError:
            continue  # no such file, or EOPNOTSUPP with psi=0
        found += [
            pressure
            for line in text.splitlines()[:4]
            if (pressure := _pressure(resource, line, now_s)) is not None
            and (resource, pressure.kind) != ("cpu", "full")
        ]
    return tuple(found)


def _pressure(resource: str, line: str, now_s: float) -> Pressure | None:
    match = _LINE.match(line)
    if match is None:
        return None
    shares: dict[int, Number] = {}
    for window_s, percent in zip(WINDOWS_S, match.groups()[1:4], strict=True):
        share = round(float(percent) / 100, 4)
        shares[window_s] = Reading(share, now_s) if share <= 1 else Failed("implausible", now_s)
    return Pressure(resource=resource, kind=match[1], share=shares, total_s=Reading(int(match[5]) / 1e6, now_s))
