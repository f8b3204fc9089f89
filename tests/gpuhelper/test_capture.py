"""A real H100, as another exporter saw it idle and under load, played through the stand-in: every quantity that the
capture holds must come out of our own path as it was.
"""

import os
import re
from pathlib import Path

import pytest

from gpuhelper.rig import rig_of
from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import SLOW_REASONS, GpuSnapshot
from standin.standin import SLOW_FIELDS, Gpu
from support.gpu_agent import watched

RECORDINGS = Path(os.environ.get("NODEWARDEN_RECORDINGS", Path(__file__).parents[3] / "shared" / "snmp"))
CAPTURES = RECORDINGS.parent / "captures"
BITS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "app_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
}
COUNTERS = {74: "sw_power_cap", 76: "sync_boost", 269: "sw_thermal_slowdown", 270: "hw_thermal_slowdown"}
COUNTERS[271] = "hw_power_brake_slowdown"
ENGINES = ("encoder", "decoder", "jpeg", "ofa")
CLOCKS = ("graphics", "sm", "memory", "video")
BANKS = ("max", "high", "partial", "low", "none")
# Neither a reading of the GPU nor ours to give: the exporter's own state, processes by name, displays, licences.
NOT_OURS = re.compile(
    r"accounting|c2c|command_exit|compute_|count$|display|driver_model|edpp|encoder_stats|failed_scrapes|gpu_info|gsp|"
    r"index|inforom|last_collect|pci_|platform|protected_memory|serial|supported|device_memory|clique|gpucurrent|gpumax"
)


def captured(name: str) -> dict[str, float]:
    path = CAPTURES / f"h100-80gb-hbm3_590.48.01_{name}.metrics"
    if not path.exists():
        if os.environ.get("NODEWARDEN_STRICT") == "1":
            pytest.fail(f"{path} is missing")
        pytest.skip(f"{path} is missing")
    found = {}
    for line in path.read_text().splitlines():
        match = re.fullmatch(r"nvidia_smi_(\w+)\{[^}]*\} (\S+)", line)
        if match:
            found[match[1]] = float(match[2])
    return found


def play(c: dict[str, float], gpu: Gpu) -> None:
    """Make the stand-in's board the captured one, in the units of NVML."""
    state, more = gpu._state, gpu.more
    gpu.junction_c, gpu.hbm_c = round(c["temperature_gpu"]), round(c["temperature_memory"])
    gpu.margin_c = round(c["temperature_gpu_tlimit"])
    gpu.power_w, gpu.instant_power_w = c["power_draw_average_watts"], c["power_draw_instant_watts"]
    gpu.limit_w, gpu.default_w = c["power_limit_watts"], c["power_default_limit_watts"]
    gpu.min_w, gpu.max_w = c["power_min_limit_watts"], c["power_max_limit_watts"]
    for place, clock in enumerate(CLOCKS):
        state.clock_mhz[place] = round(c[f"clocks_current_{clock}_clock_hz"] / 1e6)
        if (highest := c.get(f"clocks_max_{clock}_clock_hz")) is not None:  # it has none for video
            state.max_clock_mhz[place] = round(highest / 1e6)
    gpu.event_reasons = sum(
        1 << SLOW_REASONS.index(ours) for bit, ours in BITS.items() if c[f"clocks_event_reasons_{bit}"]
    )
    for field, counter in COUNTERS.items():
        assert field in SLOW_FIELDS
        gpu.set_slow_s(field, c[f"clocks_event_reasons_counters_{counter}_seconds"])
    state.memory_total, state.memory_reserved = round(c["memory_total_bytes"]), round(c["memory_reserved_bytes"])
    state.memory_used = round(c["memory_used_bytes"])
    gpu.utilisation_pct = round(c["utilization_gpu_ratio"] * 100)
    gpu.memory_utilisation_pct = round(c["utilization_memory_ratio"] * 100)
    more.engine_pct[:] = [round(c[f"utilization_{engine}_ratio"] * 100) for engine in ENGINES]
    more.dram[:] = [
        round(c[f"ecc_errors_{severity}_{lifetime}_dram"])
        for lifetime in ("volatile", "aggregate")
        for severity in ("corrected", "uncorrected")
    ]
    sram = "ecc_errors_uncorrected"
    more.sram[:] = [
        round(c[name])
        for name in (
            f"{sram}_aggregate_sram_parity", f"{sram}_aggregate_sram_secded", "ecc_errors_corrected_aggregate_sram",
            f"{sram}_volatile_sram_parity", f"{sram}_volatile_sram_secded", "ecc_errors_corrected_volatile_sram",
            *(f"{sram}_aggregate_sram_{unit}" for unit in ("l2", "sm", "pcie", "mcu", "other")),
        )
    ]  # fmt: skip
    more.sram_threshold = round(c[f"{sram}_aggregate_sram_threshold_exceeded"])
    more.ecc_mode[:] = (round(c["ecc_mode_current"]), round(c["ecc_mode_pending"]))
    more.mig_mode[:] = (round(c["mig_mode_current"]), round(c["mig_mode_pending"]))
    more.remapped[:] = [
        round(c[f"remapped_rows_{name}"]) for name in ("correctable", "uncorrectable", "pending", "failure")
    ]
    more.banks[:] = [round(c[f"remapped_rows_histogram_{name}"]) for name in BANKS]
    more.pcie_generation[:] = (round(c["pcie_link_gen_current"]), round(c["pcie_link_gen_max"]))
    more.pcie_width[:] = (round(c["pcie_link_width_current"]), round(c["pcie_link_width_max"]))
    more.fabric[0], more.pstate = round(c["fabric_state"]), round(c["pstate"])
    gpu.recovery_action, gpu.persistence = round(c["gpu_recovery_action"]), round(c["persistence_mode"])


def told(gpu: GpuSnapshot) -> dict[str, float]:
    """What we say, under the names of the capture."""

    def value(quantity: str, *labels: str) -> float:
        number = gpu.number(quantity, *labels)
        assert isinstance(number, Reading), (quantity, labels, number)
        return number.value

    assert isinstance(gpu.slow, Reading)
    ours = {
        "temperature_gpu": value("junction_c"),
        "temperature_memory": value("hbm_c"),
        "temperature_gpu_tlimit": value("margin_c"),
        "power_draw_average_watts": value("power_average_w"),
        "power_draw_watts": value("power_average_w"),
        "power_draw_instant_watts": value("power_instant_w"),
        "power_limit_watts": value("cap_w"),
        "enforced_power_limit_watts": value("enforced_w"),
        "power_min_limit_watts": value("cap_min_w"),
        "power_max_limit_watts": value("cap_max_w"),
        "power_default_limit_watts": value("cap_default_w"),
        "clocks_current_sm_clock_hz": value("sm_clock_hz"),
        "clocks_current_memory_clock_hz": value("memory_clock_hz"),
        "clocks_current_graphics_clock_hz": value("clock_hz", "graphics"),
        "clocks_current_video_clock_hz": value("clock_hz", "video"),
        "clocks_event_reasons_active": sum(1 << SLOW_REASONS.index(reason) for reason in gpu.slow.value),
        "memory_total_bytes": value("memory_total_bytes"),
        "memory_used_bytes": value("memory_used_bytes"),
        "memory_reserved_bytes": value("memory_reserved_bytes"),
        "memory_free_bytes": value("memory_total_bytes") - value("memory_used_bytes") - value("memory_reserved_bytes"),
        "utilization_gpu_ratio": value("utilisation"),
        "utilization_memory_ratio": value("memory_utilisation"),
        "remapped_rows_pending": value("row_remap_pending"),
        "remapped_rows_failure": value("row_remap_failure"),
        "remapped_rows_correctable": value("remapped_rows", "correctable"),
        "remapped_rows_uncorrectable": value("remapped_rows", "uncorrectable"),
        "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded": value("sram_threshold_exceeded"),
        "pstate": value("performance_state"),
        "persistence_mode": value("persistence_mode"),
        "fabric_state": value("fabric_state"),
        "gpu_recovery_action": value("recovery_action"),
    }
    for clock in CLOCKS:
        ours[f"clocks_max_{clock}_clock_hz"] = value("max_clock_hz", clock)
    for bit, reason in BITS.items():
        ours[f"clocks_event_reasons_{bit}"] = float(reason in gpu.slow.value)
    for counter in COUNTERS.values():
        seconds = gpu.slow_s[BITS[counter]]
        assert isinstance(seconds, Reading)
        ours[f"clocks_event_reasons_counters_{counter}_seconds"] = seconds.value
    for engine in ENGINES:
        ours[f"utilization_{engine}_ratio"] = value("engine_utilisation", engine)
    for lifetime in ("volatile", "aggregate"):
        for severity in ("corrected", "uncorrected"):
            stem = f"ecc_errors_{severity}_{lifetime}"
            ours[f"{stem}_total"] = value("ecc_errors", lifetime, severity)
            for place in ("dram", "sram"):
                ours[f"{stem}_{place}"] = value("ecc_location_errors", lifetime, severity, place)
        for kind in ("parity", "secded"):
            ours[f"ecc_errors_uncorrected_{lifetime}_sram_{kind}"] = value("sram_errors", lifetime, kind)
    for unit in ("l2", "sm", "pcie", "mcu", "other"):
        ours[f"ecc_errors_uncorrected_aggregate_sram_{unit}"] = value("sram_errors", "aggregate", unit)
    for bank in BANKS:
        ours[f"remapped_rows_histogram_{bank}"] = value("remap_banks", bank)
    for which in ("current", "max"):
        ours[f"pcie_link_gen_{which}"] = value("pcie_generation", which)
        ours[f"pcie_link_width_{which}"] = value("pcie_width", which)
    for when in ("current", "pending"):
        ours[f"ecc_mode_{when}"] = value("ecc_mode", when)
        ours[f"mig_mode_{when}"] = value("mig_mode", when)
    return ours


@pytest.mark.parametrize("name", ["idle", "load"])
async def test_every_quantity_of_a_real_h100_comes_out_as_it_was(name: str) -> None:
    theirs = {key: number for key, number in captured(name).items() if not NOT_OURS.search(key)}
    assert len(theirs) > 80
    with rig_of(["h100"]) as rig:
        play(captured(name), rig.standin.gpus[0])
        rig.start()
        async with watched(rig.socket_path) as node:
            await node.sweep()
            ours = told(node.gpu(rig.uuids[0]))
    assert theirs.keys() - ours.keys() == set(), "the capture has what we do not give"
    free = theirs.pop("memory_free_bytes")  # rounded to MiB, as its parts are
    assert ours["memory_free_bytes"] == pytest.approx(free, abs=2 << 20)
    assert {key: ours[key] for key in theirs} == pytest.approx(theirs)
