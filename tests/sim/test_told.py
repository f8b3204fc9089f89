"""Events in plain words for the demo."""

from nodewarden.sim.told import plainly
from nodewarden.sim.watch import Told


def told(at_s: float, code: str, text: str, uuid: str | None = None) -> Told:
    return Told(at_s=at_s, code=code, text=text, uuid=uuid)


def lines(events: list[Told]) -> list[str]:
    return [event.text for event in plainly(events)]


def test_eight_caps_at_once_are_one_line() -> None:
    events = [told(60.0, "gpu_capped", f"GPU {i} capped at 626 W: cooling removes less", f"GPU-{i}") for i in range(8)]
    assert lines(events) == ["GPU 0 (and 7 more) capped at 626 W: cooling removes less"]


def test_a_cap_later_is_a_line_of_its_own() -> None:
    events = [told(60.0, "gpu_capped", "GPU 0 capped at 626 W", "a"), told(90.0, "gpu_capped", "GPU 1 capped", "b")]
    assert lines(events) == ["GPU 0 capped at 626 W", "GPU 1 capped"]


def test_what_was_said_before_is_not_said_again() -> None:
    events = [
        told(70.0, "job_throttled", "job toy throttled to 80% of the time: thermal"),
        told(70.5, "job_throttled", "job toy throttled to 80% of the time (thermal)"),
        told(70.5, "checkpoint_wanted", "jobs are asked to save within 92 s"),
        told(71.0, "gpu_capped_firing", "GPU 5 capped at 540 W"),
        told(99.0, "gpu_capped_resolved", "GPU 5 capped at 540 W"),
        told(-5.0, "pdu_found", "PDU rack-pdu answers"),
    ]
    assert lines(events) == ["job toy throttled to 80% of the time: thermal"]


def test_paths_of_a_temporary_folder_are_left_out() -> None:
    event = told(80.0, "checkpoint_persisted", "checkpoint of job toy persisted at step 35: /somewhere/step-00000035")
    assert lines([event]) == ["checkpoint of job toy persisted at step 35"]


def test_times_of_the_agents_fast_clock_are_left_out() -> None:
    event = told(138.0, "limit_exceeded_firing", "GPU 4 at its slowdown temperature since 21:14:06; nodectl explain")
    assert lines([event]) == ["GPU 4 at its slowdown temperature; nodectl explain"]


def test_a_dry_run_stays_one_when_eight_gpus_are_one_line() -> None:
    events = [told(60.0, "gpu_capped", f"dry run: GPU {i} would be capped at 626 W", f"GPU-{i}") for i in range(2)]
    events.append(told(70.0, "gpu_at_slowdown_firing", "GPU 5 at its slowdown temperature"))
    assert lines(events) == [
        "dry run: GPU 0 (and 1 more) would be capped at 626 W",
        "GPU 5 at its slowdown temperature",
    ]
