"""The readings under the names of dcgm-exporter, for dashboards and rules that exist: `/metrics/dcgm`.

Names, units and labels are those of its default counters and of widely used ones beside them. A series is there only
while its reading is fresh; every value is that of a native metric, scaled.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

import msgspec

from nodewarden.api.view import View
from nodewarden.model.gpu_quantities import BY_NAME
from nodewarden.model.quantity import Labels
from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import FAST_QUANTITIES, GpuSnapshot, NodeSnapshot, Number
from nodewarden.model.xids import GpuXids
from nodewarden_exporters.prometheus import SHARED_S, escape
from nodewarden_exporters.readers import MAX_GPUS, VIEW_STALE_S

HOSTNAME_LABELS = ("hostname", "Hostname")
"""How the node's name is labelled: as since dcgm-exporter 4.8.3 (the default), and as before."""

_LEAST_STALE_S = {"fast": 3.0, "slow": 30.0, "rare": 180.0}
_SOURCES = {"fast": "gpu", "slow": "gpu_slow", "rare": "gpu_slow"}
_MIB = 1024.0 * 1024.0

Value = float | None


class _Fresh:
    """The readings of one GPU that may be shown now."""

    def __init__(self, gpu: GpuSnapshot, snapshot: NodeSnapshot, now_s: float) -> None:
        self._gpu = gpu
        self._now_s = now_s
        self._stale_after_s: dict[str, float] = {}
        for every, least_s in _LEAST_STALE_S.items():
            source = snapshot.sources.get(f"{_SOURCES[every]}/{gpu.uuid}")
            known_s = 0.0 if source is None else source.stale_after_s
            # A fast reading is stale when its source says so; slower sets stay at least as long as a turn may take.
            self._stale_after_s[every] = known_s if every == "fast" and known_s else max(least_s, known_s)

    def value(self, name: str, labels: Labels = ()) -> Value:
        gpu = self._gpu
        number: Number | None
        if name in FAST_QUANTITIES:
            number = getattr(gpu, name)
        elif name == "slow_s":
            number = gpu.slow_s.get(labels[0])
        else:
            number = gpu.more.get(name, {}).get(labels)
        if not isinstance(number, Reading) or self._now_s - number.taken_at_s >= self._stale_after_s[_every(name)]:
            return None
        return number.value


def _every(name: str) -> str:
    return BY_NAME[name].every


Read = Callable[[_Fresh, GpuXids | None], Value]


class DcgmRow(msgspec.Struct, frozen=True):
    """One metric: its name and type as the peer has them, help with unit, and the value from native readings."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    read: Read


def _of(name: str, scale: float = 1.0, *labels: str) -> Read:
    def read(fresh: _Fresh, _xids: GpuXids | None) -> Value:
        value = fresh.value(name, labels)
        return None if value is None else value * scale

    return read


def _memory_free(fresh: _Fresh, _xids: GpuXids | None) -> Value:
    total, used = fresh.value("memory_total_bytes"), fresh.value("memory_used_bytes")
    if total is None or used is None:
        return None
    return max(0.0, total - used - (fresh.value("memory_reserved_bytes") or 0.0)) / _MIB


def _nvlink_rate(fresh: _Fresh, _xids: GpuXids | None) -> Value:
    rates = fresh.value("nvlink_rate", ("transmit",)), fresh.value("nvlink_rate", ("receive",))
    return None if rates[0] is None or rates[1] is None else (rates[0] + rates[1]) / 1e6


def _last_xid(_fresh: _Fresh, xids: GpuXids | None) -> Value:
    """0 only where errors are listened to and none ever came; nothing where the last one is over and forgotten."""
    if xids is None:
        return None
    if xids.incidents:
        return max(xids.incidents, key=lambda incident: incident.last_s).code
    return 0 if xids.total == 0 else None


def _violation(name: str, reason: str) -> DcgmRow:
    return DcgmRow(name, "counter", f"Time with clocks held down by {reason} (in ns).", _of("slow_s", 1e9, reason))


def _ecc(kind: str, severity: str, short: str, lifetime: str) -> DcgmRow:
    return DcgmRow(
        f"DCGM_FI_DEV_ECC_{kind}_{short}_TOTAL",
        "counter",
        f"ECC errors, {severity}, {lifetime}.",
        _of("ecc_errors", 1.0, lifetime, severity),
    )


DCGM_ROWS: tuple[DcgmRow, ...] = (
    DcgmRow("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (in MHz).", _of("sm_clock_hz", 1e-6)),
    DcgmRow("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock (in MHz).", _of("memory_clock_hz", 1e-6)),
    DcgmRow("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", _of("hbm_c")),
    DcgmRow("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", _of("junction_c")),
    DcgmRow("DCGM_FI_DEV_GPU_TEMP_LIMIT", "gauge", "Margin to the thermal limit (in C).", _of("margin_c")),
    DcgmRow("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power, mean over about 1 s (in W).", _of("power_w")),
    DcgmRow("DCGM_FI_DEV_POWER_USAGE_INSTANT", "gauge", "Instant power (in W).", _of("power_instant_w")),
    DcgmRow("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power cap (in W).", _of("cap_w")),
    DcgmRow("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Lowest power limiter (in W).", _of("enforced_w")),
    DcgmRow("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy (in mJ).", _of("energy_j", 1e3)),
    DcgmRow("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", _of("pcie_replays")),
    DcgmRow("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", _of("utilisation", 100.0)),
    DcgmRow("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", _of("memory_utilisation", 100.0)),
    DcgmRow("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder (in %).", _of("engine_utilisation", 100.0, "encoder")),
    DcgmRow("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder (in %).", _of("engine_utilisation", 100.0, "decoder")),
    DcgmRow("DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the last Xid that is not over, 0 = none ever.", _last_xid),
    DcgmRow("DCGM_FI_DEV_FB_FREE", "gauge", "GPU memory free (in MiB).", _memory_free),
    DcgmRow("DCGM_FI_DEV_FB_USED", "gauge", "GPU memory used (in MiB).", _of("memory_used_bytes", 1 / _MIB)),
    DcgmRow(
        "DCGM_FI_DEV_FB_RESERVED", "gauge", "GPU memory reserved (in MiB).", _of("memory_reserved_bytes", 1 / _MIB)
    ),
    DcgmRow(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "counter",
        "NVLink traffic of all links, both ways: in fact a rate (in MB/s), typed as the peer types it.",
        _nvlink_rate,
    ),
    DcgmRow(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped for uncorrectable errors.",
        _of("remapped_rows", 1.0, "uncorrectable"),
    ),
    DcgmRow(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped for correctable errors.",
        _of("remapped_rows", 1.0, "correctable"),
    ),
    DcgmRow("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 when a row could not be remapped.", _of("row_remap_failure")),
    _ecc("SBE", "corrected", "VOL", "volatile"),
    _ecc("DBE", "uncorrected", "VOL", "volatile"),
    _ecc("SBE", "corrected", "AGG", "aggregate"),
    _ecc("DBE", "uncorrected", "AGG", "aggregate"),
    _violation("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "sw_power_cap"),
    _violation("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", "sync_boost"),
    _violation("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "sw_thermal"),
    _violation("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "hw_thermal"),
    _violation("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "hw_power_brake"),
    DcgmRow("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Graphics engine active (ratio).", _of("graphics_active")),
    DcgmRow("DCGM_FI_PROF_SM_ACTIVE", "gauge", "SMs active (ratio).", _of("sm_active")),
    DcgmRow("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "Warps active (ratio).", _of("sm_occupancy")),
    DcgmRow("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Tensor pipe active (ratio).", _of("tensor_active")),
    DcgmRow("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Memory interface active (ratio).", _of("dram_active")),
    DcgmRow("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe sent (in B/s).", _of("pcie_rate", 1.0, "transmit")),
    DcgmRow("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "PCIe received (in B/s).", _of("pcie_rate", 1.0, "receive")),
    DcgmRow("DCGM_FI_PROF_NVLINK_TX_BYTES", "gauge", "NVLink sent (in B/s).", _of("nvlink_rate", 1.0, "transmit")),
    DcgmRow("DCGM_FI_PROF_NVLINK_RX_BYTES", "gauge", "NVLink received (in B/s).", _of("nvlink_rate", 1.0, "receive")),
)


class DcgmPage:
    """Renders the page, once for all who ask within `SHARED_S` of each other."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[View, float, bytes]] = {}

    def render(self, view: View, now_s: float, hostname_label: str = HOSTNAME_LABELS[0]) -> bytes:
        """The page at `now_s` (CLOCK_BOOTTIME seconds), the node's name under `hostname_label`."""
        made = self._made.get(hostname_label)
        if made is None or made[0] is not view or not 0.0 <= now_s - made[1] < SHARED_S:
            made = self._made[hostname_label] = (view, now_s, "".join(_lines(view, now_s, hostname_label)).encode())
        return made[2]


def _lines(view: View, now_s: float, hostname_label: str) -> Iterator[str]:
    snapshot = view.snapshot
    if now_s - view.now_s >= VIEW_STALE_S:
        return  # control has stalled: nothing newer is known, of Xids neither
    gpus = [
        (_labels(gpu, view.node_name, hostname_label), _Fresh(gpu, snapshot, now_s), snapshot.xids.get(uuid))
        for uuid, gpu in islice(snapshot.gpus.items(), MAX_GPUS)
        if gpu.health == "ok"
    ]
    for row in DCGM_ROWS:
        found = [(labels, value) for labels, fresh, xids in gpus if (value := row.read(fresh, xids)) is not None]
        if found:
            yield f"# HELP {row.name} {row.help}\n# TYPE {row.name} {row.kind}\n"
            for labels, value in found:
                # Scaling leaves dust in the last digits; no reading has twelve.
                yield f"{row.name}{{{labels}}} {value:.12g}\n"


def _labels(gpu: GpuSnapshot, node_name: str, hostname_label: str) -> str:
    index = "" if gpu.index is None else str(gpu.index)
    pairs = {
        "gpu": index,
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": f"nvidia{index}",
        "modelName": gpu.model,
        hostname_label: node_name,
    }
    return ",".join(f'{name}="{escape(value)}"' for name, value in pairs.items())
