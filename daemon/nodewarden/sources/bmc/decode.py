"""From a BMC's Redfish resources to what they say. Pure.

Per chassis the old model (Thermal) is read where it has values and sensors else, and a sensor that goes by the same
name elsewhere is the same sensor: nothing is counted twice.
"""

import re

from nodewarden.model.bmc import (
    BmcSnapshot,
    Coolant,
    EnergySensor,
    Fan,
    GpuModule,
    LeakDetector,
    Margin,
    Missing,
    PowerSensor,
    Temperature,
)
from nodewarden.sources.bmc.names import is_event, is_margin, location_of
from nodewarden.sources.bmc.supplies import chassis_power, fan_groups, is_power, supplies
from nodewarden.sources.bmc.tree import Document, Resource, Tree, health, number, part, positive, rows, state, text

_VENDORS = {"dell": "Dell", "hp": "HPE", "lenovo": "Lenovo", "supermicro": "Supermicro", "super micro": "Supermicro"}
_VENDORS |= {"nvidia": "NVIDIA", "giga": "Gigabyte", "cisco": "Cisco", "fujitsu": "Fujitsu", "cray": "Cray"}
_RPM_ABOVE = 200.0  # a "percent" beyond this is a speed (DGX H100 supplies say 4730 %)
_GPU = re.compile(r"^HGX_(GPU_(?:SXM_)?\d+)$", re.IGNORECASE)
_OF_GPU = {
    "power_w": "_power_0",
    "memory_power_w": "_dram_0_power_0",
    "temp_c": "_temp_0",
    "memory_temp_c": "_dram_0_temp_0",
    "thermal_margin_c": "_temp_1",
    "energy_j": "_energy_0",
    "voltage_v": "_voltage_0",
}


def decode(tree: Tree) -> BmcSnapshot:
    """What a BMC's resources say; whatever is missing or strange in them is left out."""
    watts, where, at_s = chassis_power(tree)
    psus, groups = supplies(tree, watts)
    found = _Found(tree)
    for resource in tree.of("thermal"):
        found.thermal(resource)
    for resource in tree.of("sensor"):
        found.sensor(resource)
    fans = found.fans or [_new_fan(resource) for resource in tree.of("fan")]
    vendor, model = _machine(tree)
    return BmcSnapshot(
        vendor=vendor,
        model=model,
        bmc=_bmc(tree),
        redfish_version=text(tree.first("root").get("RedfishVersion")),
        chassis_power_w=watts,
        chassis_power_from=where,
        chassis_power_at_s=at_s,
        psus=tuple(psus),
        redundancy=(*groups, *fan_groups(tree)),
        temperatures=tuple(found.temperatures),
        margins=tuple(found.margins),
        missing=tuple(found.missing),
        fans=tuple(fans),
        leak=tuple(_leak(resource) for resource in tree.of("leak_detector")),
        flow=tuple(each for resource in tree.of("coolant") if (each := _coolant(resource))),
        power_sensors=tuple(found.power),
        energy_sensors=tuple(found.energy),
        gpus=tuple(_gpus(tree)),
        taken_at_s=max((resource.taken_at_s for resource in tree.values()), default=0.0),
    )


class _Found:
    """Readings of all chassis, each once."""

    def __init__(self, tree: Tree) -> None:
        self.temperatures: list[Temperature] = []
        self.margins: list[Margin] = []
        self.missing: list[Missing] = []
        self.fans: list[Fan] = []
        self.power: list[PowerSensor] = []
        self.energy: list[EnergySensor] = []
        thermal, power = list(tree.of("thermal")), list(tree.of("power"))
        by_old = {
            "temperature": {each.chassis for each in thermal if rows(each.document, "Temperatures")},
            "fan": {each.chassis for each in thermal if rows(each.document, "Fans")},
            "power": {
                each.chassis
                for each in power
                if rows(each.document, "PowerControl") or rows(each.document, "PowerSupplies")
            },
        }
        by_old["power"] |= by_old["temperature"] | by_old["fan"]
        self._by_old = by_old
        self._told = {
            subject: {text(each.document.get("Name")) for each in tree.of("sensor") if each.chassis in where}
            for subject, where in by_old.items()
        }
        self._seen: set[tuple[str, str | None]] = set()

    def thermal(self, resource: Resource) -> None:
        for index, row in enumerate(rows(resource.document, "Temperatures")):
            path = f"{resource.path}#/Temperatures/{index}"
            low = number(row.get("LowerThresholdCritical"))
            high = positive(row.get("UpperThresholdCritical"))
            uppers = (positive(row.get(f"UpperThreshold{each}")) for each in ("NonCritical", "Critical", "Fatal"))
            top = next((each for each in uppers if each is not None), None)
            self._temperature(resource, row, number(row.get("ReadingCelsius")), low, high, top, path)
        for index, row in enumerate(rows(resource.document, "Fans")):
            reading = row.get("Reading", row.get("CurrentReading"))
            unit = text(row.get("ReadingUnits") or row.get("Units")) or "RPM"
            self._fan(resource, row, number(reading), unit, f"{resource.path}#/Fans/{index}")

    def sensor(self, resource: Resource) -> None:
        row = resource.document
        name, kind, unit = (text(row.get(key)) for key in ("Name", "ReadingType", "ReadingUnits"))
        reading = number(row)
        if (str(kind), name) in self._seen or is_event(name, row.get("ReadingUnits"), reading):
            return
        if kind == "Temperature" or (kind is None and unit == "Cel"):
            if self._is_told("temperature", resource, name):
                return
            levels = part(row, "Thresholds")
            high = positive(part(levels, "UpperCritical"))
            tops = (positive(part(levels, each)) for each in ("UpperCaution", "UpperCritical", "UpperFatal"))
            top = next((each for each in tops if each is not None), None)
            low = number(part(levels, "LowerCritical"))
            self._temperature(resource, row, reading, low, high, top, resource.path)
        elif kind == "Rotational" or (kind is None and unit in {"RPM", "{rev}/min"}):
            if self._is_told("fan", resource, name):
                return
            self._fan(resource, row, reading, unit or "RPM", resource.path)
        elif self._is_told("power", resource, name):
            return
        elif kind == "Power" and is_power(row):
            if reading is not None and state(row) in {None, "Enabled"}:
                self.power.append(PowerSensor(name=name or resource.path, value_w=reading, path=resource.path,
                                              taken_at_s=resource.taken_at_s))  # fmt: skip
        elif kind in {"EnergyJoules", "EnergykWh", "EnergyWh"} and reading is not None:
            self.energy.append(EnergySensor(name=name or resource.path, value=reading, unit=unit or "J",
                                            path=resource.path, taken_at_s=resource.taken_at_s))  # fmt: skip
        else:
            return
        self._seen.add((str(kind), name))

    def _is_told(self, subject: str, resource: Resource, name: str | None) -> bool:
        """True where the old model of this chassis, or of one with a sensor of this name, has it already."""
        return resource.chassis in self._by_old[subject] or name in self._told[subject]

    def _temperature(
        self,
        resource: Resource,
        row: Document,
        value: float | None,
        low: float | None,
        high: float | None,
        top: float | None,
        path: str,
    ) -> None:
        name = text(row.get("Name")) or path.rpartition("/")[2]
        said = state(row)
        if value is None or said not in {None, "Enabled"}:
            self.missing.append(Missing(name=name, state=said, reading=value, path=path))
        elif is_margin(name, low, top):
            self.margins.append(Margin(name=name, margin_c=value, path=path, taken_at_s=resource.taken_at_s))
        else:
            self.temperatures.append(
                Temperature(
                    name=name,
                    location=location_of(name),
                    value_c=value,
                    upper_critical_c=high,
                    health=health(row),
                    physical_context=text(row.get("PhysicalContext")),
                    path=path,
                    taken_at_s=resource.taken_at_s,
                )
            )

    def _fan(self, resource: Resource, row: Document, value: float | None, unit: str, path: str) -> None:
        present = state(row) != "Absent"
        is_percent = unit.lower() in {"percent", "%"} and (value is None or value <= _RPM_ABOVE)
        self.fans.append(
            Fan(
                name=text(row.get("Name")) or text(row.get("FanName")) or path.rpartition("/")[2],
                present=present,
                rpm=value if present and not is_percent else None,
                percent=value if present and is_percent else None,
                health=health(row),
                path=path,
                taken_at_s=resource.taken_at_s,
            )
        )


def _new_fan(resource: Resource) -> Fan:
    speed = part(resource.document, "SpeedPercent")
    percent, rpm = number(speed), number(speed.get("SpeedRPM"))
    if percent is not None and percent > _RPM_ABOVE:
        percent, rpm = None, rpm if rpm is not None else percent
    present = state(resource.document) != "Absent"
    return Fan(
        name=text(resource.document.get("Name")) or resource.path.rpartition("/")[2],
        present=present,
        rpm=rpm if present else None,
        percent=percent if present else None,
        health=health(resource.document),
        path=resource.path,
        taken_at_s=resource.taken_at_s,
    )


def _leak(resource: Resource) -> LeakDetector:
    document = resource.document
    return LeakDetector(
        name=text(document.get("Name")) or resource.path.rpartition("/")[2],
        state=text(document.get("DetectorState")),
        type=text(document.get("LeakDetectorType")),
        health=health(document),
        status_state=state(document),
        path=resource.path,
        taken_at_s=resource.taken_at_s,
    )


def _coolant(resource: Resource) -> Coolant | None:
    document = resource.document
    found = Coolant(
        name=text(document.get("Name")) or resource.path.rpartition("/")[2],
        flow_lpm=number(part(document, "FlowLitersPerMinute")),
        rated_flow_lpm=number(document.get("RatedFlowLitersPerMinute")),
        supply_c=number(part(document, "SupplyTemperatureCelsius")),
        return_c=number(part(document, "ReturnTemperatureCelsius")),
        delta_kpa=number(part(document, "DeltaPressurekPa")),
        heat_kw=number(part(document, "HeatRemovedkW")),
        health=health(document),
        path=resource.path,
        taken_at_s=resource.taken_at_s,
    )
    values = (found.flow_lpm, found.supply_c, found.return_c, found.delta_kpa, found.heat_kw)
    return found if any(each is not None for each in values) else None


def _gpus(tree: Tree) -> list[GpuModule]:
    found = []
    for chassis in tree.of("chassis"):
        name = chassis.path.rpartition("/")[2]
        if (match := _GPU.match(name)) is None:
            continue
        sensors = {each.path.rpartition("/")[2].lower(): each for each in tree.of("sensor", chassis.path)}
        read = {key: sensors.get(name.lower() + suffix) for key, suffix in _OF_GPU.items()}
        values = {key: number(each.document) for key, each in read.items() if each is not None}
        if values:
            at_s = max(each.taken_at_s for each in read.values() if each is not None)
            found.append(GpuModule(name=match[1], taken_at_s=at_s, **values))
    return found


def _machine(tree: Tree) -> tuple[str, str]:
    """Vendor and model of the machine: of the system that is no baseboard, else of the first chassis that has them."""
    documents = [each.document for each in tree.of("system") if "HGX_" not in each.path]
    documents += [each.document for each in tree.of("chassis") if not re.search(r"/HGX_|ERoT|IRoT", each.path)]
    vendor = next((found for each in documents if (found := text(each.get("Manufacturer")))), None)
    vendor = vendor or text(tree.first("root").get("Vendor")) or ("Dell" if "iDRAC" in str(list(tree)) else "")
    model = next((found for each in documents if (found := text(each.get("Model")))), "")
    known = next((name for key, name in _VENDORS.items() if vendor.lower().startswith(key)), vendor)
    return known, model


def _bmc(tree: Tree) -> str:
    models = {text(each.document.get("Model")) for kind in ("system", "chassis") for each in tree.of(kind)}
    for resource in tree.of("manager"):
        document = resource.document
        version = text(document.get("FirmwareVersion"))
        if version and not re.search(r"HGX_|FabricManager", resource.path):
            named = (text(tree.first("root").get("Product")), text(document.get("Model")))
            product = next((each for each in named if each and each not in models), "BMC")
            return version if version.startswith(product[:4]) else f"{product} {version}"
    return ""
