"""RAPL energy counters as the kernel gives them; root may read them, others may not (since 2020, CVE-2020-8694).

Facts are the kernel's Documentation/power/powercap/powercap.rst: microjoules, a counter that starts again at 0 after
max_energy_range_uj. Intel's and AMD's processors are served by the same driver under the same names.
"""

import re
from typing import Final, NamedTuple

from nodewarden.devices.sysfs import Sysfs
from nodewarden.model.readings import Reading

CLASS: Final = "/sys/class/powercap"
MAX_ZONES: Final = 64
MAX_NAME: Final = 32

_ZONE = re.compile(r"^(?:intel|amd)-rapl(?::\d{1,4}){1,2}$", re.ASCII)
_NAME = re.compile(r"^[A-Za-z0-9_.\-]+$", re.ASCII)
# The same package once more, through another register window; only of use where it is the only one.
_SAME_AGAIN = re.compile(r"^intel-rapl-mmio(?::\d{1,4}){1,2}$", re.ASCII)


class Zone(NamedTuple):
    """One zone; without `energy_uj` the reason says why. `range_uj` is 0 where the kernel does not say it."""

    zone: str
    name: str
    energy_uj: int | None
    range_uj: int
    reason: str | None


def read_zones(files: Sysfs) -> list[Zone]:
    """All zones and sub-zones; none in a virtual machine, or where the driver is not loaded."""
    files.begin()
    names = files.names(CLASS)
    zones = [name for name in names if _ZONE.match(name)] or [name for name in names if _SAME_AGAIN.match(name)]
    return [_read(files, zone) for zone in zones[:MAX_ZONES]]


def _read(files: Sysfs, zone: str) -> Zone:
    folder = f"{CLASS}/{zone}"
    name = files.text_or(f"{folder}/name")[:MAX_NAME]
    top = files.number(f"{folder}/max_energy_range_uj", "range", 0.0)
    energy = files.number(f"{folder}/energy_uj", "energy", 0.0)
    return Zone(
        zone=zone,
        name=name if _NAME.match(name) else zone,
        energy_uj=int(energy.value) if isinstance(energy, Reading) else None,
        range_uj=int(top.value) if isinstance(top, Reading) else 0,
        reason=None if isinstance(energy, Reading) else energy.reason,
    )
