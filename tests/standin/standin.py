"""The Python side of the stand-in for libnvidia-ml.so.1 (nvml.c): builds it, and drives its state while others read it.

    standin = Standin(tmp_path, ["h100"] * 8)
    subprocess.Popen([...], env=os.environ | standin.env())     # there, `import pynvml` finds the stand-in
    standin.gpus[3].junction_c = 88
    standin.fault("nvmlDeviceGetTemperature*", gpu=3, hang=True)
    standin.limits_w                                            # what the boards were told

Nothing here imports Nodewarden: the stand-in is a second opinion on NVML, not a mirror of our own code.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import fnmatch
import functools
import hashlib
import mmap
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from standin.boards import FEATURES, MORE

SOURCE = Path(__file__).with_name("nvml.c")
BUILD_DIR = Path(os.environ.get("NODEWARDEN_STANDIN_BUILD", Path(__file__).with_name("build")))

MAX_GPUS = 16
NO_DEVICE = MAX_GPUS
MAX_LINKS = 32
MAX_PROCESSES = 32
MAX_FIELDS = 320
MAX_FUNCTIONS = 128
WRITE_RING = 4096
EVENT_RING = 4096
MAX_MIG = 7
MAGIC = 0x4E57534C

TYPE_DOUBLE, TYPE_UINT, TYPE_ULONGLONG, TYPE_SLONGLONG, TYPE_INT = 0, 1, 3, 4, 5  # of NVML's value union

INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18

FEATURE_TLIMIT, FEATURE_THRESHOLDS, FEATURE_AVERAGE_POWER = 1, 2, 4
SBE_EVENT, DBE_EVENT, P_STATE_EVENT, XID_EVENT = 1, 2, 4, 8
RIGHTS = {"allowed": 0, "denied": 1, "capability": 2}
SLOW_FIELDS = {74: 0, 76: 1, 269: 2, 270: 3, 271: 4}
GIB = 1 << 30
MIB = 1 << 20


class MoreState(ctypes.Structure):
    """`struct more` of nvml.c: what quantities.c answers with."""

    _fields_: ClassVar = [
        ("vbios", ctypes.c_char * 32),
        ("part_number", ctypes.c_char * 80),
        ("cluster", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint32) for name in ("compute_capability", "pstate", "sram_threshold", "nvswitch_links")),
        ("module_power_mw", ctypes.c_uint32),
        ("engine_pct", ctypes.c_uint32 * 4),  # encoder, decoder, JPEG, OFA
        ("pcie_generation", ctypes.c_uint32 * 2),
        ("pcie_width", ctypes.c_uint32 * 2),
        *((name, ctypes.c_uint32) for name in ("pcie_replays", "pcie_bytes_type")),
        ("ecc_mode", ctypes.c_uint32 * 2),
        ("mig_mode", ctypes.c_uint32 * 2),
        ("remapped", ctypes.c_uint32 * 4),  # correctable, uncorrectable, pending, failure
        ("banks", ctypes.c_uint32 * 5),  # max, high, partial, low, none
        ("retired", ctypes.c_uint32 * 3),  # single bit, double bit, pending
        ("fabric", ctypes.c_uint32 * 5),  # state, status, clique, health mask, health summary
        ("fabric_version", ctypes.c_uint32),
        *((name, ctypes.c_uint32 * MAX_LINKS) for name in ("link_remote_type", "link_remote_bus", "link_error_code")),
        ("override_type", ctypes.c_uint32 * MAX_FIELDS),
        ("dirty", ctypes.c_uint32),
        ("override_bits", ctypes.c_uint64 * MAX_FIELDS),
        ("pcie_bytes", ctypes.c_uint64 * 2),
        *((name, ctypes.c_uint64) for name in ("bar1_total", "bar1_used")),
        ("dram", ctypes.c_uint64 * 4),  # volatile corrected, uncorrected, aggregate corrected, uncorrected
        ("sram", ctypes.c_uint64 * 11),  # as in the SRAM status: aggregate, volatile, units
        ("link_error", (ctypes.c_uint64 * MAX_LINKS) * 5),  # replay, recovery, CRC flit, CRC data, ECC data
        ("link_raw_tx_kib", ctypes.c_uint64 * MAX_LINKS),
        ("link_raw_rx_kib", ctypes.c_uint64 * MAX_LINKS),
        ("gpm", ctypes.c_double * 18),  # percent of metrics 1 to 13, then MiB/s of 20, 21, 60, 61
    ]


class GpuState(ctypes.Structure):
    """`struct gpu` of nvml.c."""

    _fields_: ClassVar = [
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("bus_id", ctypes.c_char * 32),
        *((name, ctypes.c_uint32) for name in ("minor", "domain", "bus", "pci_device_id", "pci_subsystem_id")),
        ("features", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("lost", "junction_c", "hbm_c", "margin_c", "margin_is_set")),
        *((name, ctypes.c_int32) for name in ("max_op_c", "hbm_max_op_c")),
        ("threshold_c", ctypes.c_int32 * 4),
        ("tlimit_c", ctypes.c_int32 * 4),
        *((name, ctypes.c_uint32) for name in ("power_mw", "instant_power_mw", "hbm_power_mw", "obeys_cap")),
        *((name, ctypes.c_uint32) for name in ("limit_mw", "min_mw", "max_mw", "default_mw", "oob_limit_mw")),
        *((name, ctypes.c_uint32) for name in ("ignores_set", "utilisation_pct", "memory_utilisation_pct")),
        ("clock_mhz", ctypes.c_uint32 * 4),
        ("max_clock_mhz", ctypes.c_uint32 * 4),
        *((name, ctypes.c_uint32) for name in ("persistence", "recovery_action", "link_count", "link_mbps")),
        ("process_count", ctypes.c_uint32),
        ("pid", ctypes.c_uint32 * MAX_PROCESSES),
        ("link_active", ctypes.c_uint32 * MAX_LINKS),
        ("field_error", ctypes.c_uint32 * MAX_FIELDS),
        ("process_bytes", ctypes.c_uint64 * MAX_PROCESSES),
        ("link_tx_kib", ctypes.c_uint64 * MAX_LINKS),
        ("link_rx_kib", ctypes.c_uint64 * MAX_LINKS),
        *((name, ctypes.c_uint64) for name in ("memory_total", "memory_reserved", "memory_used", "event_reasons")),
        ("slow_ns", ctypes.c_uint64 * 5),
        ("energy_mj", ctypes.c_double),
        ("energy_at_ns", ctypes.c_int64),
        ("energy_shown_mj", ctypes.c_uint64),
        ("more", MoreState),
    ]


class FaultState(ctypes.Structure):
    """`struct fault` of nvml.c."""

    _fields_: ClassVar = [
        ("latency_us", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("error", "hang", "times", "unused")),
    ]


class WriteState(ctypes.Structure):
    """`struct write` of nvml.c."""

    _fields_: ClassVar = [
        ("at_ns", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("slot", "value_mw", "result", "pid")),
    ]


class EventState(ctypes.Structure):
    """`struct event` of nvml.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_uint64) for name in ("type", "data")),
        *((name, ctypes.c_uint32) for name in ("slot", "unused")),
    ]


class MigState(ctypes.Structure):
    """`struct mig_instance` of nvml.c."""

    _fields_: ClassVar = [
        ("uuid", ctypes.c_char * 96),
        ("profile", ctypes.c_char * 32),
        *((name, ctypes.c_uint32) for name in ("present", "gpu_instance", "compute_instance", "unused")),
        *((name, ctypes.c_uint64) for name in ("memory_total", "memory_reserved", "memory_used")),
    ]


class State(ctypes.Structure):
    """`struct state` of nvml.c; the library refuses a file of another size."""

    _fields_: ClassVar = [
        ("magic", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("init_error", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("device_count", "one_lock", "right")),
        ("energy_step_ns", ctypes.c_uint64),
        ("order", ctypes.c_uint32 * MAX_GPUS),
        ("driver_version", ctypes.c_char * 80),
        ("hang_path", ctypes.c_char * 256),
        ("gpus", GpuState * MAX_GPUS),
        ("faults", FaultState * (MAX_GPUS + 1) * MAX_FUNCTIONS),
        ("calls", ctypes.c_uint64 * (MAX_GPUS + 1) * MAX_FUNCTIONS),
        ("write_count", ctypes.c_uint64),
        ("writes", WriteState * WRITE_RING),
        ("gpm_samples", ctypes.c_int64),
        ("supported_events", ctypes.c_uint64 * MAX_GPUS),
        ("event_count", ctypes.c_uint64),
        ("events", EventState * EVENT_RING),
        ("mig", (MigState * MAX_MIG) * MAX_GPUS),
    ]


# Boards as they were seen: an A100-SXM4-80GB and an H100 80GB HBM3 (SXM), idle; the H100 PCIe and NVL by their data
# sheets. What they answer beyond this is in boards.py.
BOARDS: dict[str, dict[str, object]] = {
    "a100": {
        "name": b"NVIDIA A100-SXM4-80GB",
        "features": FEATURE_THRESHOLDS,
        "pci_device_id": 0x20B210DE,
        "pci_subsystem_id": 0x146310DE,
        "junction_c": 28,
        "hbm_c": 46,
        "max_op_c": 85,
        "hbm_max_op_c": 95,
        "threshold_c": (92, 89, 95, 85),
        "power_mw": 68_000,
        "min_mw": 100_000,
        "max_mw": 400_000,
        "default_mw": 400_000,
        "clock_mhz": (1155, 1155, 1593, 1125),
        "max_clock_mhz": (1410, 1410, 1593, 1290),
        "link_count": 12,
        "link_mbps": 25_000,
        "memory_total": 81_920 * MIB,
        "memory_reserved": 834 * MIB,
    },
    "h100": {
        "name": b"NVIDIA H100 80GB HBM3",
        "features": FEATURE_TLIMIT | FEATURE_AVERAGE_POWER,
        "pci_device_id": 0x233010DE,
        "pci_subsystem_id": 0x16C110DE,
        "junction_c": 41,
        "hbm_c": 48,
        "max_op_c": 87,
        "hbm_max_op_c": 95,
        "threshold_c": (92, 89, 95, 87),
        "tlimit_c": (-8, -2, 0, 0),
        "power_mw": 69_900,
        "hbm_power_mw": 43_000,
        "min_mw": 200_000,
        "max_mw": 700_000,
        "default_mw": 700_000,
        "clock_mhz": (345, 345, 2619, 765),
        "max_clock_mhz": (1980, 1980, 2619, 1545),
        "link_count": 18,
        "link_mbps": 26_562,
        "memory_total": 81_559 * MIB,
        "memory_reserved": 479 * MIB,
    },
}
BOARDS["h100-pcie"] = BOARDS["h100"] | {
    "name": b"NVIDIA H100 PCIe",
    "pci_device_id": 0x233110DE,
    "pci_subsystem_id": 0x162610DE,
    "power_mw": 48_000,
    "hbm_power_mw": 20_000,
    "max_mw": 350_000,
    "default_mw": 350_000,
    "clock_mhz": (345, 345, 1593, 765),
    "max_clock_mhz": (1755, 1755, 1593, 1395),
    "link_count": 12,  # they exist; without a bridge none is ever active
}
BOARDS["h100-nvl"] = BOARDS["h100"] | {
    "name": b"NVIDIA H100 NVL",
    "pci_device_id": 0x232110DE,
    "pci_subsystem_id": 0x183910DE,
    "power_mw": 61_000,
    "max_mw": 400_000,
    "default_mw": 400_000,
    "max_clock_mhz": (1785, 1785, 2619, 1425),
    "link_count": 12,
    "memory_total": 95_830 * MIB,
}
BUSES = (0x07, 0x0B, 0x48, 0x4C, 0x88, 0x8B, 0xC8, 0xCB, 0x19, 0x3B, 0x5D, 0x6E, 0x9B, 0xAD, 0xBE, 0xDD)
MINORS = (2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)  # as on a real node, the minor is not the index


def build() -> Path:
    """The folder with libnvidia-ml.so.1, built from nvml.c and what it includes, unless these were built before.

    Safe when several test processes build at once: each builds in its own folder, and the first to rename wins.
    """
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden"]
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*.c")))
    digest = hashlib.sha256(sources + " ".join(flags).encode()).hexdigest()[:16]
    folder = BUILD_DIR / digest
    if folder.is_dir():
        return folder
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=BUILD_DIR))
    scratch.chmod(0o755)
    command = ["gcc", *flags, "-Wl,-soname,libnvidia-ml.so.1", str(SOURCE), "-o", str(scratch / "libnvidia-ml.so.1")]
    subprocess.run(command, check=True)
    try:
        scratch.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(scratch)
    return folder


@functools.cache
def function_numbers() -> dict[str, int]:
    """Function name -> number, from the list in nvml.c."""
    listed = re.search(r"#define FUNCTIONS\(X\)(.*?)\n\n", SOURCE.read_text(), re.DOTALL)
    assert listed, "nvml.c has no FUNCTIONS list"
    return {name: number for number, name in enumerate(re.findall(r"X\((\w+)\)", listed[1]))}


@dataclasses.dataclass(frozen=True)
class Write:
    """One call of a setter: when (CLOCK_BOOTTIME seconds), which GPU (slot), what was asked, what it answered."""

    at_s: float
    gpu: int
    w: float
    result: int
    pid: int


class Gpu:
    """One board of the stand-in. Every attribute may be read and set at any time."""

    def __init__(self, standin: "Standin", slot: int) -> None:
        self._standin = standin
        self._state: GpuState = standin.state.gpus[slot]
        self.slot = slot

    @staticmethod
    def _plain(field: str) -> property:
        def read(self: "Gpu") -> int:
            return getattr(self._state, field)

        def write(self: "Gpu", value: int) -> None:
            setattr(self._state, field, value)

        return property(read, write)

    @staticmethod
    def _watts(field: str) -> property:
        """A quantity that the energy counter depends on: the counter is brought to now before it changes."""

        def read(self: "Gpu") -> float:
            return getattr(self._state, field) / 1000

        def write(self: "Gpu", value: float) -> None:
            with self._standin.changing():
                self._settle_energy()
                setattr(self._state, field, round(value * 1000))

        return property(read, write)

    junction_c = _plain("junction_c")
    hbm_c = _plain("hbm_c")
    max_op_c = _plain("max_op_c")
    hbm_max_op_c = _plain("hbm_max_op_c")
    utilisation_pct = _plain("utilisation_pct")
    memory_utilisation_pct = _plain("memory_utilisation_pct")
    memory_used_bytes = _plain("memory_used")
    event_reasons = _plain("event_reasons")
    recovery_action = _plain("recovery_action")
    persistence = _plain("persistence")
    link_count = _plain("link_count")
    lost = _plain("lost")  # the code that every call answers: 15 lost, 16 reset required, 999 unknown, 0 present
    ignores_set = _plain("ignores_set")  # the setter answers success and changes nothing
    features = _plain("features")

    power_w = _watts("power_mw")  # what the GPU wants; with obeys_cap it draws at most the enforced limit
    limit_w = _watts("limit_mw")
    oob_limit_w = _watts("oob_limit_mw")  # a limiter beside NVML (BMC); 0 = none
    obeys_cap = _plain("obeys_cap")
    min_w = _watts("min_mw")
    max_w = _watts("max_mw")
    default_w = _watts("default_mw")
    instant_power_w = _watts("instant_power_mw")  # 0 = the same as power_w
    hbm_power_w = _watts("hbm_power_mw")

    @property
    def more(self) -> MoreState:
        """Everything that quantities.c answers with; any of it may be set at any time."""
        return self._state.more

    def answer_field(self, field: int, value: float, type_: int | None = TYPE_ULONGLONG) -> None:
        """Makes one field answer this value in this type of NVML's union; a type of None ends it."""
        packing = {0: "<d", 1: "<I4x", 2: "<Q", 3: "<Q", 4: "<q", 5: "<i4x", 6: "<H6x"}
        kept = 0 if type_ is None else struct.unpack("<Q", struct.pack(packing.get(type_, "<Q"), value))[0]
        self._state.more.override_bits[field] = kept
        self._state.more.override_type[field] = 0 if type_ is None else type_ + 1

    @property
    def uuid(self) -> str:
        return self._state.uuid.decode()

    @uuid.setter
    def uuid(self, value: str) -> None:
        self._state.uuid = value.encode()

    @property
    def serial(self) -> str:
        return self._state.serial.decode()

    @property
    def name(self) -> str:
        return self._state.name.decode()

    @name.setter
    def name(self, value: str) -> None:
        self._state.name = value.encode()

    @property
    def bus_id(self) -> str:
        return self._state.bus_id.decode()

    minor = _plain("minor")  # of the device file; may be another after a reset

    @property
    def held_by(self) -> set[int]:
        """Pids that have this board's device file open; the driver refuses to reset it while there are any."""
        return self._standin.holders(f"nvidia{self.minor}")

    @property
    def index(self) -> int:
        """Where the library lists it now."""
        return list(self._standin.state.order).index(self.slot)

    @property
    def margin_c(self) -> int:
        """T.Limit margin; unless set, the smaller distance of junction and HBM to their maximum operating points."""
        state = self._state
        if state.margin_is_set:
            return state.margin_c
        return min(state.max_op_c - state.junction_c, state.hbm_max_op_c - state.hbm_c)

    @margin_c.setter
    def margin_c(self, value: int | None) -> None:
        self._state.margin_c = value or 0
        self._state.margin_is_set = value is not None

    @property
    def supported_events(self) -> int:
        """Mask of the events that this board has; registration for any other is refused as a whole."""
        return self._standin.state.supported_events[self.slot]

    @supported_events.setter
    def supported_events(self, value: int) -> None:
        self._standin.state.supported_events[self.slot] = value

    def xid(self, code: int, *, times: int = 1) -> None:
        """The driver reports an error, as an event of type 8; it writes no line to the kernel's log."""
        state = self._standin.state
        for _ in range(times):
            event = state.events[state.event_count % EVENT_RING]
            event.type, event.data, event.slot = XID_EVENT, code, self.slot
            state.event_count += 1

    @property
    def enforced_w(self) -> float:
        return min(self.limit_w, self.oob_limit_w or self.limit_w)

    @property
    def sm_mhz(self) -> int:
        return self._state.clock_mhz[1]

    @sm_mhz.setter
    def sm_mhz(self, value: int) -> None:
        self._state.clock_mhz[0] = self._state.clock_mhz[1] = value

    @property
    def memory_mhz(self) -> int:
        return self._state.clock_mhz[2]

    @memory_mhz.setter
    def memory_mhz(self, value: int) -> None:
        self._state.clock_mhz[2] = value

    @property
    def energy_j(self) -> float:
        """The counter as a reader sees it now, in joules."""
        with self._standin.changing():
            self._settle_energy()
            return self._state.energy_shown_mj / 1000

    @energy_j.setter
    def energy_j(self, value: float) -> None:
        with self._standin.changing():
            self._settle_energy()
            self._state.energy_mj = value * 1000
            self._state.energy_shown_mj = round(value * 1000)

    @property
    def pids(self) -> list[int]:
        return list(self._state.pid[: self._state.process_count])

    @pids.setter
    def pids(self, value: Sequence[int]) -> None:
        self._state.process_count = 0
        for place, pid in enumerate(value):
            self._state.pid[place] = pid
            self._state.process_bytes[place] = 4 * GIB
        self._state.process_count = len(value)

    def set_mig(self, *instances: tuple[int, str, int]) -> list[str]:
        """MIG on with these instances (GPU instance id, profile, bytes used); off with none. The uuids, new each time.

        As on a real board an id is used again at once by whatever instance comes next.
        """
        self._state.more.mig_mode[:] = (1, 1) if instances else (0, 0)
        places = self._standin.state.mig[self.slot]
        uuids = []
        for place in places:
            place.present = 0
        for place, (gpu_instance, profile, used) in zip(places, instances, strict=False):
            place.uuid = f"MIG-{uuid.uuid4()}".encode()
            place.profile = profile.encode()
            place.gpu_instance, place.compute_instance = gpu_instance, 0
            place.memory_total, place.memory_reserved, place.memory_used = 10 * GIB, 16 * MIB, used
            place.present = 1
            uuids.append(place.uuid.decode())
        return uuids

    def set_thresholds(self, shutdown_c: int, slowdown_c: int, hbm_max_op_c: int, max_op_c: int) -> None:
        """Absolute thresholds in degrees; makes the board answer them."""
        self._state.threshold_c[:] = (shutdown_c, slowdown_c, hbm_max_op_c, max_op_c)
        self._state.features |= FEATURE_THRESHOLDS

    def set_tlimits(self, shutdown_c: int, slowdown_c: int, hbm_max_op_c: int, max_op_c: int) -> None:
        """Signed T.Limit offsets in degrees; makes the board answer them and the margin."""
        self._state.tlimit_c[:] = (shutdown_c, slowdown_c, hbm_max_op_c, max_op_c)
        self._state.features |= FEATURE_TLIMIT

    def set_slow_s(self, field: int, seconds: float) -> None:
        """A counter of time spent slow: field 74 power, 76 sync boost, 269 SW thermal, 270 HW thermal, 271 brake."""
        self._state.slow_ns[SLOW_FIELDS[field]] = round(seconds * 1e9)

    def set_link(self, link: int, *, active: bool = True, tx_kib: int | None = None, rx_kib: int | None = None) -> None:
        """State and byte counters (KiB) of one NVLink; None leaves a counter as it is."""
        self._state.link_active[link] = active
        if tx_kib is not None:
            self._state.link_tx_kib[link] = tx_kib
        if rx_kib is not None:
            self._state.link_rx_kib[link] = rx_kib

    def fail_field(self, field: int, error: int = NOT_SUPPORTED) -> None:
        """Makes one entry of GetFieldValues answer `error` (0 = well again); its neighbours stay well."""
        self._state.field_error[field] = error

    def reset(self) -> None:
        """What a GPU reset or a driver reload does to it: the limit is the default, the energy counter starts anew."""
        with self._standin.changing():
            self._settle_energy()
            self._state.limit_mw = self._state.default_mw
            self._state.energy_mj = 0.0
            self._state.energy_shown_mj = 0

    def _settle_energy(self) -> None:
        """As settle_energy of nvml.c."""
        state = self._state
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        step_ns = self._standin.state.energy_step_ns or 1
        edge_ns = now_ns - now_ns % step_ns
        enforced_mw = min(state.limit_mw, state.oob_limit_mw or state.limit_mw)
        mj_per_ns = (min(state.power_mw, enforced_mw) if state.obeys_cap else state.power_mw) / 1e9
        if edge_ns > state.energy_at_ns:
            state.energy_shown_mj = int(state.energy_mj + mj_per_ns * (edge_ns - state.energy_at_ns))
        state.energy_mj += mj_per_ns * (now_ns - state.energy_at_ns)
        state.energy_at_ns = now_ns


class Standin:
    """A node's worth of boards in one state file under `folder`. Safe to use from several threads of one process."""

    def __init__(self, folder: Path | str, kinds: Sequence[str] = ("h100",) * 8) -> None:
        self.library_dir = build()
        self.path = Path(folder) / "nvml.state"
        size = ctypes.sizeof(State)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.fchmod(self._fd, 0o666)
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)
        self._mutex = threading.RLock()
        self.state = State.from_buffer(self._map)
        self.state.bytes = size
        self.state.energy_step_ns = 100_000_000
        self.state.driver_version = b"590.48.01"
        self.state.order[:] = range(MAX_GPUS)
        self.state.device_count = len(kinds)
        self._kinds = tuple(kinds)
        for slot, kind in enumerate(kinds):
            self._fill(slot, kind)
        self.gpus = [Gpu(self, slot) for slot in range(len(kinds))]
        self.dev = Path(folder) / "dev"
        self.dev.mkdir()
        for name in ["nvidiactl", *(f"nvidia{gpu.minor}" for gpu in self.gpus)]:
            (self.dev / name).touch(0o666)
            (self.dev / name).chmod(0o666)
        self.state.magic = MAGIC

    def _fill(self, slot: int, kind: str) -> None:
        gpu = self.state.gpus[slot]
        for field, value in BOARDS[kind].items():
            if isinstance(value, tuple):
                getattr(gpu, field)[:] = value
            else:
                setattr(gpu, field, value)
        gpu.uuid = f"GPU-{uuid.uuid4()}".encode()
        gpu.serial = str(1_650_000_000_000 + uuid.uuid4().int % 1_000_000_000).encode()
        gpu.minor = MINORS[slot]
        gpu.bus = BUSES[slot]
        gpu.bus_id = f"00000000:{BUSES[slot]:02X}:00.0".encode()
        gpu.limit_mw = gpu.default_mw
        gpu.persistence = 1
        gpu.obeys_cap = 1
        gpu.link_active[: gpu.link_count] = [int(kind != "h100-pcie")] * gpu.link_count
        gpu.features |= FEATURES[kind]
        for field, value in MORE[kind].items():
            if isinstance(value, tuple):
                getattr(gpu.more, field)[: len(value)] = value
            else:
                setattr(gpu.more, field, value)
        self.state.supported_events[slot] = XID_EVENT | SBE_EVENT | DBE_EVENT | P_STATE_EVENT
        gpu.energy_at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def renew(self) -> None:
        """Every board as it was at the start, with its uuid and serial number; faults end."""
        self.clear()
        for slot, kind in enumerate(self._kinds):
            gpu = self.state.gpus[slot]
            uuid_before, serial = gpu.uuid, gpu.serial
            ctypes.memset(ctypes.addressof(gpu), 0, ctypes.sizeof(gpu))
            self._fill(slot, kind)
            gpu.uuid, gpu.serial = uuid_before, serial

    def env(self) -> dict[str, str]:
        """What a program needs in its environment to find the stand-in as libnvidia-ml.so.1."""
        others = os.environ.get("LD_LIBRARY_PATH")
        path = f"{self.library_dir}:{others}" if others else str(self.library_dir)
        return {"LD_LIBRARY_PATH": path, "NODEWARDEN_STANDIN_STATE": str(self.path)}

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock under which power, limits and energy change, against the library in all processes."""

        def lock(kind: int) -> None:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, struct.pack("@hhqqi", kind, os.SEEK_SET, 0, 1, 0))

        with self._mutex:
            lock(fcntl.F_WRLCK)
            try:
                yield
            finally:
                lock(fcntl.F_UNLCK)

    # Faults ----------------------------------------------------------------------------------------------------------

    def fault(
        self,
        pattern: str,
        *,
        gpu: int | None = None,
        error: int = 0,
        times: int = 0,
        latency_s: float = 0.0,
        hang: bool = False,
        hang_path: Path | str | None = None,
    ) -> None:
        """Makes the functions that match `pattern` slow, failing or hanging, on one GPU (slot) or everywhere.

        An error is given `times` times (0 = until cleared). A hang ends only with `clear` or the process; a hang on
        `hang_path` is a stat() of it, which on a file system that never answers is uninterruptible, as the driver's is.
        """
        if hang_path is not None:
            self.state.hang_path = os.fsencode(hang_path)
        for fault in self._faults(pattern, gpu):
            fault.latency_us = round(latency_s * 1e6)
            fault.times = times
            fault.error = error
            fault.hang = 2 if hang_path is not None else int(hang)

    def clear(self, pattern: str = "*", *, gpu: int | None = None) -> None:
        """Ends faults; a call that hangs goes on."""
        self.fault(pattern, gpu=gpu)

    def _faults(self, pattern: str, gpu: int | None) -> list[FaultState]:
        slots = range(MAX_GPUS + 1) if gpu is None else [gpu]
        return [self.state.faults[number][slot] for number in self._matching(pattern) for slot in slots]

    @staticmethod
    def _matching(pattern: str) -> list[int]:
        numbers = [number for name, number in function_numbers().items() if fnmatch.fnmatchcase(name, pattern)]
        if not numbers:
            raise ValueError(f"no function of the stand-in matches {pattern!r}: {', '.join(function_numbers())}")
        return numbers

    @property
    def one_lock(self) -> bool:
        """Whether every call takes the driver's one lock, so that one that hangs stops all, in every process."""
        return bool(self.state.one_lock)

    @one_lock.setter
    def one_lock(self, value: bool) -> None:
        self.state.one_lock = value

    @property
    def write_right(self) -> str:
        """Who may set limits: "allowed" (anyone), "denied", or "capability" (CAP_SYS_ADMIN, as the driver asks)."""
        return next(name for name, code in RIGHTS.items() if code == self.state.right)

    @write_right.setter
    def write_right(self, value: str) -> None:
        self.state.right = RIGHTS[value]

    @property
    def init_error(self) -> int:
        """The code nvmlInit answers: 0, 9 driver not loaded, 18 library and driver differ."""
        return self.state.init_error

    @init_error.setter
    def init_error(self, value: int) -> None:
        self.state.init_error = value

    @property
    def device_count(self) -> int:
        return self.state.device_count

    @device_count.setter
    def device_count(self, value: int) -> None:
        self.state.device_count = value

    def reorder(self, slots: Sequence[int]) -> None:
        """Lists the boards in another order: index i is board slots[i]."""
        rest = [slot for slot in range(MAX_GPUS) if slot not in slots]
        self.state.order[:] = [*slots, *rest]

    def reload_driver(self) -> None:
        """What a driver reload leaves: default limits, energy counters from zero, counters of time spent slow zero."""
        for gpu in self.gpus:
            gpu.reset()
            for field in SLOW_FIELDS:
                gpu.set_slow_s(field, 0.0)

    def install(self, version: str) -> None:
        """Another library is installed: programs that load it from now on have this version."""
        (self.path.parent / "library.version").write_text(version)

    def load_module(self, version: str) -> None:
        """Another kernel module is loaded: a library of another version is refused with 18 when it is initialised."""
        (self.path.parent / "module.version").write_text(version)

    def holders(self, name: str) -> set[int]:
        """Pids that have a device file open: "nvidiactl", "nvidia3", or a pattern of such names."""
        pids = set()
        for fd in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):  # gone meanwhile, or not ours to see
                path = fd.readlink()
                if path.parent == self.dev and fnmatch.fnmatchcase(path.name, name):
                    pids.add(int(fd.parts[2]))
        return pids

    # What happened ---------------------------------------------------------------------------------------------------

    @property
    def limits_w(self) -> list[float]:
        """The power limit of each board, by slot."""
        return [gpu.limit_w for gpu in self.gpus]

    def calls(self, pattern: str = "*", *, gpu: int | None = None) -> int:
        """How often the functions that match were called, on one GPU (slot) or in all."""
        slots = range(MAX_GPUS + 1) if gpu is None else [gpu]
        return sum(self.state.calls[number][slot] for number in self._matching(pattern) for slot in slots)

    def writes(self, *, gpu: int | None = None) -> list[Write]:
        """The setter calls since the start, oldest first (at most the last 4096), refused ones included."""
        count = self.state.write_count
        entries = [self.state.writes[n % WRITE_RING] for n in range(max(0, count - WRITE_RING), count)]
        return [
            Write(entry.at_ns / 1e9, entry.slot, entry.value_mw / 1000, entry.result, entry.pid)
            for entry in entries
            if entry.at_ns and gpu in {None, entry.slot}
        ]
