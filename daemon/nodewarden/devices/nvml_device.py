"""One GPU on NVML. Models are never told apart by name: what answers is used, and what does not costs only itself."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodewarden.devices.gpu_library import CapRange, FastValues, GpuIdentity, SlowValues
from nodewarden.devices.mean_power import MeanPower
from nodewarden.devices.nvml_calls import DRIVER_REASONS, INVALID_ARGUMENT_CODE, REASONS, UNKNOWN_CODE, NvmlCalls
from nodewarden.errors import DeviceError, DeviceLostError, NoPermissionError, NotSupportedError
from nodewarden.model.snapshot import GpuBoard, LinkState
from nodewarden.units import (
    bytes_from_kib,
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
FIELD_LINK_COUNT = 91
FIELD_LINK_TX_KIB = 138
FIELD_LINK_RX_KIB = 139
FIELD_POWER_AVERAGE_MW = 185
FIELD_POWER_INSTANT_MW = 186
FIELD_CAP_MIN_MW = 187
FIELD_CAP_MAX_MW = 188
FIELD_CAP_DEFAULT_MW = 189
FIELD_ENFORCED_MW = 190
FIELD_CAP_MW = 192
FIELD_SHUTDOWN_TLIMIT_C = 193
FIELD_SLOWDOWN_TLIMIT_C = 194
FIELD_MAX_OP_TLIMIT_C = 196
FIELD_LINK_TX_BYTES = 202  # boards after Hopper count payload bytes here
FIELD_LINK_RX_BYTES = 204
SLOW_FIELDS_NS = {
    74: "sw_power_cap",
    76: "sync_boost",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "hw_power_brake",
}
FAST_FIELDS = (FIELD_HBM_C, FIELD_ENERGY_MJ, FIELD_POWER_AVERAGE_MW, FIELD_POWER_INSTANT_MW, *SLOW_FIELDS_NS)

_MAX_LINKS = 18  # where the board does not say how many NVLinks it has
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

    def drop(self) -> None:
        """Forget the handle: after a shutdown it may point anywhere."""
        self._handle = None

    def _live(self) -> Any:
        if self._handle is None:
            raise DeviceLostError(f"GPU {self.identity.index}: the library was closed")
        return self._handle

    def read_fast(self) -> FastValues:
        """See `GpuDevice.read_fast`."""
        handle, nvml = self._live(), self._nvml
        out = FastValues()
        fields = dict(zip(FAST_FIELDS, nvml.fields(handle, FAST_FIELDS), strict=True))

        def put(name: str, ask: Callable[[], float]) -> None:
            try:
                out.values[name] = ask()
            except DeviceLostError:
                raise
            except DeviceError as error:
                out.missing[name] = error.reason

        def field(field_id: int) -> float:
            value = fields[field_id]
            if isinstance(value, DeviceError):
                raise value
            return value

        temperature = (("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0))
        put("junction_c", lambda: float(nvml.first(handle, *temperature)))
        put("hbm_c", lambda: float(field(FIELD_HBM_C)))
        put("margin_c", lambda: float(nvml.call("nvmlDeviceGetMarginTemperature", handle)))
        put("energy_j", lambda: self._energy_j(handle, fields[FIELD_ENERGY_MJ]))
        self._put_power(handle, put, fields[FIELD_POWER_AVERAGE_MW], fields[FIELD_POWER_INSTANT_MW])
        put("cap_w", self.get_cap_w)
        put("enforced_w", self.enforced_w)
        put("utilisation", lambda: ratio_from_percent(nvml.call("nvmlDeviceGetUtilizationRates", handle).gpu))
        self._put_memory(handle, out)
        put("sm_clock_hz", lambda: hertz_from_mhz(nvml.call("nvmlDeviceGetClockInfo", handle, 1)))
        put("memory_clock_hz", lambda: hertz_from_mhz(nvml.call("nvmlDeviceGetClockInfo", handle, 2)))
        reasons = (("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",))
        try:
            out.slow_bits = int(nvml.first(handle, *reasons))
        except DeviceLostError:
            raise
        except DeviceError as error:
            out.slow_reason = error.reason
        for field_id, name in SLOW_FIELDS_NS.items():
            value = fields[field_id]
            if isinstance(value, DeviceError):
                out.slow_s_missing[name] = value.reason
            else:
                out.slow_s[name] = seconds_from_ns(value)
        _raise_if_all_gone(out)
        return out

    def _energy_j(self, handle: Any, field: float | DeviceError) -> float:
        before_s = self._monotonic_s()
        try:
            energy_mj = self._nvml.call("nvmlDeviceGetTotalEnergyConsumption", handle)
        except NotSupportedError:
            if isinstance(field, DeviceError):
                raise
            energy_mj = field
        energy_j = joules_from_mj(energy_mj)
        after_s = self._monotonic_s()
        if after_s - before_s <= _MAX_CALL_S:
            self._mean_power.add(energy_j, after_s)
        return energy_j

    def _put_power(
        self,
        handle: Any,
        put: Callable[[str, Callable[[], float]], None],
        average: float | DeviceError,
        instant: float | DeviceError,
    ) -> None:
        """Mean power from the energy counter, until then what the board calls its mean; instant power beside it."""
        mean_w = self._mean_power.mean_w()

        def usage_w() -> float:
            return watts_from_mw(self._nvml.call("nvmlDeviceGetPowerUsage", handle))

        def power_w() -> float:
            if mean_w is not None:
                return mean_w
            return usage_w() if isinstance(average, DeviceError) else watts_from_mw(average)

        def instant_w() -> float:
            if not isinstance(instant, DeviceError):
                return watts_from_mw(instant)
            if not isinstance(average, NotSupportedError):
                raise instant  # where the board has a mean of its own, its power usage is that mean
            return usage_w()

        put("power_w", power_w)
        put("power_instant_w", instant_w)

    def _put_memory(self, handle: Any, out: FastValues) -> None:
        versions = ((self._nvml.memory_v2,), ())  # the newer structure counts what is reserved apart
        for position, version in enumerate(versions):
            try:
                memory = self._nvml.call("nvmlDeviceGetMemoryInfo", handle, *version)
            except DeviceLostError:
                raise
            except DeviceError as error:
                if position == len(versions) - 1:
                    out.missing["memory_used_bytes"] = out.missing["memory_total_bytes"] = error.reason
            else:
                out.values["memory_used_bytes"] = float(memory.used)
                out.values["memory_total_bytes"] = float(memory.total)
                return

    def read_slow(self) -> SlowValues:
        """See `GpuDevice.read_slow`."""
        handle = self._live()
        out = SlowValues(board=self._board(handle))
        self._put_links(handle, out)
        names = (("nvmlDeviceGetComputeRunningProcesses",), ("nvmlDeviceGetComputeRunningProcesses_v2",))
        try:
            out.pids = tuple(sorted({int(process.pid) for process in self._nvml.first(handle, *names)}))
        except DeviceLostError:
            raise
        except DeviceError as error:
            out.pids_reason = error.reason
        return out

    def _board(self, handle: Any) -> GpuBoard:
        nvml = self._nvml
        try:
            cap = self.cap_range_w()
        except DeviceLostError:
            raise
        except DeviceError:
            cap = None
        shutdown, slowdown, max_op = nvml.fields(
            handle, (FIELD_SHUTDOWN_TLIMIT_C, FIELD_SLOWDOWN_TLIMIT_C, FIELD_MAX_OP_TLIMIT_C)
        )

        def threshold_c(number: int) -> float | None:
            try:
                return float(nvml.call("nvmlDeviceGetTemperatureThreshold", handle, number))
            except DeviceLostError:
                raise
            except DeviceError:
                return None

        try:
            nvml.call("nvmlDeviceGetMarginTemperature", handle)
            has_margin = True
        except DeviceLostError:
            raise
        except DeviceError:
            has_margin = False
        watts = {} if cap is None else {"min_w": cap.min_w, "max_w": cap.max_w, "default_w": cap.default_w}
        if has_margin:  # the board's own margin is the truth; the offsets say what happens below zero
            return GpuBoard(
                **watts,
                kind="tlimit",
                max_op_c=0.0 if isinstance(max_op, DeviceError) else float(max_op),
                slowdown_c=None if isinstance(slowdown, DeviceError) else float(slowdown),
                shutdown_c=None if isinstance(shutdown, DeviceError) else float(shutdown),
                hbm_max_op_c=threshold_c(2),
            )
        shutdown_c, slowdown_c, hbm_max_op_c, max_op_c = (threshold_c(number) for number in range(4))
        return GpuBoard(
            **watts,
            kind=None if max_op_c is None and slowdown_c is None else "absolute",
            max_op_c=max_op_c,
            slowdown_c=slowdown_c,
            shutdown_c=shutdown_c,
            hbm_max_op_c=hbm_max_op_c,
        )

    def _put_links(self, handle: Any, out: SlowValues) -> None:
        (count,) = self._nvml.fields(handle, (FIELD_LINK_COUNT,))
        states: list[tuple[int, bool]] = []
        for link in range(_MAX_LINKS if isinstance(count, DeviceError) else int(count)):
            try:
                states.append((link, bool(self._nvml.call("nvmlDeviceGetNvLinkState", handle, link))))
            except DeviceLostError:
                raise
            except DeviceError as error:
                out.links_reason = error.reason
                if isinstance(count, DeviceError):  # asked past the last link
                    break
        if not states:
            out.links_reason = out.links_reason or "not_supported"
            return
        out.links_reason = None
        numbers = [link for link, _ in states]
        kib = self._nvml.fields(
            handle, [(field, link) for link in numbers for field in (FIELD_LINK_TX_KIB, FIELD_LINK_RX_KIB)]
        )
        counters: list[float | DeviceError] = [
            value if isinstance(value, DeviceError) else bytes_from_kib(value) for value in kib
        ]
        if all(isinstance(value, NotSupportedError) for value in counters):
            counters = self._nvml.fields(
                handle, [(field, link) for link in numbers for field in (FIELD_LINK_TX_BYTES, FIELD_LINK_RX_BYTES)]
            )
        first = counters[0]
        if isinstance(first, DeviceError) and all(isinstance(value, DeviceError) for value in counters):
            out.links_reason = first.reason
        out.links = tuple(
            LinkState(link, active, _bytes(counters[2 * position]), _bytes(counters[2 * position + 1]))
            for position, (link, active) in enumerate(states)
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
        return self._limit_w("nvmlDeviceGetPowerManagementLimit", FIELD_CAP_MW)

    def enforced_w(self) -> float:
        """See `GpuDevice.enforced_w`."""
        return self._limit_w("nvmlDeviceGetEnforcedPowerLimit", FIELD_ENFORCED_MW)

    def _limit_w(self, name: str, field_id: int) -> float:
        handle = self._live()
        try:
            limit_mw = self._nvml.call(name, handle)
        except NotSupportedError:
            (value,) = self._nvml.fields(handle, (field_id,))
            if isinstance(value, DeviceError):
                raise
            limit_mw = value
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


def _bytes(value: float | DeviceError) -> float | None:
    return None if isinstance(value, DeviceError) else float(value)


def _raise_if_all_gone(out: FastValues) -> None:
    """UNKNOWN for everything is how some drivers say that the GPU is gone; a dead driver is told apart."""
    if out.values or out.slow_bits is not None:
        return
    reasons = set(out.missing.values())
    for reason in reasons & DRIVER_REASONS:
        raise DeviceError(f"no answer from the driver: {reason.replace('_', ' ')}", reason)
    if REASONS[UNKNOWN_CODE] in reasons:
        raise DeviceLostError("every call fails with an unknown error: the GPU is lost")
