"""A process as the plant's job: the shared file, phases, a job that dies."""

import os
from pathlib import Path

import pytest

from nodewarden.sim.job_link import JobLink
from nodewarden.sim.linked_job import LinkedJob
from nodewarden.sim.plant import DT_S, Plant
from nodewarden.sim.toy_pace import TwinPace


def steps(plant: Plant, job: LinkedJob, seconds: float) -> None:
    for _ in range(round(seconds / DT_S)):
        job.step(DT_S)
        plant.step()
        job.tell(plant.now_s)


@pytest.fixture
def link(tmp_path: Path):
    with JobLink.create(tmp_path / "link", speed=100.0, origin_s=1.0) as made:
        yield made


def test_both_ends_of_the_file_see_the_same(tmp_path: Path, link: JobLink) -> None:
    with JobLink(tmp_path / "link") as other:
        assert (other.clock_speed, other.clock_origin_s) == (100.0, 1.0)
        assert other.job() == (0, "idle", 0)
        assert other.begin_s() is None
        link.say("checkpoint", 17)
        assert other.job() == (os.getpid(), "checkpoint", 17)
        link.begin(42.0)
        assert other.begin_s() == 42.0


def test_any_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"x" * 4096)
    with pytest.raises(ValueError, match="not a file that the twin shares"):
        JobLink(path)


def test_boards_are_busy_before_the_job_comes_follow_it_and_fall_idle_after_it(link: JobLink) -> None:
    plant = Plant()
    job = LinkedJob(plant, link)
    steps(plant, job, 30.0)
    assert plant.gpus[0].mean_w > 400.0
    assert job.pids() == ()
    link.say("checkpoint", 1)
    steps(plant, job, 2.0)
    assert job.pids() == (os.getpid(),)
    assert {gpu.phase for gpu in plant.gpus} == {"checkpoint"}
    link.say("idle", 1)
    steps(plant, job, 2.0)
    assert job.pids() == ()
    assert {gpu.phase for gpu in plant.gpus} == {"idle"}


def test_a_board_that_has_done_its_work_waits_until_the_next_step(link: JobLink) -> None:
    plant = Plant()
    job = LinkedJob(plant, link)
    link.say("compute", 5)
    steps(plant, job, 1.0)
    assert {gpu.phase for gpu in plant.gpus} == {"compute"}
    steps(plant, job, 3.0)
    assert {gpu.phase for gpu in plant.gpus} == {"wait"}
    link.say("compute", 6)
    steps(plant, job, 0.5)
    assert {gpu.phase for gpu in plant.gpus} == {"compute"}


def test_a_dead_process_leaves_the_boards_idle(link: JobLink) -> None:
    child = os.fork()
    if child == 0:
        link.say("compute", 1)
        os._exit(0)
    os.waitpid(child, 0)
    plant = Plant()
    job = LinkedJob(plant, link)
    steps(plant, job, 2.0)
    assert job.pids() == ()
    assert {gpu.phase for gpu in plant.gpus} == {"idle"}


def test_the_truth_of_the_scenario_starts_when_it_begins(link: JobLink) -> None:
    plant = Plant()
    job = LinkedJob(plant, link)
    steps(plant, job, 60.0)
    hottest_before = link.board(0).hottest_c
    for gpu in plant.gpus:
        gpu.set_cap_w(200.0, plant.now_s)
    steps(plant, job, 60.0)
    assert link.board(0).hottest_c == hottest_before
    job.begin()
    job.tell(plant.now_s)
    assert link.board(0).hottest_c < hottest_before - 10.0
    assert link.board(0).lowest_margin_c > 20.0


def test_a_step_takes_as_long_as_the_slowest_board_needs(tmp_path: Path, link: JobLink) -> None:
    plant = Plant()
    for gpu in plant.gpus:
        gpu.work_speed = 0.8
    plant.gpus[3].work_speed = 0.5
    LinkedJob(plant, link).tell(0.0)
    pace = TwinPace(tmp_path / "link", save_s=1.0)
    began_s = link.now_s()
    pace.step(1)
    assert link.now_s() - began_s >= 1.6 / 0.5 + 0.4
    assert link.job()[1:] == ("all_reduce", 1)
    pace.save(1)
    assert link.job()[1:] == ("checkpoint", 1)
    pace.rest(1)
    assert link.job()[1:] == ("pause", 1)
    pace.end()
    assert link.job()[1] == "idle"
