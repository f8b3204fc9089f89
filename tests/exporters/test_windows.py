"""Trailing windows: exact for any history of readings, and bounded in memory."""

from hypothesis import given
from hypothesis import strategies as st

from nodewarden.model.readings import Reading
from nodewarden.model.snapshot import GpuSnapshot, NodeSnapshot
from nodewarden_exporters.windows import WINDOWS_S, Windows


def snapshot(at_s: float, junction_c: float) -> NodeSnapshot:
    return NodeSnapshot(gpus={"a": GpuSnapshot(uuid="a", junction_c=Reading(junction_c, at_s))})


@given(
    history=st.lists(st.tuples(st.floats(0.05, 20.0), st.integers(20, 110)), min_size=1, max_size=120),
    later_s=st.floats(0.0, 70.0),
)
def test_lowest_and_highest_are_those_of_the_window(history, later_s) -> None:
    windows, at_s, readings = Windows(), 100.0, []
    for step_s, value in history:
        at_s += step_s
        readings.append((at_s, float(value)))
        windows.observe(snapshot(at_s, float(value)))
        windows.observe(snapshot(at_s, float(value)))  # the same reading again
    now_s = at_s + later_s
    for window_s in WINDOWS_S:
        inside = [value for taken_s, value in readings if taken_s >= now_s - window_s]
        expected = (min(inside), max(inside)) if inside else None
        assert windows.extremes("a", "junction_c", window_s, now_s) == expected


def test_a_spike_between_two_scrapes_is_seen_for_fifteen_seconds() -> None:
    windows = Windows()
    for tick in range(40):
        windows.observe(snapshot(100.0 + tick * 0.5, 95.0 if tick == 10 else 70.0))
    assert windows.extremes("a", "junction_c", 15.0, 119.5) == (70.0, 95.0)
    assert windows.extremes("a", "junction_c", 15.0, 120.5) == (70.0, 70.0)
    assert windows.extremes("a", "junction_c", 60.0, 120.5) == (70.0, 95.0)


def test_memory_is_bounded_by_the_longest_window_and_gone_gpus_are_forgotten() -> None:
    windows = Windows()
    for tick in range(5000):
        windows.observe(snapshot(tick * 0.1, 20.0 + tick * 0.01))
    extremes = windows._of["a", "junction_c"]
    assert len(extremes.low) <= 602
    windows.observe(NodeSnapshot())
    assert windows.extremes("a", "junction_c", 60.0, 500.0) is None
