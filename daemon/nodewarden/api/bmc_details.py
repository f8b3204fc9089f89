"""The server as its BMC sees it, as one document: for `nodectl bmc show` and `nodectl bmc discover`."""

from typing import Any

import msgspec

from nodewarden.api.status import SCHEMA, rfc3339, tidy
from nodewarden.api.view import View
from nodewarden.model.bmc import BmcSnapshot

Document = dict[str, Any]
_APART = 0.25  # supplies and chassis are measured by different meters at different moments; 10 % is normal
_OWN = ("taken_at_s",)


def bmc_document(view: View) -> Document:
    """What `nodectl bmc show` shows; `on` is false where no BMC is configured."""
    bmc = view.snapshot.bmc
    source = view.snapshot.sources.get("bmc")
    is_known = bmc.taken_at_s > 0
    return {
        "schema": SCHEMA,
        "node": view.node_name,
        "time": rfc3339(view.wall_s),
        "on": source is not None,
        "up": source.up if source else False,
        "reason": source.reason if source else None,
        "age_s": tidy(max(0.0, view.now_s - bmc.taken_at_s)) if is_known else None,
        "source": bmc.source,
        "redundancy_lost": bmc.is_redundancy_lost,
        "leaks": list(bmc.leaks),
        **measured(bmc),
    }


def measured(bmc: BmcSnapshot) -> Document:
    """What the BMC measures, without times and without where it stands."""
    return {
        "vendor": bmc.vendor,
        "model": bmc.model,
        "bmc": bmc.bmc,
        "redfish_version": bmc.redfish_version,
        "chassis_power_w": bmc.chassis_power_w,
        "psus": _plain(bmc.psus),
        "redundancy": [_group(each) for each in _plain(bmc.redundancy)],
        "temperatures": _plain(bmc.temperatures),
        "margins_not_temperatures": _plain(bmc.margins),
        "absent_or_null": _plain(bmc.missing),
        "fans": _plain(bmc.fans),
        "leak": _plain(bmc.leak),
        "flow": _plain(bmc.flow),
        "power_sensors": _plain(bmc.power_sensors),
        "energy_sensors": _plain(bmc.energy_sensors),
        "gpus": _plain(bmc.gpus),
        "suspect": suspects(bmc),
    }


def suspects(bmc: BmcSnapshot) -> list[str]:
    """Key paths of quantities that contradict others."""
    inputs = [each.input_w for each in bmc.psus if each.present]
    known = [watts for watts in inputs if watts is not None]
    if not known or len(known) < len(inputs) or bmc.chassis_power_w is None:
        return []
    return ["chassis_power_w"] if abs(sum(known) - bmc.chassis_power_w) > _APART * max(sum(known), 1.0) else []


def _plain(things: tuple[Any, ...]) -> list[Document]:
    return [{key: value for key, value in msgspec.to_builtins(each).items() if key not in _OWN} for each in things]


def _group(group: Document) -> Document:
    """As the BMC reports it; only groups of fans say of what they are."""
    return {key: value for key, value in group.items() if key != "of" or value == "fans"}
