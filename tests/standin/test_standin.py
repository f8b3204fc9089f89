"""The stand-in for libnvidia-ml.so.1, seen through real pynvml in processes of its own."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from standin import standin as module
from standin.standin import Standin, build, function_numbers
from support.processes import Program
from support.wait import wait_for

PRELUDE = """
import json, sys, pynvml as nv
nv.nvmlInit()
def handle(i): return nv.nvmlDeviceGetHandleByIndex(i)
def code(call, *arguments):
    try:
        call(*arguments)
    except nv.NVMLError as error:
        return error.value
    return 0
def say(answer): print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def standin(tmp_path):
    return Standin(tmp_path, ["h100"] * 8)


def program(standin: Standin, code: str, **kwargs) -> Program:
    return Program([sys.executable, "-c", PRELUDE + textwrap.dedent(code)], env=standin.env(), **kwargs)


def ask(standin: Standin, code: str) -> object:
    """Runs `code` after nvmlInit in a new process; what it `say`s."""
    child = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=os.environ | standin.env(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_pynvml_sees_eight_boards_with_the_numbers_of_a_real_h100(standin):
    answer = ask(
        standin,
        """
        h = handle(3)
        memory = nv.nvmlDeviceGetMemoryInfo(h, version=nv.nvmlMemory_v2)
        pci = nv.nvmlDeviceGetPciInfo(h)
        say([nv.nvmlDeviceGetCount(), nv.nvmlDeviceGetName(h), nv.nvmlDeviceGetUUID(h), nv.nvmlDeviceGetIndex(h),
             nv.nvmlDeviceGetMinorNumber(h), pci.busId, pci.bus, hex(pci.pciDeviceId), nv.nvmlDeviceGetSerial(h),
             nv.nvmlSystemGetDriverVersion(), memory.total >> 20, memory.reserved >> 20, memory.free >> 20,
             nv.nvmlDeviceGetPersistenceMode(h), nv.nvmlDeviceGetPowerManagementLimitConstraints(h),
             nv.nvmlDeviceGetPowerManagementDefaultLimit(h), nv.nvmlDeviceGetMaxClockInfo(h, 1),
             nv.nvmlDeviceGetClockInfo(h, 2), nv.nvmlDeviceGetComputeRunningProcesses(h)])
        """,
    )
    gpu = standin.gpus[3]
    assert answer == [
        8, "NVIDIA H100 80GB HBM3", gpu.uuid, 3, 1, "00000000:4C:00.0", 0x4C, "0x233010de", gpu.serial, "590.48.01",
        81559, 479, 81080, 1, [200_000, 700_000], 700_000, 1980, 2619, [],
    ]  # fmt: skip


def test_every_reading_changes_live_under_a_process_that_already_reads(standin):
    code = """
    for line in sys.stdin:
        h = handle(5)
        fields = [82, 186, 185, (185, 2), 91, (138, 4), (138, 0xffffffff), (139, 4), 269, 230]
        f = nv.nvmlDeviceGetFieldValues(h, fields)
        say([nv.nvmlDeviceGetTemperature(h, 0), nv.nvmlDeviceGetTemperatureV(h, 0),
             nv.nvmlDeviceGetMarginTemperature(h), nv.nvmlDeviceGetPowerUsage(h),
             nv.nvmlDeviceGetUtilizationRates(h).gpu, nv.nvmlDeviceGetClockInfo(h, 1),
             nv.nvmlDeviceGetCurrentClocksEventReasons(h), nv.nvmlDeviceGetCurrentClocksThrottleReasons(h),
             [p.pid for p in nv.nvmlDeviceGetComputeRunningProcesses(h)], nv.nvmlDeviceGetNvLinkState(h, 4),
             f[0].value.uiVal, f[1].value.uiVal, f[2].value.uiVal, f[3].value.uiVal, f[4].value.uiVal,
             f[5].value.ullVal, f[6].value.ullVal, f[7].value.ullVal, f[8].value.ullVal, f[9].value.uiVal,
             [x.nvmlReturn for x in f]])
    """
    with program(standin, code, interactive=True) as reader:

        def read(number: int) -> list:
            reader.send()
            lines = wait_for(
                lambda: (reader.output.endswith("\n") and reader.output.splitlines()[number:]) or None, 20, "a reading"
            )
            return json.loads(lines[0])

        first = read(0)
        assert first[:4] == [41, 41, 46, 69_900]  # margin 46 at 41 degrees, as on the real board
        assert first[-1] == [0] * 10
        gpu = standin.gpus[5]
        gpu.junction_c, gpu.hbm_c, gpu.margin_c, gpu.power_w, gpu.instant_power_w = 84, 91, -1, 523.1, 588
        gpu.utilisation_pct, gpu.sm_mhz, gpu.event_reasons, gpu.pids, gpu.hbm_power_w = 99, 1755, 0x20, [101, 102], 86
        gpu.set_link(4, active=False, tx_kib=1 << 40, rx_kib=7)
        gpu.set_link(5, tx_kib=5)
        gpu.set_slow_s(269, 1.5)
        gpu.recovery_action = 1
        assert read(1) == [
            84, 84, -1, 523_100, 99, 1755, 0x20, 0x20, [101, 102], 0,
            91, 588_000, 523_100, 86_000, 18, 1 << 40, (1 << 40) + 5, 7, 1_500_000_000, 1, [0] * 10,
        ]  # fmt: skip
        gpu.margin_c = None
        assert read(2)[2] == 3  # derived: 87 - 84


def test_an_a100_has_absolute_thresholds_and_an_h100_has_signed_offsets(tmp_path):
    standin = Standin(tmp_path, ["a100", "h100"])
    code = """
    def limits(i):
        fields = nv.nvmlDeviceGetFieldValues(handle(i), [193, 194, 195, 196, 185])
        return [[code(nv.nvmlDeviceGetTemperatureThreshold, handle(i), k) or
                 nv.nvmlDeviceGetTemperatureThreshold(handle(i), k) for k in range(4)],
                [f.nvmlReturn or f.value.siVal for f in fields[:4]], [f.valueType for f in fields[:4]],
                fields[4].nvmlReturn, code(nv.nvmlDeviceGetMarginTemperature, handle(i)),
                nv.nvmlDeviceGetNvLinkState(handle(i), 11), code(nv.nvmlDeviceGetNvLinkState, handle(i), 12)]
    say([limits(0), limits(1)])
    """
    a100, h100 = ask(standin, code)
    assert a100 == [[92, 89, 95, 85], [3, 3, 3, 3], [0, 0, 0, 0], 3, 3, 1, 2]
    assert h100 == [[3, 3, 3, 3], [-8, -2, 0, 0], [5, 5, 5, 5], 0, 0, 1, 0]


def test_a_limit_is_range_checked_read_back_and_recorded(standin):
    standin.gpus[2].oob_limit_w = 450
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    answer = ask(
        standin,
        """
        h = handle(2)
        refused = [code(nv.nvmlDeviceSetPowerManagementLimit, h, w) for w in (199_999, 700_001)]
        nv.nvmlDeviceSetPowerManagementLimit(h, 540_000)
        say([refused, nv.nvmlDeviceGetPowerManagementLimit(h), nv.nvmlDeviceGetEnforcedPowerLimit(h),
             [f.value.uiVal for f in nv.nvmlDeviceGetFieldValues(h, [187, 188, 189, 190, 192])]])
        """,
    )
    assert answer == [[2, 2], 540_000, 450_000, [200_000, 700_000, 700_000, 450_000, 540_000]]
    assert standin.limits_w == [700, 700, 540, 700, 700, 700, 700, 700]
    writes = standin.writes(gpu=2)
    assert [(write.w, write.result) for write in writes] == [(199.999, 2), (700.001, 2), (540, 0)]
    assert before_s < writes[0].at_s <= writes[2].at_s
    assert standin.writes(gpu=1) == []
    assert standin.calls("nvmlDeviceSetPowerManagementLimit", gpu=2) == 3
    assert standin.calls("nvmlDeviceSetPowerManagementLimit") == 3


def test_a_board_draws_no_more_than_its_limit_and_says_so_in_every_power_reading(standin):
    standin.gpus[0].power_w = 650
    answer = ask(
        standin,
        """
        h = handle(0)
        before = nv.nvmlDeviceGetPowerUsage(h)
        nv.nvmlDeviceSetPowerManagementLimit(h, 400_000)
        say([before, nv.nvmlDeviceGetPowerUsage(h), nv.nvmlDeviceGetFieldValues(h, [186])[0].value.uiVal])
        """,
    )
    assert answer == [650_000, 400_000, 400_000]


def test_the_right_to_write_can_be_denied_or_tied_to_the_capability(standin):
    code = """
    import os
    if len(sys.argv) > 1: os.setresuid(65534, 65534, 65534)
    say(code(nv.nvmlDeviceSetPowerManagementLimit, handle(0), 500_000))
    """
    standin.write_right = "denied"
    assert ask(standin, code) == module.NO_PERMISSION
    standin.write_right = "capability"
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    has_right = bool(effective >> 21 & 1)
    assert ask(standin, code) == (0 if has_right else module.NO_PERMISSION)
    if os.geteuid() == 0:
        assert ask(standin, "sys.argv.append('drop')\n" + textwrap.dedent(code)) == module.NO_PERMISSION


def test_a_setter_that_lies_changes_nothing_but_answers_success(standin):
    standin.gpus[0].ignores_set = 1
    code = (
        "h = handle(0); nv.nvmlDeviceSetPowerManagementLimit(h, 500_000); say(nv.nvmlDeviceGetPowerManagementLimit(h))"
    )
    assert ask(standin, code) == 700_000


def test_the_energy_counter_integrates_power_and_moves_in_steps(standin):
    gpu = standin.gpus[0]
    gpu.power_w = 600
    start_j, start_s = gpu.energy_j, time.monotonic()
    answer = ask(
        standin,
        """
        import time
        seen = []
        end = time.monotonic() + 0.55
        while time.monotonic() < end:
            seen.append(nv.nvmlDeviceGetTotalEnergyConsumption(handle(0)))
        fields = nv.nvmlDeviceGetFieldValues(handle(0), [83, 191])
        say([sorted(set(seen)), seen == sorted(seen), [f.value.ullVal for f in fields], [f.valueType for f in fields]])
        """,
    )
    values, monotonic, fields, types = answer
    assert monotonic
    assert 2 <= len(values) <= 7
    steps = [later - earlier for earlier, later in itertools.pairwise(values[1:])]
    assert all(abs(step - 60_000 * round(step / 60_000)) < 2_000 for step in steps), steps  # 600 W for 100 ms, in mJ
    assert types == [3, 3]
    assert fields[1] >= fields[0] >= values[-1]
    elapsed_s = time.monotonic() - start_s
    assert gpu.energy_j - start_j == pytest.approx(600 * elapsed_s, abs=600 * 0.15)


def test_energy_follows_a_change_of_power_and_restarts_with_the_driver(standin):
    gpu = standin.gpus[0]
    standin.state.energy_step_ns = 0
    gpu.energy_j = 1000.0
    gpu.power_w = 0
    held_j = gpu.energy_j
    assert held_j >= 1000
    assert gpu.energy_j == held_j
    gpu.limit_w = 500
    standin.reload_driver()
    assert gpu.energy_j < 1
    assert gpu.limit_w == 700
    assert ask(standin, "say(nv.nvmlDeviceGetTotalEnergyConsumption(handle(0)))") < 1000


def test_an_error_hits_only_its_function_and_gpu_and_only_as_often_as_asked(standin):
    standin.fault("nvmlDeviceGetTemperature*", gpu=3, error=15, times=2)
    answer = ask(
        standin,
        """
        say([[code(nv.nvmlDeviceGetTemperature, handle(3), 0) for _ in range(3)],
             code(nv.nvmlDeviceGetTemperature, handle(2), 0), code(nv.nvmlDeviceGetPowerUsage, handle(3))])
        """,
    )
    assert answer == [[15, 15, 0], 0, 0]
    with pytest.raises(ValueError, match="no function of the stand-in matches"):
        standin.fault("nvmlDeviceGetColour", error=1)


def test_one_field_may_fail_while_its_neighbours_answer(standin):
    standin.gpus[0].fail_field(82)
    code = "say([f.nvmlReturn for f in nv.nvmlDeviceGetFieldValues(handle(0), [83, 82, 186, 4711])])"
    assert ask(standin, code) == [0, 3, 0, 3]


def test_a_slow_call_takes_its_time(standin):
    standin.fault("nvmlDeviceGetPowerUsage", gpu=0, latency_s=0.2)
    code = """
    import time
    def timed(i):
        begin = time.monotonic(); nv.nvmlDeviceGetPowerUsage(handle(i)); return time.monotonic() - begin
    say([timed(0), timed(1)])
    """
    slow_s, fast_s = ask(standin, code)
    assert slow_s >= 0.2
    assert fast_s < 0.2


HANGING = """
import threading
def read(i):
    say(["asks", i])
    say(["power", i, nv.nvmlDeviceGetPowerUsage(handle(i))])
threading.Thread(target=read, args=(0,)).start()
for line in sys.stdin:
    threading.Thread(target=read, args=(1,)).start()
"""


def test_a_hang_holds_one_gpus_call_against_signals_until_it_is_cleared(standin):
    standin.fault("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    with program(standin, HANGING, interactive=True) as reader:
        reader.wait_for_output('["asks", 0]')
        reader.send()
        reader.wait_for_output('["power", 1')  # the other GPU answers
        reader.signal(signal.SIGWINCH)
        assert '["power", 0' not in reader.output
        standin.clear()
        reader.wait_for_output('["power", 0')


def test_in_one_lock_mode_a_hang_stops_every_call_of_every_process_and_ends_with_its_process(standin):
    standin.one_lock = True
    standin.fault("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    with program(standin, HANGING, interactive=True) as culprit:
        wait_for(lambda: standin.calls("nvmlDeviceGetPowerUsage", gpu=0), 10, "the call that hangs")
        with program(standin, "say(nv.nvmlDeviceGetPowerUsage(handle(1)))") as victim:
            wait_for(lambda: standin.calls("nvmlInitWithFlags") == 2, 10, "the other process to arrive")
            assert victim.running
            assert "69900" not in victim.output
            culprit.process.kill()
            culprit.process.wait(10)
            victim.wait_for_output("69900")


def test_a_hang_on_a_path_is_a_stat_of_it(standin, tmp_path):
    standin.fault("nvmlDeviceGetPowerUsage", gpu=0, hang_path=tmp_path / "answers at once")
    assert ask(standin, "say(nv.nvmlDeviceGetPowerUsage(handle(0)))") == 69_900


def test_a_lost_gpu_answers_lost_from_everything_and_the_others_go_on(standin):
    standin.gpus[4].lost = 15
    code = """
    say([code(handle, 4), code(nv.nvmlDeviceGetHandleByUUID, sys.argv[1] if len(sys.argv) > 1 else UUID),
         code(handle, 5), nv.nvmlDeviceGetCount()])
    """
    answer = ask(standin, f"UUID = {standin.gpus[4].uuid!r}\n" + textwrap.dedent(code))
    assert answer == [15, 15, 0, 8]


def test_devices_can_go_and_move_while_their_uuid_stays(standin):
    standin.reorder([1, 0, 2, 3, 4, 5, 6])
    standin.device_count = 7
    uuids = [gpu.uuid for gpu in standin.gpus]
    code = """
    say([nv.nvmlDeviceGetCount(), nv.nvmlDeviceGetUUID(handle(0)), code(handle, 7),
         nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(FIRST)), code(nv.nvmlDeviceGetHandleByUUID, LAST)])
    """
    answer = ask(standin, f"FIRST, LAST = {uuids[0]!r}, {uuids[7]!r}\n" + textwrap.dedent(code))
    assert answer == [7, uuids[1], 2, 1, 6]
    assert standin.gpus[0].index == 1


def test_initialisation_fails_as_told_and_succeeds_when_the_driver_is_back(standin):
    code = """
    nv.nvmlShutdown()
    say("ready")
    for line in sys.stdin:
        say(code(nv.nvmlInit))
    """
    with program(standin, code, interactive=True) as reader:
        reader.wait_for_output("ready")
        for number, error in enumerate([module.DRIVER_NOT_LOADED, module.LIB_RM_VERSION_MISMATCH, 0], 1):
            standin.init_error = error
            reader.send()
            wait_for(lambda number=number: reader.output.count("\n") > number, 10, "an answer")
            assert json.loads(reader.output.splitlines()[number]) == error


def test_without_initialisation_or_state_the_library_says_so(standin):
    assert ask(standin, "h = handle(0); nv.nvmlShutdown(); say(code(nv.nvmlDeviceGetPowerUsage, h))") == 1
    child = subprocess.run(
        [sys.executable, "-c", PRELUDE],
        env=os.environ | {"LD_LIBRARY_PATH": str(standin.library_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NVMLError_DriverNotLoaded" in child.stderr


def test_eight_threads_read_and_write_while_the_state_changes(standin):
    code = """
    import threading
    wrong = []
    def work(i):
        h = handle(i)
        for n in range(300):
            w = 300_000 + n * 1000
            nv.nvmlDeviceSetPowerManagementLimit(h, w)
            if nv.nvmlDeviceGetPowerManagementLimit(h) != w: wrong.append(i)
            nv.nvmlDeviceGetTotalEnergyConsumption(h)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    say(wrong)
    """
    stop = threading.Event()

    def disturb() -> int:
        rounds = 0
        while not stop.is_set():
            for gpu in standin.gpus:
                gpu.power_w = 300 + rounds % 100
            rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as pool:
        rounds = pool.submit(disturb)
        try:
            assert ask(standin, code) == []
        finally:
            stop.set()
        assert rounds.result() > 0
    assert len(standin.writes()) == 2400
    assert standin.limits_w == [599] * 8


def test_instances_do_not_share_anything_and_the_build_happens_once(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = Standin(tmp_path / "one", ["h100"]), Standin(tmp_path / "two", ["h100"])
    assert one.gpus[0].uuid != two.gpus[0].uuid
    one.gpus[0].junction_c = 90
    assert two.gpus[0].junction_c == 41
    monkeypatch.setattr(module, "BUILD_DIR", tmp_path / "build")
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: build(), range(4)))
    assert len(folders) == 1
    assert [entry.name for entry in (tmp_path / "build").iterdir()] == [folders.pop().name]


def test_every_listed_function_is_exported(standin):
    symbols = subprocess.run(["nm", "-D", "--defined-only", standin.library_dir / "libnvidia-ml.so.1"],
                     capture_output=True, text=True, check=True).stdout  # fmt: skip
    exported = {line.split()[2] for line in symbols.splitlines()}
    assert set(function_numbers()) | {"nvmlErrorString"} == exported


def test_an_event_is_seen_by_who_registered_before_and_one_bit_too_many_refuses_all(standin):
    standin.gpus[0].xid(13)
    script = """
        events = nv.nvmlEventSetCreate()
        say(code(nv.nvmlDeviceRegisterEvents, handle(0), 0x8 | 0x100, events))
        nv.nvmlDeviceRegisterEvents(handle(0), 0x8, events)
        say("registered")
        seen = nv.nvmlEventSetWait_v2(events, 20000)
        say([seen.eventType, seen.eventData, code(nv.nvmlEventSetWait_v2, events, 10)])
        nv.nvmlEventSetFree(events)
        """
    with program(standin, script) as child:
        child.wait_for_output("registered", 20)
        standin.gpus[0].xid(31)
        assert child.wait_exit(30) == 0
        assert child.output.split("\n")[:3] == [str(module.NOT_SUPPORTED), '"registered"', "[8, 31, 10]"]
