"""Who decides the cap of one GPU: the lowest of all that demand one, and its cause is kept."""

from typing import Final, NamedTuple

from nodewarden.model.setpoints import PROTECTS, CapSetpoint, Cause, Protects

_SAME_W: Final = 0.05


class Demand(NamedTuple):
    """One cap that one cause asks for, in watts; `lifts_when` says in words what would end it."""

    cause: Cause
    w: float
    lifts_when: str
    expires_s: float | None = None


def arbitrate(
    demands: list[Demand], *, floor_w: float, prior_w: float, out_w: float, last: Cause, held: str
) -> CapSetpoint:
    """The setpoint for one GPU.

    Args:
        demands: every cap asked for; those at or above the prior limit ask for nothing.
        floor_w: lowest setpoint that the board takes.
        prior_w: the limit found before we touched the GPU, never exceeded.
        out_w: the cap after slewing, at or below the lowest demand.
        last: the cause of the decision before; it stays while the cap is on its way back.
        held: why the cap does not rise right now, empty when it does.
    """
    keep_w: float | None = None
    manual_w: float | None = None
    expires_s: float | None = None
    lowest: Demand | None = None
    for demand in demands:
        w = min(max(demand.w, floor_w), prior_w)
        if w >= prior_w - _SAME_W:
            continue
        if PROTECTS[demand.cause] is Protects.NONE:
            if manual_w is None or w < manual_w:
                manual_w, expires_s = w, demand.expires_s
        elif keep_w is None or w < keep_w:
            keep_w = w
        if lowest is None or w < lowest.w - _SAME_W:
            lowest = demand._replace(w=w)
    if out_w >= prior_w - _SAME_W:
        return CapSetpoint(w=prior_w, keep_w=keep_w, manual_w=manual_w, expires_s=expires_s)
    if lowest is not None and out_w >= lowest.w - _SAME_W:
        cause, lifts_when = lowest.cause, lowest.lifts_when
    else:
        cause = last if last is not Cause.NONE else Cause.THERMAL
        lifts_when = held or f"it has risen, by at most 8 W/s, to {lowest.w if lowest else prior_w:.0f} W"
    if held and (lowest is None or out_w < lowest.w - _SAME_W) and PROTECTS[cause] is not Protects.NONE:
        keep_w = out_w if keep_w is None else min(keep_w, out_w)
    return CapSetpoint(
        w=out_w,
        cause=cause,
        protects=PROTECTS[cause],
        keep_w=keep_w,
        manual_w=manual_w,
        expires_s=expires_s,
        lifts_when=lifts_when,
    )


def worth_writing(current_w: float, wanted_w: float, hot: bool) -> bool:
    """True when the difference justifies a write to the board: 5 W, or 1 W downwards when the GPU is hot.

    The dead band belongs here, at the output: inside the law, one wider than a slew step would latch the cap low.
    """
    return abs(wanted_w - current_w) >= 5 or (hot and wanted_w < current_w - 1)
