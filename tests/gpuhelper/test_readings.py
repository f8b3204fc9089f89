"""What the helper reads through pynvml, board by board, and what is missing costs only itself."""

import os
import subprocess
import sys

import pytest

from gpuhelper.rig import Peer, Rig, eventually, rig_of
from nodewarden.gpuhelper import wire
from nodewarden.model.gpu_quantities import FAST_READ
from standin.standin import DRIVER_NOT_LOADED, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, NO_PERMISSION, NOT_SUPPORTED


def fast(peer: Peer, uuid: str) -> wire.FastReply:
    reply = peer.fast(uuid)[uuid]
    assert isinstance(reply, wire.FastReply), reply
    return reply


def slow(peer: Peer, uuid: str) -> wire.SlowReply:
    reply = peer.slow(uuid)[uuid]
    assert isinstance(reply, wire.SlowReply), reply
    return reply


def value(peer: Peer, uuid: str, name: str) -> float | None:
    return fast(peer, uuid).values[name].value


def wait_for_mean(peer: Peer, uuid: str, expected_w: float) -> None:
    """Until the mean from the energy counter is there; its counter steps every 100 ms."""

    def is_near() -> bool:
        mean_w = value(peer, uuid, "power_w")
        return mean_w is not None and abs(mean_w - expected_w) < 0.15 * expected_w

    eventually(is_near, f"a mean power of about {expected_w:g} W")


def test_an_h100_gives_every_quantity_in_si_units(rig: Rig) -> None:
    gpu = rig.standin.gpus[3]
    gpu.junction_c, gpu.hbm_c, gpu.margin_c = 71, 80, -3
    gpu.power_w, gpu.instant_power_w = 500.0, 590.0
    gpu.utilisation_pct, gpu.memory_used_bytes = 99, 1 << 30
    gpu.sm_mhz, gpu.memory_mhz = 1980, 2619
    gpu.event_reasons = 0x24
    gpu.limit_w, gpu.oob_limit_w = 650.0, 600.0
    gpu.set_slow_s(74, 12.5)
    gpu.set_slow_s(269, 3.25)
    rig.start()
    peer = rig.peer()
    reply = fast(peer, gpu.uuid)
    assert set(reply.values) == set(FAST_READ)
    values = {name: quantity.value for name, quantity in reply.values.items()}
    assert values["junction_c"] == 71
    assert values["hbm_c"] == 80
    assert values["margin_c"] == -3
    assert values["power_instant_w"] == 590.0
    assert values["cap_w"] == 650.0
    assert values["enforced_w"] == 600.0
    assert values["utilisation"] == 0.99
    assert values["memory_used_bytes"] == 1 << 30
    assert values["memory_total_bytes"] == 81_559 << 20
    assert values["sm_clock_hz"] == 1.98e9
    assert values["memory_clock_hz"] == 2.619e9
    assert reply.slow_bits == 0x24
    assert reply.slow_s["sw_power_cap"].value == 12.5
    assert reply.slow_s["sw_thermal"].value == 3.25
    wait_for_mean(peer, gpu.uuid, 500.0)


def test_an_h100_is_known_by_its_signed_margin_and_an_a100_by_its_thresholds() -> None:
    with rig_of(["h100", "a100"]) as rig:
        rig.start()
        peer = rig.peer()
        h100, a100 = rig.uuids
        board = slow(peer, h100).board
        assert (board.kind, board.max_op_c, board.slowdown_c, board.shutdown_c) == ("tlimit", 0, -2, -8)
        assert (board.min_w, board.max_w, board.default_w) == (200, 700, 700)
        board = slow(peer, a100).board
        assert (board.kind, board.max_op_c, board.slowdown_c, board.shutdown_c) == ("absolute", 85, 89, 92)
        assert (board.min_w, board.max_w, board.hbm_max_op_c) == (100, 400, 95)
        assert fast(peer, a100).values["margin_c"] == wire.Value(None, "not_supported")


def test_an_unknown_model_is_read_by_what_answers() -> None:
    with rig_of(["a100"]) as rig:
        gpu = rig.standin.gpus[0]
        gpu.name = "Unheard-of 9000"
        gpu.set_tlimits(-10, -4, 0, 0)
        rig.start()
        board = slow(rig.peer(), gpu.uuid).board
        assert (board.kind, board.slowdown_c, board.shutdown_c) == ("tlimit", -4, -10)


def test_nvlinks_have_state_and_bytes_per_link(rig: Rig) -> None:
    gpu = rig.standin.gpus[2]
    gpu.set_link(0, tx_kib=1000, rx_kib=2000)
    gpu.set_link(17, active=False, tx_kib=7, rx_kib=1 << 40)
    rig.start()
    links = slow(rig.peer(), gpu.uuid).links
    assert len(links) == 18
    assert links[0] == wire.WireLink(0, True, 1000 * 1024.0, 2000 * 1024.0)
    assert links[17] == wire.WireLink(17, False, None, None)  # no counters of a link that is not there


def test_compute_processes_are_listed_by_pid(rig: Rig) -> None:
    rig.standin.gpus[1].pids = [4711, 42]
    rig.start()
    peer = rig.peer()
    assert slow(peer, rig.uuids[1]).pids == [42, 4711]
    assert slow(peer, rig.uuids[0]).pids == []


def test_a_board_without_a_power_reading_keeps_all_its_other_quantities(rig: Rig) -> None:
    """F01: NOT_SUPPORTED for one quantity of one GPU costs that quantity only."""
    gpu = rig.standin.gpus[3]
    rig.standin.fault("nvmlDeviceGetPowerUsage", gpu=3, error=NOT_SUPPORTED)
    rig.standin.fault("nvmlDeviceGetTotalEnergyConsumption", gpu=3, error=NOT_SUPPORTED)
    for field in (83, 185, 186):
        gpu.fail_field(field)
    rig.start()
    peer = rig.peer()
    replies = peer.fast(*rig.uuids)
    for uuid, reply in replies.items():
        assert isinstance(reply, wire.FastReply)
        powers = {"power_w", "power_instant_w", "energy_j", "power_average_w", "hbm_power_w"}
        assert missing_of(reply) == (powers - {"power_instant_w"} if uuid == gpu.uuid else set())
    assert fast(peer, gpu.uuid).values["power_w"].reason == "not_supported"


OWN_QUANTITIES = {
    "nvmlDeviceGetTemperature*": {"junction_c"},
    "nvmlDeviceGetMarginTemperature": {"margin_c"},
    "nvmlDeviceGetUtilizationRates": {"utilisation", "memory_utilisation"},
    "nvmlDeviceGetMemoryInfo*": {"memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"},
    "nvmlDeviceGetClockInfo": {"sm_clock_hz", "memory_clock_hz"},
    "nvmlDeviceGetFieldValues": {"hbm_c", "power_average_w", "hbm_power_w"},
}


def missing_of(reply: wire.FastReply) -> set[str]:
    """But for what an H100 has only after a second or not at all, or has in two ways."""
    elsewhere = {"power_instant_w", "power_energy_w", "module_power_w"}
    return {name for name, quantity in reply.values.items() if quantity.value is None} - elsewhere


def test_a_call_that_fails_costs_its_own_quantities(rig: Rig) -> None:
    """F01, for every way of saying "not this one"."""
    rig.start()
    peer = rig.peer()
    for error in (NOT_SUPPORTED, NO_PERMISSION, 25, 26, 2, 10):
        for function, names in OWN_QUANTITIES.items():
            rig.standin.fault(function, gpu=0, error=error)
            assert missing_of(fast(peer, rig.uuids[0])) == names, (function, error)
            assert missing_of(fast(peer, rig.uuids[1])) == set(), (function, error)
            rig.standin.clear(function)
    assert missing_of(fast(peer, rig.uuids[0])) == set()


def test_functions_that_the_library_lacks_are_missing_quantities_and_not_asked_for_again(rig: Rig) -> None:
    """F01: an older library answers FUNCTION_NOT_FOUND."""
    rig.standin.fault("nvmlDeviceGetMarginTemperature", error=13)
    rig.start()
    peer = rig.peer()
    for _ in range(3):
        assert missing_of(fast(peer, rig.uuids[0])) == {"margin_c"}
    assert rig.standin.calls("nvmlDeviceGetMarginTemperature") == 1
    assert slow(peer, rig.uuids[0]).board.kind is None  # neither a margin nor thresholds


def test_a_denied_link_counter_costs_only_the_bytes(rig: Rig) -> None:
    """F30, variant: a counter that needs rights."""
    for field in (138, 139):
        rig.standin.gpus[0].fail_field(field, NO_PERMISSION)
    rig.start()
    reply = slow(rig.peer(), rig.uuids[0])
    assert len(reply.links) == 18
    assert all(link.tx_bytes is None and link.rx_bytes is None for link in reply.links)
    assert reply.links_reason == "no_permission"
    assert reply.board.max_w == 700


def test_without_an_energy_counter_the_boards_own_mean_is_used(rig: Rig) -> None:
    gpu = rig.standin.gpus[0]
    gpu.power_w, gpu.instant_power_w = 400.0, 300.0
    rig.standin.fault("nvmlDeviceGetTotalEnergyConsumption", gpu=0, error=NOT_SUPPORTED)
    gpu.fail_field(83)
    rig.start()
    reply = fast(rig.peer(), gpu.uuid)
    assert reply.values["power_w"].value == 400.0
    assert reply.values["power_instant_w"].value == 300.0


def test_an_energy_counter_that_starts_again_gives_no_negative_power(rig: Rig) -> None:
    gpu = rig.standin.gpus[0]
    gpu.power_w = 300.0
    gpu.energy_j = 5_000_000.0
    rig.start()
    peer = rig.peer()
    wait_for_mean(peer, gpu.uuid, 300.0)
    gpu.energy_j = 0.0
    first = value(peer, gpu.uuid, "power_w")
    assert first is not None
    assert 0 < first <= 700
    wait_for_mean(peer, gpu.uuid, 300.0)


def test_a_lost_gpu_does_not_hide_the_others_and_is_found_again_by_uuid(rig: Rig) -> None:
    rig.start()
    peer = rig.agent()
    lost = rig.standin.gpus[2]
    lost.lost = GPU_IS_LOST
    rig.standin.reorder([0, 1, 3, 4, 5, 6, 7, 2])
    replies = peer.fast(*rig.uuids)
    assert isinstance(replies[lost.uuid], wire.ErrorReply)
    assert replies[lost.uuid].code == "lost"
    assert sum(isinstance(reply, wire.FastReply) for reply in replies.values()) == 7
    states = {gpu.uuid: gpu.state for gpu in peer.adopt().gpus}
    assert states[lost.uuid] == "lost"

    lost.lost = 0
    eventually(lambda: isinstance(peer.fast(lost.uuid)[lost.uuid], wire.FastReply), "the GPU to come back", 20)
    gpus = {gpu.uuid: gpu for gpu in peer.adopt().gpus}
    assert gpus[lost.uuid].state == "ok"
    assert gpus[lost.uuid].index == 7


def test_a_gpu_that_is_lost_at_the_start_does_not_hide_the_others(rig: Rig) -> None:
    rig.standin.gpus[0].lost = 999
    rig.start()
    hello = rig.agent().adopt()
    assert hello.driver == "ok"
    assert [gpu.index for gpu in hello.gpus] == [1, 2, 3, 4, 5, 6, 7]
    assert "index 0" in hello.driver_text


def test_gpus_that_appear_later_are_adopted_as_they_come(rig: Rig) -> None:
    """F07: the device nodes may come after the service."""
    rig.standin.device_count = 0
    rig.start()
    peer = rig.agent()
    assert peer.adopt().gpus == []
    rig.standin.device_count = 3
    eventually(lambda: len(peer.adopt().gpus) == 3, "three GPUs", 20)
    rig.standin.device_count = 8
    eventually(lambda: len(peer.adopt().gpus) == 8, "eight GPUs", 20)
    assert all(isinstance(reply, wire.FastReply) for reply in peer.fast(*rig.uuids).values())


@pytest.mark.parametrize(
    ("code", "state"), [(DRIVER_NOT_LOADED, "driver_not_loaded"), (LIB_RM_VERSION_MISMATCH, "version_mismatch")]
)
def test_a_driver_that_does_not_open_is_told_and_tried_again(rig: Rig, code: int, state: str) -> None:
    rig.standin.init_error = code
    program = rig.start()
    peer = rig.agent()
    hello = peer.adopt()
    assert (hello.driver, hello.gpus) == (state, [])
    assert hello.driver_text
    reply = peer.fast(rig.uuids[0])[rig.uuids[0]]
    assert isinstance(reply, wire.ErrorReply)
    assert reply.code == "driver_missing"
    rig.standin.init_error = 0
    eventually(lambda: peer.adopt().driver == "ok" and len(peer.adopt().gpus) == 8, "the driver", 20)
    assert program.running


def test_without_the_library_the_helper_serves_and_says_why(rig: Rig) -> None:
    program = rig.start(env={"LD_LIBRARY_PATH": None})
    hello = rig.agent().adopt()
    assert hello.driver == "library_not_found"
    assert "libnvidia-ml.so.1" in hello.driver_text
    assert program.stop() == 0


def test_the_module_of_the_library_is_imported_without_pynvml() -> None:
    code = "import sys, nodewarden.gpuhelper.main; assert 'pynvml' not in sys.modules and 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
