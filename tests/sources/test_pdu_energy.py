"""F35: an energy counter over wrap, restart, reset and garbled reads."""

from hypothesis import given
from hypothesis import strategies as st

from nodewarden.sources.pdu.energy import EnergyCounter

WRAP = 2**32


def test_a_restart_begins_anew_and_the_total_goes_on() -> None:
    counter = EnergyCounter(1.0)
    assert counter.take(4_294_967_000, 0, restarted=False) == 4_294_967_000
    assert counter.take(12, 60, restarted=True) == 4_294_967_012


def test_a_wrap_adds_the_range_of_the_counter() -> None:
    counter = EnergyCounter(1.0)
    counter.take(4_294_967_290, 0, restarted=False)
    assert counter.take(15, 60, restarted=False) == WRAP + 15
    tenths = EnergyCounter(100.0)
    tenths.take((WRAP - 1) * 100.0, 0, restarted=False)
    assert tenths.take(200.0, 60, restarted=False) == WRAP * 100.0 + 200.0


def test_one_garbled_read_changes_nothing_and_is_forgotten() -> None:
    counter = EnergyCounter(1.0)
    counter.take(1000.0, 0, restarted=False)
    assert counter.take(1e12, 5, restarted=False) == 1000.0
    assert counter.take(3.0, 10, restarted=False) == 1000.0
    assert counter.take(1010.0, 15, restarted=False) == 1010.0


def test_a_reset_by_a_person_is_believed_the_second_time_and_costs_nothing() -> None:
    counter = EnergyCounter(1.0)
    counter.take(500_000.0, 0, restarted=False)
    assert counter.take(0.0, 5, restarted=False) == 500_000.0
    assert counter.take(7.0, 10, restarted=False) == 500_000.0
    assert counter.take(20.0, 15, restarted=False) == 500_013.0


def test_nothing_is_nothing() -> None:
    counter = EnergyCounter(1.0)
    assert counter.take(None, 0, restarted=False) is None
    counter.take(5.0, 1, restarted=False)
    assert counter.take(None, 2, restarted=True) is None
    assert counter.take(6.0, 3, restarted=False) == 6.0


@given(st.lists(st.tuples(st.floats(0, 1e13), st.booleans(), st.floats(0, 100)), max_size=40))
def test_the_total_never_falls(reads: list[tuple[float, bool, float]]) -> None:
    counter, now_s, before = EnergyCounter(1.0), 0.0, 0.0  # a sum of what was believed, each of it zero or more
    for raw_wh, restarted, gap_s in reads:
        now_s += gap_s
        total = counter.take(raw_wh, now_s, restarted=restarted)
        assert total is not None
        assert total >= before
        before = total
