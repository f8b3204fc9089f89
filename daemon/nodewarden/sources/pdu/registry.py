"""Which profile fits a device: the explicit list of all profiles, in the order in which they are probed."""

from nodewarden.sources.pdu import (
    apc,
    cyberpower,
    easy_pdu,
    eaton,
    enlogic,
    gude,
    hpe,
    panduit,
    raritan,
    rnx,
    schleifenbauer,
    servertech,
    tripplite,
    ups_mib,
    vertiv,
)
from nodewarden.sources.pdu.profile import Profile

PROFILES: tuple[Profile, ...] = (
    apc.RPDU2,
    enlogic.NETSHELTER,
    enlogic.ENLOGIC,
    raritan.PX2,
    raritan.PX1,
    servertech.SENTRY4,
    servertech.SENTRY3,
    eaton.EPDU,
    vertiv.IMD,
    cyberpower.EPDU,
    tripplite.PADM,
    hpe.PDU2,
    hpe.PDU3,
    hpe.MANAGEMENT_MODULE,
    panduit.G5,
    easy_pdu.EPDU_STRINGS,
    rnx.UPDU,
    schleifenbauer.SDB,
    schleifenbauer.CONTEG,
    ups_mib.XUPS,
    ups_mib.GENEREX,
    ups_mib.HUAWEI,
    ups_mib.RFC1628,
)


def candidates(object_id: str | None) -> list[Profile]:
    """The profiles whose prefix `object_id` has, the longest prefix first; none for an empty or unknown one."""
    named = object_id or ""
    matches: list[tuple[int, Profile]] = []
    for profile in PROFILES:
        lengths = [len(prefix) for prefix in profile.prefixes if _has_prefix(named, prefix)]
        if lengths:
            matches.append((max(lengths), profile))
    product = named.removeprefix(f"{gude.ROOT}.").split(".")[0]
    if _has_prefix(named, gude.ROOT) and product.isdecimal():
        matches.append((len(gude.ROOT), gude.profile(int(product))))
    return [profile for _, profile in sorted(matches, key=lambda match: -match[0])]


def _has_prefix(object_id: str, prefix: str) -> bool:
    return object_id == prefix or object_id.startswith(prefix + ".")
