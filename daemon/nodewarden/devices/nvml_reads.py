"""How each slow and rare quantity of a GPU is read: fields in one table, calls as one function per call.

A quantity has its row in `model.gpu_quantities`; here is the line or function that reads it. NVLink is in `nvml_links`,
GPM in `nvml_gpm`.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from nodewarden.devices.nvml_calls import Field
from nodewarden.devices.nvml_sweep import Sweep
from nodewarden.errors import DeviceError, DeviceLostError, NotSupportedError
from nodewarden.model.quantity import Every, Labels
from nodewarden.units import hertz_from_mhz, ratio_from_percent

# nvmlMemoryErrorType_t and nvmlEccCounterType_t of each pair of labels.
_ECC_NUMBERS: Final = {
    ("volatile", "corrected"): (0, 0),
    ("volatile", "uncorrected"): (1, 0),
    ("aggregate", "corrected"): (0, 1),
    ("aggregate", "uncorrected"): (1, 1),
}
_DRAM_LOCATION, _SRAM_LOCATION = 2, 7  # nvmlMemoryLocation_t


class FieldRead(NamedTuple):
    """A value that is a field; `otherwise` asks by a call where the field does not answer."""

    every: Every
    quantity: str
    labels: Labels
    field: Field
    otherwise: Callable[[Sweep], float] | None = None


def _ecc(lifetime: str, severity: str, field: Field) -> FieldRead:
    labels = (lifetime, severity)
    numbers = _ECC_NUMBERS[labels]
    return FieldRead(
        "slow", "ecc_errors", labels, field, lambda sweep: float(sweep.call("nvmlDeviceGetTotalEccErrors", *numbers))
    )


def _remapped(which: int) -> Callable[[Sweep], float]:
    return lambda sweep: float(sweep.call("nvmlDeviceGetRemappedRows")[which])


FIELD_READS: Final = (
    _ecc("volatile", "corrected", 3),
    _ecc("volatile", "uncorrected", 4),
    _ecc("aggregate", "corrected", 5),
    _ecc("aggregate", "uncorrected", 6),
    FieldRead("slow", "remapped_rows", ("correctable",), 142, _remapped(0)),
    FieldRead("slow", "remapped_rows", ("uncorrectable",), 143, _remapped(1)),
    FieldRead("slow", "row_remap_pending", (), 144, _remapped(2)),
    FieldRead("slow", "row_remap_failure", (), 145, _remapped(3)),
    FieldRead("slow", "recovery_action", (), 230),
    FieldRead("slow", "pcie_replays", (), 94, lambda sweep: float(sweep.call("nvmlDeviceGetPcieReplayCounter"))),
    FieldRead("rare", "threshold_offset_c", ("shutdown",), 193),
    FieldRead("rare", "threshold_offset_c", ("slowdown",), 194),
    FieldRead("rare", "threshold_offset_c", ("hbm_max_op",), 195),
    FieldRead("rare", "threshold_offset_c", ("max_op",), 196),
    FieldRead("rare", "retired_pages", ("single_bit",), 29),
    FieldRead("rare", "retired_pages", ("double_bit",), 30),
    FieldRead("rare", "retired_pages_pending", (), 31),
    FieldRead("rare", "ecc_mode", ("current",), 1),
    FieldRead("rare", "ecc_mode", ("pending",), 2),
    FieldRead("rare", "nvswitch_links", (), 147),
)
_DRAM_FIELDS: Final = {
    ("volatile", "corrected"): 11,
    ("volatile", "uncorrected"): 12,
    ("aggregate", "corrected"): 22,
    ("aggregate", "uncorrected"): 23,
}
_PCIE_TX_BYTES, _PCIE_RX_BYTES = 197, 198
SLOW_FIELDS: Final[tuple[Field, ...]] = (
    *(read.field for read in FIELD_READS if read.every == "slow"),
    *_DRAM_FIELDS.values(),
    _PCIE_TX_BYTES,
    _PCIE_RX_BYTES,
)
RARE_FIELDS: Final[tuple[Field, ...]] = tuple(read.field for read in FIELD_READS if read.every == "rare")

_FABRIC: Final = ("fabric_state", "fabric_status", "fabric_healthy", "fabric_trouble", "fabric_info")
_NO_FABRIC, _REGISTERED = 0, 3  # nvmlGpuFabricState_t
_HEALTHY = 1  # of the health summary
_TROUBLES: Final = {"degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout_recovery": 6}
"""Where the health mask has two bits for each: 0 not told, 1 true, 2 false."""
_BOARD_CALLS: Final = (
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetCudaComputeCapability",
)
THRESHOLDS: Final = ("shutdown", "slowdown", "hbm_max_op", "max_op")  # nvmlTemperatureThresholds_t 0 to 3
_CLOCKS: Final = ("graphics", "sm", "memory", "video")  # nvmlClockType_t 0 to 3


def read_slow(sweep: Sweep, counters: "PcieCounters") -> None:
    """All slow quantities but those of NVLink and GPM."""
    _fields(sweep, "slow")
    _ecc_by_location(sweep)
    memory = sweep.ask(("bar1_used_bytes", "bar1_total_bytes"), lambda: sweep.call("nvmlDeviceGetBAR1MemoryInfo"))
    if memory is not None:
        sweep.give("bar1_used_bytes", memory.bar1Used)
        sweep.give("bar1_total_bytes", memory.bar1Total)
    for clock, number in (("graphics", 0), ("video", 3)):
        sweep.put_call("clock_hz", (clock,), "nvmlDeviceGetClockInfo", number, convert=hertz_from_mhz)
    for engine, word in (("encoder", "Encoder"), ("decoder", "Decoder"), ("jpeg", "Jpg"), ("ofa", "Ofa")):
        sweep.put_call(
            "engine_utilisation",
            (engine,),
            f"nvmlDeviceGet{word}Utilization",
            convert=lambda a: ratio_from_percent(a[0]),
        )
    sweep.put_call("performance_state", (), "nvmlDeviceGetPerformanceState")
    sweep.put_call("persistence_mode", (), "nvmlDeviceGetPersistenceMode")
    modes = sweep.ask(("mig_mode",), lambda: sweep.call("nvmlDeviceGetMigMode"))
    for when, mode in zip(("current", "pending"), modes or (), strict=False):
        sweep.give("mig_mode", mode, when)
    for quantity, what in (("pcie_generation", "Generation"), ("pcie_width", "Width")):
        for which, when in (("current", "Curr"), ("max", "Max")):
            sweep.put_call(quantity, (which,), f"nvmlDeviceGet{when}PcieLink{what}")
    sweep.put("pcie_transmit_bytes", lambda: counters.transmit.total(sweep.field(_PCIE_TX_BYTES)))
    sweep.put("pcie_receive_bytes", lambda: counters.receive.total(sweep.field(_PCIE_RX_BYTES)))
    _fabric(sweep)


def read_rare(sweep: Sweep) -> None:
    """All rare quantities but those of NVLink."""
    _fields(sweep, "rare")
    for number, kind in enumerate(THRESHOLDS):
        sweep.put_call("threshold_c", (kind,), "nvmlDeviceGetTemperatureThreshold", number)
    for number, clock in enumerate(_CLOCKS):
        sweep.put_call("max_clock_hz", (clock,), "nvmlDeviceGetMaxClockInfo", number, convert=hertz_from_mhz)
    banks = sweep.ask(("remap_banks",), lambda: sweep.call("nvmlDeviceGetRowRemapperHistogram"))
    if banks is not None:
        for spares in ("max", "high", "partial", "low", "none"):
            sweep.give("remap_banks", getattr(banks, spares), spares)
    _board_info(sweep)


def _fields(sweep: Sweep, every: Every) -> None:
    for read in FIELD_READS:
        if read.every == every:
            sweep.put(read.quantity, partial(_field_or_call, sweep, read), *read.labels)


def _field_or_call(sweep: Sweep, read: FieldRead) -> float:
    otherwise = read.otherwise
    if otherwise is None:
        return sweep.field(read.field)
    value: float = sweep.first(lambda: sweep.field(read.field), lambda: otherwise(sweep))
    return value


def _ecc_by_location(sweep: Sweep) -> None:
    """DRAM by its fields, SRAM by its own status, which tells kinds and units too; else by the older counter."""
    for labels, field in _DRAM_FIELDS.items():
        by_call = partial(sweep.call, "nvmlDeviceGetMemoryErrorCounter", *_ECC_NUMBERS[labels], _DRAM_LOCATION)
        sweep.put("ecc_location_errors", partial(sweep.first, partial(sweep.field, field), by_call), *labels, "dram")
    status = sweep.ask(
        ("sram_errors", "sram_threshold_exceeded"),
        lambda: sweep.fill("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"),
    )
    if status is None:
        for (lifetime, severity), numbers in _ECC_NUMBERS.items():
            place = (lifetime, severity, "sram")
            sweep.put_call("ecc_location_errors", place, "nvmlDeviceGetMemoryErrorCounter", *numbers, _SRAM_LOCATION)
        return
    for lifetime in ("volatile", "aggregate"):
        parity, secded = getattr(status, f"{lifetime}UncParity"), getattr(status, f"{lifetime}UncSecDed")
        sweep.give("ecc_location_errors", getattr(status, f"{lifetime}Cor"), lifetime, "corrected", "sram")
        sweep.give("ecc_location_errors", parity + secded, lifetime, "uncorrected", "sram")
        sweep.give("sram_errors", parity, lifetime, "parity")
        sweep.give("sram_errors", secded, lifetime, "secded")
    for unit in ("L2", "Sm", "Pcie", "Mcu", "Other"):
        sweep.give("sram_errors", getattr(status, f"aggregateUncBucket{unit}"), "aggregate", unit.lower())
    sweep.give("sram_threshold_exceeded", bool(status.bThresholdExceeded))


class PcieCounters:
    """The byte counters of both directions, followed over their wraps."""

    def __init__(self) -> None:
        self.transmit = Unwrapped()
        self.receive = Unwrapped()


class Unwrapped:
    """A counter that may wrap, as one that does not; it lives as long as the library is open.

    A driver reload or a reset ends with another object, so a fall within its life is a wrap: of 32 bits while no larger
    value was seen, of 64 bits near the end of that range. Any other fall is a restart from zero.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._total = 0.0

    def total(self, raw: float) -> float:
        """The counter as if it had never wrapped; what is negative is no count and is handed on as it is."""
        if raw < 0:
            return raw
        last, self._last = self._last, raw
        if last is None:
            self._total = raw
        elif raw >= last:
            self._total += raw - last
        elif last < 2**32:
            self._total += raw - last + 2**32
        elif last >= 2**63:
            self._total += raw - last + 2**64
        else:
            self._total += raw
        return self._total


def _fabric(sweep: Sweep) -> None:
    """Registration with the fabric, and its health where the structure of this driver has it."""
    info = sweep.ask(
        _FABRIC,
        lambda: sweep.first(
            lambda: sweep.fill("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
            lambda: sweep.fill("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
            lambda: sweep.fill("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ),
    )
    if info is None:
        return
    if info.state == _NO_FABRIC:
        sweep.lacks(_FABRIC, NotSupportedError("this board is on no fabric"))
        return
    sweep.give("fabric_state", info.state)
    if info.state == _REGISTERED:  # only then do the others mean anything
        sweep.give("fabric_status", info.status)
        sweep.give("fabric_info", 1.0, str(UUID(bytes=bytes(info.clusterUuid))), str(info.cliqueId))
    else:
        sweep.lacks(("fabric_status", "fabric_info"), NotSupportedError("not registered yet", "not_read"))
    mask, summary = getattr(info, "healthMask", 0), getattr(info, "healthSummary", 0)
    troubles = {name: told == 1 for name, shift in _TROUBLES.items() if (told := mask >> shift & 3) in {1, 2}}
    if configuration := mask >> 8 & 0xF:
        troubles["incorrect_configuration"] = configuration > 1
    for name, holds in troubles.items():
        sweep.give("fabric_trouble", holds, name)
    untold = NotSupportedError("this board does not tell")
    if not troubles:
        sweep.lacks(("fabric_trouble",), untold)
    if summary or troubles:
        sweep.give("fabric_healthy", summary == _HEALTHY if summary else not any(troubles.values()))
    else:
        sweep.lacks(("fabric_healthy",), untold)


def _board_info(sweep: Sweep) -> None:
    def text(name: str) -> str:
        try:
            answer = sweep.call(name)
        except DeviceLostError:
            raise
        except DeviceError:
            return ""
        if isinstance(answer, tuple | list):
            return ".".join(str(part) for part in answer)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)

    labels = tuple(text(name) for name in _BOARD_CALLS)
    if any(labels):
        sweep.give("board_info", 1.0, *labels)
    else:
        sweep.lacks(("board_info",), NotSupportedError("the board tells nothing of itself"))
