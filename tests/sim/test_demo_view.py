"""What the demo shows and tells, from samples."""

import io

import msgspec
import pytest
from rich.console import Console

from nodewarden.model.readings import value_or_none
from nodewarden.sim.closed_loop import LIMIT, ClosedLoop
from nodewarden.sim.demo_view import LADDER, DemoView, plain_line, spark, what_of
from nodewarden.sim.job_link import BoardTruth
from nodewarden.sim.scenario import load_scenario
from nodewarden.sim.story import cap_stories, gpu_story
from nodewarden.sim.watch import GpuSample, Sample, Told, sample_of

SCENARIO = load_scenario("fan-bank")


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """The scenario up to the worst of it, as the agent's status would show it."""
    loop = ClosedLoop(msgspec.structs.replace(SCENARIO, duration_s=120.0))
    out = []
    while loop.plant.scenario_s < 120.0:
        loop.tick()
        snapshot, setpoints = loop.snapshot(), loop.setpoints
        job = snapshot.jobs[0]
        gpus = tuple(
            GpuSample(
                index=gpu.index or 0,
                margin_c=value_or_none(gpu.margin_c),
                power_w=value_or_none(gpu.power_w),
                cap_w=value_or_none(gpu.cap_w),
                cause=None if setpoints.caps[uuid].cause == "none" else str(setpoints.caps[uuid].cause),
            )
            for uuid, gpu in snapshot.gpus.items()
        )
        out.append(
            Sample(
                at_s=loop.plant.scenario_s,
                gpus=gpus,
                ladder=int(setpoints.level),
                armed=True,
                pdu_w=value_or_none(snapshot.outlets[LIMIT]),
                pdu_limit_w=9000.0,
                job_state="running",
                step=job.step,
                steps_per_s=job.steps_per_s,
                duty=job.duty,
            )
        )
    return out


def drawn(view: DemoView, samples: list[Sample], width: int, events: list[Told] | None = None) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(view.render(samples, events or [], width))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_table_fits_its_width_and_says_what_matters(samples: list[Sample], width: int) -> None:
    events = [Told(at_s=61.0, code="gpu_capped", text="GPU 5 capped at 540 W: cooling removes less heat " * 3)]
    text = drawn(DemoView(SCENARIO), samples, width, events)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 23, "a terminal of 24 lines shows all of it"
    for word in ("A fan bank fails", "armed", "checkpoint", "too little", "steps/s", "PDU", "1:01", "GPU 5 capped"):
        assert word in text
    rows = [line.split() for line in lines if line.split()[:1] == ["5"]]
    assert rows, "GPU 5 has a row"
    assert rows[0][1] == f"{samples[-1].gpus[5].margin_c:.0f}°"


def test_a_terminal_without_unicode_gets_plain_characters(samples: list[Sample]) -> None:
    table = drawn(DemoView(SCENARIO, ascii_only=True), samples, 80)
    inner = [line for line in table.splitlines() if line.strip()[:1].isdigit() or line.startswith(("job", "PDU"))]
    assert inner
    assert all(line.isascii() for line in inner)


def test_without_arming_it_says_that_nobody_protects_the_node(samples: list[Sample]) -> None:
    text = drawn(DemoView(SCENARIO, armed=False), samples, 80)
    assert "NOT ARMED" in text


def test_hardware_slowdown_and_lost_gpus_cannot_be_overlooked(samples: list[Sample]) -> None:
    gpus = list(samples[-1].gpus)
    gpus[1] = msgspec.structs.replace(gpus[1], slow=("hw_slowdown",))
    gpus[2] = GpuSample(index=2, state="lost")
    text = drawn(DemoView(SCENARIO), [*samples, msgspec.structs.replace(samples[-1], gpus=tuple(gpus))], 80)
    assert "HARDWARE SLOWDOWN" in text
    assert "LOST" in text


def test_no_colour_where_no_colour_is_wanted(samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    console = Console(width=80, file=out, force_terminal=True)
    console.print(DemoView(SCENARIO).render(samples, [], 80))
    colours = [part for part in out.getvalue().split("\x1b[")[1:] if part.partition("m")[0] not in {"0", "1", "2"}]
    assert not colours


def test_a_sparkline_shows_the_worst_of_each_stretch_and_gaps_as_gaps() -> None:
    assert spark([0.0, 10.0], 2, (0.0, 10.0)) == "▁█"
    assert spark([10.0, 10.0, 10.0, 0.0], 2, (0.0, 10.0)) == "█▁"
    assert spark([None, 10.0], 4, (0.0, 10.0)) == "   █"
    assert spark([], 3, (0.0, 1.0)) == "   "
    assert spark([5.0], 1, (0.0, 10.0), ascii_only=True).isascii()


def test_a_progress_line_has_the_numbers(samples: list[Sample]) -> None:
    line = plain_line(samples[-1])
    assert "2:00" in line
    assert LADDER[samples[-1].ladder] in line
    assert f"step {samples[-1].step}" in line


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (GpuSample(index=0), "full power"),
        (GpuSample(index=0, cause="thermal", margin_c=3.0), "too little cooling"),
        (GpuSample(index=0, cause="thermal", margin_c=30.0, paced_by="GPU 5"), "pace of GPU 5"),
        (GpuSample(index=5, cause="thermal", margin_c=20.0), "power comes back"),
    ],
)
def test_the_last_column_says_why_in_words(gpu: GpuSample, said: str) -> None:
    assert what_of(gpu).plain == said


def test_a_status_document_becomes_a_sample() -> None:
    gpu = {
        "index": 0,
        "margin_to_max_op_c": 3,
        "power_w": 523.1,
        "cap_w": 540,
        "cap": {"cause": "thermal", "lifts_when": "margin > 4 degC for 60 s"},
        "slow": ["sw_thermal"],
        "state": "ok",
    }
    job = {"state": "throttled", "step": 7, "steps_per_s": 0.5, "duty": 0.85, "last_checkpoint_age_s": None}
    status = {
        "ladder": 2,
        "health": "degraded",
        "armed": True,
        "gpus": [gpu, gpu | {"index": 1, "cap": None, "slow": None, "margin_to_max_op_c": None}],
        "pdus": [{"power_w": 9999, "outlets_w": None, "limit_w": 6000}],
        "jobs": [job],
    }
    sample = sample_of(status, 12.5)
    assert (sample.at_s, sample.ladder, sample.armed, sample.duty, sample.step) == (12.5, 2, True, 0.85, 7)
    assert sample.gpus[0].cause == "thermal"
    assert sample.gpus[1].cause is None
    assert sample.gpus[1].margin_c is None
    assert sample.pdu_w == 9999
    empty = sample_of({**status, "pdus": [], "jobs": [], "gpus": []}, 0.0)
    assert empty.pdu_w is None
    assert empty.job_state is None


def test_the_story_of_the_caps_names_first_lowest_and_return() -> None:
    def at(second: float, watts: float) -> Sample:
        return Sample(
            at_s=second, gpus=(GpuSample(index=0, cap_w=watts, cause="thermal"), GpuSample(index=1, cap_w=700))
        )

    capped, *others = cap_stories([at(0, 700), at(10, 500), at(20, 300), at(30, 690), at(40, 700)])
    assert not others
    assert (capped.gpu, capped.first_s, capped.lowest_w, capped.prior_w, capped.back_s) == (0, 10, 300, 700, 40)
    still = cap_stories([at(0, 700), at(10, 500)])[0]
    assert still.back_s is None


def test_the_story_of_the_boards_comes_from_the_plants_truth() -> None:
    cool = BoardTruth(1.0, 70.0, 12.0, 0.0, off=False)
    hot = BoardTruth(1.0, 91.2, -4.2, 3.0, off=False)
    story = gpu_story([cool, hot, cool])
    assert (story.hottest, story.hottest_c, story.lowest_margin_gpu, story.lowest_margin_c) == (1, 91.2, 1, -4.2)
    assert story.hw_slowdown_reached
    assert not gpu_story([cool, cool]).hw_slowdown_reached
