"""What the GPU helper needs of a GPU library: two Protocols and their plain data.

`devices.nvml` implements them on NVML; the digital twin implements them on its plant. Everything is in SI units; all
calls block, may hang, and are made from several threads at once (one reader and one writer per GPU).
"""

from collections.abc import Hashable, Sequence
from typing import Protocol

import msgspec

from nodewarden.model.quantity import Labels
from nodewarden.model.snapshot import GpuBoard, LinkState


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPU this is. `uuid` is the identity; the rest is shown to people, and may be another after a reset.

    `minor` is the number of its device file, None where the driver does not say.
    """

    uuid: str
    index: int
    model: str = ""
    pci_bus_id: str = ""
    minor: int | None = None


class FastValues(msgspec.Struct, kw_only=True):
    """What one fast read gave. Every one of `FAST_READ` is in `values` or in `missing`, never in both.

    Attributes:
        values: quantity -> value in SI units (degC, W, J, Hz, bytes, ratio 0 to 1).
        missing: quantity -> why it has no value: a reason of `errors.DeviceError`, such as "not_supported".
        slow_bits: NVML's bitmask of clocks-event reasons, None with `slow_reason` where there is none.
        slow_s, slow_s_missing: cumulative seconds per reason name of `model.snapshot.SLOW_REASONS`, or why not.
    """

    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    slow_bits: int | None = None
    slow_reason: str | None = None
    slow_s: dict[str, float] = {}
    slow_s_missing: dict[str, str] = {}


class SlowValues(msgspec.Struct, kw_only=True):
    """What one slow read gave; `links_reason` and `pids_reason` say why there are none.

    Attributes:
        rare: the rare set was read too.
        more: quantity -> values of its labels -> value in SI units, or the reason why there is none; a reason under no
            labels stands for the whole quantity.
        calls: quantity -> the driver call that gave it, as far as known.
    """

    board: GpuBoard = GpuBoard()
    links: tuple[LinkState, ...] = ()
    links_reason: str | None = None
    pids: tuple[int, ...] | None = None
    pids_reason: str | None = None
    rare: bool = False
    more: dict[str, dict[Labels, float | str]] = {}
    calls: dict[str, str] = {}


class XidEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the driver reported of a GPU, "" when it does not say of which."""

    uuid: str
    xid: int


class QuickValues(msgspec.Struct, kw_only=True):
    """What one quick read gave; None where there is nothing, which the fast read explains. Same units and names."""

    junction_c: float | None = None
    hbm_c: float | None = None
    margin_c: float | None = None
    power_instant_w: float | None = None


class CapRange(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in watts that the board accepts, and the one it starts with (None = it does not say)."""

    min_w: float
    max_w: float
    default_w: float | None = None


class GpuDevice(Protocol):
    """One GPU. A quantity that is missing costs only itself; `DeviceLostError` means the whole GPU is gone."""

    @property
    def identity(self) -> GpuIdentity:
        """Known without a driver call."""
        ...

    def read_fast(self) -> FastValues:
        """Temperatures, margin, power, clocks, event reasons and caps. Raises DeviceLostError, DeviceError."""
        ...

    def read_slow(self, *, rare: bool = False, raw_links: bool = False) -> SlowValues:
        """The slow set, with rare the rare set too, with raw_links the NVLink bytes with protocol overhead.

        Raises DeviceLostError, DeviceError.
        """
        ...

    def read_quick(self) -> QuickValues:
        """Temperatures and instant power, by as few calls as there are. Raises DeviceLostError, DeviceError."""
        ...

    def cap_range_w(self) -> CapRange:
        """Watts that `set_cap_w` accepts. Raises DeviceError."""
        ...

    def get_cap_w(self) -> float:
        """The limit in watts that was last asked for by anybody. Raises DeviceError."""
        ...

    def enforced_w(self) -> float:
        """The lowest of all limiters in watts, out-of-band ones included. Raises DeviceError."""
        ...

    def set_cap_w(self, w: float) -> None:
        """Ask for a power limit in watts, rounded to whole milliwatts.

        Raises NoPermissionError, DeviceError with reason "out_of_range", DeviceLostError, DeviceError.
        """
        ...

    def probe_write_permission(self) -> str | None:
        """None, or why `set_cap_w` is expected to be refused (such as "no_permission"). Changes nothing."""
        ...


class GpuLibrary(Protocol):
    """The library as a whole. `open` after `close` looks for everything again."""

    def open(self, spared: Sequence[GpuIdentity] = ()) -> None:
        """Load and initialise. The `spared` GPUs are not touched until the next `open`, and left out of `devices`.

        Raises DeviceError, reason "library_not_found", "driver_not_loaded", "version_mismatch", "no_permission" or
        "error". May be called again after it failed.
        """
        ...

    def close(self) -> None:
        """Shut down; never called while another call is in flight. Devices of before must not be used afterwards."""
        ...

    def devices(self) -> list[GpuDevice]:
        """The GPUs that answer now, in index order; the same objects as before where nothing changed.

        A GPU that is lost is left out and counted in `trouble`. Raises DeviceError only when none can be listed.
        """
        ...

    @property
    def trouble(self) -> str:
        """What the last `devices` could not reach, in words; empty = nothing."""
        ...

    @property
    def driver_version(self) -> str:
        """As the driver spells it; empty when unknown or not open."""
        ...

    def held_files(self) -> list[str]:
        """Device files that this process has open though they are of no GPU in `devices`; all, when not open."""
        ...

    def wait_for_errors(self, timeout_s: float) -> list[XidEvent]:
        """Errors that the driver has reported since the last call; none after so many real seconds.

        Blocks, and keeps the library from being closed as long; one thread calls it. Raises NotSupportedError where the
        driver reports none, DeviceError.
        """
        ...

    def traces(self, gpu: GpuIdentity) -> Hashable:
        """What shows of a GPU without touching it, None = nothing: another answer means that it was set up anew."""
        ...
