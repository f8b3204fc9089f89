"""Every quantity of a GPU from the library to the snapshot: real helper, real source, on the boards of the stand-in."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuhelper.rig import Rig, rig_of
from nodewarden.model.gpu_quantities import COMPUTED, GPU_QUANTITIES
from nodewarden.model.readings import Absent, Failed, Reading, value_or_none
from nodewarden.model.snapshot import GpuSnapshot, Number
from standin.standin import TYPE_DOUBLE, TYPE_INT, TYPE_SLONGLONG, TYPE_UINT, TYPE_ULONGLONG, Gpu
from support.gpu_agent import Watched, watched
from support.wait import ask_until

KINDS = ("a100", "h100", "h100-pcie", "h100-nvl")
A100, H100, PCIE, NVL = range(4)


@pytest.fixture(scope="module")
def boards() -> Iterator[Rig]:
    with rig_of(KINDS) as rig:
        rig.start()
        yield rig


@pytest.fixture
async def node(boards: Rig) -> AsyncIterator[Watched]:
    async with watched(boards.socket_path, raw_links=True) as seen:
        yield seen
    boards.standin.renew()


def known(gpu: GpuSnapshot, quantity: str, *labels: str) -> float:
    reading = gpu.number(quantity, *labels)
    assert isinstance(reading, Reading), (quantity, labels, reading)
    return reading.value


def values(gpu: GpuSnapshot, quantity: str) -> dict[tuple[str, ...], float]:
    return {labels: number.value for labels, number in gpu.series(quantity).items() if isinstance(number, Reading)}


def board(rig: Rig, slot: int) -> Gpu:
    return rig.standin.gpus[slot]


async def seen_by(node: Watched, gpu: Gpu, *, rare: bool = False) -> GpuSnapshot:
    await node.sweep(rare=rare)
    return node.gpu(gpu.uuid)


def rejected(node: Watched, gpu: Gpu) -> set[str]:
    return {
        field
        for name in (f"gpu/{gpu.uuid}", f"gpu_slow/{gpu.uuid}")
        for field in node.store.snapshot().sources[name].rejected
    }


async def test_an_h100_has_all_quantities_but_those_that_no_h100_has(boards: Rig, node: Watched) -> None:
    gpu = await seen_by(node, board(boards, H100))

    async def has_gpm() -> bool:  # the second sample comes with a later read
        await node.sweep()
        return isinstance(node.gpu(gpu.uuid).number("sm_active"), Reading)

    await ask_until(has_gpm, 15, "GPM")

    async def has_mean() -> bool:
        await node.sweep()
        return isinstance(node.gpu(gpu.uuid).number("power_energy_w"), Reading)

    await ask_until(has_mean, 15, "a mean power by the energy counter")
    await node.sweep(rare=True)  # tells the calls again
    gpu = node.gpu(gpu.uuid)
    missing = {each.name for each in GPU_QUANTITIES if not has_any(gpu, each.name)}
    assert missing == {
        "threshold_c", "module_power_w", "retired_pages", "retired_pages_pending", "fabric_healthy", "fabric_trouble",
        "mig_info", "mig_memory_used_bytes", "mig_memory_total_bytes", "process_bytes",
    }  # fmt: skip
    assert gpu.number("threshold_c") == Absent("not_read")
    assert gpu.series("threshold_c")["slowdown",] == Absent("not_supported")
    assert set(gpu.calls) >= {each.name for each in GPU_QUANTITIES} - missing - COMPUTED
    assert gpu.calls["hbm_power_w"] == "field 185 scope 2"
    assert gpu.calls["nvlink_total_transmit_bytes"] == "field 138 all links"
    assert gpu.calls["threshold_offset_c"] == "fields 193 to 196"
    assert gpu.calls["nvlink_errors"] == "nvmlDeviceGetNvLinkErrorCounter, fields 32 to 159"


def has_any(gpu: GpuSnapshot, name: str) -> bool:
    return isinstance(gpu.number(name), Reading) or bool(values(gpu, name))


async def test_an_a100_lacks_what_came_with_hopper(boards: Rig, node: Watched) -> None:
    gpu = await seen_by(node, board(boards, A100), rare=True)
    hopper = ("margin_c", "power_average_w", "hbm_power_w", "sm_active", "nvlink_rate", "pcie_transmit_bytes")
    assert {name: gpu.number(name) for name in hopper} == dict.fromkeys(hopper, Absent("not_supported"))
    assert values(gpu, "threshold_c") == {
        ("shutdown",): 92, ("slowdown",): 89, ("hbm_max_op",): 95, ("max_op",): 85,
    }  # fmt: skip
    assert values(gpu, "threshold_offset_c") == {}
    assert (gpu.board.kind, gpu.board.max_op_c, gpu.board.slowdown_c) == ("absolute", 85, 89)
    assert gpu.number("fabric_state") == Absent("not_supported")
    assert gpu.number("recovery_action") == Absent("not_supported")
    assert known(gpu, "remap_banks", "max") == 640
    assert known(gpu, "pcie_generation", "max") == 4
    assert gpu.calls["nvlink_up"] == "nvmlDeviceGetNvLinkState"
    assert node.gpu(board(boards, H100).uuid).calls["nvlink_up"] == "field 165 per link"


async def test_memory_errors_and_repairs_come_by_place_life_and_kind(boards: Rig, node: Watched) -> None:
    sick = board(boards, H100)
    sick.more.dram[:] = (11, 2, 110, 20)
    sick.more.sram[:] = (3, 1, 70, 1, 0, 7, 2, 1, 0, 1, 0)
    sick.more.sram_threshold, sick.recovery_action = 1, 1
    sick.more.remapped[:] = (4, 5, 1, 0)
    sick.more.banks[:] = (2550, 6, 3, 1, 0)
    gpu = await seen_by(node, sick, rare=True)
    assert values(gpu, "ecc_errors") == {
        ("volatile", "corrected"): 18, ("volatile", "uncorrected"): 3,
        ("aggregate", "corrected"): 180, ("aggregate", "uncorrected"): 24,
    }  # fmt: skip
    assert known(gpu, "ecc_location_errors", "aggregate", "uncorrected", "sram") == 4
    assert known(gpu, "ecc_location_errors", "volatile", "corrected", "dram") == 11
    assert known(gpu, "sram_errors", "aggregate", "parity") == 3
    assert known(gpu, "sram_errors", "aggregate", "l2") == 2
    assert known(gpu, "sram_threshold_exceeded") == 1
    assert values(gpu, "remapped_rows") == {("correctable",): 4, ("uncorrectable",): 5}
    assert (known(gpu, "row_remap_pending"), known(gpu, "row_remap_failure")) == (1, 0)
    assert known(gpu, "remap_banks", "partial") == 3
    assert known(gpu, "recovery_action") == 1


async def test_dram_errors_come_by_the_counter_where_there_is_no_field(boards: Rig, node: Watched) -> None:
    old = board(boards, A100)
    old.more.dram[:] = (11, 2, 110, 20)
    for field in (11, 12, 22, 23):
        old.fail_field(field)
    gpu = await seen_by(node, old)
    found = {labels[:2]: count for labels, count in values(gpu, "ecc_location_errors").items() if labels[2] == "dram"}
    assert found == {
        ("volatile", "corrected"): 11, ("volatile", "uncorrected"): 2,
        ("aggregate", "corrected"): 110, ("aggregate", "uncorrected"): 20,
    }  # fmt: skip


async def test_gpm_gives_means_without_an_exclusive_counter(boards: Rig, node: Watched) -> None:
    sample = board(boards, NVL)
    percent = {1: 100.0, 2: 97.5, 3: 42.0, 5: 61.0, 10: 55.0}
    for metric, value in percent.items():
        sample.more.gpm[metric] = value
    sample.more.gpm[14:18] = (1.0, 2.0, 3.0, 4.0)  # MiB/s: PCIe out, in; NVLink in, out

    async def read() -> bool:
        gpu = await seen_by(node, sample)
        return isinstance(gpu.number("sm_active"), Reading) and known(gpu, "tensor_active") > 0

    await ask_until(read, 15, "two samples")
    gpu = node.gpu(sample.uuid)
    assert [known(gpu, name) for name in ("graphics_active", "sm_active", "sm_occupancy", "tensor_active")] == [
        1.0, 0.975, 0.42, 0.61,
    ]  # fmt: skip
    assert known(gpu, "dram_active") == 0.55
    assert values(gpu, "pcie_rate") == {("transmit",): 1 << 20, ("receive",): 2 << 20}
    assert values(gpu, "nvlink_rate") == {("receive",): 3 << 20, ("transmit",): 4 << 20}
    assert 0 < boards.standin.state.gpm_samples <= 2 * len(KINDS)


def test_samples_are_freed_and_the_20_ms_call_is_never_made() -> None:
    with rig_of(["h100"]) as rig:
        program = rig.start()
        peer = rig.peer()
        peer.slow(*rig.uuids)
        peer.slow(*rig.uuids)
        assert rig.standin.state.gpm_samples > 0
        assert program.stop() == 0
        assert rig.standin.state.gpm_samples == 0
        assert rig.standin.calls("nvmlDeviceGetPcieThroughput") == 0


async def test_link_errors_are_told_for_every_link_also_beyond_the_fields(boards: Rig, node: Watched) -> None:
    sick = board(boards, H100)
    sick.more.link_error[0][4], sick.more.link_error[1][11], sick.more.link_error[4][17] = 40, 111, 417
    sick.more.link_error[2][6], sick.more.link_error[3][12] = 26, 312
    gpu = await seen_by(node, sick, rare=True)
    found = {labels: count for labels, count in values(gpu, "nvlink_errors").items() if count}
    assert found == {
        ("4", "replay"): 40, ("11", "recovery"): 111, ("17", "ecc_data"): 417, ("6", "crc_flit"): 26,
        ("12", "crc_data"): 312,
    }  # fmt: skip
    assert len(values(gpu, "nvlink_errors")) == 18 * 5
    assert values(gpu, "nvlink_total_errors")["recovery",] == 111
    assert known(gpu, "nvlink_speed", "17") == 26_562e6
    assert known(gpu, "nvlink_info", "5", "switch", "00000000:C7:00.0") == 1
    assert known(gpu, "nvswitch_links") == 18
    pair = node.gpu(board(boards, NVL).uuid)
    assert known(pair, "nvlink_info", "0", "gpu", "00000000:0B:00.0") == 1
    assert pair.number("nvswitch_links") == Absent("not_supported")


async def test_kib_become_bytes_and_each_direction_stays_its_own(boards: Rig, node: Watched) -> None:
    """F16: 1,048,576 KiB are 1,073,741,824 bytes; counters, no rates."""
    link = board(boards, H100)
    link.set_link(0, tx_kib=1_048_576, rx_kib=7)
    link.more.link_raw_tx_kib[0] = 1_100_000
    gpu = await seen_by(node, link)
    assert known(gpu, "nvlink_transmit_bytes", "0") == 1_073_741_824
    assert known(gpu, "nvlink_receive_bytes", "0") == 7 * 1024
    assert known(gpu, "nvlink_total_transmit_bytes") == 1_073_741_824
    assert known(gpu, "nvlink_raw_transmit_bytes", "0") == 1_100_000 * 1024
    assert f'nodewarden_nvlink_transmit_bytes_total{{uuid="{link.uuid}",link="0"}} 1073741824' in node.page()


async def test_raw_bytes_are_read_only_where_they_are_asked_for(boards: Rig, node: Watched) -> None:
    async with watched(boards.socket_path) as plain:
        gpu = await seen_by(plain, board(boards, H100))
        assert gpu.number("nvlink_raw_transmit_bytes") == Absent("off")
        assert "nvlink_raw" not in plain.page()


async def test_only_fields_that_succeeded_are_used_and_by_their_own_type(boards: Rig, node: Watched) -> None:
    """F17: link 7 has its own NOT_SUPPORTED over dirty bytes; a 32-bit value has dirty upper bytes."""
    dirty = board(boards, H100)
    dirty.more.dirty = 1
    dirty.more.link_error_code[7] = 3
    dirty.set_link(8, tx_kib=5)
    gpu = await seen_by(node, dirty, rare=True)
    assert known(gpu, "power_average_w") == 69.9
    assert known(gpu, "hbm_c") == 48
    assert known(gpu, "threshold_offset_c", "shutdown") == -8
    assert ("7",) not in gpu.series("nvlink_transmit_bytes")
    assert known(gpu, "nvlink_transmit_bytes", "8") == 5 * 1024
    assert {count for labels, count in values(gpu, "nvlink_errors").items()} == {0}
    dirty.answer_field(186, 0, 9)  # a type that nobody knows
    gpu = await seen_by(node, dirty)
    assert isinstance(gpu.power_instant_w, Failed)
    for type_, value in ((TYPE_DOUBLE, 588_000.0), (TYPE_UINT, 588_000), (TYPE_SLONGLONG, 588_000)):
        dirty.answer_field(186, value, type_)
        assert known(await seen_by(node, dirty), "power_instant_w") == 588


async def test_half_the_traffic_is_never_shown_as_the_total(boards: Rig, node: Watched) -> None:
    """F18: receive is not supported; then it comes back as -1."""
    half = board(boards, H100)
    for link in range(18):
        half.set_link(link, tx_kib=1000, rx_kib=3)
    half.fail_field(139)
    gpu = await seen_by(node, half)
    assert known(gpu, "nvlink_total_transmit_bytes") == 18 * 1000 * 1024
    assert gpu.number("nvlink_total_receive_bytes") == Absent("not_supported")
    assert values(gpu, "nvlink_receive_bytes") == {}
    half.fail_field(139, 0)
    half.answer_field(139, -1, TYPE_SLONGLONG)
    gpu = await seen_by(node, half)
    assert values(gpu, "nvlink_receive_bytes") == {}
    assert not isinstance(gpu.number("nvlink_total_receive_bytes"), Reading)
    assert "nvlink_receive_bytes" in rejected(node, half)
    half.answer_field(139, 0, None)
    half.fail_field(138)  # what the driver adds up is gone too: the sum of the links would be, but one is missing
    half.more.link_error_code[3] = 3
    gpu = await seen_by(node, half)
    assert not isinstance(gpu.number("nvlink_total_transmit_bytes"), Reading)


async def test_links_that_never_were_are_not_down_and_one_that_goes_is(boards: Rig, node: Watched) -> None:
    """F19."""
    card, sxm = board(boards, PCIE), board(boards, H100)
    gpu = await seen_by(node, card, rare=True)
    assert len(gpu.links) == 12
    assert not any(link.active or link.present for link in gpu.links)
    assert known(gpu, "nvlinks_down") == 0
    assert gpu.number("nvlink_total_transmit_bytes") == Absent("no_link")
    assert gpu.number("nvlink_errors") == gpu.number("nvlink_transmit_bytes") == Absent("no_link")
    assert values(gpu, "nvlink_errors") == {}
    assert f'nodewarden_nvlink_up{{uuid="{card.uuid}"' not in node.page()
    assert f'nodewarden_nvlink_up{{uuid="{sxm.uuid}",link="9"}} 1' in node.page()

    sxm.set_link(9, active=False)
    gpu = await seen_by(node, sxm, rare=True)
    assert known(gpu, "nvlinks_down") == 1
    assert ("9",) not in gpu.series("nvlink_transmit_bytes")
    assert ("9", "replay") not in gpu.series("nvlink_errors")
    assert f'nodewarden_nvlink_up{{uuid="{sxm.uuid}",link="9"}} 0' in node.page()
    assert f'nodewarden_nvlink_transmit_bytes_total{{uuid="{sxm.uuid}",link="9"}}' not in node.page()

    sxm.set_link(9, active=True)
    gpu = await seen_by(node, sxm)
    assert known(gpu, "nvlinks_down") == 0


async def test_a_gpu_in_mig_mode_has_no_utilisation_and_says_so(boards: Rig, node: Watched) -> None:
    """F09: missing is not idle."""
    mig = board(boards, H100)
    mig.more.mig_mode[:] = (1, 1)
    mig.power_w = 350
    await node.sweep()
    gpu = await seen_by(node, mig)
    assert gpu.utilisation == Absent("not_supported")
    assert gpu.number("memory_utilisation") == Absent("not_supported")
    assert values(gpu, "engine_utilisation") == {}
    assert known(gpu, "mig_mode", "current") == 1
    assert isinstance(gpu.power_w, Reading)
    page = node.page()
    assert f'nodewarden_gpu_mig_enabled{{uuid="{mig.uuid}",when="current"}} 1.0' in page
    assert f'nodewarden_gpu_utilisation_ratio{{uuid="{mig.uuid}"}}' not in page
    assert gpu.number("lost_sm_s") == Absent("not_supported")  # busy or not is not known


async def test_blank_markers_are_rejected_and_counted_and_never_shown(boards: Rig, node: Watched) -> None:
    """F10: markers near 2^63, the float blank, all ones, 255."""
    blank = board(boards, H100)
    await node.sweep(rare=True)
    markers = {
        82: (9223372036854775794, TYPE_ULONGLONG, "hbm_c"),
        186: (4294967295, TYPE_UINT, "power_instant_w"),
        185: (140737488355328.0, TYPE_DOUBLE, "power_average_w"),
        3: (9223372036854775794, TYPE_ULONGLONG, "ecc_errors"),
        94: (float("nan"), TYPE_DOUBLE, "pcie_replays"),
        230: (255, TYPE_UINT, "recovery_action"),
        144: (4294967295, TYPE_UINT, "row_remap_pending"),
        193: (-2147483648, TYPE_INT, "threshold_offset_c"),
        164: (4294967295, TYPE_UINT, "nvlink_speed"),
        138: (18446744073709551615, TYPE_ULONGLONG, "nvlink_transmit_bytes"),
        142: (9223372036854775792, TYPE_ULONGLONG, "remapped_rows"),
    }
    for field, (value, type_, _) in markers.items():
        blank.answer_field(field, value, type_)
    blank.utilisation_pct = 4294967295
    blank.more.gpm[2] = 140737488355328.0
    await node.sweep(rare=True)
    expected = {name for _, _, name in markers.values()} | {"utilisation"}
    assert expected - {"nvlink_speed"} <= rejected(node, blank)
    shown = [line for line in node.page().splitlines() if blank.uuid in line]
    biggest = max(float(line.rpartition(" ")[2]) for line in shown)
    assert biggest < 1e13, "a marker is on the page"


async def test_ratios_are_clamped_by_their_rounding_and_rejected_beyond(boards: Rig, node: Watched) -> None:
    """F11."""
    odd = board(boards, H100)

    async def sm_active(percent: float) -> Number:
        odd.more.gpm[2] = percent
        before = value_or_none(node.gpu(odd.uuid).number("dram_active")) or 0.0
        odd.more.gpm[10] = 1.0 if before == 0.5 else 50.0  # tells when the new values are there

        async def is_new() -> bool:
            await node.sweep()
            now = value_or_none(node.gpu(odd.uuid).number("dram_active"))
            return now is not None and now != before

        await ask_until(is_new, 15, "the next sample")
        return node.gpu(odd.uuid).number("sm_active")

    await node.sweep()
    assert value_or_none(await sm_active(100.00001)) == 1.0
    assert "sm_active" not in rejected(node, odd)
    assert value_or_none(await sm_active(170.0)) == 1.0  # the reading before ages
    assert "sm_active" in rejected(node, odd)
    count = node.store.snapshot().sources[f"gpu_slow/{odd.uuid}"].rejected["sm_active"]
    await sm_active(-1.0)
    await sm_active(float("nan"))
    assert node.store.snapshot().sources[f"gpu_slow/{odd.uuid}"].rejected["sm_active"] >= count + 2


async def test_thresholds_that_are_markers_are_dropped(boards: Rig, node: Watched) -> None:
    """F20: a slowdown threshold of 127 or 0, an HBM of 255, a core of 0 and of -5."""
    odd = board(boards, A100)
    odd.set_thresholds(92, 127, 255, 0)
    odd.hbm_c, odd.junction_c = 255, 41
    gpu = await seen_by(node, odd, rare=True)
    assert (gpu.board.kind, gpu.board.shutdown_c, gpu.board.slowdown_c) == (None, 92, None)
    assert (gpu.board.hbm_max_op_c, gpu.board.max_op_c) == (None, None)
    assert values(gpu, "threshold_c") == {("shutdown",): 92}
    assert not isinstance(gpu.hbm_c, Reading)
    assert known(gpu, "junction_c") == 41
    for marker in (0, -5):
        odd.junction_c = marker
        gpu = await seen_by(node, odd)
        assert known(gpu, "junction_c") == 41  # the reading before, which ages
    assert {"hbm_c", "junction_c", "threshold_c"} <= rejected(node, odd)


async def test_a_quantity_that_the_backend_never_fills_is_absent_and_not_zero(boards: Rig, node: Watched) -> None:
    """F21: HBM temperature NOT_SUPPORTED everywhere."""
    for gpu in boards.standin.gpus:
        gpu.fail_field(82)
    await node.sweep()
    assert {node.gpu(gpu.uuid).hbm_c for gpu in boards.standin.gpus} == {Absent("not_supported")}
    assert "nodewarden_gpu_hbm_celsius" not in node.page()


async def test_both_kinds_of_power_have_their_own_names(boards: Rig, node: Watched) -> None:
    """F31: the mean and the instant value differ in the same second."""
    sample = board(boards, H100)
    sample.power_w, sample.instant_power_w, sample.hbm_power_w = 629.0, 588.0, 86.0
    sample.more.module_power_mw = 900_000
    gpu = await seen_by(node, sample)
    powers = {"power_average_w": 629, "power_instant_w": 588, "hbm_power_w": 86, "module_power_w": 900}
    assert {name: known(gpu, name) for name in powers} == powers


CALLS = {
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1_used_bytes", "bar1_total_bytes"},
    "nvmlDeviceGet*coderUtilization": {"engine_utilisation"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetPersistenceMode": {"persistence_mode"},
    "nvmlDeviceGetMigMode": {"mig_mode"},
    "nvmlDeviceGetCurrPcieLink*": {"pcie_generation", "pcie_width"},
    "nvmlDeviceGetSramEccErrorStatus": {"sram_errors", "sram_threshold_exceeded"},
    "nvmlDeviceGetRowRemapperHistogram": {"remap_banks"},
    "nvmlDeviceGetMaxClockInfo": {"max_clock_hz"},
    "nvmlDeviceGetGpuFabricInfo*": {"fabric_state", "fabric_status", "fabric_info"},
    "nvmlGpm*": {"graphics_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active"},
}


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "not_supported"), (13, "not_in_driver"), (25, "not_in_driver"), (26, "deprecated"), (4, "no_permission")],
)
async def test_a_call_that_is_refused_costs_its_quantities_only_and_says_why(code: int, reason: str) -> None:
    """F01 for every call of the slow and rare sets, for every way in which NVML says no."""
    with rig_of(["h100"]) as rig:  # a helper of its own: it remembers what a library does not have
        (gpu,) = rig.standin.gpus
        for pattern in CALLS:
            rig.standin.fault(pattern, error=code)
        rig.start()
        async with watched(rig.socket_path) as node:
            seen = await seen_by(node, gpu)
            for pattern, names in CALLS.items():
                for name in names:
                    numbers = seen.more[name].values()
                    missing = {number.reason for number in numbers if isinstance(number, Absent)}
                    assert reason in missing, (pattern, name, numbers)
            for name in ("ecc_errors", "remapped_rows", "nvlink_speed", "threshold_offset_c", "pcie_replays"):
                assert values(seen, name) or known(seen, name), name
            assert seen.health == "ok"
            assert len(seen.links) == 18
            sram = seen.number("ecc_location_errors", "volatile", "corrected", "sram")
            assert isinstance(sram, Reading)  # by the older counter


async def test_an_older_fabric_structure_is_tried_and_health_is_told_where_it_is_known(
    boards: Rig, node: Watched
) -> None:
    sxm = board(boards, H100)
    gpu = await seen_by(node, sxm)
    assert (known(gpu, "fabric_state"), known(gpu, "fabric_status")) == (3, 0)
    assert gpu.number("fabric_healthy") == Absent("not_supported")  # as in a VM: all of it N/A
    sxm.more.fabric_version = 2
    sxm.more.fabric[:] = (3, 0, 5, 0b10_10_10_01, 1)  # degraded bandwidth; version 2 has no summary
    gpu = await seen_by(node, sxm)
    assert values(gpu, "fabric_trouble") == {
        ("degraded_bandwidth",): 1, ("route_recovery",): 0, ("route_unhealthy",): 0, ("access_timeout_recovery",): 0,
    }  # fmt: skip
    assert known(gpu, "fabric_healthy") == 0
    assert known(gpu, "fabric_info", "00000000-0000-0000-0000-000000000000", "5") == 1
    sxm.more.fabric_version = 3
    sxm.more.fabric[:] = (2, 0, 0, 0, 1)
    gpu = await seen_by(node, sxm)
    assert known(gpu, "fabric_state") == 2
    assert gpu.number("fabric_status") == Absent("not_read")
    assert known(gpu, "fabric_healthy") == 1


async def test_pcie_bytes_go_on_over_a_wrap(boards: Rig, node: Watched) -> None:
    card = board(boards, PCIE)
    card.more.pcie_bytes[:] = (2**32 - 1000, 5)
    assert known(await seen_by(node, card), "pcie_transmit_bytes") == 2**32 - 1000
    card.more.pcie_bytes[:] = (500, 6)
    gpu = await seen_by(node, card)
    assert known(gpu, "pcie_transmit_bytes") == 2**32 + 500
    assert known(gpu, "pcie_receive_bytes") == 6


async def test_energy_goes_on_over_a_driver_reload_and_marks_the_epoch(
    boards: Rig, node: Watched, tmp_path: Path
) -> None:
    gpu = board(boards, H100)
    gpu.energy_j = 5_000_000.0
    async with watched(boards.socket_path, kept=tmp_path / "energy.json") as kept:
        before_j = known(await seen_by(kept, gpu), "energy_j")
        boards.standin.reload_driver()
        totals = [known(await seen_by(kept, gpu), "energy_j") for _ in range(4)]
        assert totals == sorted(totals)
        assert totals[0] >= before_j >= 5_000_000
        assert known(kept.gpu(gpu.uuid), "energy_epoch") == 1
        assert f'nodewarden_gpu_energy_epochs_total{{uuid="{gpu.uuid}"}} 1.0' in kept.page()
        kept.counters.save()
    async with watched(boards.socket_path, kept=tmp_path / "energy.json") as again:
        assert known(await seen_by(again, gpu), "energy_j") >= totals[-1]
