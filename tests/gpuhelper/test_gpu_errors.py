"""The helper listens to the driver's events and to the kernel's log, and nobody waits for it."""

import time
from collections.abc import Iterator

import pytest

from gpuhelper.rig import Peer, Rig, eventually, rig_of
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.gpu_errors import MAX_ENTRIES, ErrorFeed


@pytest.fixture
def rig() -> Iterator[Rig]:
    with rig_of(["h100"] * 2) as made:
        made.start()
        yield made


class Taker:
    """Takes as an agent does, and keeps everything."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.seen: list[wire.GpuError] = []
        self.reply = peer.errors()
        self._keep()

    def _keep(self) -> None:
        self.seen += self.reply.errors
        self.kernel_after = max((each.kernel_number for each in self.seen), default=-1)

    def take(self) -> list[wire.GpuError]:
        self.reply = self.peer.errors(self.reply.epoch, self.reply.last, self.kernel_after)
        self._keep()
        return self.seen

    def count(self, source: str, code: int) -> int:
        return sum(each.count for each in self.take() if (each.source, each.code) == (source, code))


def listening(rig: Rig) -> Taker:
    taker = Taker(rig.agent())

    def both_up() -> bool:
        taker.take()
        return taker.reply.driver.up and taker.reply.kernel.up

    eventually(both_up, "both sources to be listened to")
    return taker


def test_an_event_of_the_driver_and_a_line_of_the_kernel_are_told_with_the_uuid(rig: Rig) -> None:
    """F13: what one source does not say, the other does."""
    taker = listening(rig)
    gpu = rig.standin.gpus[1]
    gpu.xid(48)
    rig.kernel_log.xid(gpu.bus_id, 62)
    eventually(lambda: taker.count("nvml", 48) and taker.count("kernel", 62), "both")
    assert {each.uuid for each in taker.seen} == {gpu.uuid}
    line = next(each for each in taker.seen if each.source == "kernel")
    assert (line.pid, line.process, line.kernel_number) == (4711, "python", 1)
    assert abs(line.first_s - time.clock_gettime(time.CLOCK_BOOTTIME)) < 30


def test_a_hello_says_that_there_is_something_to_take(rig: Rig) -> None:
    taker = listening(rig)
    before = taker.peer.adopt().errors
    rig.standin.gpus[0].xid(31, times=3)
    eventually(lambda: taker.peer.adopt().errors == before + 3, "the hello to count three more")


def test_a_gpu_without_xid_events_costs_only_its_own() -> None:
    with rig_of(["h100"] * 2) as rig:
        rig.standin.gpus[0].supported_events = 0x7
        rig.start()
        taker = listening(rig)
        rig.standin.gpus[0].xid(31)
        rig.standin.gpus[1].xid(32)
        eventually(lambda: taker.count("nvml", 32), "the event of the other GPU")
        assert taker.count("nvml", 31) == 0


def test_a_wait_that_hangs_costs_events_only_and_stop_does_not_wait_for_it(rig: Rig) -> None:
    taker = listening(rig)
    rig.standin.fault("nvmlEventSetWait_v2", hang=True)
    calls = rig.standin.calls("nvmlEventSetWait_v2")
    eventually(lambda: rig.standin.calls("nvmlEventSetWait_v2") > calls, "the wait to hang")
    rig.kernel_log.xid(rig.standin.gpus[0].bus_id, 95)
    eventually(lambda: taker.count("kernel", 95), "the kernel's line")
    replies = taker.peer.fast(*rig.uuids)
    assert all(isinstance(reply, wire.FastReply) for reply in replies.values())
    program = rig.programs[-1]
    began_s = time.monotonic()
    program.stop(10)
    assert time.monotonic() - began_s < 10


def test_after_the_library_was_opened_again_events_come_again(rig: Rig) -> None:
    taker = listening(rig)
    rig.standin.gpus[0].lost = 15

    def reopened() -> bool:
        taker.peer.fast(rig.uuids[0])  # somebody has to meet the lost GPU
        return "library_reopened" in rig.programs[-1].output

    eventually(reopened, "the library to be opened again", 20)
    rig.standin.gpus[0].lost = 0

    def heard() -> bool:
        rig.standin.gpus[1].xid(43)
        return taker.count("nvml", 43) > 0

    eventually(heard, "an event after the reopening", 20)


def test_gpus_that_appear_one_by_one_are_listened_to_as_they_come() -> None:
    """F07: none is there at the start."""
    with rig_of(["h100"] * 2) as rig:
        rig.standin.device_count = 0
        rig.start()
        taker = Taker(rig.agent())
        for index in range(2):
            rig.standin.device_count = index + 1

            def heard(index: int = index) -> bool:
                rig.standin.gpus[index].xid(40 + index)
                return taker.count("nvml", 40 + index) > 0

            eventually(heard, f"an event of GPU {index}", 30)


def test_a_storm_is_few_entries_and_no_event_is_uncounted(rig: Rig) -> None:
    """F14: bounded, exact."""
    taker = listening(rig)
    rig.kernel_log.xid(rig.standin.gpus[0].bus_id, 95, times=20_000)
    eventually(lambda: taker.count("kernel", 95) == 20_000, "all of them", 30)
    assert len(taker.seen) < 200


def test_a_new_helper_does_not_tell_again_what_was_taken(rig: Rig) -> None:
    """F14: the ring buffer is there again after a restart, its lines are not new."""
    taker = listening(rig)
    rig.kernel_log.xid(rig.standin.gpus[0].bus_id, 31, times=5)
    eventually(lambda: taker.count("kernel", 31) == 5, "the five")
    rig.programs[-1].stop()
    rig.kernel_log.xid(rig.standin.gpus[0].bus_id, 31, times=2)
    rig.start()
    again = rig.agent()
    found: list[wire.GpuError] = []

    def two_more() -> bool:
        reply = again.errors(taker.reply.epoch, taker.reply.last, taker.kernel_after)
        found[:] = reply.errors
        return sum(each.count for each in found) == 2

    eventually(two_more, "the two new ones")
    assert min(each.kernel_number for each in found) > taker.kernel_after


def test_a_log_that_may_not_be_read_is_said_so() -> None:
    with rig_of(["h100"]) as rig:
        rig.start(env={"NODEWARDEN_KERNEL_LOG": str(rig.folder / "none")})
        taker = Taker(rig.agent())
        eventually(lambda: taker.take() == [] and taker.reply.kernel.reason == "missing", "the reason")


def error(code: int, source: str = "kernel", *, at_s: float = 0.0) -> wire.GpuError:
    return wire.GpuError(
        source=source, kind="xid", code=code, bus_id="b", first_s=at_s, last_s=at_s, kernel_number=code
    )  # type: ignore[arg-type]


def test_the_feed_is_bounded_and_counts_what_nobody_took() -> None:
    feed = ErrorFeed(lambda: None, lambda _: "")
    for code in range(MAX_ENTRIES + 40):
        feed.add(error(code))
    reply = feed.take(1, "", 0, -1)
    assert reply.more
    taken = len(reply.errors)
    while reply.more:
        reply = feed.take(1, reply.epoch, reply.last, -1)
        taken += len(reply.errors)
    assert (taken, reply.dropped) == (MAX_ENTRIES, 40)


def test_an_agent_that_forgot_takes_again_and_nothing_is_added_to_what_was_taken() -> None:
    feed = ErrorFeed(lambda: None, lambda _: "")
    feed.add(error(31))
    first = feed.take(1, "", 0, -1)
    feed.add(error(31))
    again = feed.take(2, first.epoch, 0, -1)
    assert [each.count for each in again.errors] == [1, 1]


def test_news_is_told_once_until_it_is_taken() -> None:
    told: list[int] = []
    feed = ErrorFeed(lambda: told.append(1), lambda _: "")
    for _ in range(100):
        feed.add(error(31))
    assert len(told) == 1
    feed.take(1, "", 0, -1)
    feed.add(error(31))
    assert len(told) == 2
