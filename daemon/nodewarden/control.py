"""The control loop: snapshot -> policy -> actuators, once per sweep of the GPUs, and the view that readers see.

The policy decides as if armed; what reaches hardware and jobs is the actuators' matter. The loop waits for nothing: a
write that hangs is a task of its own, and the loop's progress feeds the watchdog.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from nodewarden.actuators.job import JobActuator
from nodewarden.actuators.power_cap import PowerCapActuator
from nodewarden.clock import Clock
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.journal import Recorder
from nodewarden.model.events import Event
from nodewarden.model.limits import GpuLimits, Limits, ManualCap
from nodewarden.model.readings import Reading, value_or_none
from nodewarden.model.setpoints import Cause, Setpoints
from nodewarden.model.snapshot import GpuSnapshot, NodeSnapshot
from nodewarden.policy import PolicyState, decide, initial_state
from nodewarden.store import SnapshotStore

log = structlog.get_logger("nodewarden.control")

# Where a board does not say (F20): A100's and H100's lowest published values, `control-law` facts of both boards.
SAFE_MAX_OP_C, SAFE_SLOWDOWN_C, SAFE_SHUTDOWN_C, SAFE_HBM_MAX_OP_C = 85.0, 89.0, 92.0, 95.0
PAUSE_S = 3.0  # a gap between turns after which the world is looked at anew before anything is decided
CLOCK_STEP_S = 1.0
DECISION_STEP_W = 10.0
DRY_RUN = "dry run: "
DECISIONS = frozenset(
    {"gpu_capped", "gpu_uncapped", "ladder_raised", "ladder_lowered", "checkpoint_wanted", "checkpoint_impossible"}
)


class NodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The configured bounds of this node; see `model.limits.Limits`."""

    target_margin_c: float = 2.0
    node_power_w: float | None = None
    failsafe_w: float | None = None
    outlets: dict[str, float] = {}


class ControlLoop:
    """One decision per turn.

    Attributes:
        bounds: the configured limits; replaced on reload.
        manual: caps that a person asked for, by uuid.
        armed, armed_since_s: whether automatic setpoints reach the hardware.
        limits, setpoints, snapshot: of the newest turn.
        clock_step_s: size of the last step of the wall clock, None = none seen; clock_step_at_s: when.
    """

    def __init__(
        self,
        store: SnapshotStore,
        link: HelperLink,
        caps: PowerCapActuator,
        job: JobActuator,
        recorder: Recorder,
        clock: Clock,
        *,
        bounds: NodeLimits,
        period_s: float,
        on_turn: Callable[[], None],
    ) -> None:
        self._store = store
        self._link = link
        self._caps = caps
        self._job = job
        self._recorder = recorder
        self._clock = clock
        self._period_s = period_s
        self._on_turn = on_turn
        self.bounds = bounds
        self.manual: dict[str, ManualCap] = {}
        self.armed = False
        self.armed_since_s: float | None = None
        self.limits = Limits()
        self.setpoints = Setpoints()
        self.snapshot = NodeSnapshot()
        self.clock_step_s: float | None = None
        self.clock_step_at_s: float | None = None
        self._state: PolicyState | None = None
        self.turn_took_s = 0.0
        self._turned_s = clock.now_s()
        self._wall_offset_s = clock.wall_s() - clock.now_s()
        self._adopted = False
        self._failsafe: set[str] = set()
        self._written: dict[str, Any] = {}

    def set_armed(self, *, armed: bool) -> None:
        """Let automatic setpoints reach the hardware, or not."""
        if armed and not self.armed:
            self._tell_caps_of_arming()
        self.armed = armed
        self.armed_since_s = self._clock.now_s() if armed else None
        self._link.armed = armed
        self._link.failsafe_w = self.bounds.failsafe_w
        self._link.hello_soon()

    def _tell_caps_of_arming(self) -> None:
        """What was only said so far is done from now on."""
        for uuid, cap in self.setpoints.caps.items():
            if cap.cause != Cause.NONE and cap.w != cap.manual_w:
                why = cap.cause.value.replace("_", " ")
                text = f"{self.snapshot.gpu_name(uuid)} capped at {cap.w:.0f} W, now that the node is armed: {why}"
                self._recorder.event(Event("gpu_capped", uuid, text))

    async def turn(self) -> None:
        """Wait for the sweep (at most one period), decide, actuate, publish."""
        await self._store.wait_for_sweep(self._clock.now_s() + self._period_s)
        now_s = self._clock.now_s()
        if now_s - self._turned_s > max(PAUSE_S, 3 * self._period_s):
            self._link.hello_soon()  # F56: after a pause the caps are checked before anything is decided
        self._turned_s = now_s
        self._watch_wall_clock()
        self._adopt()
        snapshot = self._store.snapshot()
        limits = self._limits(snapshot, now_s)
        if self._state is None:
            self._state = initial_state(limits)
        self._state, setpoints, events = decide(self._state, snapshot, limits, now_s)
        for event in events:
            self._recorder.event(self._dry(event, setpoints))
        self.snapshot, self.limits, self.setpoints = snapshot, limits, setpoints
        self._record(snapshot, setpoints)
        self._caps.apply(setpoints.caps, armed=self.armed, hot=self._is_hot)
        self._job.apply(
            setpoints.job,
            snapshot.jobs,
            armed=self.armed,
            stuck_duty=self._stuck_duty(setpoints),
        )
        self.turn_took_s = self._clock.now_s() - now_s
        self._on_turn()

    def _dry(self, event: Event, setpoints: Setpoints) -> Event:
        """The event as it is told: while disarmed nothing comes of a decision of ours, and it must not sound so."""
        if self.armed or event.code not in DECISIONS:
            return event
        cap = setpoints.caps.get(event.uuid or "")
        is_asked = event.code == "gpu_capped" and cap is not None and cap.cause in {Cause.MANUAL, Cause.LEASE}
        is_lifted = event.code == "gpu_uncapped" and event.uuid in self._caps.own
        if is_asked or is_lifted:
            return event
        text = event.text.replace(" capped at ", " would be capped at ", 1).replace(
            " is back at ", " would be back at "
        )
        return msgspec.structs.replace(event, text=f"{DRY_RUN}{text}")

    def give_up_manual(self, uuid: str) -> None:
        """The board lost a person's cap, by a reset or by somebody's hand: it is over, as the helper has closed it."""
        manual = self.manual.pop(uuid, None)
        if manual is None:
            return
        self._caps.forget(uuid)
        self._state = None  # what the policy holds in force is not: start from what is, as a new agent would
        text = f"manual cap of {manual.w:.0f} W on {self.snapshot.gpu_name(uuid)} is over: the board has lost it"
        self._recorder.event(Event("manual_cap_lost", uuid, text))

    def _adopt(self) -> None:
        """Take over the ledger; the first adoption brings back manual caps that outlived the agent before.

        Later ones do not: what a person asked of this agent, or took back, is known better here than in the ledger.
        """
        self._caps.sync()
        failsafe = {uuid for uuid, entry in self._link.entries.items() if entry.cause == Cause.FAILSAFE}
        if failsafe - self._failsafe:
            self._state = None  # the helper acted in our silence: start from what is in force, as a new agent would
        self._failsafe = failsafe
        if self._adopted or not self._link.adoptions:
            return
        self._adopted = True
        for entry in self._link.entries.values():
            if entry.manual_w is not None and entry.pending is None and entry.uuid not in self.manual:
                self.manual[entry.uuid] = ManualCap(w=entry.manual_w, expires_s=entry.expires_at_s)

    def _limits(self, snapshot: NodeSnapshot, now_s: float) -> Limits:
        for uuid, manual in list(self.manual.items()):
            if manual.expires_s is not None and now_s >= manual.expires_s:
                del self.manual[uuid]
                self._recorder.event(Event("manual_cap_expired", uuid, f"manual cap of {manual.w:.0f} W has expired"))
        gpus = {}
        for uuid, gpu in snapshot.gpus.items():
            # During a write a reading may show our new limit before we know of it as ours: not what was found either.
            touched_s = now_s if uuid in self._caps.writing else self._caps.touched_s.get(uuid, 0.0)
            limits = gpu_limits(gpu, self._caps.prior_w(uuid), self.limits.gpus.get(uuid), touched_s)
            if limits is not None:
                gpus[uuid] = limits
        return Limits(
            gpus=gpus,
            target_margin_c=self.bounds.target_margin_c,
            node_power_w=self.bounds.node_power_w,
            outlets=self.bounds.outlets,
            manual={uuid: cap for uuid, cap in self.manual.items() if uuid in gpus},
            failsafe_w=self.bounds.failsafe_w,
        )

    def ask(self, uuids: Sequence[str], cap: ManualCap) -> None:
        """A person asks for a cap; what failed before is tried at once."""
        self.manual.update(dict.fromkeys(uuids, cap))
        self._caps.ask_anew(uuids)

    def _is_hot(self, uuid: str) -> bool:
        forecast = self.setpoints.forecast.get(uuid)
        margin_c = forecast.margin_to_max_op_c if forecast is not None else None
        return margin_c is not None and margin_c < self.bounds.target_margin_c

    def _stuck_duty(self, setpoints: Setpoints) -> float:
        """Job duty that stands in for caps which are wanted but cannot be written."""
        shares = [1.0]
        for uuid, cap in setpoints.caps.items():
            limits = self.limits.gpus.get(uuid)
            gpu = self.snapshot.gpus.get(uuid)
            is_there = gpu is not None and gpu.health not in {"lost", "released"}
            if limits is not None and is_there and cap.cause != Cause.NONE and uuid in self._caps.trouble:
                shares.append(max(0.3, cap.w / limits.prior_w))
        return min(shares)

    def _watch_wall_clock(self) -> None:
        """Notice a step of the wall clock (F73). Nothing here depends on it; people who read times do."""
        offset_s = self._clock.wall_s() - self._clock.now_s()
        step_s = offset_s - self._wall_offset_s
        if abs(step_s) > CLOCK_STEP_S:
            self.clock_step_s, self.clock_step_at_s = step_s, self._clock.now_s()
            self._recorder.event(Event("clock_stepped", None, f"the wall clock was stepped by {step_s:+.1f} s"))
        self._wall_offset_s = offset_s

    def _record(self, snapshot: NodeSnapshot, setpoints: Setpoints) -> None:
        """Journal a decision when it differs in a way a person would call a change."""
        capped = {
            uuid: round(cap.w / DECISION_STEP_W) for uuid, cap in setpoints.caps.items() if cap.cause != Cause.NONE
        }
        key = {"caps": capped, "level": int(setpoints.level), "request": setpoints.job.request, "armed": self.armed}
        if key == self._written:
            return
        self._written = key
        self._recorder.decision(
            f"level {int(setpoints.level)}, {len(capped)} GPUs capped",
            {
                "armed": self.armed,
                "level": int(setpoints.level),
                "caps": {
                    uuid: {"w": round(cap.w, 1), "cause": str(cap.cause), "keep_w": cap.keep_w}
                    for uuid, cap in setpoints.caps.items()
                    if cap.cause != Cause.NONE
                },
                "job": {"duty": setpoints.job.duty, "request": setpoints.job.request},
                "readings": {
                    uuid: {
                        "junction_c": value_or_none(gpu.junction_c),
                        "hbm_c": value_or_none(gpu.hbm_c),
                        "margin_c": value_or_none(gpu.margin_c),
                        "power_w": value_or_none(gpu.power_w),
                        "cap_w": value_or_none(gpu.cap_w),
                    }
                    for uuid, gpu in snapshot.gpus.items()
                },
                "outlets_w": {name: value_or_none(power) for name, power in snapshot.outlets.items()},
            },
        )

    async def caps_settled(self) -> None:
        """Wait for the writes under way."""
        await self._caps.settle()

    async def run(self) -> None:
        """Turn for ever; an error in one turn is logged and the next is tried."""
        while True:
            try:
                await self.turn()
            except Exception:
                log.exception("turn_failed")
                await asyncio.sleep(self._clock.real_s(self._period_s))


def gpu_limits(
    gpu: GpuSnapshot, ledger_prior_w: float | None, before: GpuLimits | None, touched_s: float = 0.0
) -> GpuLimits | None:
    """Limits of one GPU from what its board says.

    Args:
        gpu: its newest readings.
        ledger_prior_w: the limit before we touched it, None when we have not.
        before: the limits of the turn before; kept while the board does not answer.
        touched_s: when we last wrote its limit; an older reading of it is ours, not what was found.

    Returns:
        None until the board has said in which range it accepts a cap.
    """
    board = gpu.board
    if board.min_w is None or board.max_w is None:
        return before
    prior_w = ledger_prior_w
    if prior_w is None:
        found = gpu.cap_w.value if isinstance(gpu.cap_w, Reading) and gpu.cap_w.taken_at_s > touched_s else None
        kept = before.prior_w if before is not None else None
        prior_w = next(w for w in (found, kept, board.default_w, board.max_w) if w is not None)
    tlimit = board.kind == "tlimit"
    max_op_c = board.max_op_c if board.max_op_c is not None else (0.0 if tlimit else SAFE_MAX_OP_C)
    slowdown_c = board.slowdown_c if board.slowdown_c is not None else (-2.0 if tlimit else SAFE_SLOWDOWN_C)
    shutdown_c = board.shutdown_c if board.shutdown_c is not None else (-5.0 if tlimit else SAFE_SHUTDOWN_C)
    hbm_max_op_c = board.hbm_max_op_c
    if hbm_max_op_c is None and not tlimit:
        hbm_max_op_c = SAFE_HBM_MAX_OP_C
    return GpuLimits(
        min_w=board.min_w,
        max_w=board.max_w,
        prior_w=min(max(prior_w, board.min_w), board.max_w),
        kind="tlimit" if tlimit else "absolute",
        max_op_c=max_op_c,
        slowdown_c=slowdown_c,
        shutdown_c=shutdown_c,
        hbm_max_op_c=hbm_max_op_c,
    )
