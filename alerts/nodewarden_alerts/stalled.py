"""The stalled collective: most GPUs of a job wait inside a kernel, and one, which they wait for, does something else.

A GPU that waits for its peers in a collective runs a kernel, so its utilisation is 100 %, but it draws next to nothing
(eight A100 in a dead collective: 84 to 87 W of 400 W, the culprit 0 % at 68 W). No single reading shows this; the
picture of all GPUs does. Pure: a snapshot in, what stalls out.
"""

from collections.abc import Iterator, Sequence

import msgspec

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import GpuSnapshot, JobSnapshot, NodeSnapshot, Number
from nodewarden_alerts.facts import Facts, Finding

HOLD_S = 180.0
"""One rank that evaluates or saves alone for a while is no fault."""
WAITING_FROM = 0.99
IDLE_UP_TO = 0.05
NEAR_IDLE_OF_DEFAULT = 0.3
"""Share of the board's default cap below which a GPU that computes is not believed to."""
NEAR_IDLE_OF_CAP = 0.6
"""A low cap makes a busy GPU draw little: it then draws what the cap allows."""
QUIET_MEMORY_UP_TO = 0.02
"""A kernel that waits touches no device memory; one that computes badly does."""
FEWEST_WAITING = 3
FEWEST_WAITING_OF_JOB = 2
FRESH_S = 10.0
_BUSY_OTHERWISE = frozenset({"checkpointing", "paused", "stopping", "lost"})


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One group of GPUs that waits.

    Attributes:
        job: the job's id, None where no job is known.
        waiting: uuids of the GPUs that wait.
        culprits: uuids of those that they wait for; empty = it is on another node.
    """

    job: str | None
    waiting: tuple[str, ...]
    culprits: tuple[str, ...]


def stalled_collectives(snapshot: NodeSnapshot, now_s: float) -> Iterator[Stall]:
    """Every job, and the GPUs that belong to none, judged for themselves."""
    of_jobs = {uuid for job in snapshot.jobs for uuid in job.gpus}
    for job in snapshot.jobs:
        if job.state not in _BUSY_OTHERWISE:
            gpus = [snapshot.gpus[uuid] for uuid in job.gpus if uuid in snapshot.gpus]
            yield from _judge(gpus, now_s, job)
    yield from _judge([gpu for uuid, gpu in snapshot.gpus.items() if uuid not in of_jobs], now_s, None)


def _judge(gpus: Sequence[GpuSnapshot], now_s: float, job: JobSnapshot | None) -> Iterator[Stall]:
    if any(gpu.health != "ok" for gpu in gpus):
        return  # a lost or hung GPU is told by itself, and is why the others wait
    waiting = [gpu for gpu in gpus if _waits(gpu, now_s)]
    others = [gpu for gpu in gpus if gpu not in waiting]
    if any(_fresh(gpu.utilisation, now_s) is None or _fresh(gpu.power_w, now_s) is None for gpu in others):
        return  # in MIG mode, or not read: nobody can say what it does
    if len(waiting) < (FEWEST_WAITING if job is None else FEWEST_WAITING_OF_JOB):
        return
    elsewhere = job is not None and job.world > job.ranks and not others and all(_quiet(gpu, now_s) for gpu in waiting)
    odd_out = 0 < len(others) <= max(1, len(gpus) // 4)
    if odd_out or elsewhere:
        yield Stall(
            job=None if job is None else job.id,
            waiting=tuple(gpu.uuid for gpu in waiting),
            culprits=tuple(gpu.uuid for gpu in others),
        )


def _fresh(number: Number, now_s: float) -> float | None:
    return number.value if isinstance(number, Reading) and number.age_s(now_s) <= FRESH_S else None


def _waits(gpu: GpuSnapshot, now_s: float) -> bool:
    used, power_w = _fresh(gpu.utilisation, now_s), _fresh(gpu.power_w, now_s)
    default_w = gpu.board.default_w or gpu.board.max_w
    if used is None or power_w is None or default_w is None or used < WAITING_FROM:
        return False
    cap_w = _fresh(gpu.cap_w, now_s)
    return power_w <= min(NEAR_IDLE_OF_DEFAULT * default_w, NEAR_IDLE_OF_CAP * (default_w if cap_w is None else cap_w))


def _quiet(gpu: GpuSnapshot, now_s: float) -> bool:
    memory = _fresh(gpu.number("memory_utilisation"), now_s)
    return memory is not None and memory <= QUIET_MEMORY_UP_TO


def stalled_collective(facts: Facts, now_s: float) -> Iterator[Finding]:
    """The stalls, with the culprit named."""
    snapshot = facts.snapshot
    for stall in stalled_collectives(snapshot, now_s):
        names = ", ".join(snapshot.gpu_name(uuid) for uuid in stall.culprits)
        told = "; ".join(_does(snapshot.gpus[uuid]) for uuid in stall.culprits)
        waits_for = f"for {names} ({told})" if stall.culprits else "for a rank on another node"
        who = f"job {stall.job}" if stall.job else "collective"
        yield Finding(
            what=f"{who} stalled: {len(stall.waiting)} GPUs wait at 100 % and near-idle power {waits_for}",
            done="nothing was done",
            uuid=stall.culprits[0] if len(stall.culprits) == 1 else None,
            key=stall.job or "",
        )


def _does(gpu: GpuSnapshot) -> str:
    used = gpu.utilisation.value if isinstance(gpu.utilisation, Reading) else 0.0
    power_w = gpu.power_w.value if isinstance(gpu.power_w, Reading) else 0.0
    return f"{'idle' if used <= IDLE_UP_TO else 'busy'}, {used:.0%} at {power_w:.0f} W"
