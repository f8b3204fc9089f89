"""What of a GPU's many quantities a person should look at: errors, repairs that wait, links that are down."""

from collections.abc import Iterator
from typing import Any

from nodewarden.model.gpu_quantities import GPU_QUANTITIES
from nodewarden.model.readings import Reading, value_or_none
from nodewarden.model.snapshot import FAST_QUANTITIES, GpuSnapshot

RECOVERY_ACTIONS = (
    "none",
    "reset the GPU",
    "reboot the node",
    "drain P2P",
    "drain, then reset the GPU",
    "recover IMEX",
    "reset the bus",
    "reboot the system",
)
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_PER_LINK = frozenset(quantity.name for quantity in GPU_QUANTITIES if "link" in quantity.labels)


def attention(gpu: GpuSnapshot) -> list[str]:
    """In words, the worst first; empty where nothing stands out."""
    return list(_attention(gpu))


def _attention(gpu: GpuSnapshot) -> Iterator[str]:
    def value(quantity: str, *labels: str) -> float:
        return value_or_none(gpu.number(quantity, *labels)) or 0.0

    action = int(value("recovery_action"))
    if action:
        yield f"the driver asks: {RECOVERY_ACTIONS[min(action, len(RECOVERY_ACTIONS) - 1)]}"
    if value("row_remap_failure"):
        yield "a memory row could not be remapped: the board is to be replaced"
    if value("sram_threshold_exceeded"):
        yield "SRAM errors passed the threshold: the board is to be replaced"
    uncorrected = value("ecc_errors", "volatile", "uncorrected")
    if uncorrected:
        yield f"{uncorrected:.0f} uncorrected memory errors since the driver was loaded"
    if value("row_remap_pending"):
        yield "a row remap waits for a GPU reset"
    if value("retired_pages_pending"):
        yield "a page retirement waits for a reboot"
    down = [str(link.link) for link in gpu.links if link.present and not link.active]
    if down:
        yield f"NVLink {', '.join(down)} down"
    for kind in ("replay", "recovery", "crc_flit", "crc_data", "ecc_data"):
        count = value("nvlink_total_errors", kind)
        if count:
            yield f"{count:.0f} NVLink {kind.replace('_', ' ')} errors"
    lanes, most = value("pcie_width", "current"), value("pcie_width", "max")
    if lanes and most and lanes < most:
        yield f"PCIe x{lanes:.0f} of x{most:.0f}"
    state = value("fabric_state")
    if state in _FABRIC_STATES:
        yield f"fabric registration {_FABRIC_STATES[int(state)]}"
    if value("fabric_status"):
        yield f"fabric registration failed (NVML {value('fabric_status'):.0f})"
    for labels, trouble in gpu.series("fabric_trouble").items():
        if value_or_none(trouble):
            yield f"fabric: {labels[0].replace('_', ' ')}"
    if value_or_none(gpu.number("persistence_mode")) == 0.0:
        yield "persistence mode is off: caps end with the last client"


def quantities(gpu: GpuSnapshot) -> dict[str, Any]:
    """What is known beside the fast quantities and what there is per link; labelled ones as {"a/b": value}."""
    found: dict[str, Any] = {}
    for quantity in GPU_QUANTITIES:
        if quantity.name in FAST_QUANTITIES or quantity.name in _PER_LINK:
            continue
        known = {
            "/".join(at): number.value for at, number in gpu.series(quantity.name).items() if type(number) is Reading
        }
        if known:
            found[quantity.name] = known.get("", known)
    return found
