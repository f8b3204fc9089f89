"""GPM: what the SMs did between two samples (Hopper and newer). It takes no exclusive counter.

Two sample objects belong to one device object, which belongs to one uuid; MIG instance ids, which are reused at once,
play no part. They are freed before the library is closed.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from nodewarden.devices.nvml_calls import NvmlCalls
from nodewarden.devices.nvml_sweep import Sweep
from nodewarden.errors import DeviceError, NotSupportedError
from nodewarden.units import bytes_per_s_from_mibps, ratio_from_percent

MIN_SPAN_S = 0.2
"""NVML wants samples to be more than 100 ms apart."""
MAX_SPAN_S = 900.0
"""Over a longer span the mean would describe the past, not now."""

_METRICS: Final[dict[int, tuple[str, tuple[str, ...], Callable[[float], float]]]] = {
    1: ("graphics_active", (), ratio_from_percent),
    2: ("sm_active", (), ratio_from_percent),
    3: ("sm_occupancy", (), ratio_from_percent),
    5: ("tensor_active", (), ratio_from_percent),
    10: ("dram_active", (), ratio_from_percent),
    20: ("pcie_rate", ("transmit",), bytes_per_s_from_mibps),
    21: ("pcie_rate", ("receive",), bytes_per_s_from_mibps),
    60: ("nvlink_rate", ("receive",), bytes_per_s_from_mibps),
    61: ("nvlink_rate", ("transmit",), bytes_per_s_from_mibps),
}
QUANTITIES: Final = tuple(dict.fromkeys(quantity for quantity, _, _ in _METRICS.values()))


class Gpm:
    """The samples of one GPU."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._free: list[Any] = []  # allocated, not in use
        self._before: tuple[float, Any] | None = None
        self._nvml: NvmlCalls | None = None

    def read(self, sweep: Sweep) -> None:
        """Means since the read before. Where there is nothing new to tell yet, nothing is told."""
        sweep.ask(QUANTITIES, lambda: self._read(sweep))

    def _read(self, sweep: Sweep) -> None:
        support = sweep.call("nvmlGpmQueryDeviceSupport")
        if not support.isSupportedDevice:
            raise NotSupportedError("GPM: this board has none")
        before = self._before
        now_s = self._monotonic_s()
        if before is not None and now_s - before[0] < MIN_SPAN_S:
            return
        self._nvml = sweep.nvml
        sample = self._free.pop() if self._free else sweep.nvml.call("nvmlGpmSampleAlloc")
        try:
            sweep.call("nvmlGpmSampleGet", sample)
        except DeviceError:
            self._free.append(sample)
            raise
        self._before = (now_s, sample)
        if before is not None:
            self._free.append(before[1])
            if now_s - before[0] <= MAX_SPAN_S:
                self._put(sweep, before[1], sample)

    def _put(self, sweep: Sweep, before: Any, after: Any) -> None:
        wanted = sweep.nvml.named("c_nvmlGpmMetricsGet_t")()
        wanted.version = sweep.nvml.named("NVML_GPM_METRICS_GET_VERSION")
        wanted.numMetrics = len(_METRICS)
        wanted.sample1, wanted.sample2 = before, after
        for place, number in enumerate(_METRICS):
            wanted.metrics[place].metricId = number
        sweep.nvml.call("nvmlGpmMetricsGet", wanted)
        sweep.last = "nvmlGpmMetricsGet"
        for place, (quantity, labels, convert) in enumerate(_METRICS.values()):
            metric = wanted.metrics[place]
            if metric.nvmlReturn:
                sweep.put(quantity, partial(sweep.nvml.refuse, metric.nvmlReturn, "GPM metric"), *labels)
            else:
                sweep.give(quantity, convert(metric.value), *labels)

    def drop(self) -> None:
        """Free the samples; called before the library is closed, never while a read is on its way."""
        samples = [*self._free, *([self._before[1]] if self._before else [])]
        self._free, self._before = [], None
        for sample in samples:
            if self._nvml is not None:
                with contextlib.suppress(DeviceError):
                    self._nvml.call("nvmlGpmSampleFree", sample)
