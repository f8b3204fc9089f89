"""Every quantity of a GPU: one table, in the order of the metrics page. Power, heat, clocks and activity are here.

Memory and its errors are in `gpu_health_quantities`, PCIe and NVLink in `gpu_link_quantities`. To add one: a row, and
the line or function that reads it (`devices.nvml_reads`).
"""

from typing import Final

from nodewarden.model.gpu_health_quantities import HEALTH_QUANTITIES
from nodewarden.model.gpu_link_quantities import LINK_QUANTITIES
from nodewarden.model.quantity import FIELDS, HOPPER, NONE, Quantity, row

_ENERGY = "nvmlDeviceGetTotalEnergyConsumption, field 83"
_GPM = "nvmlGpmSampleGet twice, nvmlGpmMetricsGet metric"
_GPM_COST = "2 calls for all of GPM; takes no exclusive counter"
_MODULE = "Grace Hopper (not SXM, PCIe, NVL)"

POWER_AND_HEAT: Final = (
    row(
        "junction_c", "gpu_junction_celsius", "Hottest point of the GPU die, degrees Celsius.", "fast",
        "nvmlDeviceGetTemperatureV, nvmlDeviceGetTemperature", low=1, high=125,
    ),
    row(
        "hbm_c", "gpu_hbm_celsius", "Hottest HBM stack, degrees Celsius.", "fast", "field 82",
        boards="A100, H100", cost=FIELDS, low=1, high=125,
    ),
    row(
        "margin_c", "gpu_margin_celsius",
        "The board's own signed margin to its nearest limit (T.Limit), degrees Celsius, positive when safe.", "fast",
        "nvmlDeviceGetMarginTemperature", boards=HOPPER, low=-50, high=120,
    ),
    row(
        "threshold_c", "gpu_threshold_celsius",
        "Absolute thresholds (shutdown, slowdown, hbm_max_op, max_op), degrees Celsius.", "rare",
        "nvmlDeviceGetTemperatureThreshold", ("kind",), boards="A100; no longer on H100 with newer drivers",
        cost="4 calls", low=1, high=125,
    ),
    row(
        "threshold_offset_c", "gpu_threshold_offset_celsius",
        "Thresholds as signed offsets to T.Limit 0 (shutdown, slowdown, hbm_max_op, max_op), degrees Celsius.", "rare",
        "fields 193, 194, 195, 196", ("kind",), boards=HOPPER, cost=FIELDS, low=-60, high=60,
    ),
    row(
        "power_w", "gpu_power_watts",
        "Mean power over about 1 s, watts: by the energy counter, until it has moved for 1 s by the board's own mean.",
        "fast", f"{_ENERGY}; field 185; nvmlDeviceGetPowerUsage", cost="1 call, shared", high=5_000,
    ),
    row(
        "power_energy_w", "gpu_power_by_energy_watts", "Mean power over 1 s or more by the energy counter, watts.",
        "fast", _ENERGY, cost="1 call, shared", high=5_000,
    ),
    row(
        "power_average_w", "gpu_power_average_watts", "The board's own mean power over 1 s, watts.", "fast",
        "field 185", boards="all newer than A100, without it", cost=FIELDS, high=5_000,
    ),
    row(
        "power_instant_w", "gpu_power_instant_watts", "Instant power, watts; do not compare it with the cap.", "fast",
        "field 186, nvmlDeviceGetPowerUsage (A100)", cost=FIELDS, high=5_000,
    ),
    row(
        "hbm_power_w", "gpu_hbm_power_watts", "Power of the HBM stacks, watts.", "fast", "field 185 scope 2",
        boards="H100", cost=FIELDS, high=2_000,
    ),
    row(
        "module_power_w", "gpu_module_power_watts", "Power of the whole module (GPU and CPU), watts.", "fast",
        "field 185 scope 1", boards=_MODULE, cost=FIELDS, high=10_000,
    ),
    row(
        "energy_j", "gpu_energy_joules_total",
        "Energy used, joules; goes on over driver reloads and resets, each of which begins a new epoch.", "fast",
        _ENERGY, high=1e14,
    ),
    row(
        "energy_epoch", "gpu_energy_epochs_total",
        "How often the driver's energy counter began anew (driver reload, GPU reset) since it is followed.", "fast",
        _ENERGY, cost=NONE,
    ),
    row(
        "cap_w", "gpu_power_cap_watts", "Power cap as clients asked for it, as the driver tells it, watts.", "fast",
        "nvmlDeviceGetPowerManagementLimit, field 192", low=1, high=5_000,
    ),
    row(
        "enforced_w", "gpu_power_enforced_watts", "Lowest of all power limiters, out-of-band included, watts.", "fast",
        "nvmlDeviceGetEnforcedPowerLimit, field 190", low=1, high=5_000,
    ),
    row(
        "cap_min_w", "gpu_power_cap_min_watts", "Lowest cap that the board accepts, watts.", "rare",
        "nvmlDeviceGetPowerManagementLimitConstraints, fields 187, 188", low=1, high=5_000,
    ),
    row(
        "cap_max_w", "gpu_power_cap_max_watts", "Highest cap that the board accepts, watts.", "rare",
        "nvmlDeviceGetPowerManagementLimitConstraints, fields 187, 188", cost="none, the same call", low=1, high=5_000,
    ),
    row(
        "cap_default_w", "gpu_power_cap_default_watts", "The board's default cap, watts.", "rare",
        "nvmlDeviceGetPowerManagementDefaultLimit, field 189", low=1, high=5_000,
    ),
)  # fmt: skip

CLOCKS: Final = (
    row(
        "sm_clock_hz", "gpu_sm_clock_hertz", "SM clock, hertz.", "fast", "nvmlDeviceGetClockInfo 1", high=1e10,
    ),
    row(
        "memory_clock_hz", "gpu_memory_clock_hertz", "Memory clock, hertz.", "fast", "nvmlDeviceGetClockInfo 2",
        high=1e11,
    ),
    row(
        "clock_hz", "gpu_other_clock_hertz", "Clocks of the graphics and video engines, hertz.", "slow",
        "nvmlDeviceGetClockInfo 0, 3", ("clock",), cost="2 calls", high=1e10,
    ),
    row(
        "max_clock_hz", "gpu_max_clock_hertz", "Highest clock of the board, hertz.", "rare",
        "nvmlDeviceGetMaxClockInfo 0 to 3", ("clock",), cost="4 calls", low=1, high=1e11,
    ),
    row(
        "slow", "gpu_slow", "1 while the hardware or driver holds clocks down for this reason.", "fast",
        "nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons", ("reason",), high=1,
    ),
    row(
        "slow_s", "gpu_slow_seconds_total",
        "Time with clocks held down for this reason, seconds, by the driver's own counters.", "fast",
        "fields 74, 76, 269, 270, 271 (ns)", ("reason",), cost=FIELDS,
    ),
    row(
        "lost_sm_s", "gpu_lost_sm_seconds_total",
        "SM-clock seconds lost: integral of 1 - SM clock / highest SM clock over the time in which a kernel ran and "
        "a slow-down reason was active, seconds.",
        "fast", "nvmlDeviceGetClockInfo 1, event reasons, utilisation", cost=NONE,
    ),
    row(
        "performance_state", "gpu_performance_state", "P-state, 0 = fastest, 15 = slowest.", "slow",
        "nvmlDeviceGetPerformanceState", high=15,
    ),
)  # fmt: skip

ACTIVITY: Final = (
    row(
        "pids", "gpu_compute_processes", "Processes that compute on the GPU.", "slow",
        "nvmlDeviceGetComputeRunningProcesses_v3, ..._v2", cost="1 call, 0.5 to 8 ms", high=1e6,
    ),
    row(
        "process_bytes", "", "Memory that a compute process uses on the GPU, bytes.", "slow",
        "nvmlDeviceGetComputeRunningProcesses_v3, ..._v2", ("pid",), cost="none, the same call",
    ),
    row(
        "utilisation", "gpu_utilisation_ratio",
        "Share of time in which a kernel ran, 0 to 1; 1 does not mean busy, a kernel that waits runs too.", "fast",
        "nvmlDeviceGetUtilizationRates", boards="all; not in MIG mode", high=1,
    ),
    row(
        "memory_utilisation", "gpu_memory_utilisation_ratio",
        "Share of time in which device memory was read or written, 0 to 1.", "fast", "nvmlDeviceGetUtilizationRates",
        boards="all; not in MIG mode", cost="none, the same call", high=1,
    ),
    row(
        "engine_utilisation", "gpu_engine_utilisation_ratio",
        "Share of time in which the encoder, decoder, jpeg or ofa engine was busy, 0 to 1.", "slow",
        "nvmlDeviceGetEncoderUtilization, ...Decoder..., ...Jpg..., ...Ofa...", ("engine",),
        boards="all; not in MIG mode", cost="4 calls", high=1,
    ),
    row(
        "graphics_active", "gpu_graphics_active_ratio", "Share of time in which any work was on the GPU, 0 to 1.",
        "slow", f"{_GPM} 1", boards=HOPPER, cost=_GPM_COST, high=1,
    ),
    row(
        "sm_active", "gpu_sm_active_ratio", "Share of the SMs that were busy, mean since the read before, 0 to 1.",
        "slow", f"{_GPM} 2", boards=HOPPER, cost=_GPM_COST, high=1,
    ),
    row(
        "sm_occupancy", "gpu_sm_occupancy_ratio", "Warps that were active of those possible, 0 to 1.", "slow",
        f"{_GPM} 3", boards=HOPPER, cost=_GPM_COST, high=1,
    ),
    row(
        "tensor_active", "gpu_tensor_active_ratio", "Share of time with tensor operations, 0 to 1.", "slow",
        f"{_GPM} 5", boards=HOPPER, cost=_GPM_COST, high=1,
    ),
    row(
        "dram_active", "gpu_dram_active_ratio", "HBM bandwidth used of that possible, 0 to 1.", "slow", f"{_GPM} 10",
        boards=HOPPER, cost=_GPM_COST, high=1,
    ),
    row(
        "pcie_rate", "gpu_pcie_rate_bytes_per_second", "PCIe traffic, bytes per second.", "slow", f"{_GPM} 20, 21",
        ("direction",), boards=HOPPER, cost=_GPM_COST, high=1e12,
    ),
    row(
        "nvlink_rate", "gpu_nvlink_rate_bytes_per_second", "NVLink traffic of all links, bytes per second.", "slow",
        f"{_GPM} 60, 61", ("direction",), boards=HOPPER, cost=_GPM_COST, high=1e13,
    ),
)  # fmt: skip

GPU_QUANTITIES: Final[tuple[Quantity, ...]] = (
    *POWER_AND_HEAT,
    *CLOCKS,
    *ACTIVITY,
    *HEALTH_QUANTITIES,
    *LINK_QUANTITIES,
)
BY_NAME: Final[dict[str, Quantity]] = {quantity.name: quantity for quantity in GPU_QUANTITIES}
APART: Final = frozenset({"slow", "slow_s", "pids", "nvlink_up", "nvlink_transmit_bytes", "nvlink_receive_bytes"})
"""What the wire and the snapshot carry in a form of its own."""
COMPUTED: Final = frozenset(quantity.name for quantity in GPU_QUANTITIES if quantity.cost == NONE)
"""What the agent computes from other quantities; nobody reads it from a driver."""
FAST_READ: Final = tuple(
    each.name for each in GPU_QUANTITIES if each.every == "fast" and each.name not in COMPUTED | APART
)
"""What every fast read of the driver answers, with a value or a reason."""
