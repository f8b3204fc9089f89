"""Power of the processors from their energy counters: wraps undone, gaps known, parts told from wholes."""

import re
from collections.abc import Sequence
from typing import Final

from nodewarden.gpuhelper import wire
from nodewarden.model.host import Number, PowerZone, ZoneKind
from nodewarden.model.readings import Absent, Failed, Reading

MAX_ZONE_W: Final = 20_000.0
"""No package, and no platform, takes more; a difference that says so is a counter that was reset."""
MIGHT_TAKE_W: Final = 1000.0
"""What a package may take: by it a reading is too late to know how often the counter wrapped (262 kJ: after 262 s)."""
LEAST_S: Final = 0.5
_KINDS: tuple[ZoneKind, ...] = ("package", "dram", "core", "uncore", "psys")
_PACKAGE = re.compile(r"^package-(\d{1,4})", re.ASCII)


class _Counter:
    """One energy counter."""

    def __init__(self) -> None:
        self.raw_uj: int | None = None
        self.at_s = 0.0
        self.total_j = 0.0
        self.power_w: Number = Absent("first_reading")

    def take(self, raw_uj: int, range_uj: int, at_s: float) -> bool:
        """One more reading; False when the difference is not believed, and nothing is counted."""
        before_uj, elapsed_s = self.raw_uj, at_s - self.at_s
        if before_uj is not None and elapsed_s < LEAST_S:
            return True  # the same reading once more
        self.raw_uj, self.at_s = raw_uj, at_s
        if before_uj is None:
            return True
        delta_uj = raw_uj - before_uj
        if delta_uj < 0:
            if raw_uj > range_uj or before_uj > range_uj:
                self.power_w = Absent("counter_reset")
                return True
            delta_uj += range_uj  # the kernel's counter starts again at 0 after range_uj
        power_w = delta_uj / 1e6 / elapsed_s
        if power_w > MAX_ZONE_W:
            self.power_w = Failed("implausible", at_s)
            return False
        if range_uj and elapsed_s * MIGHT_TAKE_W * 1e6 >= range_uj:
            self.power_w = Absent("gap")  # a wrap too many would not show in the difference
            return True
        if delta_uj == 0:
            self.power_w = Absent("stands_still")  # what runs takes something
            return True
        self.total_j += delta_uj / 1e6
        self.power_w = Reading(power_w, at_s)
        return True


class PowerMeters:
    """All zones of the node.

    Attributes:
        rejected: differences that were not believed.
    """

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._failed_since_s: dict[str, float] = {}
        self.rejected = 0

    def take(self, zones: Sequence[wire.RaplZone], at_s: float) -> tuple[PowerZone, ...]:
        """The newest counters of all zones, each named once."""
        names = {zone.zone: zone.name for zone in zones}
        taken: set[str] = set()
        found: list[PowerZone] = []
        for zone in zones:
            parent = zone.zone.rpartition(":")[0]
            above = names.get(parent, "")
            name = f"{above}/{zone.name}" if above else zone.name
            if name in taken:
                name = f"{name} ({zone.zone})"
            taken.add(name)
            kind: ZoneKind = next((kind for kind in _KINDS if zone.name.startswith(kind)), "other")
            socket = _PACKAGE.match(above or zone.name)
            energy_j, power_w = self._read(zone, at_s)
            found.append(
                PowerZone(
                    zone=zone.zone,
                    name=name,
                    kind=kind,
                    package=int(socket[1]) if socket else None,
                    energy_j=energy_j,
                    power_w=power_w,
                )
            )
        return tuple(found)

    def _read(self, zone: wire.RaplZone, at_s: float) -> tuple[Number, Number]:
        if zone.energy_uj is None:
            reason = zone.reason or "not_supported"
            if reason in {"not_supported", "no_permission"}:
                return Absent(reason), Absent(reason)
            failed = Failed(reason, self._failed_since_s.setdefault(zone.zone, at_s))
            return failed, failed
        self._failed_since_s.pop(zone.zone, None)
        counter = self._counters.setdefault(zone.zone, _Counter())
        if not counter.take(zone.energy_uj, zone.range_uj, at_s):
            self.rejected += 1
        return Reading(counter.total_j, counter.at_s), counter.power_w
