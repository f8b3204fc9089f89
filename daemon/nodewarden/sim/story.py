"""The demo's ending: what happened, what was done, what was lost. Every number is one that was measured."""

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from nodewarden.sim.demo_view import LADDER, clock_text
from nodewarden.sim.job_link import BoardTruth
from nodewarden.sim.scenario import Scenario
from nodewarden.sim.told import plainly
from nodewarden.sim.watch import Sample, Watcher

SCHEMA = 1
AT_PRIOR_W = 1.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something at a scenario second, in words."""

    at_s: float
    text: str


class CapStory(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to one GPU: lowest cap, when the first came, when the prior limit was back (None = it is not)."""

    gpu: int
    first_s: float
    lowest_w: float
    prior_w: float
    back_s: float | None
    cause: str


class JobStory(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the job; `restarts` counts starts after the first."""

    first_step: int
    last_step: int
    restarts: int
    alive: bool
    lowest_duty: float
    healthy_steps_per_s: float | None
    slowest_steps_per_s: float | None
    last_steps_per_s: float | None
    checkpoint_step: int | None
    checkpoint_s: float | None


class GpuStory(msgspec.Struct, frozen=True, kw_only=True):
    """The boards, from the plant's truth; the lowest margin is negative where a limit was passed."""

    hottest: int
    hottest_c: float
    lowest_margin_gpu: int
    lowest_margin_c: float
    hw_slowdown_reached: bool
    hw_slowdown_s: float
    switched_off: list[int]


class LostStory(msgspec.Struct, frozen=True, kw_only=True):
    """What was lost: training steps that must be done again, and GPUs."""

    steps: int
    gpus: int


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """The whole story; `sentences` are what people read."""

    schema: int
    scenario: str
    title: str
    armed: bool
    seed: int
    clock_speed: float
    duration_s: float
    top_level: int
    last_level: int
    happened: list[Moment]
    done: list[Moment]
    caps: list[CapStory]
    all_as_before: bool
    job: JobStory
    gpus: GpuStory
    lost: LostStory
    sentences: list[str]


def tell(scenario: Scenario, name: str, watcher: Watcher, *, armed: bool, seed: int, speed: float) -> Story:
    """Put the story together from what was seen."""
    samples = watcher.samples
    gpus = gpu_story(watcher.truth())
    job = _job_story(watcher, min((fault.at_s for fault in scenario.fault), default=scenario.duration_s))
    caps = cap_stories(samples)
    done = [Moment(at_s=round(event.at_s, 1), text=event.text) for event in plainly(watcher.events)]
    last = samples[-1]
    # A step is lost when the job fell back behind a step that it had finished: only a restart could do that.
    lost = LostStory(steps=_steps_lost(samples), gpus=len(gpus.switched_off))
    as_before = all(
        gpu.cap_w is not None and first.cap_w is not None and abs(gpu.cap_w - first.cap_w) <= AT_PRIOR_W
        for gpu, first in zip(last.gpus, samples[0].gpus, strict=False)
    )
    story = Story(
        schema=SCHEMA,
        scenario=name,
        title=scenario.title,
        armed=armed,
        seed=seed,
        clock_speed=speed,
        duration_s=round(last.at_s, 1),
        top_level=max(sample.ladder for sample in samples),
        last_level=last.ladder,
        happened=[Moment(at_s=line.at_s, text=line.text) for line in scenario.told],
        done=done,
        caps=caps,
        all_as_before=as_before and last.duty > 0.995,
        job=job,
        gpus=gpus,
        lost=lost,
        sentences=[],
    )
    return msgspec.structs.replace(story, sentences=sentences(story))


def gpu_story(truth: Sequence[BoardTruth]) -> GpuStory:
    """The worst of all boards."""
    hottest = max(range(len(truth)), key=lambda i: truth[i].hottest_c)
    nearest = min(range(len(truth)), key=lambda i: truth[i].lowest_margin_c)
    slowed_s = sum(board.hw_slowdown_s for board in truth)
    return GpuStory(
        hottest=hottest,
        hottest_c=round(truth[hottest].hottest_c, 1),
        lowest_margin_gpu=nearest,
        lowest_margin_c=round(truth[nearest].lowest_margin_c, 1),
        hw_slowdown_reached=slowed_s > 0.0,
        hw_slowdown_s=round(slowed_s, 1),
        switched_off=[i for i, board in enumerate(truth) if board.off],
    )


def cap_stories(samples: Sequence[Sample]) -> list[CapStory]:
    """One entry per GPU that was capped."""
    stories = []
    for i, first in enumerate(samples[0].gpus):
        prior_w = first.cap_w
        seen = [(s.at_s, s.gpus[i]) for s in samples if i < len(s.gpus) and s.gpus[i].cap_w is not None]
        if prior_w is None:
            continue
        below = [(at_s, gpu) for at_s, gpu in seen if (gpu.cap_w or 0.0) < prior_w - AT_PRIOR_W]
        if not below:
            continue
        back_s = next((at_s for at_s, _ in seen if at_s > below[-1][0]), None)
        lowest = min(below, key=lambda pair: pair[1].cap_w or 0.0)[1]
        stories.append(
            CapStory(
                gpu=first.index,
                first_s=round(below[0][0], 1),
                lowest_w=round(lowest.cap_w or 0.0, 1),
                prior_w=prior_w,
                back_s=round(back_s, 1) if back_s is not None else None,
                cause=lowest.cause or "none",
            )
        )
    return stories


def _steps_lost(samples: Sequence[Sample]) -> int:
    lost, highest = 0, 0
    for sample in samples:
        if sample.step is not None:
            lost = max(lost, highest - sample.step)
            highest = max(highest, sample.step)
    return lost


def _job_story(watcher: Watcher, first_fault_s: float) -> JobStory:
    samples = watcher.samples
    steps = [sample.step for sample in samples if sample.step is not None]
    rates = [sample.steps_per_s for sample in samples if sample.steps_per_s is not None]
    healthy = [s.steps_per_s for s in samples if s.at_s < first_fault_s and s.steps_per_s is not None]
    asked = [save for save in watcher.saves if save.asked]
    return JobStory(
        first_step=steps[0] if steps else 0,
        last_step=steps[-1] if steps else 0,
        restarts=max(0, watcher.job_starts - 1),
        alive=watcher.job_ended is None,
        lowest_duty=min(sample.duty for sample in samples),
        healthy_steps_per_s=round(statistics.median(healthy), 3) if healthy else None,
        slowest_steps_per_s=round(min(rates), 3) if rates else None,
        last_steps_per_s=round(rates[-1], 3) if rates else None,
        checkpoint_step=asked[-1].step if asked else None,
        checkpoint_s=round(asked[-1].at_s, 1) if asked else None,
    )


def sentences(story: Story) -> list[str]:
    """The story in plain words: what happened and what was done in order of time, then what it came to."""
    moments = [(moment.at_s, moment.text) for moment in story.happened[1:]] + _caps_in_words(story)
    job = story.job
    if job.checkpoint_step is not None and job.checkpoint_s is not None:
        moments.append(
            (job.checkpoint_s, f"The job has saved a checkpoint, as it was asked to: step {job.checkpoint_step}")
        )
    out = [f"{clock_text(at_s)}  {text}." for at_s, text in sorted(moments)]
    if not story.caps:
        out.append("No GPU was capped." if story.armed else "Nobody did anything: Nodewarden was not armed.")
    if job.healthy_steps_per_s and job.slowest_steps_per_s and job.last_steps_per_s:
        slowed = f"Training went at {job.healthy_steps_per_s:.2f} steps/s, {job.slowest_steps_per_s:.2f} at the slowest"
        duty = f" (throttled to {job.lowest_duty:.0%} of the time)" if job.lowest_duty < 0.995 else ""
        out.append(f"{slowed}{duty}, and {job.last_steps_per_s:.2f} at the end.")
    would = "" if story.armed else ", had it been armed"
    top = f"Highest rung of the ladder{would}: {story.top_level} ({LADDER[story.top_level]})"
    out.append(f"{top}, at the end {story.last_level} ({LADDER[story.last_level]}).")
    out += _boards_in_words(story.gpus)
    out.append(_lost_in_words(story))
    return out


def _boards_in_words(gpus: GpuStory) -> list[str]:
    where = "below its limit" if gpus.lowest_margin_c >= 0 else "ABOVE its limit"
    hottest = f"Hottest: GPU {gpus.hottest} at {gpus.hottest_c:.1f} °C"
    out = [f"{hottest}; nearest to a limit: GPU {gpus.lowest_margin_gpu}, {abs(gpus.lowest_margin_c):.1f} °C {where}."]
    if gpus.switched_off:
        out.append(f"Switched themselves off: GPU {', '.join(map(str, gpus.switched_off))}.")
    if gpus.hw_slowdown_reached:
        out.append(f"The hardware had to slow itself down, for {gpus.hw_slowdown_s:.0f} GPU-seconds.")
    else:
        out.append("The hardware never had to slow itself down.")
    return out


def _caps_in_words(story: Story) -> list[tuple[float, str]]:
    if not story.caps:
        return []
    first = min(story.caps, key=lambda cap: cap.first_s)
    lowest = min(story.caps, key=lambda cap: cap.lowest_w)
    many = "all eight GPUs" if len(story.caps) == 8 else f"GPUs {', '.join(str(cap.gpu) for cap in story.caps)}"
    began = f"Nodewarden begins to cap power: GPU {first.gpu} first, then {many}, at the lowest {lowest.lowest_w:.0f} W"
    moments = [(first.first_s, began)]
    back = [cap.back_s for cap in story.caps if cap.back_s is not None]
    if len(back) == len(story.caps):
        moments.append((max(back), f"Every cap is lifted again: {first.prior_w:.0f} W, as before"))
    else:
        still = [str(cap.gpu) for cap in story.caps if cap.back_s is None]
        moments.append((story.duration_s, f"Still capped: GPU {', '.join(still)}"))
    return moments


def _lost_in_words(story: Story) -> str:
    job = story.job
    went = f"training went from step {job.first_step} to step {job.last_step}"
    if not job.alive:
        return f"The job ended at step {job.last_step}."
    if story.lost.gpus:
        return f"Lost: {story.lost.gpus} GPUs; {went}, then it stood still."
    if story.lost.steps or job.restarts:
        return f"Lost: {story.lost.steps} steps, {job.restarts} restarts; {went}."
    if story.gpus.hw_slowdown_reached:
        return f"Lost: nothing this time, but only the hardware's own protection stood in between; {went}."
    return f"Lost: nothing. {went[0].upper()}{went[1:]} without a restart, and no step has to be done again."


def as_json(story: Story) -> dict[str, Any]:
    """The story as a document."""
    document: dict[str, Any] = msgspec.to_builtins(story)
    return document
