"""The thermal law of one GPU: a heat-balance observer says how many watts leave the GPU, the cap follows them.

Two states are estimated from the measured power and an integer temperature: the temperature behind the die (`sink_c`)
and the heat removed (`removed_w`). The second is the disturbance, so it takes the place of an integral term and cannot
wind up: a job stall, a clock lock or a cap that somebody else sets only change the measured power. Degrees are relative
to max-operating; the law is the same for boards with a signed margin and boards with absolute thresholds.
"""

from typing import Final

from nodewarden.policy.observe import HOT_BITS, Look
from nodewarden.policy.state import GpuState
from nodewarden.policy.worst_case import AIR_SLEW_C_PER_S, HUNG_AGEING_S, hottest_c

SINK_J_PER_K: Final = 500.0
"""Heat capacity that the law assumes; between a cold plate (260) and an air cooler (900), +-60 % is tolerated."""

DIE_K_PER_W: Final = 0.03
OBSERVER_RAD_PER_S: Final = 0.35
QUIET_RAD_PER_S: Final = 0.15
QUIET_C: Final = 1.0
STEP_S: Final = 3.0
DIE_S: Final = 0.3
BURST_SHARE: Final = 0.5
LAST_S: Final = 60.0
PEAK_C: Final = 1.5
TREND_C_PER_S: Final = 0.08
NEAR_C: Final = 3.0
NEAREST: Final = 0.06
SHORTEST_DWELL_S: Final = 15.0
LONGEST_DWELL_S: Final = 300.0
HOLD_W: Final = 20.0
SPAN_W: Final = 50.0
CALM_S: Final = 6.0
FAST_S: Final = 2.0
SLOW_S: Final = 12.0
HEATING_C: Final = 0.7
HEATING_NEAR_C: Final = 5.0
APPROACH_S: Final = 8.0
HURRY_S: Final = 5.0
RISE_W_PER_S: Final = 8.0
DEAD_ZONE_C: Final = 0.3
HOT_C: Final = 0.8
BLIND_DERATE_S: Final = 10.0
BLIND_FLOOR_S: Final = 30.0
_MAX_REMOVED_W: Final = 1_200.0
_MIN_REMOVED_W: Final = -200.0
_GAP_S: Final = 3.0
_STRANGE_C: Final = 12.0
_HOT_BIT_S: Final = 3.0
_HOT_BIT_SPAN_C: Final = 8.0  # the driver's own loop lets go some degrees below max-operating


def observe(gpu: GpuState, seen: Look, power_w: float, in_force_w: float) -> bool:
    """Advance the observer by one new sample; True when the sample was believed.

    A sample that contradicts the model by more than the physics allows is ignored until it repeats: twice when it is
    hotter, three times when it is cooler.
    """
    assert seen.rel_c is not None
    rel_c = seen.rel_c
    if gpu.hot_bit_s >= _HOT_BIT_S and rel_c < -_HOT_BIT_SPAN_C:
        rel_c = 0.0  # the board slows itself down for heat: it is hot, whatever this sensor says
    if gpu.sink_c is None or gpu.seen_at_s is None:
        gpu.sink_c, gpu.removed_w = rel_c - DIE_K_PER_W * power_w, power_w
        gpu.seen_at_s, gpu.junction_c, gpu.rise_c_per_s = seen.taken_at_s, rel_c, 0.0
        gpu.smooth_w = gpu.die_w = power_w
        gpu.fast_c = gpu.slow_c = rel_c
        return True
    dt_s = seen.taken_at_s - gpu.seen_at_s
    if dt_s <= 0:
        return gpu.strange == 0
    if dt_s > _GAP_S:
        gpu.sink_c = rel_c - DIE_K_PER_W * power_w
        gpu.seen_at_s, gpu.junction_c, gpu.strange = seen.taken_at_s, rel_c, 0
        return True
    sink_c = gpu.sink_c + dt_s * (power_w - gpu.removed_w) / SINK_J_PER_K
    gpu.die_w += dt_s / (dt_s + DIE_S) * (power_w - gpu.die_w)
    error_c = rel_c - (sink_c + DIE_K_PER_W * gpu.die_w)
    gpu.seen_at_s = seen.taken_at_s
    if abs(error_c) > _STRANGE_C:
        gpu.strange += 1
        if gpu.strange < (2 if error_c > 0 else 3):
            gpu.sink_c = sink_c
            return False
        sink_c, error_c = rel_c - DIE_K_PER_W * power_w, 0.0
    gpu.strange = 0
    gpu.fast_c += min(1.0, dt_s / FAST_S) * (rel_c - gpu.fast_c)
    gpu.slow_c += min(1.0, dt_s / SLOW_S) * (rel_c - gpu.slow_c)
    # A burst up to the cap at the end of the second heats the die more than the second's mean says: no surprise.
    burst_c = BURST_SHARE * DIE_K_PER_W * max(0.0, in_force_w - power_w)
    told_c = max(0.0, error_c - burst_c) if error_c > 0 else error_c
    gpu.error_c += min(1.0, dt_s / 2) * (told_c - gpu.error_c)
    surprise = min(1.0, max(0.0, abs(gpu.error_c) - QUIET_C) / QUIET_C)
    rad_per_s = QUIET_RAD_PER_S + surprise * (OBSERVER_RAD_PER_S - QUIET_RAD_PER_S)
    gpu.sink_c = sink_c + min(2 * rad_per_s * dt_s, 0.8) * error_c
    removed_w = gpu.removed_w - rad_per_s**2 * dt_s * SINK_J_PER_K * error_c
    gpu.removed_w = min(max(removed_w, _MIN_REMOVED_W), _MAX_REMOVED_W)
    gpu.smooth_w += min(1.0, dt_s / STEP_S) * (power_w - gpu.smooth_w)
    gpu.junction_c = gpu.sink_c + DIE_K_PER_W * gpu.smooth_w
    rise = (power_w - gpu.removed_w) / SINK_J_PER_K
    gpu.rise_c_per_s += min(1.0, dt_s / 6) * (rise - gpu.rise_c_per_s)
    return True


def wanted_w(gpu: GpuState, target_c: float, slowdown_c: float, floor_w: float) -> float:
    """The cap in watts at which the GPU comes to rest at `target_c`; not yet limited to the board's range."""
    assert gpu.sink_c is not None
    hot = gpu.junction_c > target_c
    gain = SINK_J_PER_K / (HURRY_S if hot else APPROACH_S)
    mean_w = (gpu.removed_w + gain * (target_c - gpu.sink_c)) / (1 + gain * DIE_K_PER_W)
    slope = max((gpu.smooth_w - gpu.removed_w) / SINK_J_PER_K, 1e-3)
    if (slowdown_c - 1 - gpu.junction_c) / slope < 4:
        mean_w = min(mean_w, gpu.removed_w - 0.5 * SINK_J_PER_K)  # cool by half a degree per second
    left_s = floor_time_s(gpu, slowdown_c, floor_w)
    if left_s is not None and left_s < LAST_S:
        return floor_w  # even the floor only delays slowdown: no joule more than that, the job needs the time to save
    # A GPU that waits for others draws its cap in bursts, and the die follows within a second: bound the peak as well.
    peak_w = (target_c + PEAK_C - gpu.sink_c) / DIE_K_PER_W
    return min(mean_w / gpu.duty, peak_w)


def aged_w(gpu: GpuState, target_c: float, age_s: float, *, answering: bool) -> float:
    """The cap that the worst case of a stale temperature demands, in watts; infinite without any earlier reading."""
    if gpu.sink_c is None:
        return float("inf")
    age_s = age_s if answering else min(age_s, HUNG_AGEING_S)
    gain = SINK_J_PER_K / HURRY_S
    sink_c = hottest_c(gpu.sink_c, age_s, AIR_SLEW_C_PER_S)
    return (gpu.removed_w + gain * (target_c - sink_c)) / (1 + gain * DIE_K_PER_W) / gpu.duty


def step(
    gpu: GpuState,
    seen: Look,
    *,
    target_c: float,
    slowdown_c: float,
    power_w: float,
    in_force_w: float,
    floor_w: float,
    prior_w: float,
    dt_s: float,
    rise_s: float,
    age_s: float,
) -> bool:
    """Move the thermal command of one GPU by one decision; True when it may rise now.

    Args:
        gpu: a private copy of its state, changed here.
        seen: this decision's readings.
        target_c: where the GPU should rest, relative to max-operating.
        slowdown_c: where the hardware slows down, relative to max-operating.
        power_w: measured, or the limit in force.
        in_force_w: the cap in force.
        floor_w: lowest command.
        prior_w: highest command.
        dt_s: seconds since the last decision.
        rise_s: the part of it that counts for rising (0 = no rise).
        age_s: age of the newest believed temperature.
    """
    gpu.hot_bit_s = gpu.hot_bit_s + dt_s if seen.bits & HOT_BITS else 0.0
    believed = observe(gpu, seen, power_w, in_force_w) if seen.fresh and seen.rel_c is not None else False
    if gpu.sink_c is None:
        return False
    if not seen.fresh:
        command_w = aged_w(gpu, target_c, age_s, answering=seen.answering) if age_s > _GAP_S else gpu.command_w
        gpu.command_w = min(gpu.command_w, max(command_w, floor_w))
        gpu.rising = False
    elif believed:
        command_w = min(max(wanted_w(gpu, target_c, slowdown_c, floor_w), floor_w - SPAN_W), prior_w + SPAN_W)
        if gpu.calm_w is None:
            gpu.calm_w = command_w
        gpu.calm_w += min(1.0, dt_s / CALM_S) * (command_w - gpu.calm_w)
        may_rise = not seen.hbm_hot and gpu.junction_c < target_c - DEAD_ZONE_C
        alarmed = gpu.junction_c > target_c + HOT_C or abs(gpu.error_c) > QUIET_C or gpu.rise_c_per_s > TREND_C_PER_S
        near = min(1.0, max(NEAREST, (target_c - gpu.junction_c) / NEAR_C))  # the last degrees slowly: no sawtooth
        if near >= 1:
            gpu.dwell_s = 0.0
        _move(gpu, command_w, floor_w, prior_w, alarmed=alarmed, rise_s=near * rise_s if may_rise else 0.0, dt_s=dt_s)
    return believed


def _move(
    gpu: GpuState, command_w: float, floor_w: float, prior_w: float, *, alarmed: bool, rise_s: float, dt_s: float
) -> None:
    """Follow what is wanted: downwards at once when alarmed, else only past a band that noise does not cross.

    A rise that had to be taken back doubles the time until the next is tried: no cycle around the target.
    """
    assert gpu.calm_w is not None
    gpu.fallen_s += dt_s
    lower_w = gpu.command_w
    if alarmed and command_w < gpu.command_w:
        lower_w = command_w
    elif gpu.calm_w < gpu.command_w - HOLD_W:
        lower_w = gpu.calm_w
    if lower_w < gpu.command_w:
        if gpu.tried:
            gpu.dwell_s = min(LONGEST_DWELL_S, max(SHORTEST_DWELL_S, 2 * gpu.dwell_s))
        gpu.command_w, gpu.rising, gpu.tried, gpu.fallen_s = max(lower_w, floor_w), False, False, 0.0
        return
    wanted = gpu.calm_w > gpu.command_w + HOLD_W or (gpu.rising and gpu.calm_w > gpu.command_w)
    gpu.rising = wanted and gpu.fallen_s >= gpu.dwell_s
    if gpu.rising and rise_s > 0:
        gpu.tried = True
        gpu.command_w = min(gpu.calm_w, gpu.command_w + RISE_W_PER_S * rise_s, prior_w)


def floor_time_s(gpu: GpuState, slowdown_c: float, floor_w: float) -> float | None:
    """Seconds until the hardware slows down although the cap is at its floor; None when the floor is cool enough.

    Lost cooling is only believed when the measured temperature rises too, or is near its limit: a board that does not
    get cooler after its power fell is strange, but not in danger.
    """
    if gpu.fast_c - gpu.slow_c < HEATING_C and gpu.fast_c < -HEATING_NEAR_C:
        return None
    rise = (floor_w * gpu.duty - gpu.removed_w) / SINK_J_PER_K
    if rise <= 0.05:
        return None
    return max(0.0, (slowdown_c - gpu.junction_c) / rise)
