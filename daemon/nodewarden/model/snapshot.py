"""The newest reading of everything on this node, and what is missing and why. Built by sampling, read by all others.

All times are CLOCK_BOOTTIME seconds.
"""

from typing import Final, Literal

import msgspec

from nodewarden.model.bmc import BmcSnapshot
from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.host import HostSnapshot
from nodewarden.model.quantity import Labels
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.workload import Workload
from nodewarden.model.xids import GpuXids, SwitchErrors

Number = Reading[float] | Absent | Failed
Words = Reading[tuple[str, ...]] | Absent | Failed

GpuHealth = Literal["ok", "unresponsive", "lost", "absent", "released"]

# Names of the clocks-event reasons: NVML's bits, in the words that people see. Order is the bit order.
SLOW_REASONS = (
    "idle",
    "app_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display",
    "board_limit",
    "reliability",
)


class LinkState(msgspec.Struct, frozen=True):
    """One NVLink of one GPU. Byte counters are cumulative payload bytes; None where the driver gives none.

    present: it was active at least once since the agent started; a link that never was is no link that is down.
    """

    link: int
    active: bool
    tx_bytes: float | None = None
    rx_bytes: float | None = None
    present: bool = True


class GpuBoard(msgspec.Struct, frozen=True):
    """What the board says of itself. Watts and degC; None where it does not say.

    kind "tlimit" (Hopper and newer): the signed T.Limit margin is the truth, `slowdown_c` and `shutdown_c` are offsets
    to T.Limit 0 (such as -2, -8) and `max_op_c` is 0. kind "absolute" (Ampere): thresholds in degC.
    """

    min_w: float | None = None
    max_w: float | None = None
    default_w: float | None = None
    kind: Literal["tlimit", "absolute"] | None = None
    max_op_c: float | None = None
    slowdown_c: float | None = None
    shutdown_c: float | None = None
    hbm_max_op_c: float | None = None


class GpuSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The newest readings of one GPU.

    Attributes:
        health: "ok"; "unresponsive" (calls hang); "lost" (fell off the bus, needs a reset); "absent" (was here before);
            "released" (we let go of it, as asked, until `released_until_s`).
        health_since_s: since when it is in that state; health_text says what is known of the cause.
        power_w: mean over about 1 s (energy counter, or the board's own 1 s average).
        margin_c: the board's own signed margin to its nearest limit (T.Limit), positive when safe.
        cap_w: the power limit that clients asked for; enforced_w: the lowest of all limiters, out-of-band included.
        slow: names of active clocks-event reasons (`SLOW_REASONS`).
        slow_s: cumulative seconds per reason from the driver's own counters.
        more: all other quantities of `gpu_quantities.GPU_QUANTITIES`, by name, then by the values of its labels. Where
            a quantity is missing as a whole, the reason is under no labels: use `number` and `series`.
        calls: quantity -> the driver call that gave it.
    """

    uuid: str
    index: int | None = None
    model: str = ""
    pci_bus_id: str = ""
    health: GpuHealth = "ok"
    health_since_s: float = 0.0
    health_text: str = ""
    released_until_s: float | None = None
    board: GpuBoard = GpuBoard()
    junction_c: Number = Absent("not_read")
    hbm_c: Number = Absent("not_read")
    margin_c: Number = Absent("not_read")
    power_w: Number = Absent("not_read")
    power_instant_w: Number = Absent("not_read")
    energy_j: Number = Absent("not_read")
    cap_w: Number = Absent("not_read")
    enforced_w: Number = Absent("not_read")
    utilisation: Number = Absent("not_read")
    memory_used_bytes: Number = Absent("not_read")
    memory_total_bytes: Number = Absent("not_read")
    sm_clock_hz: Number = Absent("not_read")
    memory_clock_hz: Number = Absent("not_read")
    slow: Words = Absent("not_read")
    slow_s: dict[str, Number] = {}
    links: tuple[LinkState, ...] = ()
    links_taken_at_s: float | None = None
    pids: Reading[tuple[int, ...]] | Absent | Failed = Absent("not_read")
    more: dict[str, dict[Labels, Number]] = {}
    calls: dict[str, str] = {}

    def number(self, quantity: str, *labels: str) -> Number:
        """One quantity by its name in `GPU_QUANTITIES` and the values of its labels; else why it is missing."""
        if quantity in FAST_QUANTITIES:
            found: Number = getattr(self, quantity)
            return found
        values = self.series(quantity)
        missing = values.get((), NOT_READ)
        return values.get(labels, NOT_READ if isinstance(missing, Reading) else missing)

    def series(self, quantity: str) -> dict[Labels, Number]:
        """All values of a quantity by its labels; a reason under no labels where it is missing as a whole."""
        if quantity == "slow_s":
            return {(reason,): seconds for reason, seconds in self.slow_s.items()}
        if quantity == "slow":
            slow = self.slow
            if not isinstance(slow, Reading):
                return {(): slow}
            return {(reason,): Reading(float(reason in slow.value), slow.taken_at_s) for reason in SLOW_REASONS}
        if quantity == "pids":
            pids = self.pids
            return {(): Reading(float(len(pids.value)), pids.taken_at_s) if isinstance(pids, Reading) else pids}
        of_link = _OF_LINK.get(quantity)
        if of_link is None:
            return self.more.get(quantity, {})
        found: dict[Labels, Number] = {
            (str(link.link),): Reading(float(value), self.links_taken_at_s or 0.0)
            for link in self.links
            if (value := getattr(link, of_link)) is not None
        }
        return found or self.more.get(quantity, {})

    @property
    def name(self) -> str:
        """How people call it: "GPU 5" where the index is known, else the uuid."""
        return self.uuid if self.index is None else f"GPU {self.index}"


NOT_READ: Final = Absent("not_read")
_OF_LINK: Final = {"nvlink_up": "active", "nvlink_transmit_bytes": "tx_bytes", "nvlink_receive_bytes": "rx_bytes"}

FAST_QUANTITIES: Final = (
    "junction_c",
    "hbm_c",
    "margin_c",
    "power_w",
    "power_instant_w",
    "energy_j",
    "cap_w",
    "enforced_w",
    "utilisation",
    "memory_used_bytes",
    "memory_total_bytes",
    "sm_clock_hz",
    "memory_clock_hz",
)
"""The numbers that are attributes of a `GpuSnapshot`, for what decides; all others are in `more`."""


class PhaseSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One phase or input line of a PDU; `id` as the device spells it ("L1")."""

    id: str
    voltage_v: float | None = None
    current_a: float | None = None
    power_w: float | None = None
    apparent_va: float | None = None
    power_factor: float | None = None
    energy_wh: float | None = None
    load_state: str | None = None


class BankSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One bank (breaker) of a PDU."""

    id: str
    current_a: float | None = None
    load_state: str | None = None


class OutletSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One outlet of a PDU; `state` is "on", "off", or None where the device does not say."""

    index: int
    name: str = ""
    current_a: float | None = None
    voltage_v: float | None = None
    power_w: float | None = None
    apparent_va: float | None = None
    energy_wh: float | None = None
    power_factor: float | None = None
    state: str | None = None


class PduSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The newest readings of one PDU.

    Attributes:
        name: from the configuration.
        up: the last poll was answered; `since_s` is when that last changed.
        outlets_w: power of this node's outlets together, the quantity that `limit_w` bounds.
        rated_w, rated_a: what the PDU and each of its phases may carry, from the configuration.
        suspect: key paths of quantities that contradict others; shown, never used for control.
        estimated: key paths that the device computed from configured values rather than measured.
    """

    name: str
    feed: str = ""
    vendor: str = ""
    model: str = ""
    profile: str = ""
    up: bool = False
    since_s: float = 0.0
    reason: str | None = None
    limit_w: float | None = None
    mapped_outlets: tuple[int, ...] = ()
    power_w: Number = Absent("not_read")
    apparent_va: Number = Absent("not_read")
    power_factor: Number = Absent("not_read")
    energy_wh: Number = Absent("not_read")
    outlets_w: Number = Absent("not_read")
    rated_w: float | None = None
    rated_a: float | None = None
    phases: tuple[PhaseSnapshot, ...] = ()
    banks: tuple[BankSnapshot, ...] = ()
    outlets: tuple[OutletSnapshot, ...] = ()
    suspect: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()


JobState = Literal["running", "throttled", "checkpointing", "paused", "stopping", "lost"]


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One training job on this node, as its ranks report it.

    Attributes:
        ckpt_s: seconds that a save is expected to take (declared or measured), None when unknown.
        duty: share of time that the job is asked to run, 1 = not throttled.
        last_checkpoint_at_s: when the last save was persisted.
    """

    id: str
    gpus: tuple[str, ...] = ()
    ranks: int = 0
    world: int = 0
    framework: str = ""
    step: int | None = None
    steps_per_s: float | None = None
    ckpt_s: float | None = None
    state: JobState = "running"
    duty: float = 1.0
    capabilities: tuple[str, ...] = ()
    verified: bool = False
    pids: tuple[int, ...] = ()
    last_checkpoint_at_s: float | None = None
    last_checkpoint_path: str | None = None
    pg_timeout_s: float | None = None


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one source is doing, as its loop saw it.

    Attributes:
        name: such as "gpu/GPU-…", "gpu_slow/GPU-…", "pdu/rack12-a".
        up: the last read was answered in time.
        last_success_s: when it last was, None when never.
        duration_s: how long the last answered read took.
        errors: how many reads failed, by reason.
        skipped: ticks that were skipped because the one before was late.
        stale_after_s: age from which its readings are not used.
    """

    name: str
    up: bool = False
    since_s: float = 0.0
    last_success_s: float | None = None
    duration_s: float | None = None
    errors: dict[str, int] = {}
    rejected: dict[str, int] = {}
    skipped: int = 0
    stale_after_s: float = 3.0
    reason: str | None = None

    def is_stale(self, now_s: float) -> bool:
        """True when it never answered or its last answer is too old to trust."""
        return self.last_success_s is None or now_s - self.last_success_s > self.stale_after_s


HelperState = Literal["ok", "missing", "foreign", "unresponsive", "busy"]


class HelperStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent knows of the GPU helper.

    Attributes:
        state: "ok"; "missing" (no socket); "foreign" (another user's); "unresponsive"; "busy" (serves another agent).
        driver: "ok", or why the helper has no driver ("library_not_found", "driver_not_loaded", "version_mismatch").
        can_write: False with `write_reason` where caps cannot be set.
        pid, uid: of the helper, where known.
        ledger_problem: why the ledger of caps cannot be written, None = it can.
    """

    state: HelperState = "missing"
    since_s: float = 0.0
    driver: str = "unknown"
    driver_since_s: float = 0.0
    can_write: bool = False
    write_reason: str | None = None
    pid: int | None = None
    uid: int | None = None
    text: str = ""
    ledger_problem: str | None = None


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The newest reading of everything.

    Attributes:
        taken_at_s: when this snapshot was put together.
        outlets: power of this node's outlets per limit name (a PDU of the configuration), for the policy.
        feeds: the power feeds that the PDUs hang on, by name.
        xids: errors of each GPU that had any, by uuid ("pci-ADDRESS" where none is known there).
        switches: errors of NVSwitches that had any, by PCI address.
        workloads: processes and jobs per GPU, whether or not the jobs are connected.
    """

    taken_at_s: float = 0.0
    gpus: dict[str, GpuSnapshot] = {}
    pdus: dict[str, PduSnapshot] = {}
    outlets: dict[str, Number] = {}
    feeds: dict[str, FeedSnapshot] = {}
    host: HostSnapshot = HostSnapshot()
    bmc: BmcSnapshot = BmcSnapshot()
    jobs: tuple[JobSnapshot, ...] = ()
    xids: dict[str, GpuXids] = {}
    switches: dict[str, SwitchErrors] = {}
    workloads: dict[str, Workload] = {}
    sources: dict[str, SourceStatus] = {}
    helper: HelperStatus = HelperStatus()

    def gpu_name(self, uuid: str) -> str:
        """How people call a GPU: "GPU 5" where its index is known, else the uuid."""
        gpu = self.gpus.get(uuid)
        return uuid if gpu is None else gpu.name
