"""One GPU on NVML. Models are never told apart by name: what answers is used, and what does not costs only itself."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from nodewarden.devices.gpu_library import CapRange, FastValues, GpuIdentity, QuickValues, SlowValues
from nodewarden.devices.mean_power import MeanPower
from nodewarden.devices.nvml_calls import DRIVER_REASONS, INVALID_ARGUMENT_CODE, REASONS, UNKNOWN_CODE, Field, NvmlCalls
from nodewarden.devices.nvml_gpm import Gpm
from nodewarden.devices.nvml_links import Links
from nodewarden.devices.nvml_mig import read_mig
from nodewarden.devices.nvml_quick import QuickReader
from nodewarden.devices.nvml_reads import RARE_FIELDS, SLOW_FIELDS, THRESHOLDS, PcieCounters, read_rare, read_slow
from nodewarden.devices.nvml_sweep import Sweep
from nodewarden.errors import DeviceError, DeviceLostError, NoPermissionError, NotSupportedError
from nodewarden.model.snapshot import GpuBoard
from nodewarden.policy.plausibility import accept
from nodewarden.units import (
    hertz_from_mhz,
    joules_from_mj,
    mw_from_watts,
    ratio_from_percent,
    seconds_from_ns,
    watts_from_mw,
)

# Field ids of nvmlDeviceGetFieldValues, as nvml.h numbers them.
FIELD_HBM_C = 82
FIELD_ENERGY_MJ = 83
FIELD_POWER_AVERAGE_MW = 185
FIELD_POWER_INSTANT_MW = 186
FIELD_CAP_MIN_MW = 187
FIELD_CAP_MAX_MW = 188
FIELD_CAP_DEFAULT_MW = 189
FIELD_ENFORCED_MW = 190
FIELD_CAP_MW = 192
FIELD_MODULE_POWER_MW = (185, 1)  # the same with a scope
FIELD_HBM_POWER_MW = (185, 2)
SLOW_FIELDS_NS = {
    74: "sw_power_cap",
    76: "sync_boost",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "hw_power_brake",
}
FAST_FIELDS: tuple[Field, ...] = (
    FIELD_HBM_C,
    FIELD_ENERGY_MJ,
    FIELD_POWER_AVERAGE_MW,
    FIELD_POWER_INSTANT_MW,
    FIELD_HBM_POWER_MW,
    FIELD_MODULE_POWER_MW,
    *SLOW_FIELDS_NS,
)

_MOST_LIMIT_MW = 5_000_000  # above this, or 0, a limit is a marker for "none"
_CAP_SYS_ADMIN_BIT = 21
_MAX_CALL_S = 0.05
"""An energy reading that took longer has no known moment, so it is not used for the mean."""


class NvmlDevice:
    """One GPU; a `gpu_library.GpuDevice`."""

    def __init__(self, nvml: NvmlCalls, handle: Any, identity: GpuIdentity, monotonic_s: Callable[[], float]) -> None:
        self.identity = identity
        self._nvml = nvml
        self._handle: Any = handle
        self._monotonic_s = monotonic_s
        self._mean_power = MeanPower()
        self._links = Links()
        self._pcie = PcieCounters()
        self._gpm = Gpm(monotonic_s)
        self._board: GpuBoard | None = None
        self._fast_calls: dict[str, str] = {}
        self._quick = QuickReader(nvml, handle)

    def drop(self) -> None:
        """Forget the handle: after a shutdown it may point anywhere."""
        self._gpm.drop()
        self._handle = None

    @property
    def handle(self) -> Any:
        """NVML's; raises DeviceLostError after the library was closed."""
        return self._live()

    def _live(self) -> Any:
        if self._handle is None:
            raise DeviceLostError(f"GPU {self.identity.index}: the library was closed")
        return self._handle

    def read_fast(self) -> FastValues:
        """See `GpuDevice.read_fast`."""
        sweep = Sweep(self._nvml, self._live(), FAST_FIELDS)
        put, call, field = sweep.put, sweep.call, sweep.field
        temperature = (partial(call, "nvmlDeviceGetTemperatureV", 0), partial(call, "nvmlDeviceGetTemperature", 0))
        put("junction_c", lambda: sweep.first(*temperature))
        put("hbm_c", partial(field, FIELD_HBM_C))
        put("margin_c", partial(call, "nvmlDeviceGetMarginTemperature"))
        put("energy_j", lambda: self._energy_j(sweep))
        self._put_power(sweep, sweep.last)
        put("cap_w", lambda: self._limit_w(sweep, "nvmlDeviceGetPowerManagementLimit", FIELD_CAP_MW))
        put("enforced_w", lambda: self._limit_w(sweep, "nvmlDeviceGetEnforcedPowerLimit", FIELD_ENFORCED_MW))
        rates = sweep.ask(("utilisation", "memory_utilisation"), lambda: call("nvmlDeviceGetUtilizationRates"))
        if rates is not None:
            sweep.give("utilisation", ratio_from_percent(rates.gpu))
            sweep.give("memory_utilisation", ratio_from_percent(rates.memory))
        self._put_memory(sweep)
        sweep.put_call("sm_clock_hz", (), "nvmlDeviceGetClockInfo", 1, convert=hertz_from_mhz)
        sweep.put_call("memory_clock_hz", (), "nvmlDeviceGetClockInfo", 2, convert=hertz_from_mhz)
        out = FastValues()
        for name, values in sweep.more.items():
            given = values[()]
            if isinstance(given, str):
                out.missing[name] = given
            else:
                out.values[name] = given
        self._put_slow_reasons(sweep, out)
        self._fast_calls = sweep.calls
        _raise_if_all_gone(out)
        return out

    def read_quick(self) -> QuickValues:
        """See `GpuDevice.read_quick`."""
        self._live()
        return self._quick.read()

    def _put_slow_reasons(self, sweep: Sweep, out: FastValues) -> None:
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        try:
            out.slow_bits = int(sweep.first(*(partial(sweep.call, name) for name in names)))
            sweep.came_from("slow")
        except DeviceLostError:
            raise
        except DeviceError as error:
            out.slow_reason = error.reason
        for field_id, name in SLOW_FIELDS_NS.items():
            try:
                out.slow_s[name] = seconds_from_ns(sweep.field(field_id))
                sweep.came_from("slow_s")
            except DeviceLostError:
                raise
            except DeviceError as error:
                out.slow_s_missing[name] = error.reason

    def _energy_j(self, sweep: Sweep) -> float:
        before_s = self._monotonic_s()
        energy_mj = sweep.first(
            lambda: sweep.call("nvmlDeviceGetTotalEnergyConsumption"), lambda: sweep.field(FIELD_ENERGY_MJ)
        )
        energy_j = joules_from_mj(energy_mj)
        after_s = self._monotonic_s()
        if after_s - before_s <= _MAX_CALL_S:
            self._mean_power.add(energy_j, after_s)
        return energy_j

    def _put_power(self, sweep: Sweep, energy_call: str | Field) -> None:
        """Mean power from the energy counter, until then what the board calls its mean; instant power beside it."""
        mean_w = self._mean_power.mean_w()
        if mean_w is None:
            sweep.lacks(("power_energy_w",), DeviceError("the counter has not moved for long enough", "not_read"))
        else:
            sweep.last = energy_call
            sweep.give("power_energy_w", mean_w)
            sweep.give("power_w", mean_w)

        def usage_w() -> float:
            return watts_from_mw(sweep.call("nvmlDeviceGetPowerUsage"))

        def field_w(field: Field) -> float:
            return watts_from_mw(sweep.field(field))

        average = sweep.outcome(FIELD_POWER_AVERAGE_MW)
        sweep.put("power_average_w", lambda: field_w(FIELD_POWER_AVERAGE_MW))
        if mean_w is None:
            sweep.put(
                "power_w", usage_w if isinstance(average, DeviceError) else lambda: field_w(FIELD_POWER_AVERAGE_MW)
            )
        has_average = not isinstance(average, NotSupportedError)
        # Where the board has a mean of its own, its power usage is that mean.
        instant = (lambda: field_w(FIELD_POWER_INSTANT_MW), *(() if has_average else (usage_w,)))
        sweep.put("power_instant_w", lambda: sweep.first(*instant))
        sweep.put("hbm_power_w", lambda: field_w(FIELD_HBM_POWER_MW))
        sweep.put("module_power_w", lambda: field_w(FIELD_MODULE_POWER_MW))

    def _put_memory(self, sweep: Sweep) -> None:
        """The newer structure counts what is reserved apart."""
        memory = sweep.ask(
            ("memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"),
            lambda: sweep.first(
                lambda: sweep.call("nvmlDeviceGetMemoryInfo", self._nvml.memory_v2),
                lambda: sweep.call("nvmlDeviceGetMemoryInfo"),
            ),
        )
        if memory is None:
            return
        sweep.give("memory_used_bytes", memory.used)
        sweep.give("memory_total_bytes", memory.total)
        if hasattr(memory, "reserved"):
            sweep.give("memory_reserved_bytes", memory.reserved)
        else:
            sweep.lacks(("memory_reserved_bytes",), NotSupportedError("the older structure", "not_in_driver"))

    def read_slow(self, *, rare: bool = False, raw_links: bool = False) -> SlowValues:
        """See `GpuDevice.read_slow`."""
        handle, nvml = self._live(), self._nvml
        rare = rare or self._board is None
        link_fields = self._links.fields(nvml, handle, rare=rare, raw=raw_links)
        sweep = Sweep(nvml, handle, [*SLOW_FIELDS, *(RARE_FIELDS if rare else ()), *link_fields])
        links, links_reason = self._links.read(sweep, rare=rare, raw=raw_links)
        read_slow(sweep, self._pcie)
        read_mig(sweep, nvml.memory_v2)
        self._gpm.read(sweep)
        if rare or self._board is None:
            read_rare(sweep)
            self._board = self._board_of(sweep)
        elif self._board.max_w is None:  # a range that was not answered is asked for again
            self._board = structs.replace(self._board, **self._range_w(sweep))
        out = SlowValues(board=self._board, links=links, links_reason=links_reason, rare=rare, more=sweep.more)
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")
        try:
            processes = sweep.first(*(partial(sweep.call, name) for name in names))
        except DeviceLostError:
            raise
        except DeviceError as error:
            out.pids_reason = error.reason
            sweep.lacks(("process_bytes",), error)
        else:
            out.pids = tuple(sorted({int(process.pid) for process in processes}))
            sweep.came_from("pids")
            sweep.lacks(("process_bytes",), DeviceError("no process says how much it uses", "not_read"))
            for process in processes:  # None where the driver hides it, as in MIG mode without rights
                if process.usedGpuMemory is not None:
                    sweep.give("process_bytes", process.usedGpuMemory, str(process.pid))
        out.calls = self._fast_calls | sweep.calls
        return out

    def _range_w(self, sweep: Sweep) -> dict[str, float | None]:
        """The caps that the board accepts, as fields of its `GpuBoard`; none where it cannot be capped."""
        cap = sweep.ask(("cap_min_w", "cap_max_w", "cap_default_w"), self.cap_range_w)
        if cap is None:
            return {}
        sweep.last = "nvmlDeviceGetPowerManagementLimitConstraints"
        sweep.give("cap_min_w", cap.min_w)
        sweep.give("cap_max_w", cap.max_w)
        if cap.default_w is None:
            sweep.lacks(("cap_default_w",), NotSupportedError("the board does not say"))
        else:
            sweep.last = "nvmlDeviceGetPowerManagementDefaultLimit"
            sweep.give("cap_default_w", cap.default_w)
        return {"min_w": cap.min_w, "max_w": cap.max_w, "default_w": cap.default_w}

    def _board_of(self, sweep: Sweep) -> GpuBoard:
        """Limits of the board, from the thresholds that the sweep has read."""
        watts = self._range_w(sweep)
        try:
            sweep.call("nvmlDeviceGetMarginTemperature")
            has_margin = True
        except DeviceLostError:
            raise
        except DeviceError:
            has_margin = False

        def told(quantity: str, kind: str) -> float | None:
            value = sweep.more[quantity].get((kind,))
            return value if isinstance(value, float) and accept(quantity, value) else None

        if has_margin:  # the board's own margin is the truth; the offsets say what happens below zero
            return GpuBoard(
                **watts,
                kind="tlimit",
                max_op_c=told("threshold_offset_c", "max_op") or 0.0,
                slowdown_c=told("threshold_offset_c", "slowdown"),
                shutdown_c=told("threshold_offset_c", "shutdown"),
                hbm_max_op_c=told("threshold_c", "hbm_max_op"),
            )
        shutdown_c, slowdown_c, hbm_max_op_c, max_op_c = (told("threshold_c", kind) for kind in THRESHOLDS)
        return GpuBoard(
            **watts,
            kind=None if max_op_c is None and slowdown_c is None else "absolute",
            max_op_c=max_op_c,
            slowdown_c=slowdown_c,
            shutdown_c=shutdown_c,
            hbm_max_op_c=hbm_max_op_c,
        )

    def cap_range_w(self) -> CapRange:
        """See `GpuDevice.cap_range_w`."""
        handle = self._live()
        low, high, default = self._nvml.fields(handle, (FIELD_CAP_MIN_MW, FIELD_CAP_MAX_MW, FIELD_CAP_DEFAULT_MW))
        try:
            low, high = self._nvml.call("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        except NotSupportedError:
            if isinstance(low, DeviceError) or isinstance(high, DeviceError):
                raise
        try:
            default = self._nvml.call("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        except DeviceLostError:
            raise
        except DeviceError:
            pass  # the field, or no default known
        assert not isinstance(low, DeviceError)
        assert not isinstance(high, DeviceError)
        if not 0 < low <= high <= _MOST_LIMIT_MW:
            raise DeviceError(f"{low} to {high} mW is no range of power limits", "implausible")
        default_w = None if isinstance(default, DeviceError) or default > high else watts_from_mw(default)
        return CapRange(min_w=watts_from_mw(low), max_w=watts_from_mw(high), default_w=default_w)

    def get_cap_w(self) -> float:
        """See `GpuDevice.get_cap_w`."""
        return self._limit_w(Sweep(self._nvml, self._live()), "nvmlDeviceGetPowerManagementLimit", FIELD_CAP_MW)

    def enforced_w(self) -> float:
        """See `GpuDevice.enforced_w`."""
        return self._limit_w(Sweep(self._nvml, self._live()), "nvmlDeviceGetEnforcedPowerLimit", FIELD_ENFORCED_MW)

    @staticmethod
    def _limit_w(sweep: Sweep, name: str, field_id: int) -> float:
        def field() -> float:
            (value,) = sweep.nvml.fields(sweep.handle, (field_id,))
            if isinstance(value, DeviceError):
                raise value
            sweep.last = field_id
            return value

        limit_mw = sweep.first(lambda: sweep.call(name), field)
        if not 0 < limit_mw <= _MOST_LIMIT_MW:  # what is taken for the limit before us is what we go back to
            raise DeviceError(f"{limit_mw} mW is no power limit", "implausible")
        return watts_from_mw(limit_mw)

    def set_cap_w(self, w: float) -> None:
        """See `GpuDevice.set_cap_w`."""
        if not math.isfinite(w) or not 0 < w < 1e6:
            raise DeviceError(f"power cap {w} W is no power", "out_of_range")
        try:
            self._nvml.call("nvmlDeviceSetPowerManagementLimit", self._live(), mw_from_watts(w))
        except DeviceError as error:
            if error.reason == REASONS[INVALID_ARGUMENT_CODE]:
                raise DeviceError(f"power cap {w:g} W: refused by the board as out of range", "out_of_range") from error
            raise

    def probe_write_permission(self) -> str | None:
        """The driver asks for CAP_SYS_ADMIN, whatever the uid: so do we, of our own process."""
        try:
            for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("CapEff:"):
                    effective = int(line.split()[1], 16)
                    return None if effective >> _CAP_SYS_ADMIN_BIT & 1 else NoPermissionError.reason
        except (OSError, ValueError):
            pass
        return None


def _raise_if_all_gone(out: FastValues) -> None:
    """UNKNOWN for everything is how some drivers say that the GPU is gone; a dead driver is told apart."""
    if out.values or out.slow_bits is not None:
        return
    reasons = set(out.missing.values())
    for reason in reasons & DRIVER_REASONS:
        raise DeviceError(f"no answer from the driver: {reason.replace('_', ' ')}", reason)
    if REASONS[UNKNOWN_CODE] in reasons:
        raise DeviceLostError(f"every call fails with an unknown error (NVML {UNKNOWN_CODE})")
