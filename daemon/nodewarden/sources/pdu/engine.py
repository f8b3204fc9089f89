"""Asking a device: which profile fits it, and everything that the profile wants to know of it."""

from typing import Any

import msgspec

from nodewarden.devices.snmp import MAX_OIDS, SnmpDevice, Value
from nodewarden.errors import NotSupportedError
from nodewarden.sources.pdu import registry
from nodewarden.sources.pdu.decode import Columns, columns_of, scalars_of, store
from nodewarden.sources.pdu.profile import SYS_DESCR, SYS_OBJECT_ID, SYS_UP_TIME, Profile

_SYSTEM = (f"{SYS_DESCR}.0", f"{SYS_OBJECT_ID}.0", f"{SYS_UP_TIME}.0")


class Identity(msgspec.Struct, frozen=True):
    """What a device says it is, and the profile that its answers confirm. `up_time` is in hundredths of a second."""

    profile: Profile
    object_id: str | None
    description: str
    up_time: int | None


async def identify(device: SnmpDevice) -> Identity:
    """Find the profile of a device: by its sysObjectID, confirmed by a probe; by probing all where that fails.

    Raises:
        NotSupportedError: it answers, but no profile fits; the text says what it is and what to do.
        DeviceError: it does not answer.
    """
    system = await device.get(_SYSTEM)
    descr, object_id, up_time = (system[oid] for oid in _SYSTEM)
    named = object_id if isinstance(object_id, str) and object_id else None
    description = descr.decode("utf-8", "replace") if isinstance(descr, bytes) else ""
    clean = "".join(letter for letter in description if letter.isprintable()).strip()[:120]
    likely = registry.candidates(named)
    others = [profile for profile in registry.PROFILES if profile not in likely]
    for group in ([profile] for profile in likely):
        if profile := await _probe(device, group):
            return Identity(profile, named, description, up_time if isinstance(up_time, int) else None)
    if profile := await _probe(device, others):
        return Identity(profile, named, description, up_time if isinstance(up_time, int) else None)
    known = (
        f"it looks like {likely[0].vendor} ({likely[0].name}) but shows none of that profile's objects; check that the"
        " community's view includes the vendor's branch"
        if likely
        else "no profile fits; please report both with a walk of 1.3.6.1.4.1 (snmpwalk), a new one is a table of OIDs"
    )
    raise NotSupportedError(
        f"{device.host}:{device.port} is an unknown device:"
        f' sysObjectID {named or "(none)"}, sysDescr "{clean}": {known}'
    )


async def _probe(device: SnmpDevice, profiles: list[Profile]) -> Profile | None:
    """The first profile of which the device has a probed object; several profiles share a GET."""
    oids = [oid for profile in profiles for oid in profile.probe]
    values: dict[str, Value] = {}
    for start in range(0, len(oids), MAX_OIDS):
        values |= await device.get(oids[start : start + MAX_OIDS])
        asked = oids[: start + MAX_OIDS]
        for profile in profiles:
            if all(oid in asked for oid in profile.probe) and any(values[oid] is not None for oid in profile.probe):
                return profile
    return None


async def read_all(device: SnmpDevice, profile: Profile, *, deadline_s: float) -> Columns:
    """Every column and scalar of the profile, the columns within `deadline_s`. Raises DeviceError."""
    columns: Columns = {}
    scalars = [*_SYSTEM, *scalars_of(profile)]
    wanted: dict[str, Any] = {}
    for start in range(0, len(scalars), MAX_OIDS):
        wanted |= await device.get(scalars[start : start + MAX_OIDS])
    store(columns, wanted)
    columns |= await device.walk(columns_of(profile), deadline_s=deadline_s)
    return columns
