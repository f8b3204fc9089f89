"""kill -9 and SIGSTOP of the agent at each second after a fault, forked from the plant at that second."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import structs

from nodewarden.sim.closed_loop import ClosedLoop
from nodewarden.sim.scenario import load_scenario

FAULTS: Final = ("fan-bank", "row-blocked", "all-fans", "hot-aisle", "pump", "pump-stop")
KILLED_S: Final = 3
"""systemd starts it again after 1 s, and it reads and adopts within 2."""

FROZEN_S: Final = 33
"""The watchdog of the unit is 30 s; then as above."""

ADOPTION_S: Final = 10
WATCHED_S: Final = 15


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """What an interruption came to.

    Attributes:
        at_s: seconds from the fault to the interruption.
        slowdown_samples: tenths of a second at or above slowdown, from the interruption until the end.
        raised: caps that rose within 10 s of the restart.
    """

    fault: str
    at_s: int
    slowdown_samples: int
    boards_lost: int
    raised: int

    @property
    def safe(self) -> bool:
        """Nothing at slowdown, nothing lost, nothing raised too early."""
        return not (self.slowdown_samples or self.boards_lost or self.raised)


def interrupt(
    fault: str, at: Sequence[int], *, for_s: int, failsafe_w: float | None = None, seed: int = 1
) -> list[Interruption]:
    """Interrupt the agent at each of these seconds after the fault of scenario `fault`, each time for `for_s`."""
    scenario = load_scenario(fault)
    fault_s = scenario.fault[0].at_s
    scenario = structs.replace(scenario, sw_thermal="none")
    loop = ClosedLoop(scenario, seed=seed)
    found = []
    for at_s in sorted(at):
        while loop.plant.scenario_s < fault_s + at_s - 1e-6:
            loop.tick()
        one = loop.fork()
        one.outcome.slowdown_samples = 0
        one.go_silent(for_s, failsafe_w=failsafe_w)
        one.restart()
        raised = 0
        for second in range(WATCHED_S):
            before_w = [gpu.cap_w for gpu in one.plant.gpus]
            one.tick()
            if second < ADOPTION_S:
                raised += sum(gpu.cap_w > w for gpu, w in zip(one.plant.gpus, before_w, strict=True))
        found.append(
            Interruption(
                fault=fault,
                at_s=at_s,
                slowdown_samples=one.outcome.slowdown_samples,
                boards_lost=sum(gpu.off for gpu in one.plant.gpus),
                raised=raised,
            )
        )
    return found
