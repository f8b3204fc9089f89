"""What `nodectl pdu discover` says of one device: every quantity once, in SI units; null where it has none."""

from typing import Any, Literal

from nodewarden.devices.snmp import Community, SnmpEngine
from nodewarden.devices.snmp_access import Credentials
from nodewarden.sources.pdu.crosscheck import suspects
from nodewarden.sources.pdu.decode import TOTALS, Decoded, decode
from nodewarden.sources.pdu.engine import Identity, identify, read_all

_PHASE = ("voltage_v", "current_a", "power_w", "apparent_va", "power_factor", "energy_wh")
_OUTLET = ("name", "current_a", "voltage_v", "power_w", "apparent_va", "energy_wh", "state")
_BANK = ("current_a", "voltage_v", "power_w", "apparent_va", "energy_wh")
_UNIT = ("total_power_w", "apparent_power_va", "energy_wh")
_HELPERS = frozenset({"index", "id", "number", "label", "unit", "spelt"})
_PROBES = ("inlet_temps_c", "humidity_pct")


async def discover(
    host: str,
    port: int = 161,
    *,
    version: Literal["1", "2c"] = "2c",
    community: str = "",
    access: Credentials | None = None,
    timeout_s: float = 2.0,
    engine: SnmpEngine | None = None,
) -> dict[str, Any]:
    """Ask one device everything that its profile knows.

    Args:
        host: name or address.
        port: UDP port.
        version: of SNMP.
        community: is in no error text; of v1 and v2c.
        access: instead of both, as for a v3 user.
        timeout_s: for each answer; all of it takes at most 30 times as long, and at least 30 s are allowed.
        engine: of this process, if it has one already.

    Raises:
        NotSupportedError: it answers, but no profile fits; the text names its sysObjectID and sysDescr.
        DeviceError: it does not answer; reason "timeout", "unreachable", "bad_answer" or one of
            `CREDENTIALS_REASONS`.
    """
    own = engine or SnmpEngine()
    try:
        device = own.device(host, port, access or Community(community, version), timeout_s=timeout_s)
        identity = await identify(device)
        columns = await read_all(device, identity.profile, deadline_s=max(30.0, 30 * timeout_s))
        return describe(identity, decode(identity.profile, columns))
    finally:
        if engine is None:
            await own.close()


def describe(identity: Identity, found: Decoded) -> dict[str, Any]:
    """The printed form. Rows carry the usual keys, null where empty, and further ones where the profile has them."""
    scalars = dict(found.scalars)
    phases = [{"id": row["id"], **_row(row, _PHASE)} for row in found.of("phases")]
    outlets = [{**_numbered(row), **_row(row, _OUTLET)} for row in found.of("outlets")]
    result: dict[str, Any] = {
        "sysObjectID": identity.object_id,
        "vendor": scalars.pop("vendor", None) or identity.profile.vendor,
        "model": scalars.get("model"),
        "kind": identity.profile.kind,
        **{total: scalars.get(total) for total in TOTALS},
        "phases": phases,
        "banks": [{"id": row["id"], **_row(row, _BANK)} for row in found.of("banks")],
        "outlets": outlets,
        "units": [{"id": row["id"], **_row(row, _UNIT)} for row in found.of("units")],
    }
    for kind in _PROBES:
        result[kind] = [{"id": row["id"], "value": row["value"]} for row in found.of(kind) if row["value"] is not None]
    for kind, rows in found.rows.items():
        if kind not in result:
            result[kind] = [{"id": row["id"], **_row(row, ())} for row in rows]
    for quantity, value in scalars.items():
        if quantity not in result and value is not None:
            group, _, key = quantity.rpartition(".")
            (result.setdefault(group, {}) if group else result)[key] = value
    result["estimated"] = list(found.estimated)
    result["suspect"] = suspects(scalars, phases, outlets)
    if len(phases) == 1 and "total_power_w" in result["suspect"] and identity.profile.totals_from == ("phases",):
        result["suspect"].remove("phases[0].power_w")  # the total is this very figure; it is named once
    return result


def _numbered(row: dict[str, Any]) -> dict[str, Any]:
    """The outlet as the device spells it; where that is no number, the one by which the configuration knows it."""
    return {"index": row["spelt"], "number": row["index"]} if "spelt" in row else {"index": row["index"]}


def _row(row: dict[str, Any], usual: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {key: row.get(key) for key in usual}
    values |= {key: value for key, value in row.items() if key not in _HELPERS}
    return values
