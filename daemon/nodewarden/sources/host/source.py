"""The host's readings: one sweep over sysfs and procfs, the processors' energy through the helper, into the store.

What this host lacks is absent and silent; what should answer and does not is told once, and costs itself only.
"""

from pathlib import Path

import msgspec
import structlog

from nodewarden.clock import Clock
from nodewarden.devices.sysfs import Sysfs
from nodewarden.errors import DeviceError, HelperError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.model.host import HostSnapshot, PowerZone
from nodewarden.model.readings import Reading
from nodewarden.sources.host.cpu import Throttling, read_pressure
from nodewarden.sources.host.hwmon import Hwmon
from nodewarden.sources.host.infiniband import Infiniband
from nodewarden.sources.host.power import PowerMeters
from nodewarden.sources.host.sweeper import Sweeper
from nodewarden.store import SnapshotStore

log = structlog.get_logger("nodewarden.sources")

STALE_MIN_S = 15.0


class HostSource:
    """Args: link: to the helper, which reads RAPL; root: where /sys and /proc are; period_s: how often it is read."""

    def __init__(self, link: HelperLink, store: SnapshotStore, clock: Clock, *, root: Path, period_s: float) -> None:
        self._link = link
        self._store = store
        self._clock = clock
        self._record = store.record("host", max(3 * period_s, STALE_MIN_S))
        self._files = Sysfs(root)
        self._hwmon = Hwmon(self._files)
        self._throttling = Throttling(self._files)
        self._infiniband = Infiniband(self._files)
        self._meters = PowerMeters()
        self._sweeper = Sweeper(self._files, self._sweep, clock)
        self._hung: frozenset[str] = frozenset()
        self._too_old: int | None = None  # the adoption of a helper that does not know the verb

    async def read(self) -> None:
        """One sweep. Never raises for a sick file or helper."""
        began_s = self._clock.now_s()
        try:
            host = await self._sweeper.run()
        except DeviceError as error:
            self._record.failed(self._clock.now_s(), error.reason, str(error))
            self._tell_hung()
            return
        host = await self._with_power(host)
        self._tell_hung()
        hung = tuple(path.encode("utf-8", "replace").decode() for path in sorted(self._hung))
        self._store.host = msgspec.structs.replace(host, hung=hung)
        now_s = self._clock.now_s()
        self._record.succeeded(now_s, now_s - began_s)
        self._record.rejected = dict(self._files.rejected)
        if self._meters.rejected:
            self._record.rejected["energy"] = self._meters.rejected

    def _sweep(self, now_s: float) -> HostSnapshot:
        """On the sweeper's thread."""
        sensors, drives = self._hwmon.read(now_s)
        return HostSnapshot(
            sensors=sensors,
            drives=drives,
            packages=self._throttling.read(now_s),
            pressure=read_pressure(self._files, now_s),
            ports=self._infiniband.read(now_s, self._hwmon.module_c),
            dropped=self._hwmon.dropped + self._infiniband.dropped,
            taken_at_s=now_s,
        )

    async def _with_power(self, host: HostSnapshot) -> HostSnapshot:
        """The zones, or why there are none; while the helper does not answer the last ones stay until they are old."""
        reply: wire.RaplReply | None = None
        reason = f"helper_{self._link.status.state}"
        if self._too_old is not None and self._too_old == self._link.adoptions:
            reason = "helper_too_old"  # it bears few requests that it does not understand
        elif self._link.adopted:
            try:
                reply = await self._link.client.rapl()
            except HelperError as error:
                reason = f"helper_{error.code}"
                if error.code == "bad_request":
                    reason, self._too_old = "helper_too_old", self._link.adoptions
        if reply is None:
            return msgspec.structs.replace(host, zones=self._still_fresh(), zones_reason=reason)
        zones = self._meters.take(reply.zones, reply.taken_at_s)
        return msgspec.structs.replace(host, zones=zones, zones_reason=None if zones else "not_supported")

    def _still_fresh(self) -> tuple[PowerZone, ...]:
        oldest_s = self._clock.now_s() - self._record.stale_after_s
        return tuple(
            zone
            for zone in self._store.host.zones
            if isinstance(zone.power_w, Reading) and zone.power_w.taken_at_s >= oldest_s
        )

    def _tell_hung(self) -> None:
        """On the edge only: a file that hangs, and one that is back."""
        hung = frozenset(self._files.hung)
        for path in sorted(hung - self._hung):
            log.warning("host_file_hangs", path=path, detail="what it would tell is missing, the rest is read")
        for path in sorted(self._hung - hung):
            log.info("host_file_back", path=path)
        self._hung = hung
