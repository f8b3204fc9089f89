"""Limits of a GPU come from its board; what was found is never confused with what we wrote."""

import pytest

from nodewarden.control import gpu_limits
from nodewarden.model.readings import Failed, Reading
from nodewarden.model.snapshot import GpuBoard, GpuSnapshot

H100 = GpuBoard(min_w=200, max_w=700, default_w=700, kind="tlimit", max_op_c=0, slowdown_c=-2, shutdown_c=-8)


def gpu(cap_w: float | None, taken_at_s: float = 10.0, board: GpuBoard = H100) -> GpuSnapshot:
    reading = Failed("timeout", 5.0) if cap_w is None else Reading(cap_w, taken_at_s)
    return GpuSnapshot(uuid="GPU-1", board=board, cap_w=reading)


def prior(found: GpuSnapshot, *, ledger_w: float | None = None, before_w: float | None = None, touched_s: float = 0):
    before = None if before_w is None else gpu_limits(gpu(before_w), None, None)
    limits = gpu_limits(found, ledger_w, before, touched_s)
    assert limits is not None
    return limits.prior_w


def test_the_limit_that_was_found_is_the_most_that_is_ever_given_back() -> None:
    """F27: an operator keeps 500 W; a ledger entry knows better than the board."""
    assert prior(gpu(500)) == 500
    assert prior(gpu(400), ledger_w=500) == 500


def test_a_limit_that_an_operator_changes_while_we_do_nothing_is_the_new_one_found() -> None:
    assert prior(gpu(600), before_w=500) == 600


def test_a_reading_from_before_our_last_write_is_not_what_was_found() -> None:
    """After a release the board is back at 700 W, while the last sweep still says 688 W."""
    assert prior(gpu(688, taken_at_s=10), before_w=700, touched_s=10.5) == 700
    assert prior(gpu(700, taken_at_s=11), before_w=700, touched_s=10.5) == 700


def test_without_a_reading_the_last_known_limit_counts_and_without_that_the_default() -> None:
    assert prior(gpu(None), before_w=500) == 500
    assert prior(gpu(None)) == 700


def test_a_board_that_says_no_range_gets_no_limits_and_so_no_cap() -> None:
    assert gpu_limits(gpu(500, board=GpuBoard()), None, None) is None


@pytest.mark.parametrize("kind", ["absolute", None])
def test_missing_thresholds_are_replaced_by_safe_ones(kind) -> None:
    """F20."""
    limits = gpu_limits(gpu(300, board=GpuBoard(min_w=100, max_w=400, kind=kind)), None, None)
    assert limits is not None
    assert (limits.max_op_c, limits.slowdown_c, limits.shutdown_c, limits.hbm_max_op_c) == (85, 89, 92, 95)
