"""A server as a BMC tells it: two supplies of which one is ill, inlet, GPUs, fans, a leak detector, coolant."""

from nodewarden.model.bmc import (
    BmcSnapshot,
    Coolant,
    Fan,
    LeakDetector,
    Margin,
    PowerSensor,
    Redundancy,
    Supply,
    Temperature,
)


def a_bmc(now_s: float) -> BmcSnapshot:
    at_s = now_s - 4.0
    group = "PSU Redundancy"
    return BmcSnapshot(
        vendor="Dell",
        model="PowerEdge XE9680",
        bmc="iDRAC9 7.10",
        redfish_version="1.18.0",
        chassis_power_w=6120.0,
        chassis_power_from="/redfish/v1/Chassis/1/Power#/PowerControl/0/PowerConsumedWatts",
        chassis_power_at_s=at_s,
        psus=(
            Supply(name="PS1 Status", id="0", present=True, input_w=6090.0, output_w=5800.0, capacity_w=2800.0,
                   line_v=230.0, health="OK", redundancy=group, taken_at_s=at_s),
            Supply(name="PS2 Status", id="1", present=True, input_w=0.0, output_w=0.0, capacity_w=2800.0, line_v=0.0,
                   health="Critical", redundancy=group, taken_at_s=at_s),
            Supply(name="PS3 Status", id="2", present=False, health="Warning", taken_at_s=at_s),
        ),
        redundancy=(Redundancy(name=group, mode="N+m", min_needed=1, max_supported=2, members=2, health="Critical"),),
        temperatures=(
            Temperature(name="Inlet Temp", location="inlet", value_c=24.0, upper_critical_c=42.0, taken_at_s=at_s),
            Temperature(name="GPU 1", location="gpu", value_c=64.0, upper_critical_c=87.0, taken_at_s=at_s),
            Temperature(name="GPU 1", location="gpu", value_c=66.0, taken_at_s=at_s),
        ),
        margins=(Margin(name="TLIMIT 1", margin_c=21.0, taken_at_s=at_s),),
        fans=(
            Fan(name="Fan 1A", present=True, rpm=16800.0, health="OK", taken_at_s=at_s),
            Fan(name="Fan 1B", present=True, percent=72.0, health="Critical", taken_at_s=at_s),
        ),
        leak=(LeakDetector(name="ColdPlate 1", state="OK", status_state="Enabled", taken_at_s=at_s),),
        flow=(Coolant(name="Primary", flow_lpm=9.5, supply_c=31.0, return_c=42.0, taken_at_s=at_s),),
        power_sensors=(PowerSensor(name="GPU board", value_w=5100.0, taken_at_s=at_s),),
        taken_at_s=at_s,
    )  # fmt: skip
