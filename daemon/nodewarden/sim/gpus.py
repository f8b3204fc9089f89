"""The simulated GPU library: the Protocols of `devices.gpu_library` on the plant, answering as such a board does."""

from collections.abc import Callable, Hashable, Sequence

from nodewarden.devices.gpu_library import (
    CapRange,
    FastValues,
    GpuDevice,
    GpuIdentity,
    QuickValues,
    SlowValues,
    XidEvent,
)
from nodewarden.errors import DeviceError, DeviceLostError, NotSupportedError
from nodewarden.model.snapshot import SLOW_REASONS, LinkState
from nodewarden.sim.plant import LINKS, GpuPlant, Plant

DRIVER_VERSION = "590.48.01-twin"
MEMORY_BYTES = 81559 * 2.0**20
JOB_MEMORY_BYTES = 74000 * 2.0**20
IDLE_MEMORY_BYTES = 500 * 2.0**20
MEMORY_HZ = 2619e6

BUSY = frozenset({"compute", "wait", "all_reduce"})


def uuid_of(index: int) -> str:
    """The uuid of the twin's GPU `index`."""
    return f"GPU-7717a000-0000-4000-8000-00000000000{index}"


def slow_bits(gpu: GpuPlant) -> int:
    """NVML's bitmask of clocks-event reasons at this moment."""
    names = set()
    if gpu.power_capped:
        names.add("sw_power_cap")
    if gpu.firmware.sw_active:
        names.add("sw_thermal")
    if gpu.firmware.hw_active:
        names |= {"hw_slowdown", "hw_thermal"}
    if not names and gpu.phase == "idle":
        names.add("idle")
    return sum(1 << bit for bit, name in enumerate(SLOW_REASONS) if name in names)


class SimDevice:
    """One board of the plant. `pids` gives the compute processes on it."""

    def __init__(self, plant: Plant, index: int, pids: Callable[[], tuple[int, ...]]) -> None:
        self._plant = plant
        self._gpu = plant.gpus[index]
        self._pids = pids
        self.identity = GpuIdentity(
            uuid=uuid_of(index),
            index=index,
            model=plant.board.name,
            pci_bus_id=f"00000000:{0x19 + 0x12 * index:02X}:00.0",
        )

    def _alive(self) -> GpuPlant:
        if self._gpu.off:
            raise DeviceLostError(f"GPU {self._gpu.index} is lost: it switched itself off when it got too hot")
        return self._gpu

    def read_fast(self) -> FastValues:
        """What the board's sensors say now."""
        gpu = self._alive()
        return FastValues(
            values={
                "junction_c": float(gpu.read_junction_c),
                "hbm_c": float(gpu.read_hbm_c),
                "margin_c": float(gpu.read_margin_c),
                "power_w": round(gpu.mean_w * gpu.meter_gain, 3),
                "power_instant_w": round(gpu.power_w * gpu.meter_gain, 3),
                "energy_j": round(gpu.energy_j * gpu.meter_gain, 3),
                "cap_w": gpu.cap_w,
                "enforced_w": gpu.cap_w,
                "utilisation": 1.0 if gpu.phase in BUSY else 0.0,
                "memory_used_bytes": JOB_MEMORY_BYTES if self._pids() else IDLE_MEMORY_BYTES,
                "memory_total_bytes": MEMORY_BYTES,
                "sm_clock_hz": round(gpu.speed * gpu.board.max_sm_hz / 15e6)
                * 15e6,  # the clock moves in bins of 15 MHz
                "memory_clock_hz": MEMORY_HZ,
            },
            slow_bits=slow_bits(gpu),
            slow_s=dict(gpu.reason_s),
        )

    def read_slow(self, *, rare: bool = False, raw_links: bool = False) -> SlowValues:  # noqa: ARG002 - has none
        """Board limits, NVLink counters and the job's process."""
        gpu = self._alive()
        per_link = float(int(gpu.link_bytes / LINKS))
        return SlowValues(
            rare=rare,
            more={"max_clock_hz": {("sm",): gpu.board.max_sm_hz, ("memory",): MEMORY_HZ}},
            board=gpu.board.told,
            links=tuple(LinkState(link, active=True, tx_bytes=per_link, rx_bytes=per_link) for link in range(LINKS)),
            pids=self._pids(),
        )

    def read_quick(self) -> QuickValues:
        """What changes within a tenth of a second."""
        gpu = self._alive()
        return QuickValues(
            junction_c=float(gpu.read_junction_c),
            hbm_c=float(gpu.read_hbm_c),
            margin_c=float(gpu.read_margin_c),
            power_instant_w=round(gpu.power_w * gpu.meter_gain, 3),
        )

    def cap_range_w(self) -> CapRange:
        """200 to 700 W."""
        self._alive()
        board = self._gpu.board
        return CapRange(min_w=board.min_w, max_w=board.max_w, default_w=board.max_w)

    def get_cap_w(self) -> float:
        """The limit that was last asked for."""
        return self._alive().cap_w

    def enforced_w(self) -> float:
        """The same: nothing out-of-band limits the twin."""
        return self._alive().cap_w

    def set_cap_w(self, w: float) -> None:
        """Ask for a power limit, rounded to whole milliwatts."""
        gpu = self._alive()
        low_w, high_w = gpu.board.min_w, gpu.board.max_w
        if not low_w <= w <= high_w:
            raise DeviceError(
                f"power cap {w:g} W refused for GPU {gpu.index}: allowed {low_w:g} to {high_w:g} W", "out_of_range"
            )
        gpu.set_cap_w(round(w * 1000) / 1000, self._plant.now_s)

    def probe_write_permission(self) -> str | None:
        """Anybody may write the twin."""
        return None


class SimLibrary:
    """All boards of the plant.

    Args:
        plant: stepped by its owner, from any thread.
        pids: compute processes that the boards should list.
    """

    def __init__(self, plant: Plant, pids: Callable[[], tuple[int, ...]] = tuple) -> None:
        self._devices = [SimDevice(plant, gpu.index, pids) for gpu in plant.gpus]
        self._plant = plant
        self._spared: set[str] = set()
        self._open = False

    def open(self, spared: Sequence[GpuIdentity] = ()) -> None:
        """Always succeeds."""
        self._spared = {gpu.uuid for gpu in spared}
        self._open = True

    def close(self) -> None:
        """Devices stay valid; the plant lives on."""
        self._open = False

    def devices(self) -> list[GpuDevice]:
        """The boards that have not switched themselves off and are not spared."""
        return [
            device
            for device, gpu in zip(self._devices, self._plant.gpus, strict=True)
            if not gpu.off and device.identity.uuid not in self._spared
        ]

    @property
    def trouble(self) -> str:
        """Which boards are off."""
        off = [str(gpu.index) for gpu in self._plant.gpus if gpu.off]
        return f"GPU {', '.join(off)} switched off by overheating" if off else ""

    @property
    def driver_version(self) -> str:
        """Says that it is the twin's."""
        return DRIVER_VERSION if self._open else ""

    def held_files(self) -> list[str]:
        """None: the plant has no device files."""
        return []

    def wait_for_errors(self, timeout_s: float) -> list[XidEvent]:
        """The twin's boards report none."""
        del timeout_s
        raise NotSupportedError("the twin reports no errors")

    def traces(self, gpu: GpuIdentity) -> Hashable:
        """Always the same: the twin's boards are not reset."""
        return gpu.uuid
