"""Where the hardware of a GPU is not as it should be: memory, links, what the driver wants done. Pure.

Rows of the table in `conditions.py`. What only matters when it grows is measured by `growth.Growth`.
"""

from collections.abc import Callable, Iterator

from nodewarden.model.readings import Reading, value_or_none
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden_alerts.facts import Facts, Finding

RECOVERY_WORDS = {
    1: "a reset",
    2: "a reboot of the node",
    3: "its peer-to-peer traffic drained",
    4: "to be drained, then reset",
    5: "the IMEX service looked at",
    6: "a reset of its bus",
    7: "a reboot of the whole system",
}
PLANNED = frozenset({3, 4, 5})
BUSY_FROM = 0.5
"""PCIe generation and width fall at idle; only a busy GPU should have all of them."""
# Events in the last hour from which a growing counter is told. Replays happen on healthy links too.
NVLINK_ERRORS_PER_H = {"recovery": 1.0, "crc_data": 1.0, "ecc_data": 1.0, "replay": 20.0, "crc_flit": 100.0}
PCIE_REPLAYS_PER_H = 60.0
FABRIC_READY = 3.0


def _value(gpu: GpuSnapshot, quantity: str, *labels: str) -> float | None:
    return value_or_none(gpu.number(quantity, *labels))


def recovery_wanted(*, planned: bool) -> Callable[[Facts, float], Iterator[Finding]]:
    """The driver wants something done to the GPU: now, or when its work is over."""

    def find(facts: Facts, _now_s: float) -> Iterator[Finding]:
        for uuid, gpu in facts.snapshot.gpus.items():
            action = _value(gpu, "recovery_action")
            if action and (int(action) in PLANNED) == planned:
                words = RECOVERY_WORDS.get(int(action), f"recovery action {action:g}")
                yield Finding(what=f"{gpu.name} needs {words}, says the driver", uuid=uuid)

    return find


def flag(quantity: str, words: str) -> Callable[[Facts, float], Iterator[Finding]]:
    """A quantity that is 1 when something is wrong."""

    def find(facts: Facts, _now_s: float) -> Iterator[Finding]:
        for uuid, gpu in facts.snapshot.gpus.items():
            if _value(gpu, quantity):
                yield Finding(what=f"{gpu.name}: {words}", uuid=uuid)

    return find


def ecc_uncorrected(facts: Facts, _now_s: float) -> Iterator[Finding]:
    """Memory errors that could not be corrected, since the driver was loaded."""
    for uuid, gpu in facts.snapshot.gpus.items():
        count = _value(gpu, "ecc_errors", "volatile", "uncorrected")
        if count:
            yield Finding(
                what=f"{gpu.name}: {count:g} memory errors that ECC could not correct since the driver was loaded",
                uuid=uuid,
            )


def nvlink_down(facts: Facts, _now_s: float) -> Iterator[Finding]:
    """A link that was active since the start is not now (F19)."""
    for uuid, gpu in facts.snapshot.gpus.items():
        down = [str(link.link) for link in gpu.links if link.present and not link.active]
        if down and gpu.health == "ok":
            up = sum(link.present for link in gpu.links) - len(down)
            links = f"NVLink {', '.join(down)} is" if len(down) == 1 else f"NVLinks {', '.join(down)} are"
            yield Finding(what=f"{gpu.name}: {links} down, {up} are up", uuid=uuid)


def nvlink_errors(facts: Facts, _now_s: float) -> Iterator[Finding]:
    """Errors of NVLinks come more often than is normal."""
    for uuid, gpu in facts.snapshot.gpus.items():
        grown = {
            kind: count
            for kind, least in NVLINK_ERRORS_PER_H.items()
            if (count := facts.growth.get((uuid, "nvlink_total_errors", kind), 0.0)) >= least
        }
        if grown:
            words = ", ".join(f"{count:g} {kind.replace('_', ' ')}" for kind, count in grown.items())
            yield Finding(what=f"{gpu.name}: NVLink errors grow, {words} in the last hour", uuid=uuid)


def pcie_degraded(facts: Facts, _now_s: float) -> Iterator[Finding]:
    """A busy GPU's PCIe link is slower or narrower than it can be."""
    for uuid, gpu in facts.snapshot.gpus.items():
        busy = gpu.utilisation
        if gpu.health != "ok" or not isinstance(busy, Reading) or busy.value < BUSY_FROM:
            continue
        parts = []
        for quantity, word in (("pcie_generation", "generation"), ("pcie_width", "width x")):
            now, most = _value(gpu, quantity, "current"), _value(gpu, quantity, "max")
            if now is not None and most is not None and now < most:
                parts.append(f"{word}{'' if word.endswith('x') else ' '}{now:g} of {most:g}")
        if parts:
            yield Finding(what=f"{gpu.name}: PCIe link at {' and '.join(parts)} under load", uuid=uuid)


def pcie_replays(facts: Facts, _now_s: float) -> Iterator[Finding]:
    """PCIe packets are sent again more often than is normal."""
    for uuid, gpu in facts.snapshot.gpus.items():
        count = facts.growth.get((uuid, "pcie_replays", ""), 0.0)
        if count >= PCIE_REPLAYS_PER_H:
            yield Finding(what=f"{gpu.name}: {count:g} PCIe replays in the last hour", uuid=uuid)


def fabric_not_ready(facts: Facts, _now_s: float) -> Iterator[Finding]:
    """A GPU that belongs to a fabric is not registered with it: CUDA fails while NVML works."""
    for uuid, gpu in facts.snapshot.gpus.items():
        state, status = _value(gpu, "fabric_state"), _value(gpu, "fabric_status")
        if gpu.health != "ok" or state is None:
            continue
        if state < FABRIC_READY:
            yield Finding(what=f"{gpu.name} is not registered with the NVLink fabric: CUDA fails", uuid=uuid)
        elif status:
            yield Finding(what=f"{gpu.name}: registration with the NVLink fabric failed (code {status:g})", uuid=uuid)
        elif _value(gpu, "fabric_healthy") == 0.0:
            yield Finding(what=f"{gpu.name}: the NVLink fabric says that it is not healthy", uuid=uuid)
