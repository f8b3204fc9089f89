"""What the agent counts over readings: energy that never goes back, and SM-clock seconds lost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodewarden.devices.nvml_reads import Unwrapped
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.sources.gpu_counters import MAX_GAP_S, EnergyMeter, GpuCounters, LostClock


def gpu(at_s: float, *, energy_j: float | None = None, sm_hz: float = 1.98e9, used: float = 1.0, slow: str = ""):
    def reading(value: float) -> Reading[float]:
        return Reading(value, at_s)

    return GpuSnapshot(
        uuid="GPU-1",
        energy_j=Absent() if energy_j is None else reading(energy_j),
        sm_clock_hz=reading(sm_hz),
        utilisation=reading(used),
        slow=Reading((slow,) if slow else (), at_s),
        more={"max_clock_hz": {("sm",): reading(1.98e9)}},
    )


def test_a_driver_reload_begins_a_new_epoch_and_the_total_goes_on() -> None:
    meter = EnergyMeter()
    totals = [meter.total_j(raw_j, at_s) for at_s, raw_j in enumerate([1000.0, 1600.0, 3.0, 603.0, 1203.0])]
    assert totals == [1000, 1600, 1600, 1600 + 603, 1600 + 1203]  # one low reading alone is not believed yet
    assert meter.epoch.epochs == 1


def test_one_reading_of_zero_is_no_new_epoch() -> None:
    meter = EnergyMeter()
    assert [meter.total_j(raw_j, at_s) for at_s, raw_j in enumerate([5e9, 0.0, 5e9 + 600])] == [5e9, 5e9, 5e9 + 600]
    assert meter.epoch.epochs == 0


def test_a_counter_that_jumps_is_not_believed_and_never_counted() -> None:
    meter = EnergyMeter()
    assert meter.total_j(1000.0, 0.0) == 1000
    assert meter.total_j(9e12, 1.0) is None
    assert meter.total_j(1600.0, 2.0) == 1600
    jumped = [meter.total_j(9e12 + 600 * n, 3.0 + n) for n in range(6)]
    assert jumped[:4] == [None] * 4
    assert jumped[4] == 1600
    assert jumped[5] == pytest.approx(2200)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_the_total_never_goes_back_whatever_the_counter_does(raws: list[float]) -> None:
    meter = EnergyMeter()
    totals = [total for at_s, raw_j in enumerate(raws) if (total := meter.total_j(raw_j, float(at_s))) is not None]
    assert totals == sorted(totals)


def test_energy_totals_outlive_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "energy.json"
    first = GpuCounters(path)
    first.count(gpu(1.0, energy_j=5000.0))
    first.save()
    second = GpuCounters(path)
    assert second.count(gpu(10.0, energy_j=7.0)).energy_j == Reading(5000.0, 10.0)
    again = second.count(gpu(11.0, energy_j=8.0))
    assert again.energy_j == Reading(5008.0, 11.0)
    assert again.number("energy_epoch") == Reading(1.0, 11.0)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"GPU-1": 3}', b"\xff\x00"])
def test_a_damaged_file_of_totals_begins_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "energy.json"
    path.write_bytes(damage)
    assert GpuCounters(path).count(gpu(1.0, energy_j=5.0)).energy_j == Reading(5.0, 1.0)


def test_a_disk_that_refuses_costs_nothing_else(tmp_path: Path) -> None:
    counters = GpuCounters(tmp_path / "missing" / "energy.json")
    counters.count(gpu(1.0, energy_j=5.0))
    counters.save()
    assert counters.count(gpu(2.0, energy_j=6.0)).energy_j == Reading(6.0, 2.0)
    assert not (tmp_path / "missing").exists()


def test_an_energy_that_is_missing_keeps_its_reason() -> None:
    seen = GpuCounters().count(gpu(1.0))
    assert seen.energy_j == Absent("not_supported")
    assert seen.number("energy_epoch") == Absent("not_supported")


def test_lost_clock_is_the_integral_of_what_is_missing_while_busy_and_slowed() -> None:
    lost = LostClock()
    half = {"sm_hz": 0.99e9, "slow": "sw_power_cap"}
    assert lost.add(gpu(0.0, **half)) == Reading(0.0, 0.0)
    assert lost.add(gpu(4.0, **half)) == Reading(2.0, 4.0)
    assert lost.add(gpu(6.0, slow="sw_power_cap")) == Reading(2.5, 6.0)  # at full clock again: the trapezoid between
    assert lost.add(gpu(7.0)) == Reading(2.5, 7.0)


@pytest.mark.parametrize(
    "calm",
    [
        {"used": 0.0, "slow": "sw_power_cap"},
        {"slow": "idle"},
        {"slow": "app_clocks"},
        {"slow": ""},
    ],
)
def test_a_low_clock_of_an_idle_or_unhindered_gpu_is_no_loss(calm: dict) -> None:
    lost = LostClock()
    for at_s in range(5):
        seen = lost.add(gpu(float(at_s), sm_hz=0.345e9, **calm))
    assert seen == Reading(0.0, 4.0)


def test_nothing_is_counted_over_a_gap_or_without_a_reading() -> None:
    lost = LostClock()
    slowed = {"sm_hz": 0.99e9, "slow": "hw_thermal"}
    lost.add(gpu(0.0, **slowed))
    assert lost.add(gpu(MAX_GAP_S + 1, **slowed)) == Reading(0.0, MAX_GAP_S + 1)
    dark = replace(gpu(12.0, **slowed), utilisation=Failed("timeout", 12.0))
    assert lost.add(dark) == Failed("timeout", 12.0)
    assert lost.add(gpu(13.0, **slowed)) == Reading(0.0, 13.0)
    assert lost.add(gpu(14.0, **slowed)) == Reading(0.5, 14.0)


@pytest.mark.parametrize(
    ("raws", "totals"),
    [
        ([5, 9], [5, 9]),
        ([2**32 - 1000, 500], [2**32 - 1000, 2**32 + 500]),
        ([2**64 - 4096, 4096], [2**64 - 4096, 2**64 + 4096]),
        ([2**40, 7, 9], [2**40, 2**40 + 7, 2**40 + 9]),  # far from any end of range: a restart
        ([5, -1, 6], [5, -1, 6]),  # what is no count is handed on and dropped by plausibility
    ],
)
def test_a_counter_is_followed_over_its_wrap(raws: list[int], totals: list[int]) -> None:
    counter = Unwrapped()
    assert [counter.total(float(raw)) for raw in raws] == [float(total) for total in totals]
