"""Sampling ten times a second by the helper itself, asked for with the fast readings."""

import itertools

from gpuhelper.rig import Peer, Rig, eventually
from nodewarden.gpuhelper import wire
from standin.standin import NOT_SUPPORTED


class Reader:
    """Asks for fast readings with quick ones beside them, as an agent does, and keeps what comes."""

    def __init__(self, peer: Peer, uuids: list[str], every_s: float | None = 0.1) -> None:
        self.peer = peer
        self.uuids = uuids
        self.every_s = every_s
        self.samples: dict[str, list[wire.QuickSample]] = {uuid: [] for uuid in uuids}
        self.nudges = 0

    def ask(self) -> bool:
        request = wire.ReadFast(id=self.peer.next_id(), uuids=self.uuids, quick_every_s=self.every_s)
        request_id = self.peer.send(request)
        for _ in self.uuids:
            reply = self.peer.reply_to(request_id)
            if isinstance(reply, wire.FastReply):
                self.samples[reply.uuid] += reply.quick
        self.nudges += sum(isinstance(reply, wire.Nudge) for reply in self.peer.unclaimed)
        self.peer.unclaimed.clear()
        return True

    def until(self, condition: object, what: str) -> None:
        eventually(lambda: self.ask() and condition(), what, 20)  # type: ignore[operator]


def test_between_two_fast_readings_the_helper_samples_ten_times_a_second(rig: Rig) -> None:
    rig.start()
    reader = Reader(rig.agent(), rig.uuids)
    reader.until(lambda: all(len(got) >= 12 for got in reader.samples.values()), "a dozen samples of each GPU")
    times = [sample.taken_at_s for sample in reader.samples[rig.uuids[0]]]
    assert all(b - a > 0.05 for a, b in itertools.pairwise(times))
    last = reader.samples[rig.uuids[3]][-1]
    assert (last.junction_c, last.hbm_c, last.margin_c, last.power_instant_w) == (41, 48, 46, 69.9)


def test_a_peak_shorter_than_a_second_is_in_the_samples(rig: Rig) -> None:
    """F31: the mean of a second says nothing of it."""
    rig.start()
    reader = Reader(rig.agent(), rig.uuids)
    reader.ask()
    board = rig.standin.gpus[2]
    calls = rig.standin.calls("nvmlDeviceGetFieldValues", gpu=2)
    board.instant_power_w = 690.0
    eventually(lambda: rig.standin.calls("nvmlDeviceGetFieldValues", gpu=2) > calls + 2, "two samples of the peak")
    board.instant_power_w = 70.0
    reader.until(lambda: len(reader.samples[rig.uuids[2]]) >= 6, "the samples")
    assert max(sample.power_instant_w for sample in reader.samples[rig.uuids[2]]) == 690


def test_nobody_asking_ends_the_sampling(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    reader = Reader(peer, rig.uuids)
    reader.until(lambda: reader.samples[rig.uuids[0]], "a sample")

    def stands_still() -> bool:
        before = rig.standin.calls("nvmlDeviceGetTemperature*")
        peer.adopt()
        return not eventually_more(rig, before)

    eventually(stands_still, "the sampling to end", 20)
    reader.every_s = None
    reader.ask()
    calls = rig.standin.calls("nvmlDeviceGetTemperature*")
    assert not eventually_more(rig, calls)


def eventually_more(rig: Rig, calls: int) -> bool:
    """Whether temperatures are read within half a second without anybody asking."""
    try:
        eventually(lambda: rig.standin.calls("nvmlDeviceGetTemperature*") > calls, "more calls", 0.5)
    except AssertionError:
        return False
    return True


def test_a_gpu_that_becomes_much_hotter_between_two_readings_is_told_at_once(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    reader = Reader(peer, rig.uuids)
    reader.ask()
    rig.standin.gpus[6].junction_c += 5
    reply = peer.receive()  # unasked
    assert isinstance(reply, wire.Nudge)
    reader.ask()
    assert reader.nudges == 0


def test_a_hung_gpu_costs_the_quick_samples_of_no_other(rig: Rig) -> None:
    """F02."""
    rig.start()
    reader = Reader(rig.agent(), [uuid for uuid in rig.uuids if uuid != rig.uuids[5]])
    reader.ask()
    rig.standin.fault("nvmlDeviceGetTemperature*", gpu=5, hang=True)
    eventually(lambda: rig.standin.calls("nvmlDeviceGetTemperature*", gpu=5), "the call that hangs")
    for got in reader.samples.values():
        got.clear()
    reader.until(lambda: all(len(got) >= 10 for got in reader.samples.values()), "the samples of the others")


def test_what_a_board_does_not_have_is_not_asked_for_ten_times_a_second(rig: Rig) -> None:
    rig.standin.fault("nvmlDeviceGetMarginTemperature", gpu=1, error=NOT_SUPPORTED)
    rig.standin.gpus[1].fail_field(186)
    rig.start()
    reader = Reader(rig.agent(), rig.uuids[:2])
    reader.ask()
    reader.until(lambda: len(reader.samples[rig.uuids[1]]) >= 8, "samples without a margin")
    last = reader.samples[rig.uuids[1]][-1]
    assert (last.junction_c, last.hbm_c, last.margin_c, last.power_instant_w) == (41, 48, None, None)
    assert reader.samples[rig.uuids[0]][-1].margin_c == 46
    without, with_it = (rig.standin.calls("nvmlDeviceGetMarginTemperature", gpu=gpu) for gpu in (1, 0))
    assert without <= with_it - 6
