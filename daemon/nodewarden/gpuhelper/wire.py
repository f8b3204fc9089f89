"""What the agent and the GPU helper say to each other over gpu.sock.

Framing: 4 bytes little-endian length, then one msgpack map; a frame is at most `MAX_FRAME_BYTES`. Requests carry an
`id` and are answered by replies with that `id`, in any order. `read_fast` and `read_slow` are answered by one reply per
named GPU, each carrying its `uuid`, so that one hung GPU delays only itself. All times are CLOCK_BOOTTIME seconds,
shared by both processes; watts are SI.
"""

from typing import Literal

import msgspec

MAX_FRAME_BYTES = 1 << 20
HEADER_BYTES = 4
PROTOCOL = 1

ErrorCode = Literal[
    "bad_request",  # not understood, or an argument of the wrong kind
    "out_of_range",  # the board does not accept this value; the message names the range
    "unknown_gpu",  # no such uuid
    "busy",  # the call before on this GPU has not come back
    "not_adopted",  # writes need a hello first
    "foreign",  # another agent owns this helper, or the peer has no right
    "locked",  # another process may write this GPU; the message names its pid
    "no_permission",
    "not_supported",
    "lost",
    "released",  # we let go of it for a while, as asked
    "driver_missing",  # no library or no driver
    "ledger_failed",  # the ledger cannot be written, so no new GPU is taken over
    "failed",
]

ReadKind = Literal["fast", "slow"]
GpuState = Literal["ok", "lost", "unresponsive", "released"]


# Requests ------------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", tag_field="verb", kw_only=True):
    """Adoption: the agent's first act, repeated when `armed` or `failsafe_w` changes.

    leaving=True is the goodbye of an orderly stop: caps stay 20 s for the next agent's hello.
    """

    id: int
    protocol: int = PROTOCOL
    armed: bool = False
    failsafe_w: float | None = None
    leaving: bool = False


class ReadFast(msgspec.Struct, tag="read_fast", tag_field="verb", kw_only=True):
    """Temperatures, margin, power, clocks, event reasons, caps of the named GPUs; one reply each.

    quick_every_s: until further notice the helper reads by itself, so often, what changes within a tenth of a second;
    the replies carry what it has read. It stops when it is no longer asked for, or nobody asks for 3 s.
    """

    id: int
    uuids: list[str]
    quick_every_s: float | None = None


class ReadSlow(msgspec.Struct, tag="read_slow", tag_field="verb", kw_only=True):
    """NVLink, processes, ECC, PCIe and the rest of the slow set of the named GPUs; one reply each.

    rare adds what hardly ever changes (thresholds, board limits, histograms, link ends); raw_links the NVLink bytes
    with protocol overhead. The helper may answer with more or, while a read is already on its way, with less.
    """

    id: int
    uuids: list[str]
    rare: bool = False
    raw_links: bool = False


class SetCap(msgspec.Struct, tag="set_cap", tag_field="verb", kw_only=True):
    """Set one power cap, ledger first, read back.

    keep_w is what the protective causes alone demand (None = nothing); protects is "none", "gpu" or "breaker";
    expires_at_s ends an unprotected cap (None = 10 minutes after the last renewal); cause is kept for people.
    manual_w is what a person or a lease alone asked for (None = nothing), until expires_at_s: the next agent goes on
    with it.
    """

    id: int
    uuid: str
    w: float
    keep_w: float | None = None
    protects: Literal["none", "gpu", "breaker"] = "none"
    cause: str = ""
    expires_at_s: float | None = None
    manual_w: float | None = None


class Restore(msgspec.Struct, tag="restore", tag_field="verb", kw_only=True):
    """Restore the named GPUs (all when empty) to min(prior, keep_w); force=True to prior."""

    id: int
    uuids: list[str] = []
    force: bool = False


class Ledger(msgspec.Struct, tag="ledger", tag_field="verb", kw_only=True):
    """All open ledger entries."""

    id: int


class ReleaseDevice(msgspec.Struct, tag="release_device", tag_field="verb", kw_only=True):
    """Let go of all device files of the named GPUs for so many seconds, so that they can be reset or set up anew."""

    id: int
    uuids: list[str]
    for_s: float


class Resume(msgspec.Struct, tag="resume", tag_field="verb", kw_only=True):
    """Take released GPUs up again (all when empty)."""

    id: int
    uuids: list[str] = []


class Events(msgspec.Struct, tag="events", tag_field="verb", kw_only=True):
    """GPU errors that the driver or the kernel's log has told, after those that the agent knows.

    epoch and after: of the last answer taken over; kernel_after: number of the last line of the kernel's log that was
    taken over in this boot (-1 = none), also from helpers before this one.
    """

    id: int
    epoch: str = ""
    after: int = 0
    kernel_after: int = -1


class Rapl(msgspec.Struct, tag="rapl", tag_field="verb", kw_only=True):
    """The energy counters of the processors, which only root may read."""

    id: int


Request = Hello | ReadFast | ReadSlow | SetCap | Restore | Ledger | ReleaseDevice | Resume | Events | Rapl


# Replies -------------------------------------------------------------------------------------------------------------


class GpuIdentity(msgspec.Struct, kw_only=True):
    """One GPU as the helper found it; `can_write` False with the reason (no_permission, "locked by pid N").

    why says what is known of a state other than "ok"; released_until_s is CLOCK_BOOTTIME.
    """

    uuid: str
    index: int
    model: str = ""
    pci_bus_id: str = ""
    state: GpuState = "ok"
    why: str = ""
    released_until_s: float | None = None
    can_write: bool = True
    write_reason: str | None = None


class LedgerEntry(msgspec.Struct, kw_only=True):
    """One cap in force.

    Attributes:
        prior_w: the limit before we touched the GPU.
        w: our last request.
        previous_w: the request before, until `w` is read back from the board: after a crash between the two, either is
            ours. None = `w` is confirmed, or it is the first.
        written_at_s, since_s: last write and first write of this entry, CLOCK_BOOTTIME.
        expires_at_s: end of an unprotected cap, or of the manual part of a protective one; None = none was given.
        manual_w: what a person or a lease alone asked for; None = nothing (`w` may be on its way up from it).
        pending: a restore that failed or hangs, with the reason; None = none.
        state: "owned" (as we asked), "kept" (agent gone, kept because it protects), "foreign" (somebody changed it),
            "vanished" (the driver forgot it).
    """

    uuid: str
    prior_w: float
    w: float
    previous_w: float | None = None
    keep_w: float | None = None
    protects: Literal["none", "gpu", "breaker"] = "none"
    cause: str = ""
    owner_uid: int = 0
    since_s: float = 0.0
    written_at_s: float = 0.0
    expires_at_s: float | None = None
    manual_w: float | None = None
    pending: str | None = None
    state: str = "owned"


class HelperEvent(msgspec.Struct, kw_only=True):
    """Something the helper did or saw by itself (cap_expired, cap_kept, cap_vanished, foreign_cap ...)."""

    code: str
    uuid: str | None
    text: str
    at_s: float


class HelloReply(msgspec.Struct, tag="hello", kw_only=True):
    """What the agent adopts. `events` are those since the last hello or reply that carried them.

    news is the number of changes of all this so far; fast replies carry it, so that a hello is needed only when it is
    another one. errors is another number when there is something new to take with `Events`.
    """

    id: int
    protocol: int = PROTOCOL
    pid: int = 0
    driver: str = "ok"
    driver_text: str = ""
    driver_version: str = ""
    gpus: list[GpuIdentity] = []
    ledger: list[LedgerEntry] = []
    ledger_ok: bool = True
    ledger_text: str = ""
    events: list[HelperEvent] = []
    news: int = 0
    errors: int = 0


class Value(msgspec.Struct, array_like=True):
    """One quantity of a reading: a value, or the reason (see `errors.DeviceError.reason`) why there is none."""

    value: float | None = None
    reason: str | None = None


class Sample(msgspec.Struct, array_like=True):
    """One value of a labelled quantity, or the reason why there is none; no labels = it stands for the whole."""

    labels: tuple[str, ...] = ()
    value: float | None = None
    reason: str | None = None


class QuickSample(msgspec.Struct, array_like=True):
    """What the helper read of a GPU by itself; None = not read then. Same units and names as in `FastReply.values`."""

    taken_at_s: float
    junction_c: float | None = None
    hbm_c: float | None = None
    margin_c: float | None = None
    power_instant_w: float | None = None


class FastReply(msgspec.Struct, tag="fast", kw_only=True):
    """Fast readings of one GPU; names of `values` are those of `model.gpu_quantities.FAST_READ`.

    slow_bits is the NVML bitmask of clocks-event reasons; slow_s maps reason names to cumulative seconds.
    """

    id: int
    uuid: str
    taken_at_s: float
    values: dict[str, Value] = {}
    slow_bits: int | None = None
    slow_reason: str | None = None
    slow_s: dict[str, Value] = {}
    events: list[HelperEvent] = []
    news: int = 0
    quick: list[QuickSample] = []


class WireLink(msgspec.Struct, array_like=True):
    """One NVLink: number, active, cumulative payload bytes out and in (None = not readable)."""

    link: int
    active: bool
    tx_bytes: float | None = None
    rx_bytes: float | None = None


class Nudge(msgspec.Struct, tag="nudge", kw_only=True):
    """Unasked: a GPU has become much hotter since the last fast reply; ask now."""

    id: int = 0


class WireBoard(msgspec.Struct, kw_only=True):
    """Board limits as the library gave them; same meaning as `model.snapshot.GpuBoard`."""

    min_w: float | None = None
    max_w: float | None = None
    default_w: float | None = None
    kind: str | None = None
    max_op_c: float | None = None
    slowdown_c: float | None = None
    shutdown_c: float | None = None
    hbm_max_op_c: float | None = None


class SlowReply(msgspec.Struct, tag="slow", kw_only=True):
    """Slow readings of one GPU.

    more has the slow quantities of `model.gpu_quantities`, and the rare ones where `rare` is True; calls the driver
    call that gave each quantity, fast ones included.
    """

    id: int
    uuid: str
    taken_at_s: float
    board: WireBoard
    rare: bool = False
    more: dict[str, list[Sample]] = {}
    calls: dict[str, str] = {}
    links: list[WireLink] = []
    links_reason: str | None = None
    pids: list[int] | None = None
    pids_reason: str | None = None


class CapReply(msgspec.Struct, tag="cap", kw_only=True):
    """A cap was set. w is the read-back limit, enforced_w the lowest of all limiters."""

    id: int
    uuid: str
    w: float
    enforced_w: float | None = None


class RestoreOutcome(msgspec.Struct, kw_only=True):
    """What a restore did to one GPU: "restored", "kept" (a protective cause keeps it), "pending" or "none"."""

    uuid: str
    outcome: Literal["restored", "kept", "pending", "none"]
    w: float | None = None
    text: str = ""


class RestoreReply(msgspec.Struct, tag="restored", kw_only=True):
    """Outcome per GPU."""

    id: int
    gpus: list[RestoreOutcome] = []


class LedgerReply(msgspec.Struct, tag="ledger", kw_only=True):
    """All open entries."""

    id: int
    entries: list[LedgerEntry] = []


class ReleaseOutcome(msgspec.Struct, kw_only=True):
    """One GPU: until when it is released (CLOCK_BOOTTIME), None = it is not; `text` says what a person should know."""

    uuid: str
    until_s: float | None = None
    text: str = ""


class ReleaseReply(msgspec.Struct, tag="released", kw_only=True):
    """What came of a release or a resume, per GPU; a release may take more GPUs than were named."""

    id: int
    gpus: list[ReleaseOutcome] = []


class GpuError(msgspec.Struct, kw_only=True):
    """One complaint, or a burst of the same.

    Attributes:
        number: of this entry; rises within an epoch.
        source: "nvml" (an event of the driver) or "kernel" (a line of its log).
        kind: "xid"; "sxid" of an NVSwitch; "off_bus" for the words without a code.
        uuid: of the GPU, "" where none is known at `bus_id`, or it is a switch.
        count, first_s, last_s: how many, and when (CLOCK_BOOTTIME).
        kernel_number: number of the last of these lines in the kernel's log, -1 where it is none.
        text, pid, process: of the first, as far as the source says.
    """

    source: Literal["nvml", "kernel"]
    kind: Literal["xid", "sxid", "off_bus"]
    code: int
    uuid: str = ""
    bus_id: str = ""
    number: int = 0
    count: int = 1
    first_s: float = 0.0
    last_s: float = 0.0
    kernel_number: int = -1
    text: str = ""
    pid: int | None = None
    process: str = ""


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a source of errors is listened to; `reason` says why not. lost: what it dropped before it was read."""

    up: bool = False
    reason: str = ""
    lost: int = 0


class EventsReply(msgspec.Struct, tag="events", kw_only=True):
    """See `Events`. last: what to ask for next; more: there are others; dropped: those that nobody took in time."""

    id: int
    epoch: str
    errors: list[GpuError] = []
    last: int = 0
    more: bool = False
    dropped: int = 0
    driver: Listening = Listening()
    kernel: Listening = Listening()


class ErrorReply(msgspec.Struct, tag="error", kw_only=True):
    """A request that was not done; `uuid` where it concerns one GPU of several."""

    id: int
    code: ErrorCode
    text: str
    uuid: str | None = None


class RaplZone(msgspec.Struct, array_like=True):
    """One zone: the kernel's id ("intel-rapl:0:1"), name, microjoules, where they wrap (0 = unknown), or why none."""

    zone: str
    name: str
    energy_uj: int | None = None
    range_uj: int = 0
    reason: str | None = None


class RaplReply(msgspec.Struct, tag="rapl", kw_only=True):
    """All zones and sub-zones; none where the processor or the machine has none."""

    id: int
    taken_at_s: float
    zones: list[RaplZone] = []


Reply = (
    HelloReply
    | FastReply
    | Nudge
    | SlowReply
    | CapReply
    | RestoreReply
    | LedgerReply
    | ReleaseReply
    | EventsReply
    | RaplReply
    | ErrorReply
)

_encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(Request)
reply_decoder = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    """One message ready for the socket."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "little") + body
