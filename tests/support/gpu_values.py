"""Values for every quantity of a GPU that is not an attribute of its snapshot, as an H100 SXM would have them."""

import itertools

from nodewarden.model.gpu_quantities import APART, GPU_QUANTITIES
from nodewarden.model.quantity import Labels
from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import FAST_QUANTITIES, Number

LINKS = 18
# What an H100 SXM has not.
ABSENT = {
    "threshold_c", "module_power_w", "retired_pages", "retired_pages_pending",
    "nvlink_raw_transmit_bytes", "nvlink_raw_receive_bytes",
    "mig_info", "mig_memory_used_bytes", "mig_memory_total_bytes",
}  # fmt: skip

LABELS: dict[str, list[tuple[str, ...]]] = {
    "kind": [],  # differs by quantity, see below
    "clock": [("graphics",), ("video",)],
    "engine": [("encoder",), ("decoder",), ("jpeg",), ("ofa",)],
    "direction": [("transmit",), ("receive",)],
    "which": [("current",), ("max",)],
    "when": [("current",), ("pending",)],
    "cause": [("correctable",), ("uncorrectable",)],
    "spares": [("max",), ("high",), ("partial",), ("low",), ("none",)],
    "trouble": [("degraded_bandwidth",), ("route_recovery",), ("route_unhealthy",), ("access_timeout_recovery",)],
}
ERRORS = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")
LIFETIMES, SEVERITIES = ("volatile", "aggregate"), ("corrected", "uncorrected")


def labels_of(name: str, labels: Labels, links: int = LINKS) -> list[Labels]:
    """Label values that a quantity has on a whole board."""
    numbers = [str(link) for link in range(links)]
    special: dict[str, list[Labels]] = {
        "threshold_c": [(kind,) for kind in ("shutdown", "slowdown", "hbm_max_op", "max_op")],
        "threshold_offset_c": [(kind,) for kind in ("shutdown", "slowdown", "hbm_max_op", "max_op")],
        "max_clock_hz": [(clock,) for clock in ("graphics", "sm", "memory", "video")],
        "ecc_errors": list(itertools.product(LIFETIMES, SEVERITIES)),
        "ecc_location_errors": list(itertools.product(LIFETIMES, SEVERITIES, ("dram", "sram"))),
        "sram_errors": [
            *itertools.product(LIFETIMES, ("parity", "secded")),
            *(("aggregate", unit) for unit in ("l2", "sm", "pcie", "mcu", "other")),
        ],
        "board_info": [("1650000000001", "96.00.A5.00.01", "692-2G520-0200-000", "9.0")],
        "nvlink_errors": list(itertools.product(numbers, ERRORS)),
        "nvlink_speed": [(number,) for number in numbers],
        "nvlink_info": [(number, "switch", "00000000:C6:00.0") for number in numbers],
        "nvlink_total_errors": [(kind,) for kind in ERRORS],
        "nvlink_raw_transmit_bytes": [(number,) for number in numbers],
        "nvlink_raw_receive_bytes": [(number,) for number in numbers],
        "fabric_info": [("00000000-0000-0000-0000-000000000000", "0")],
    }
    instances = [f"MIG-{n}0000000-0000-4000-8000-000000000000" for n in range(7)]
    special |= {
        "mig_info": [(uuid, str(n + 7), "0", "1g.10gb") for n, uuid in enumerate(instances)],
        "mig_memory_used_bytes": [(uuid,) for uuid in instances],
        "mig_memory_total_bytes": [(uuid,) for uuid in instances],
        "process_bytes": [("4711",)],
    }
    return special.get(name) or ([()] if not labels else LABELS[labels[0]])


def some_values(at_s: float, links: int = LINKS, *, whole: bool = False) -> dict[str, dict[Labels, Number]]:
    """Something believable for each quantity; with `whole` also for those that this board has not."""
    found: dict[str, dict[Labels, Number]] = {}
    for number, quantity in enumerate(GPU_QUANTITIES):
        if quantity.name in FAST_QUANTITIES or quantity.name in APART:
            continue
        if quantity.name in ABSENT and not whole:
            found[quantity.name] = {(): Absent("not_supported")}
            continue
        value = 1.0 if quantity.high == 1 else min(quantity.high, max(quantity.low, float(number)))
        found[quantity.name] = {
            labels: Reading(value, at_s) for labels in labels_of(quantity.name, quantity.labels, links)
        }
    return found
