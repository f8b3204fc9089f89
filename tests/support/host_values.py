"""A whole host as readers see it: two processors, two drives, four network ports, every quantity there is."""

from typing import Any

from nodewarden.model.host import CpuPackage, Drive, HostSensor, HostSnapshot, IbPort, PowerZone, Pressure
from nodewarden.model.readings import Absent, Reading


def a_host(now_s: float, **changes: Any) -> HostSnapshot:
    """`changes` are fields of the snapshot."""
    at_s = now_s - 2.0

    def reading(value: float) -> Reading[float]:
        return Reading(value, at_s)

    def a_port(index: int, **other: Any) -> IbPort:
        values = {
            "device": f"mlx5_{index}",
            "port": 1,
            "link_layer": "InfiniBand",
            "board": "MT_0000000838",
            "firmware": "28.39.1002",
            "state": reading(4),
            "state_name": "ACTIVE",
            "physical_state": reading(5),
            "physical_state_name": "LinkUp",
            "present": True,
            "rate_bytes_per_s": reading(50e9),
            "transmit_bytes": reading(4e12 + index),
            "receive_bytes": reading(5e12 + index),
            "transmit_packets": reading(1e9),
            "receive_packets": reading(2e9),
            "errors": {"symbol_error": reading(0), "link_downed": reading(0), "port_xmit_wait": reading(3599)},
            "errors_lately": reading(0),
            "flaps_lately": reading(0),
            "module_c": reading(52.0 + index),
        }
        return IbPort(**values | other)

    never = {"errors_lately": Absent("not_supported"), "module_c": Absent("not_supported"), "errors": {}}
    unused = a_port(3, state=reading(1), state_name="DOWN", physical_state=reading(2), physical_state_name="Polling",
                    present=False, rate_bytes_per_s=reading(1.25e9), **never)  # fmt: skip
    values: dict[str, Any] = {
        "taken_at_s": at_s,
        "sensors": (
            HostSensor(chip="coretemp.0", kind="temperature", name="Package id 0", value=reading(61), max_c=84,
                       critical_c=100),
            HostSensor(chip="coretemp.0", kind="temperature", name="Core 0", value=reading(58), max_c=84,
                       critical_c=100),
            HostSensor(chip="coretemp.1", kind="temperature", name="Package id 1", value=reading(64), max_c=84,
                       critical_c=100),
            HostSensor(chip="nct6775.656", kind="fan", name="fan1", value=reading(8200)),
            HostSensor(chip="power_meter-ACPI000D:00", kind="power", name="power1", value=reading(6890)),
            HostSensor(chip="mlx5-0000:c1:00.0", kind="temperature", name="asic", value=reading(71), critical_c=105),
        ),
        "drives": (
            Drive(name="nvme0", model="SAMSUNG MZQL23T8HCLS-00A07", state="live", composite_c=reading(44),
                  sensors={"Sensor 1": reading(44), "Sensor 2": reading(51)}, warning_c=80, critical_c=83,
                  alarm=False),
            Drive(name="nvme1", model="SAMSUNG MZQL23T8HCLS-00A07", state="live", composite_c=reading(47),
                  warning_c=80, critical_c=83, alarm=False),
        ),
        "packages": tuple(
            CpuPackage(package=n, core_throttles=reading(12 + n), package_throttles=reading(3),
                       throttled_s=reading(0.4), throttles_lately=reading(0))
            for n in range(2)
        ),
        "zones": (
            PowerZone(zone="intel-rapl:0", name="package-0", kind="package", package=0, energy_j=reading(8e5),
                      power_w=reading(231.4)),
            PowerZone(zone="intel-rapl:0:0", name="package-0/dram", kind="dram", package=0, energy_j=reading(9e4),
                      power_w=reading(28.2)),
            PowerZone(zone="intel-rapl:1", name="package-1", kind="package", package=1, energy_j=reading(7e5),
                      power_w=reading(224.9)),
        ),
        "pressure": tuple(
            Pressure(resource=resource, kind=kind, total_s=reading(1234.5),
                     share={10: reading(0.02), 60: reading(0.01), 300: reading(0.01)})
            for resource, kind in (("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"))
        ),
        "ports": (a_port(0), a_port(1), a_port(2, link_layer="Ethernet", netdev="enp194s0f0np0"), unused),
    }  # fmt: skip
    return HostSnapshot(**values | changes)
