"""Two feeds and their breakers under the closed loop: a feed is lost, a PDU's meter stands still or falls silent.

The breaker is judged by its pessimistic thermal image, d(theta)/dt = (x^2 - theta) / 120 s, tripping at 1.0 (x is load
over rating), and by the mean over ten seconds.
"""

import math
from collections import deque
from typing import Final, Literal

import msgspec
from msgspec import structs

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import NodeSnapshot, Number
from nodewarden.sim.closed_loop import PDU_LATE_S, PDU_PUBLISH_S, ClosedLoop, limits_of
from nodewarden.sim.plant import PSU_EFFICIENCY, REST_OF_NODE_W, Plant
from nodewarden.sim.scenario import Scenario

FeedTrouble = Literal["none", "feed_lost", "frozen", "silent"]
FEEDS: Final = ("pdu-a", "pdu-b")
RATING_W: Final = 7360.0  # 32 A at 230 V
LIMIT_SHARE: Final = 0.8  # what a breaker may carry for three hours and more
IMAGE_S: Final = 120.0
MEAN_S: Final = 10


class FeedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The worst of both feeds: highest thermal image, and the highest mean of ten seconds over the rating."""

    trouble: FeedTrouble
    at_s: int
    theta: float
    mean_share: float

    @property
    def safe(self) -> bool:
        """The pessimistic breaker holds, and no ten seconds were above the rating."""
        return self.theta < 1.0 and self.mean_share <= 1.0


class FeedLoop(ClosedLoop):
    """A node with two supplies on two PDUs, each measured every 5 s, 1.5 s late, in steps of 10 W.

    Args:
        trouble, at_s: what happens to feed A (feed_lost) or to both meters, and in which second.
    """

    def __init__(self, trouble: FeedTrouble, at_s: int, *, duration_s: float, seed: int = 1) -> None:
        scenario = Scenario(title="Feeds", duration_s=duration_s, sw_thermal="none")
        outlets = dict.fromkeys(FEEDS, LIMIT_SHARE * RATING_W)
        limits = structs.replace(limits_of(Plant(seed=seed), scenario), outlets=outlets)
        super().__init__(scenario, seed=seed, limits=limits)
        self._trouble = trouble
        self._at_s = at_s
        self._meters: deque[tuple[float, tuple[float, float]]] = deque(maxlen=4)
        share = self.plant.plug_power_w() / 2 / RATING_W
        self._theta = [share**2, share**2]
        self._shares: deque[tuple[float, float]] = deque(maxlen=MEAN_S)
        self.worst_theta = self.worst_mean = 0.0

    def run_feeds(self) -> FeedOutcome:
        """Run, and judge the breakers."""
        self.run()
        return FeedOutcome(trouble=self._trouble, at_s=self._at_s, theta=self.worst_theta, mean_share=self.worst_mean)

    def _has_happened(self) -> bool:
        return self._trouble != "none" and self.plant.scenario_s >= self._at_s

    def _loads_w(self) -> tuple[float, float]:
        """What each feed carries, mean of the last second."""
        total_w = (REST_OF_NODE_W + math.fsum(gpu.mean_w for gpu in self.plant.gpus)) / PSU_EFFICIENCY
        lost = self._trouble == "feed_lost" and self._has_happened()
        return (0.0, total_w) if lost else (total_w / 2, total_w / 2)

    def snapshot(self) -> NodeSnapshot:
        """With both PDUs as their meters tell."""
        now_s = self.plant.now_s
        told = self._meters[-1][0] if self._meters else -PDU_PUBLISH_S
        silent = self._trouble == "silent" and self._has_happened()
        if now_s - told >= PDU_PUBLISH_S - 1e-6 and not silent:
            frozen = self._trouble == "frozen" and self._has_happened() and self._meters
            self._meters.append((now_s, self._meters[-1][1] if frozen else self._loads_w()))
        outlets: dict[str, Number] = {}
        for at_s, loads_w in self._meters:
            if at_s <= now_s - PDU_LATE_S:
                outlets = {name: Reading(round(w, -1), at_s) for name, w in zip(FEEDS, loads_w, strict=True)}
        return structs.replace(super().snapshot(), outlets=outlets)

    def _advance(self) -> None:
        super()._advance()
        shares = tuple(w / RATING_W for w in self._loads_w())
        self._shares.append((shares[0], shares[1]))
        for feed, share in enumerate(shares):
            self._theta[feed] += (share**2 - self._theta[feed]) / IMAGE_S
            mean = sum(pair[feed] for pair in self._shares) / len(self._shares)
            self.worst_theta = max(self.worst_theta, self._theta[feed])
            if len(self._shares) == MEAN_S:
                self.worst_mean = max(self.worst_mean, mean)
