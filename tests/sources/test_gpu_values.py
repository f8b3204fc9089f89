"""What the wire says of a quantity, whatever it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewarden.gpuhelper import wire
from nodewarden.model.gpu_quantities import BY_NAME, GPU_QUANTITIES
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.sources.gpu_values import LinkBaseline, checked_board, quantities, quantity
from nodewarden.store import SourceRecord

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([9223372036854775794.0, 4294967295.0, -1.0])


def a_record() -> SourceRecord:
    return SourceRecord("gpu_slow/GPU-1", stale_after_s=30.0, now_s=0.0)


@given(name=st.sampled_from([each.name for each in GPU_QUANTITIES]), value=NUMBERS)
def test_no_value_outside_its_range_becomes_a_reading(name: str, value: float) -> None:
    record = a_record()
    seen = quantity(name, value, None, Absent("not_read"), 1.0, record)
    if isinstance(seen, Reading):
        assert BY_NAME[name].low <= seen.value <= BY_NAME[name].high
    else:
        assert isinstance(seen, Failed)
        assert record.rejected == {name: 1}


@pytest.mark.parametrize("name", ["power_w", "power_energy_w", "power_average_w", "power_instant_w"])
def test_a_board_that_says_0_w_says_nothing(name: str) -> None:
    record = a_record()
    before = Reading(350.0, 0.5)
    assert quantity(name, 0.0, None, before, 1.0, record) == before
    assert isinstance(quantity(name, 0.0, None, Absent("not_read"), 1.0, record), Failed)
    assert record.rejected == {name: 2}


def test_a_helper_of_another_version_may_label_otherwise() -> None:
    samples = [
        wire.Sample(("volatile", "corrected"), 4.0),
        wire.Sample(("volatile",), 1.0),
        wire.Sample(("volatile", "corrected", "sm"), 1.0),
        wire.Sample((), 1.0),
        wire.Sample((), None, "not_supported"),
    ]
    seen = quantities("ecc_errors", samples, {}, 1.0, a_record())
    assert seen == {("volatile", "corrected"): Reading(4.0, 1.0), (): Absent("not_supported")}
    assert quantities("what_is_this", samples, {}, 1.0, a_record()) == {}


def test_a_failure_keeps_the_time_at_which_it_began() -> None:
    first = quantity("pcie_replays", None, "unknown_error", Absent("not_read"), 1.0, a_record())
    assert first == Failed("unknown_error", 1.0)
    assert quantity("pcie_replays", None, "unknown_error", first, 9.0, a_record()) is first
    assert quantity("pcie_replays", None, "timeout", first, 9.0, a_record()) == Failed("timeout", 9.0)


@pytest.mark.parametrize(
    ("board", "kept"),
    [
        (
            wire.WireBoard(kind="absolute", max_op_c=85, slowdown_c=127, shutdown_c=0, hbm_max_op_c=255),
            (85, None, None, None),
        ),
        (wire.WireBoard(kind="tlimit", max_op_c=0, slowdown_c=-2, shutdown_c=-128, hbm_max_op_c=95), (0, -2, None, 95)),
    ],
)  # fmt: skip
def test_thresholds_that_are_markers_are_dropped_by_the_agent_too(board: wire.WireBoard, kept: tuple) -> None:
    """F20, from a helper that believes them."""
    record = a_record()
    checked = checked_board(board, record)
    assert (checked.max_op_c, checked.slowdown_c, checked.shutdown_c, checked.hbm_max_op_c) == kept
    assert sum(record.rejected.values()) == kept.count(None)


def test_a_link_counts_as_present_from_its_first_active_reading_on() -> None:
    """F19."""
    baseline, record = LinkBaseline(), a_record()

    def seen(*active: bool) -> list[tuple[bool, bool]]:
        links = baseline.links(
            "GPU-1", [wire.WireLink(n, up, -1.0 if n else 7.0) for n, up in enumerate(active)], record
        )
        return [(link.active, link.present) for link in links]

    assert seen(True, False) == [(True, True), (False, False)]
    assert seen(False, True) == [(False, True), (True, True)]
    assert baseline.links("GPU-2", [wire.WireLink(0, False)], record)[0].present is False
    assert record.rejected == {"nvlink_transmit_bytes": 2}
