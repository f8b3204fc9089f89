"""Mean power from the energy counter. F72: rates need a monotonic clock and a minimum interval."""

import pytest

from nodewarden.devices.mean_power import MIN_SPAN_S, MeanPower


def test_there_is_no_mean_before_a_whole_second_has_passed() -> None:
    power = MeanPower()
    power.add(0.0, 100.0)
    assert power.mean_w() is None
    power.add(15.0, 100.5)
    assert power.mean_w() is None
    power.add(30.0, 101.0)
    assert power.mean_w() == pytest.approx(30.0)


def test_two_samples_half_a_millisecond_apart_make_no_rate() -> None:
    """F72: the step of the counter over 0.5 ms would be kilowatts."""
    power = MeanPower()
    power.add(0.0, 100.0)
    power.add(30.0, 101.0)
    power.add(60.0, 101.0005)
    assert power.mean_w() == pytest.approx(30.0)


def test_the_mean_follows_the_last_second_or_two_at_any_sampling_period() -> None:
    for period_s in (0.1, 0.3, 1.0, 1.0001):
        power, energy_j = MeanPower(), 0.0
        for tick in range(200):
            at_s = tick * period_s
            energy_j += (100.0 if at_s < 100 * period_s else 600.0) * period_s
            power.add(energy_j, at_s)
        assert power.mean_w() == pytest.approx(600.0)
        (first_s, _), (last_s, _) = power._samples[0], power._samples[-1]
        assert MIN_SPAN_S <= last_s - first_s <= MIN_SPAN_S + 1.1


def test_a_counter_that_falls_starts_a_new_epoch() -> None:
    power = MeanPower()
    power.add(1000.0, 10.0)
    power.add(1300.0, 11.0)
    power.add(5.0, 12.0)
    assert power.mean_w() is None
    power.add(305.0, 13.0)
    assert power.mean_w() == pytest.approx(300.0)


def test_a_counter_that_stands_still_gives_no_power_rather_than_zero() -> None:
    power = MeanPower()
    for second in range(4):
        power.add(500.0, float(second))
    assert power.mean_w() is None


def test_a_mean_over_a_long_gap_is_not_taken_for_now() -> None:
    power = MeanPower()
    power.add(0.0, 0.0)
    power.add(60_000.0, 600.0)
    assert power.mean_w() is None
    power.add(60_300.0, 601.0)
    assert power.mean_w() == pytest.approx(300.0)
