"""What readers see of the store is one truth: health and freshness of a GPU never contradict each other."""

from nodewarden.clock import BootClock
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.store import SnapshotStore


class HandClock(BootClock):
    """Moved by the test."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


def store_with_a_gpu(clock: HandClock) -> SnapshotStore:
    store = SnapshotStore(clock, tuple)
    store.gpus["GPU-a"] = GpuSnapshot(uuid="GPU-a", health="ok", health_since_s=900.0)
    return store


def test_a_gpu_whose_readings_are_stale_is_unresponsive_before_its_source_says_so() -> None:
    clock = HandClock()
    store = store_with_a_gpu(clock)
    store.record("gpu/GPU-a", 3.0).succeeded(clock.now_s(), 0.01)
    clock.at_s += 2.9
    assert store.snapshot().gpus["GPU-a"].health == "ok"
    clock.at_s += 0.2
    seen = store.snapshot().gpus["GPU-a"]
    assert (seen.health, seen.health_since_s) == ("unresponsive", 1000.0)


def test_a_lost_gpu_stays_lost_however_old_its_readings_are() -> None:
    clock = HandClock()
    store = store_with_a_gpu(clock)
    store.gpus["GPU-a"] = GpuSnapshot(uuid="GPU-a", health="lost", health_since_s=990.0)
    store.record("gpu/GPU-a", 3.0).succeeded(clock.now_s(), 0.01)
    clock.at_s += 60
    assert store.snapshot().gpus["GPU-a"].health == "lost"


def test_a_gpu_that_was_not_read_yet_is_not_called_unresponsive() -> None:
    clock = HandClock()
    store = store_with_a_gpu(clock)
    store.record("gpu/GPU-a", 3.0)
    clock.at_s += 2.0
    assert store.snapshot().gpus["GPU-a"].health == "ok"
