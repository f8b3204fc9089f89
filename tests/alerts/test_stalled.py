"""The stalled collective: found where it is, named, and not found where a node is merely busy, idle or odd."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import GpuBoard, GpuSnapshot, HelperStatus, JobSnapshot, NodeSnapshot
from nodewarden_alerts import ConditionEngine, Facts
from nodewarden_alerts.conditions import BY_CODE
from nodewarden_alerts.stalled import HOLD_S, Stall, stalled_collectives

NOW_S = 5000.0


def gpu(index: int, used: float, power_w: float, *, default_w: float = 400.0, **changes: Any) -> GpuSnapshot:
    def reading(value: float) -> Reading[float]:
        return Reading(value, NOW_S - 0.5)

    made = GpuSnapshot(
        uuid=f"GPU-{index}",
        index=index,
        board=GpuBoard(min_w=100, max_w=default_w, default_w=default_w),
        utilisation=reading(used),
        power_w=reading(power_w),
        cap_w=reading(default_w),
        more={"memory_utilisation": {(): reading(0.0)}},
    )
    return replace(made, **changes)


def dead_collective(culprit: int = 3) -> list[GpuSnapshot]:
    """As it was seen on a real node of eight A100."""
    return [gpu(i, 0.0, 68.0) if i == culprit else gpu(i, 1.0, 84.0 + i % 4) for i in range(8)]


def job(**changes: Any) -> JobSnapshot:
    return replace(JobSnapshot(id="train", gpus=tuple(f"GPU-{i}" for i in range(8)), ranks=8, world=8), **changes)


def node(gpus: list[GpuSnapshot], *jobs: JobSnapshot) -> NodeSnapshot:
    return NodeSnapshot(
        taken_at_s=NOW_S,
        gpus={each.uuid: each for each in gpus},
        jobs=jobs,
        helper=HelperStatus(state="ok", driver="ok", can_write=True),
    )


def stalls(gpus: list[GpuSnapshot], *jobs: JobSnapshot) -> list[Stall]:
    return list(stalled_collectives(node(gpus, *jobs), NOW_S))


@pytest.mark.parametrize("jobs", [(), (job(),)])
def test_seven_wait_for_one_that_computes_nothing(jobs: tuple[JobSnapshot, ...]) -> None:
    (stall,) = stalls(dead_collective(), *jobs)
    assert stall.culprits == ("GPU-3",)
    assert len(stall.waiting) == 7
    assert stall.job == (jobs[0].id if jobs else None)


def test_the_one_that_still_computes_is_the_culprit_too() -> None:
    gpus = [gpu(i, 1.0, 640.0 if i == 5 else 110.0, default_w=700) for i in range(8)]
    (stall,) = stalls(gpus, job())
    assert stall.culprits == ("GPU-5",)


def test_all_wait_for_a_rank_on_another_node() -> None:
    gpus = [gpu(i, 1.0, 85.0) for i in range(8)]
    (stall,) = stalls(gpus, job(world=64))
    assert stall.culprits == ()
    assert stalls(gpus, job(world=8)) == []  # nobody is missing: it is only slow
    busy = [replace(each, more={"memory_utilisation": {(): Reading(0.2, NOW_S)}}) for each in gpus]
    assert stalls(busy, job(world=64)) == []  # a small model computes badly, but it computes


@pytest.mark.parametrize(
    "gpus",
    [
        [gpu(i, 1.0, 380.0) for i in range(8)],  # busy
        [gpu(i, 0.0, 68.0) for i in range(8)],  # idle
        [gpu(i, 1.0, 85.0) for i in range(4)] + [gpu(i, 0.0, 68.0) for i in range(4, 8)],  # four are simply not used
        [gpu(0, 1.0, 85.0), gpu(1, 1.0, 85.0), gpu(2, 0.0, 68.0)],  # too few to tell
        [gpu(i, 0.6, 85.0) for i in range(7)] + [gpu(7, 0.0, 68.0)],  # half loaded
        [
            gpu(i, 1.0, 100.0, default_w=700, cap_w=Reading(100.0, NOW_S)) for i in range(7)
        ]  # a low cap makes a busy GPU draw little
        + [gpu(7, 0.0, 68.0, default_w=700)],
    ],
    ids=["busy", "idle", "half used", "too few", "half loaded", "capped low"],
)
def test_a_node_that_is_busy_idle_or_capped_is_not_stalled(gpus: list[GpuSnapshot]) -> None:
    assert stalls(gpus) == []


@pytest.mark.parametrize("state", ["checkpointing", "paused", "stopping", "lost"])
def test_a_job_that_saves_or_rests_is_not_stalled(state: Any) -> None:
    assert stalls(dead_collective(), job(state=state)) == []


def test_a_gpu_whose_utilisation_is_not_known_is_nobodys_culprit() -> None:
    gpus = dead_collective()
    gpus[3] = replace(gpus[3], utilisation=Absent("not_supported"))
    assert stalls(gpus) == []
    gpus[3] = replace(gpus[3], utilisation=Reading(0.0, NOW_S - 60))
    assert stalls(gpus) == []
    gpus[3] = replace(dead_collective()[3], health="lost")
    assert stalls(gpus) == []


def test_it_is_told_after_its_time_with_the_name_of_the_culprit() -> None:
    engine, facts = ConditionEngine(), Facts(snapshot=node(dead_collective(), job()), armed=True)

    def told(now_s: float) -> list[str]:
        snapshot = node(
            [
                replace(
                    each, utilisation=Reading(each.utilisation.value, now_s), power_w=Reading(each.power_w.value, now_s)
                )
                for each in dead_collective()
            ],
            job(),
        )
        found = engine.evaluate(replace(facts, snapshot=snapshot), now_s)
        return [problem.text for problem in found if problem.code == "collective_stalled"]

    assert told(NOW_S) == []
    assert told(NOW_S + HOLD_S - 1) == []
    (text,) = told(NOW_S + HOLD_S)
    assert "job train stalled: 7 GPUs wait at 100 % and near-idle power for GPU 3 (idle, 0% at 68 W)" in text
    assert BY_CODE["collective_stalled"].hold_s == HOLD_S
