"""What the helper makes of a driver and of boards over their whole life: leaks, new indexes, resets, lost limits."""

import json
import os
import subprocess
import sys
from pathlib import Path

from gpuhelper.rig import Rig, collect_events, eventually
from nodewarden.gpuhelper import wire

LEAK_CYCLES = Path(__file__).with_name("leak_cycles.py")


def test_two_thousand_openings_leave_nothing_behind_though_every_third_fails(rig: Rig) -> None:
    """F05, on the library itself: descriptors and threads stay, memory grows by a few MiB at most."""
    rig.standin.install("550")
    environment = os.environ | rig.standin.env()
    command = [sys.executable, LEAK_CYCLES, rig.folder / "module.version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    early, late = json.loads(done.stdout).values()
    assert (late["fds"], late["threads"]) == (early["fds"], early["threads"])
    assert late["rss_kb"] - early["rss_kb"] < 4096
    assert rig.standin.calls("nvmlInitWithFlags") >= 2000
    assert rig.standin.calls("nvmlDeviceGetTemperatureV") >= 1000


def test_the_library_is_opened_once_and_again_only_after_a_loss(rig: Rig) -> None:
    """F05: never a cycle of init and shutdown around each reading."""
    program = rig.start()
    peer = rig.agent()
    descriptors = Path(f"/proc/{program.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(100):
        peer.fast(*rig.uuids)
        peer.slow(rig.uuids[0])
    assert rig.standin.calls("nvmlInitWithFlags") == 1
    assert len(list(descriptors.iterdir())) == before
    rig.standin.gpus[1].lost = 15
    peer.fast(rig.uuids[1])
    rig.standin.gpus[1].lost = 0
    eventually(lambda: peer.adopt().gpus[1].state == "ok", "it to be found again", 30)
    assert rig.standin.calls("nvmlInitWithFlags") == 2
    assert len(list(descriptors.iterdir())) == before


def test_a_gpu_that_comes_back_with_another_index_and_minor_is_the_same_by_its_uuid(rig: Rig) -> None:
    """F04, and a cached handle is used no more: its cap is the one that it had."""
    rig.start()
    peer = rig.agent()
    peer.cap(rig.uuids[2], 400, keep_w=400, protects="gpu")
    board = rig.standin.gpus[2]
    board.lost = 15
    error = peer.fast(rig.uuids[2])[rig.uuids[2]]
    assert isinstance(error, wire.ErrorReply)
    assert "it has fallen off the bus (NVML 15)" in error.text
    rig.standin.reorder([0, 1, 3, 4, 5, 6, 7, 2])
    board.minor = 13
    (rig.standin.dev / "nvidia13").touch()
    board.lost = 0

    def shown() -> dict[str, wire.GpuIdentity]:
        return {gpu.uuid: gpu for gpu in peer.adopt().gpus}

    eventually(lambda: shown()[rig.uuids[2]].state == "ok", "it to be found again", 30)
    assert (shown()[rig.uuids[2]].index, shown()[rig.uuids[3]].index) == (7, 2)
    assert peer.cap(rig.uuids[2], 350, keep_w=350, protects="gpu").w == 350
    assert rig.standin.limits_w == [700, 700, 350, *[700] * 5]
    assert peer.ledger()[rig.uuids[2]].prior_w == 700


def test_a_cap_that_an_idle_driver_forgets_is_told_each_time_and_what_protects_is_set_again(rig: Rig) -> None:
    """F28: without persistence mode the limit is the default again when the last client has gone."""
    rig.standin.gpus[4].persistence = 0
    rig.start()
    peer = rig.agent()
    slow = peer.slow(rig.uuids[4])[rig.uuids[4]]
    assert isinstance(slow, wire.SlowReply)
    assert [sample.value for sample in slow.more["persistence_mode"]] == [0.0]
    peer.cap(rig.uuids[4], 400, keep_w=450, protects="breaker")
    events: list[wire.HelperEvent] = []
    for times in (1, 2, 3):
        rig.standin.gpus[4].reset()

        def is_told(times: int = times) -> bool:
            collect_events(peer, rig.uuids, events)
            return sum(event.code == "cap_vanished" for event in events) == times

        eventually(is_told, "the loss to be told")
        eventually(lambda: rig.standin.limits_w[4] == 450, "the cap to be set again")
    assert peer.ledger()[rig.uuids[4]].state == "owned"


def test_a_gpu_that_needs_a_reset_has_no_readings_and_keeps_its_cap(rig: Rig) -> None:
    """F21: 92 degrees that stand still are not 92 degrees now, let alone 0; nothing is raised on them."""
    rig.start()
    peer = rig.agent()
    rig.standin.gpus[6].junction_c = 92
    peer.cap(rig.uuids[6], 300, keep_w=300, protects="gpu")
    rig.standin.gpus[6].lost = 16
    for _ in range(3):
        error = peer.fast(rig.uuids[6])[rig.uuids[6]]
        assert isinstance(error, wire.ErrorReply)
        assert (error.code, "it needs a reset (NVML 16)" in error.text) == ("lost", True)
    assert isinstance(peer.set_cap(rig.uuids[6], 700), wire.ErrorReply)
    assert rig.standin.limits_w[6] == 300
    assert peer.ledger()[rig.uuids[6]].keep_w == 300


def test_a_directory_in_the_ledgers_place_is_named(rig: Rig) -> None:
    rig.runtime_dir.mkdir(parents=True)
    rig.ledger_path.mkdir()
    rig.start()
    peer = rig.agent()
    hello = peer.adopt()
    assert (hello.ledger_ok, "gpu-ledger" in hello.ledger_text) == (False, True)
    refused = peer.set_cap(rig.uuids[0], 400)
    assert isinstance(refused, wire.ErrorReply)
    assert refused.code == "ledger_failed"
    rig.ledger_path.rmdir()
    eventually(lambda: peer.adopt().ledger_ok, "the ledger to be made")
    assert peer.cap(rig.uuids[0], 400).w == 400
