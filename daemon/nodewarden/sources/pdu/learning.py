"""Which outlets feed this node: those whose power swings as the power of its GPUs does. Pure.

An outlet of this node carries a share of the node's power, seconds later and as the PDU publishes it. So its power,
over time, is a line of the GPUs' power: the better it fits, the surer. All outlets of the node together carry a bit
more than the GPUs' swing (fans, CPUs, losses of the supplies): what fits but exceeds that belongs to another node that
does the same work.
"""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

Outlet = tuple[str, int]  # name of the PDU and number of the outlet
Series = Sequence[tuple[float, float]]  # seconds and watts, in order

Verdict = Literal["found", "not_enough_time", "not_enough_swing", "no_match", "ambiguous", "incomplete"]

LAGS_S: Final = tuple(float(lag) for lag in range(0, 31, 2))  # a PDU's publication and our polling; APC: 10 s
MIN_SWING_W: Final = 300.0
MIN_SHARE: Final = 0.10  # of the mean: below that the swing drowns in what others do
MIN_TURNS: Final = 4  # one rise may be anybody's; several in the same rhythm are not
MIN_SAMPLES: Final = 12
_FITS: Final = 0.90  # correlation with which an outlet is a candidate
_SURE: Final = 0.97
_MIN_GAIN, _MAX_GAIN = 0.75, 1.6  # watts at the outlets for each watt of the GPUs, all outlets together
_MARGIN: Final = 0.04  # what the next best must be worse by, in correlation
_MIN_OUTLET_SWING_W: Final = 25.0


class Match(msgspec.Struct, frozen=True):
    """One outlet that may be this node's.

    Attributes:
        correlation: with the GPUs' power, at the best lag.
        gain: watts of this outlet for each watt of the GPUs.
        lag_s: how much later it shows.
        confidence: 0 to 1.
    """

    pdu: str
    outlet: int
    correlation: float
    gain: float
    lag_s: float
    confidence: float


class Learnt(msgspec.Struct, frozen=True):
    """What can be said. `matches` are proposed, `others` fit nearly as well; `text` is for people."""

    verdict: Verdict
    text: str
    swing_w: float
    turns: int
    gain: float
    matches: tuple[Match, ...] = ()
    others: tuple[Match, ...] = ()


def learn(gpus: Series, outlets: Mapping[Outlet, Series], *, window_s: float = 5.0) -> Learnt:
    """Propose the outlets of this node.

    Args:
        gpus: power of all GPUs of this node together.
        outlets: power of each outlet that is metered.
        window_s: over which a PDU takes its mean, about.
    """
    watts = sorted(value for _, value in gpus)
    swing_w = _quantile(watts, 0.95) - _quantile(watts, 0.05) if watts else 0.0
    turns = _turns(gpus, swing_w)
    if len(gpus) < MIN_SAMPLES or max((len(series) for series in outlets.values()), default=0) < MIN_SAMPLES:
        return Learnt("not_enough_time", "too few samples so far: wait longer", swing_w, turns, 0.0)
    needed_w = max(MIN_SWING_W, MIN_SHARE * _mean(watts))
    if swing_w < needed_w:
        text = (
            f"not enough swing: the GPUs moved by {swing_w:.0f} W, needed {needed_w:.0f} W;"
            " start and stop load on this node (and only on this one), or wait for its job to begin, pause or save"
        )
        return Learnt("not_enough_swing", text, swing_w, turns, 0.0)
    if turns < MIN_TURNS:
        text = f"only {turns} rises and falls of {swing_w:.0f} W, needed {MIN_TURNS}: run load or wait"
        return Learnt("not_enough_swing", text, swing_w, turns, 0.0)
    fits = [_fit(outlet, series, gpus, window_s) for outlet, series in outlets.items()]
    candidates = sorted(
        (fit for fit in fits if fit is not None and fit.correlation >= _FITS),
        key=lambda fit: (-fit.correlation, fit.pdu, fit.outlet),
    )
    return _choose(candidates, swing_w, turns)


def _choose(candidates: list[Match], swing_w: float, turns: int) -> Learnt:
    """The best candidates whose gains together are what a node has; unless others fit as well."""
    if not candidates:
        text = "no outlet follows this node's power: its PDU is not among those asked, or does not meter single outlets"
        return Learnt("no_match", text, swing_w, turns, 0.0)
    chosen: list[Match] = []
    gain = 0.0
    for position, fit in enumerate(candidates):
        enough = gain >= _MIN_GAIN and chosen[-1].correlation - fit.correlation > _MARGIN / 2
        if enough or gain + fit.gain > _MAX_GAIN:
            rest = candidates[position:]
            break
        chosen.append(fit)
        gain += fit.gain
    else:
        rest = []
    rivals = [fit for fit in rest if not chosen or chosen[-1].correlation - fit.correlation < _MARGIN]
    next_best = max((fit.correlation for fit in rest), default=_FITS - _MARGIN)
    proposed = tuple(
        msgspec.structs.replace(fit, confidence=_confidence(fit.correlation, next_best, turns))
        for fit in sorted(chosen, key=lambda fit: (fit.pdu, fit.outlet))
    )
    if rivals:
        text = (
            "more outlets follow this node's power than it can draw from: another node does the same work at the same"
            " time; run load on this node alone, then learn again"
        )
        doubtful = tuple(msgspec.structs.replace(fit, confidence=min(fit.confidence, 0.4)) for fit in proposed)
        return Learnt("ambiguous", text, swing_w, turns, gain, doubtful, tuple(rivals))
    if gain < _MIN_GAIN:
        text = (
            f"these outlets carry only {100 * gain:.0f} % of this node's swing: the PDU of its other feed is not among"
            " those asked, or does not meter single outlets"
        )
        return Learnt("incomplete", text, swing_w, turns, gain, proposed, tuple(rest))
    number = f"{len(proposed)} outlet{'s' if len(proposed) > 1 else ''}"
    text = f"{number} follow this node's power over {turns} rises and falls of {swing_w:.0f} W"
    return Learnt("found", text, swing_w, turns, gain, proposed, tuple(rest))


def _confidence(correlation: float, next_best: float, turns: int) -> float:
    fit = min(1.0, max(0.0, (correlation - _FITS) / (_SURE - _FITS)))
    apart = min(1.0, max(0.0, (correlation - next_best) / (2 * _MARGIN)))
    often = min(1.0, turns / (2 * MIN_TURNS))
    return round(0.5 * fit + 0.35 * apart + 0.15 * often, 2)


def _fit(outlet: Outlet, series: Series, gpus: Series, window_s: float) -> Match | None:
    """The best line through an outlet's power over the GPUs' power, over all lags; None where it does not swing."""
    values = sorted(value for _, value in series)
    if len(values) < MIN_SAMPLES or _quantile(values, 0.95) - _quantile(values, 0.05) < _MIN_OUTLET_SWING_W:
        return None
    times = [at_s for at_s, _ in gpus]
    sums = [0.0, *itertools.accumulate(value for _, value in gpus)]
    best: tuple[float, float, float] | None = None
    for lag_s in LAGS_S:
        powers = ((_mean_before(times, sums, at_s - lag_s, window_s), value) for at_s, value in series)
        pairs = [(power, value) for power, value in powers if power is not None]
        if len(pairs) < MIN_SAMPLES:
            continue
        correlation, gain = _line(pairs)
        if best is None or correlation > best[0]:
            best = correlation, gain, lag_s
    if best is None or best[1] <= 0:
        return None
    return Match(outlet[0], outlet[1], round(best[0], 4), round(best[1], 3), best[2], 0.0)


def _mean_before(times: list[float], sums: list[float], end_s: float, window_s: float) -> float | None:
    """Mean of the GPUs' power over the seconds before `end_s`."""
    end, start = bisect.bisect_right(times, end_s), bisect.bisect_right(times, end_s - window_s)
    return (sums[end] - sums[start]) / (end - start) if end > start else None


def _line(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Correlation and slope."""
    mean_x, mean_y = _mean([x for x, _ in pairs]), _mean([y for _, y in pairs])
    xx = sum((x - mean_x) ** 2 for x, _ in pairs)
    yy = sum((y - mean_y) ** 2 for _, y in pairs)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    if xx <= 0 or yy <= 0:
        return 0.0, 0.0
    return xy / math.sqrt(xx * yy), xy / xx


def _turns(series: Series, swing_w: float) -> int:
    """How often the power crosses from its lower to its upper third and back."""
    if not series or swing_w <= 0:
        return 0
    watts = sorted(value for _, value in series)
    low = _quantile(watts, 0.05) + swing_w / 3
    high = low + swing_w / 3
    turns, above = 0, None
    for _, value in series:
        now = True if value >= high else False if value <= low else above
        if above is not None and now != above:
            turns += 1
        above = now
    return turns


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
