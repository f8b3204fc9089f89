"""Power of the whole machine, its supplies and their groups, from Redfish. Pure.

The old model (Power) is read where it has values, the new one (PowerSubsystem) else; never both for one quantity.
"""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from nodewarden.model.bmc import Redundancy, Supply
from nodewarden.sources.bmc.tree import (
    Document,
    Resource,
    Tree,
    health,
    linked,
    number,
    part,
    positive,
    rows,
    state,
    text,
)

# What BMCs without PowerConsumedWatts call the sensor of the whole machine: DGX, Cray, GB200/GB300, iDRAC.
_WHOLE = re.compile(
    r"^(pwr[ _]system|node|sys(tem)?[ _](input[ _])?power|total[ _](system[ _])?power"
    r"|(system[ _]board[ _])?pwr[ _]consumption|chassis[ _]power|.*[ _]totalhsc[ _]power[ _]\d+)$",
    re.IGNORECASE,
)
MAX_COUNT = 1_000  # members of a group; beyond is no count
_RATING_SLACK = 1.15  # a supply never draws more than this times its rating; what says so is the rating itself
_PART = re.compile(r"/HGX_|/UBB", re.IGNORECASE)


def chassis_power(tree: Tree) -> tuple[float | None, str | None, float]:
    """Watts at the input of the machine, where it stands, when it was read. 0 W of a running machine is no metering."""
    for resource in _machines_first(tree, "power"):
        control = next(iter(rows(resource.document, "PowerControl")), {})
        where = f"{resource.path}#/PowerControl/0/PowerConsumedWatts"
        if (watts := positive(control.get("PowerConsumedWatts"))) is not None:
            return watts, where, resource.taken_at_s
        if (watts := positive(resource.document.get("PowerConsumedWatts"))) is not None:  # iLO4
            return watts, f"{resource.path}#/PowerConsumedWatts", resource.taken_at_s
        if (watts := positive(_fujitsu(resource.document))) is not None:
            return watts, f"{resource.path}#/Oem", resource.taken_at_s
    for resource in _machines_first(tree, "environment"):
        if _PART.search(resource.path):
            continue
        watts, sensor = measured(tree, part(resource.document, "PowerWatts"))
        if watts:
            where = f"{sensor.path}#/Reading" if sensor else f"{resource.path}#/PowerWatts/Reading"
            return watts, where, (sensor or resource).taken_at_s
    for resource in tree.of("sensor"):
        name = text(resource.document.get("Name")) or ""
        if not _PART.search(resource.path) and _WHOLE.match(name.replace("-", " ")) and is_power(resource.document):
            watts = positive(resource.document)
            if watts is not None:
                return watts, f"{resource.path}#/Reading", resource.taken_at_s
    return None, None, 0.0


def is_power(sensor: Document) -> bool:
    """A sensor in watts: by its type, unless its unit says something else (XCC types amperes in watts)."""
    return sensor.get("ReadingType") == "Power" and text(sensor.get("ReadingUnits")) in {None, "W", "Watts"}


def _fujitsu(power: Document) -> Any:
    total = part(part(part(power, "Oem"), "ts_fujitsu"), "ChassisPowerConsumption")
    return total.get("CurrentPowerConsumptionW")


def _machines_first(tree: Tree, kind: str) -> Iterator[Resource]:
    """Of several chassis the one that is a machine and not a part of another comes first."""

    def rank(resource: Resource) -> int:
        chassis = tree.get(resource.chassis)
        links = part(chassis.document, "Links") if chassis else {}
        return 2 * bool(part(links, "ContainedBy")) + (not rows(links, "ComputerSystems"))

    return iter(sorted(tree.of(kind), key=rank))


def supplies(tree: Tree, chassis_w: float | None) -> tuple[list[Supply], list[Redundancy]]:
    """All supplies, and the groups in which they back each other."""
    old = [_old(resource, index, row) for resource in tree.of("power") for index, row in _indexed(resource)]
    groups = [
        _old_group(row, resource) for resource in tree.of("power") for row in rows(resource.document, "Redundancy")
    ]
    old = _without_ratings(old, chassis_w)
    if old:
        names = _members_of_old_groups(tree)
        return [structs.replace(each, redundancy=names.get(each.path)) for each in old], groups
    new_groups: list[Redundancy] = []
    member_of: dict[str, str] = {}
    for resource in tree.of("power_subsystem"):
        for index, row in enumerate(rows(resource.document, "PowerSupplyRedundancy")):
            group = _new_group(row, resource)
            new_groups.append(group)
            label = group.name or _label(resource, index, group)
            member_of |= {path: label for link in rows(row, "RedundancyGroup") if (path := linked(link))}
    new = [
        structs.replace(_new(tree, resource), redundancy=member_of.get(resource.path)) for resource in tree.of("supply")
    ]
    return new, groups or (new_groups if new else [])


def _label(resource: Resource, index: int, group: Redundancy) -> str:
    chassis = resource.chassis.rpartition("/")[2]
    counts = f"max {group.max_supported}, min needed {group.min_needed}"
    return f"{chassis}/PowerSubsystem PowerSupplyRedundancy[{index}] ({counts})"


def _indexed(resource: Resource) -> Iterator[tuple[int, Document]]:
    return enumerate(rows(resource.document, "PowerSupplies"))


def _old(resource: Resource, index: int, row: Document) -> Supply:
    capacity_w = positive(row.get("PowerCapacityWatts"))
    output_w = number(row.get("PowerOutputWatts"))
    if output_w is None:
        output_w = number(row.get("LastPowerOutputWatts"))
        output_w = None if output_w == capacity_w else output_w  # iDRAC8 tells the rating there
    input_w = number(row.get("PowerInputWatts"))
    if input_w is not None and capacity_w is not None and input_w > capacity_w * _RATING_SLACK:
        input_w = None  # iDRAC7: the rating at the input
    line_v = positive(row.get("LineInputVoltage"))
    supply = Supply(
        name=text(row.get("Name")) or f"PSU {index}",
        id=text(row.get("MemberId")) or text(row.get("MemberID")) or str(index),
        input_w=input_w,
        output_w=output_w,
        capacity_w=capacity_w,
        line_v=line_v,
        health=health(row),
        path=f"{resource.path}#/PowerSupplies/{index}",
        taken_at_s=resource.taken_at_s,
    )
    return structs.replace(supply, present=_is_present(row, supply))


def _is_present(row: Document, supply: Supply) -> bool | None:
    """A blank module in an unused bay may be Enabled and OK with every number null."""
    said = state(row)
    if said == "Absent":
        return False
    blank = supply.input_w is None and supply.output_w is None and supply.capacity_w is None and supply.line_v is None
    if blank and (row.get("LineInputVoltageType") == "Unknown" or said is None):
        return False if said is not None else None
    return True


def _without_ratings(found: list[Supply], chassis_w: float | None) -> list[Supply]:
    """One figure on every supply, more together than the machine draws, is no reading of each (XCC)."""
    outputs = [each.output_w for each in found if each.present]
    together_w = sum(each or 0.0 for each in outputs)
    same = len(outputs) > 1 and len(set(outputs)) == 1 and outputs[0]
    if same and chassis_w is not None and together_w > chassis_w * _RATING_SLACK:
        return [structs.replace(each, output_w=None) for each in found]
    return found


def _members_of_old_groups(tree: Tree) -> dict[str, str]:
    """Path of a supply -> name of its group. Links point into Power: `#/PowerSupplies/0`, iLO without slash."""
    found = {}
    for resource in tree.of("power"):
        for row in rows(resource.document, "Redundancy"):
            name = text(row.get("Name"))
            for link in rows(row, "RedundancySet"):
                pointer = str(link.get("@odata.id", "")).rpartition("#")[2].strip("/")
                if name and re.fullmatch(r"PowerSupplies/\d+", pointer):
                    found[f"{resource.path}#/{pointer}"] = name
    return found


def _old_group(row: Document, resource: Resource, of: Any = "supplies") -> Redundancy:
    return Redundancy(
        name=text(row.get("Name")),
        of=of,
        mode=_mode(row.get("Mode")),
        min_needed=_count(row.get("MinNumNeeded")),
        max_supported=_count(row.get("MaxNumSupported")),
        members=len(rows(row, "RedundancySet")),
        health=health(row),
        state=state(row),
        taken_at_s=resource.taken_at_s,
    )


def _count(value: object) -> int | None:
    found = number(value)
    return int(found) if found is not None and 0 <= found <= MAX_COUNT else None


def _mode(value: object) -> str | list[Any] | None:
    """A word; iDRAC8 has a list of objects instead, of which words are kept."""
    if not isinstance(value, list):
        return text(value)
    members = [each for each in value[:8] if isinstance(each, dict)]
    return [{str(key)[:40]: text(word) for key, word in list(each.items())[:4]} for each in members]


def fan_groups(tree: Tree) -> list[Redundancy]:
    """Groups of fans, as Thermal reports them."""
    return [
        _old_group(row, resource, "fans")
        for resource in tree.of("thermal")
        for row in rows(resource.document, "Redundancy")
    ]


def _new_group(row: Document, resource: Resource) -> Redundancy:
    return Redundancy(
        name=text(row.get("Name")),
        mode=text(row.get("RedundancyType")),
        min_needed=_count(row.get("MinNeededInGroup")),
        max_supported=_count(row.get("MaxSupportedInGroup")),
        members=len(rows(row, "RedundancyGroup")),
        health=health(row),
        state=state(row),
        taken_at_s=resource.taken_at_s,
    )


def _new(tree: Tree, resource: Resource) -> Supply:
    metrics = next(
        (each for each in tree.of("supply_metrics") if each.path == linked(part(resource.document, "Metrics"))), None
    )
    document = metrics.document if metrics else {}
    output_w, sensor = measured(tree, part(document, "OutputPowerWatts"))
    input_w, _ = measured(tree, part(document, "InputPowerWatts"))
    line_v, _ = measured(tree, part(document, "InputVoltage"))
    supply = Supply(
        name=text(resource.document.get("Name")) or resource.path.rpartition("/")[2],
        id=text(resource.document.get("Id")) or resource.path.rpartition("/")[2],
        input_w=input_w,
        output_w=output_w,
        capacity_w=positive(resource.document.get("PowerCapacityWatts")),
        line_v=line_v or None,
        health=health(resource.document) or (health(sensor.document) if sensor else None),
        path=sensor.path if sensor else resource.path,
        taken_at_s=(sensor or metrics or resource).taken_at_s,
    )
    said = state(resource.document)
    return structs.replace(supply, present=False if said == "Absent" else _is_present(resource.document, supply))


def measured(tree: Tree, excerpt: Document) -> tuple[float | None, Resource | None]:
    """The reading of the sensor that an excerpt points to, which is newer, or its own (DGX H100: only the pointer)."""
    uri = linked({"@odata.id": excerpt.get("DataSourceUri")})
    sensor = tree.get(uri) if uri else None
    if sensor is not None and (reading := number(sensor.document)) is not None:
        return reading, sensor
    return number(excerpt), None
