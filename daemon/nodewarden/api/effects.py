"""What came of a manual cap or throttle, watched in the views that follow: what is so, not what was asked."""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from nodewarden.api.node import Node
from nodewarden.api.view import View
from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import Cause
from nodewarden_alerts.predicates import CAUSE_WORDS

_WAIT_S = 2.0  # of real time: `nodectl` itself gives up after 3 s
_CLOSE_W = 1.0
_CLOSE_DUTY = 0.005

EffectState = Literal["in_force", "lower", "rising", "refused", "pending"]


class CapEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        w: the limit in force as last read, None where it cannot be read.
        state: "in_force"; "lower" (something else demands less); "rising" (on its way up); "refused"; "pending" (not
            confirmed in time).
        text: for people.
    """

    uuid: str
    index: int | None
    w: float | None
    state: EffectState
    text: str


class DutyEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One job: the duty that it is asked for now; "lower" when something else asks for less."""

    job: str
    duty: float | None
    state: Literal["in_force", "lower", "pending"]
    text: str


async def wait_for_duty(node: Node, jobs: Sequence[str], duty: float) -> list[DutyEffect]:
    """Look at each new view until every job runs at the duty asked for, at most about two seconds."""
    give_up_s = time.monotonic() + _WAIT_S
    view = node.view()
    while True:
        effects = [_duty_effect(view, job, duty) for job in jobs]
        left_s = give_up_s - time.monotonic()
        if left_s <= 0 or all(effect.state == "in_force" for effect in effects):
            return effects
        try:
            async with asyncio.timeout(left_s):
                view = await node.next_view()
        except TimeoutError:
            return effects


def _duty_effect(view: View, name: str, duty: float) -> DutyEffect:
    job = next((job for job in view.snapshot.jobs if job.id == name), None)
    if job is None or job.duty > duty + _CLOSE_DUTY:
        text = f"{name}: asked to run {duty:.0%} of the time, not confirmed yet; nodectl jobs shows it"
        return DutyEffect(job=name, duty=job.duty if job else None, state="pending", text=text)
    if job.duty < duty - _CLOSE_DUTY:
        words = CAUSE_WORDS.get(view.setpoints.job.cause, "another request asks for less")
        text = f"{name}: slowed to {job.duty:.0%} of its time, less than {duty:.0%}: {words}"
        return DutyEffect(job=name, duty=job.duty, state="lower", text=text)
    text = f"{name}: runs freely" if duty >= 1 else f"{name}: slowed to {job.duty:.0%} of its time"
    return DutyEffect(job=name, duty=job.duty, state="in_force", text=text)


async def wait_for_cap(node: Node, uuids: Sequence[str], w: float, *, asked_at_s: float) -> list[CapEffect]:
    """Look at each new view until every GPU has an answer, at most about two seconds."""
    give_up_s = time.monotonic() + _WAIT_S
    view = node.view()
    effects: dict[str, CapEffect] = {}
    while True:
        effects = {uuid: _effect(view, uuid, w, asked_at_s) for uuid in uuids}
        left_s = give_up_s - time.monotonic()
        if left_s <= 0 or all(effect.state != "pending" for effect in effects.values()):
            return list(effects.values())
        try:
            async with asyncio.timeout(left_s):
                view = await node.next_view()
        except TimeoutError:
            return list(effects.values())


def not_capped(view: View, uuid: str) -> CapEffect:
    """A GPU that "all" passed over, since it does not answer."""
    gpu = view.snapshot.gpus[uuid]
    text = f"{view.snapshot.gpu_name(uuid)}: not capped, it is {gpu.health}"
    return CapEffect(uuid=uuid, index=gpu.index, w=None, state="refused", text=text)


def _effect(view: View, uuid: str, w: float, asked_at_s: float) -> CapEffect:
    gpu = view.snapshot.gpus.get(uuid)
    setpoint = view.setpoints.caps.get(uuid)
    reading = gpu.cap_w if gpu is not None else None
    now_w = reading.value if isinstance(reading, Reading) else None
    name = view.snapshot.gpu_name(uuid)

    def says(state: EffectState, text: str) -> CapEffect:
        return CapEffect(uuid=uuid, index=gpu.index if gpu else None, w=now_w, state=state, text=f"{name}: {text}")

    if uuid in view.refusals:
        return says("refused", f"refused: {view.refusals[uuid]}")
    is_decided = setpoint is not None and setpoint.manual_w is not None and abs(setpoint.manual_w - w) < _CLOSE_W
    limits = view.limits.gpus.get(uuid)
    is_above_prior = limits is not None and w > limits.prior_w
    if setpoint is None or not (is_decided or is_above_prior):
        return says("pending", f"asked for {w:g} W, not confirmed yet; nodectl caps shows it")
    is_read = isinstance(reading, Reading) and reading.taken_at_s > asked_at_s
    if is_above_prior and limits is not None and setpoint.w >= limits.prior_w - _CLOSE_W:
        return says("lower", f"stays at {limits.prior_w:g} W, the limit before us; a cap is never raised above it")
    entry = next((e for e in view.ledger if e.uuid == uuid), None)
    if setpoint.w < w - _CLOSE_W and (view.armed or (entry is not None and entry.protects != "none")):
        if setpoint.cause in {Cause.MANUAL, Cause.LEASE}:
            return says("rising", f"rises step by step from {setpoint.w:.0f} W to {w:g} W")
        words = CAUSE_WORDS.get(setpoint.cause, str(setpoint.cause))
        return says("lower", f"kept at {setpoint.w:.0f} W, lower than {w:g} W: {words}")
    if is_read and now_w is not None and abs(now_w - w) < _CLOSE_W:
        return says("in_force", f"capped at {now_w:g} W")
    return says("pending", f"asked for {w:g} W, not confirmed yet; nodectl caps shows it")
