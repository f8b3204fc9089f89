"""The rows of a GPU's memory, its errors and repairs, and of its modes."""

from typing import Final

from nodewarden.model.quantity import ECC, FIELDS, NONE, Quantity, row

_MEMORY = "nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo"
_BAR1 = "nvmlDeviceGetBAR1MemoryInfo"
_SRAM = "nvmlDeviceGetSramEccErrorStatus"
_ROWS = "nvmlDeviceGetRemappedRows"
_AMPERE = "A100 and newer; not in MIG mode"
_OLD = "boards before A100"

HEALTH_QUANTITIES: Final[tuple[Quantity, ...]] = (
    row("memory_used_bytes", "gpu_memory_used_bytes", "GPU memory in use, bytes.", "fast", _MEMORY, high=1e13),
    row(
        "memory_total_bytes", "gpu_memory_total_bytes", "GPU memory installed, bytes.", "fast", _MEMORY,
        cost="none, the same call", low=1, high=1e13,
    ),
    row(
        "memory_reserved_bytes", "gpu_memory_reserved_bytes", "GPU memory that driver and firmware keep, bytes.",
        "fast", "nvmlDeviceGetMemoryInfo_v2", cost="none, the same call", high=1e13,
    ),
    row("bar1_used_bytes", "gpu_bar1_used_bytes", "BAR1 window in use, bytes.", "slow", _BAR1, high=1e15),
    row(
        "bar1_total_bytes", "gpu_bar1_total_bytes", "Size of the BAR1 window, bytes.", "slow", _BAR1,
        cost="none, the same call", low=1, high=1e15,
    ),
    row(
        "ecc_errors", "gpu_ecc_errors_total",
        "ECC errors of all memory: volatile since driver load, aggregate over the board's life.", "slow",
        "fields 3, 4, 5, 6; nvmlDeviceGetTotalEccErrors", ("lifetime", "severity"), boards=ECC, cost=FIELDS,
    ),
    row(
        "ecc_location_errors", "gpu_ecc_location_errors_total", "ECC errors by place (dram, sram).", "slow",
        f"fields 11, 12, 22, 23; {_SRAM}; nvmlDeviceGetMemoryErrorCounter", ("lifetime", "severity", "location"),
        boards=ECC, cost="1 call, and the one field call",
    ),
    row(
        "sram_errors", "gpu_sram_uncorrected_errors_total",
        "Uncorrected SRAM errors by kind (parity, secded) and, over the board's life, by unit.", "slow", _SRAM,
        ("lifetime", "kind"), boards="A100 and newer", cost="none, the same call",
    ),
    row(
        "sram_threshold_exceeded", "gpu_sram_threshold_exceeded",
        "1 when uncorrected SRAM errors have passed the threshold for replacing the board.", "slow", _SRAM,
        boards="A100 and newer", cost="none, the same call", high=1,
    ),
    row(
        "remapped_rows", "gpu_remapped_rows_total", "HBM rows replaced by spares, by the kind of error.", "slow",
        f"fields 142, 143; {_ROWS}", ("cause",), boards=_AMPERE, cost=FIELDS,
    ),
    row(
        "row_remap_pending", "gpu_row_remap_pending", "1 while a row remap waits for a GPU reset.", "slow",
        f"field 144; {_ROWS}", boards=_AMPERE, cost=FIELDS, high=1,
    ),
    row(
        "row_remap_failure", "gpu_row_remap_failure", "1 when a row could not be remapped.", "slow",
        f"field 145; {_ROWS}", boards=_AMPERE, cost=FIELDS, high=1,
    ),
    row(
        "remap_banks", "gpu_row_remap_banks",
        "HBM banks by the spare rows they still have: max, high, partial, low, none.", "rare",
        "nvmlDeviceGetRowRemapperHistogram", ("spares",), boards="A100 and newer", high=1e6,
    ),
    row(
        "retired_pages", "gpu_retired_pages_total", "Memory pages retired, by the kind of error.", "rare",
        "fields 29, 30", ("cause",), boards=_OLD, cost=FIELDS,
    ),
    row(
        "retired_pages_pending", "gpu_retired_pages_pending", "1 while a page retirement waits for a reboot.", "rare",
        "field 31", boards=_OLD, cost=FIELDS, high=1,
    ),
    row(
        "recovery_action", "gpu_recovery_action",
        "What the driver wants done: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, "
        "7 system reboot.",
        "slow", "field 230", cost=FIELDS, high=7,
    ),
    row(
        "ecc_mode", "gpu_ecc_enabled", "1 when ECC is on (current) or will be after the next reset (pending).", "rare",
        "fields 1, 2", ("when",), cost=FIELDS, high=1,
    ),
    row(
        "mig_mode", "gpu_mig_enabled", "1 when MIG is on (current) or will be after the next reset (pending).", "slow",
        "nvmlDeviceGetMigMode", ("when",), boards="A100 and newer", high=1,
    ),
    row(
        "mig_info", "gpu_mig_info", "A MIG instance that is there now; always 1.", "slow",
        "nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetUUID, nvmlDeviceGetGpuInstanceId, "
        "nvmlDeviceGetComputeInstanceId, nvmlDeviceGetName",
        ("mig_uuid", "gpu_instance", "compute_instance", "profile"), boards="A100 and newer, in MIG mode",
        cost="up to 6 calls per instance, none without MIG", high=1,
    ),
    row(
        "mig_memory_used_bytes", "gpu_mig_memory_used_bytes", "Memory in use of a MIG instance, bytes.", "slow",
        "nvmlDeviceGetMemoryInfo_v2", ("mig_uuid",), boards="A100 and newer, in MIG mode", cost="1 call per instance",
    ),
    row(
        "mig_memory_total_bytes", "gpu_mig_memory_total_bytes", "Memory of a MIG instance, bytes.", "slow",
        "nvmlDeviceGetMemoryInfo_v2", ("mig_uuid",), boards="A100 and newer, in MIG mode", cost="none, the same call",
    ),
    row(
        "caps_vanished", "gpu_caps_vanished_total",
        "How often the driver forgot a cap of ours (driver reload, reset, or persistence mode off).", "fast",
        "the helper's event cap_vanished", cost=NONE,
    ),
    row(
        "persistence_mode", "gpu_persistence_enabled",
        "1 when persistence mode is on; without it a cap is lost with the last client.", "slow",
        "nvmlDeviceGetPersistenceMode", high=1,
    ),
    row(
        "board_info", "gpu_board_info", "What the board is; always 1.", "rare",
        "nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion, nvmlDeviceGetBoardPartNumber, "
        "nvmlDeviceGetCudaComputeCapability",
        ("serial", "vbios", "part_number", "compute_capability"), cost="4 calls", high=1,
    ),
)  # fmt: skip
