"""The power of every outlet of one PDU, read again and again: what learning needs, without the rest of a source."""

from nodewarden.devices.snmp import MAX_OIDS, SnmpDevice
from nodewarden.sources.pdu.decode import Columns, decode, store
from nodewarden.sources.pdu.engine import identify, read_all
from nodewarden.sources.pdu.profile import Profile


class OutletPowers:
    """Finds out at the first read what the device is; later reads ask for the outlets' watts only."""

    def __init__(self, device: SnmpDevice) -> None:
        self._device = device
        self._profile: Profile | None = None
        self._columns: Columns = {}
        self._oids: list[str] = []

    async def read(self) -> dict[int, tuple[float, str]]:
        """Watts and name of each outlet that is metered, by its number; none where the device meters none.

        Raises:
            DeviceError: as for `SnmpDevice.get`; "not_supported" where no profile fits.
        """
        if self._profile is None:
            profile = (await identify(self._device)).profile
            self._columns = await read_all(self._device, profile, deadline_s=max(30.0, 30 * self._device.timeout_s))
            self._profile = profile
            used = decode(profile, self._columns).used
            powers = [each for each in used if each.outlet is not None and each.quantity == "power_w"]
            self._oids = list(dict.fromkeys(oid for each in powers for oid in each.oids()))
        else:
            for start in range(0, len(self._oids), MAX_OIDS):
                values = await self._device.get(self._oids[start : start + MAX_OIDS])
                store(self._columns, values, self._columns)
        found: dict[int, tuple[float, str]] = {}
        for row in decode(self._profile, self._columns).of("outlets"):
            if row.get("power_w") is not None:
                found.setdefault(row["index"], (float(row["power_w"]), (row.get("name") or "").strip()))
        return found
