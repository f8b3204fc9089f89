"""The GPU side under everything at once: each driver call hung in turn, noise for values, boards that come and go."""

import random
import signal
import time
from collections.abc import Iterator

import pytest

from gpuhelper.rig import Peer, Rig, eventually, rig_of
from nodewarden.gpuhelper import wire
from nodewarden.model.readings import Reading
from standin.standin import GPU_IS_LOST, function_numbers
from support.gpu_agent import watched

BOARDS = 3
SICK = 1
OF_A_DEVICE = sorted(name for name in function_numbers() if name.startswith(("nvmlDevice", "nvmlGpm")))


@pytest.fixture(scope="module")
def boards() -> Iterator[Rig]:
    with rig_of(["h100"] * BOARDS) as rig:
        rig.start()
        yield rig


def others_answer(peer: Peer, rig: Rig) -> None:
    others = [uuid for slot, uuid in enumerate(rig.uuids) if slot != SICK]
    replies = {**peer.fast(*others), **peer.slow(*others)}
    assert all(isinstance(reply, wire.FastReply | wire.SlowReply) for reply in replies.values()), replies


def test_whichever_call_of_one_gpu_hangs_the_others_are_read_and_it_comes_back(boards: Rig) -> None:
    """F02 for every function that concerns a device."""
    peer = boards.agent()
    sick = boards.uuids[SICK]
    for name in OF_A_DEVICE:
        boards.standin.fault(name, gpu=SICK, hang=True)
        fast = peer.send(wire.ReadFast(id=peer.next_id(), uuids=[sick]))
        slow = peer.send(wire.ReadSlow(id=peer.next_id(), uuids=[sick], rare=True))
        others_answer(peer, boards)
        boards.standin.clear()
        answers = [peer.reply_to(request) for request in (fast, slow)]
        assert all(isinstance(answer, wire.FastReply | wire.SlowReply) for answer in answers), (name, answers)
    eventually(lambda: {gpu.state for gpu in peer.adopt().gpus} == {"ok"}, "all to be well")


def test_whichever_call_hangs_the_helper_ends_in_time(boards: Rig) -> None:
    """F02: SIGTERM while any one function never returns, for one GPU or for the library; a few of them, drawn anew."""
    dice = random.Random()
    seen = dice.sample(sorted(function_numbers()), 4)
    for name in seen:
        with rig_of(["h100"] * BOARDS) as rig:
            program = rig.start()
            peer = rig.agent()
            peer.cap(rig.uuids[0], 400)
            rig.standin.fault(name, hang=True)
            peer.send(wire.ReadFast(id=peer.next_id(), uuids=rig.uuids))
            peer.send(wire.ReadSlow(id=peer.next_id(), uuids=rig.uuids, rare=True))
            began_s = time.monotonic()
            program.signal(signal.SIGTERM)
            assert program.wait_exit() == 0, name
            assert time.monotonic() - began_s < 6, name
            entry = rig.entries().get(rig.uuids[0])
            assert rig.standin.limits_w[0] == 700 or (entry is not None and entry.pending), name
    assert boards.programs[0].running


async def test_noise_for_values_is_rejected_or_believable_and_never_ends_the_helper(boards: Rig) -> None:
    """F10, F17, F20: any bits in any field, of any type."""
    dice = random.Random(17)
    gpu = boards.standin.gpus[2]
    async with watched(boards.socket_path, raw_links=True) as node:
        for _ in range(25):
            for field in range(1, 320):
                if dice.random() < 0.5:
                    gpu.more.override_type[field] = dice.randrange(1, 12)
                    gpu.more.override_bits[field] = dice.choice(
                        (dice.getrandbits(64), 2**63 - 14, 2**32 - 1, 0, 255, 1 << 31, 0x7FF8000000000000)
                    )
            gpu.junction_c, gpu.hbm_c = dice.choice((-5, 0, 127, 255, 2**31 - 1, 60)), dice.choice((-1, 655, 50))
            gpu.power_w = dice.choice((0, 4294967.0, 350))
            await node.sweep(rare=True)
            seen = node.gpu(gpu.uuid)
            assert seen.health == "ok"
            junction, power = seen.junction_c, seen.power_w
            assert not isinstance(junction, Reading) or 1 <= junction.value <= 125
            assert not isinstance(power, Reading) or 0 < power.value < 5000
            assert "NaN" not in node.page()
            assert "Inf" not in node.page().replace("Info", "")
        others = [node.gpu(uuid).junction_c for uuid in boards.uuids[:2]]
        assert all(isinstance(each, Reading) for each in others)
    boards.standin.renew()


def test_a_gpu_that_the_driver_no_longer_lists_is_named_and_the_others_go_on(rig: Rig) -> None:
    """F04, variant B: the driver comes back with seven of eight."""
    rig.start()
    peer = rig.agent()
    for uuid in rig.uuids:
        peer.cap(uuid, 500, keep_w=500, protects="gpu")
    gone = rig.uuids[7]
    rig.standin.gpus[7].lost = GPU_IS_LOST
    peer.fast(gone)
    rig.standin.device_count = 7
    eventually(lambda: rig.standin.calls("nvmlInitWithFlags") >= 2, "the library to be opened again", 30)
    states = {found.uuid: found.state for found in peer.adopt().gpus}
    assert states.pop(gone) == "lost"
    assert set(states.values()) == {"ok"}
    assert rig.standin.limits_w == [500.0] * 8
    assert set(peer.ledger()) == set(rig.uuids)
    rig.standin.gpus[7].lost = 0
    rig.standin.device_count = 8
    eventually(lambda: peer.adopt().gpus[7].state == "ok", "it to be found by its uuid", 40)


def test_boards_that_come_and_go_all_the_time_end_up_where_they_are(rig: Rig) -> None:
    """F04, F07: any of them, at any moment, in any order."""
    dice = random.Random(4)
    program = rig.start()
    peer = rig.agent()
    order = list(range(8))
    for _ in range(60):
        board = rig.standin.gpus[dice.randrange(8)]
        board.lost = dice.choice((0, 0, GPU_IS_LOST, 16, 999))
        dice.shuffle(order)
        rig.standin.reorder(order)
        peer.fast(*rig.uuids)
        peer.set_cap(dice.choice(rig.uuids), dice.choice((300.0, 450.0, 700.0)), keep_w=450.0, protects="gpu")
    for board in rig.standin.gpus:
        board.lost = 0
    eventually(lambda: {found.state for found in peer.adopt().gpus} == {"ok"}, "all eight", 60)
    assert program.running
    assert {found.uuid: found.index for found in peer.adopt().gpus} == {
        rig.uuids[slot]: index for index, slot in enumerate(order)
    }


async def test_energy_is_the_counters_own_whatever_the_means_say(boards: Rig) -> None:
    """F31: a square load, half a second each; the average of the board lags, the counter does not."""
    gpu = boards.standin.gpus[0]
    async with watched(boards.socket_path) as node:

        async def energy_j() -> float:
            await node.source.read_fast()
            reading = node.gpu(gpu.uuid).energy_j
            assert isinstance(reading, Reading)
            return reading.value

        gpu.power_w = 100.0
        began_j = await energy_j()
        spent_j, before_s = 0.0, time.monotonic()
        for turn in range(6):
            until_s = time.monotonic() + 0.5
            eventually(lambda until_s=until_s: time.monotonic() >= until_s, "half a second")
            now_s = time.monotonic()
            spent_j += (700.0 if turn % 2 else 100.0) * (now_s - before_s)
            before_s = now_s
            gpu.power_w = 100.0 if turn % 2 else 700.0
        gpu.power_w = 100.0
        used_j = await energy_j() - began_j
        assert used_j == pytest.approx(
            spent_j, abs=2 * 70 + 60
        )  # a step of the counter at each end, and a slow machine
    boards.standin.renew()
