"""A library that exports next to nothing: every missing function is "not supported", never a crash."""

import subprocess
from pathlib import Path

import pytest

from gpuhelper.rig import Rig
from nodewarden.gpuhelper import wire
from nodewarden.model.gpu_quantities import FAST_READ

BARE = r"""
#include <string.h>
#define H void *handle
int nvmlInitWithFlags(unsigned flags) { return (int)(flags & 0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(H, char *uuid, unsigned size) { strncpy(uuid, "GPU-bare", size); return 0; }
"""
SOME = r"""
static unsigned limit = 300000;
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetPowerUsage(H, unsigned *mw) { *mw = 123000; return 0; }
int nvmlDeviceGetTemperature(H, int sensor, unsigned *c) { *c = 55 + sensor; return 0; }
int nvmlDeviceGetMemoryInfo(H, struct memory *m) { m->total = 10; m->free = 3; m->used = 7; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(H, unsigned long long *bits) { *bits = 4; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v2(H, unsigned *count, void *infos) { *count = 0; return 0; }
int nvmlDeviceGetPowerManagementLimitConstraints(H, unsigned *a, unsigned *b) { *a = 100000; *b = 300000; return 0; }
int nvmlDeviceGetPowerManagementLimit(H, unsigned *mw) { *mw = limit; return 0; }
int nvmlDeviceSetPowerManagementLimit(H, unsigned mw) { limit = mw; return 0; }
"""


def built(folder: Path, source: str) -> dict[str, str | None]:
    """The environment in which this source is the library."""
    (folder / "bare.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "bare.c"], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_a_library_with_only_uuids_gives_a_gpu_without_quantities(rig: Rig, tmp_path: Path) -> None:
    """F01, taken to its end."""
    program = rig.start(env=built(tmp_path, BARE))
    peer = rig.agent()
    hello = peer.adopt()
    assert (hello.driver, [gpu.uuid for gpu in hello.gpus]) == ("ok", ["GPU-bare"])
    fast = peer.fast("GPU-bare")["GPU-bare"]
    assert isinstance(fast, wire.FastReply)
    assert {name: quantity.reason for name, quantity in fast.values.items()} == dict.fromkeys(
        FAST_READ, "not_in_driver"
    ) | {"power_energy_w": "not_read"}
    slow = peer.slow("GPU-bare")["GPU-bare"]
    assert isinstance(slow, wire.SlowReply)
    assert (slow.links, slow.links_reason, slow.pids, slow.pids_reason) == ([], "not_supported", None, "not_in_driver")
    refused = peer.set_cap("GPU-bare", 200)
    assert isinstance(refused, wire.ErrorReply)
    assert refused.code == "not_supported"
    assert program.stop() == 0


@pytest.mark.parametrize("way", ["stop", "restore"])
def test_an_old_library_is_read_and_capped_by_the_functions_it_has(rig: Rig, tmp_path: Path, way: str) -> None:
    program = rig.start(env=built(tmp_path, BARE + SOME))
    peer = rig.agent()
    fast = peer.fast("GPU-bare")["GPU-bare"]
    assert isinstance(fast, wire.FastReply)
    values = {name: quantity.value for name, quantity in fast.values.items() if quantity.value is not None}
    assert values == {
        "junction_c": 55,
        "power_w": 123,
        "power_instant_w": 123,
        "memory_used_bytes": 7,
        "memory_total_bytes": 10,
        "cap_w": 300,
    }
    assert fast.slow_bits == 4
    slow = peer.slow("GPU-bare")["GPU-bare"]
    assert isinstance(slow, wire.SlowReply)
    assert (slow.pids, slow.board.min_w, slow.board.kind) == ([], 100, None)
    assert (peer.cap("GPU-bare", 200).w, peer.ledger()["GPU-bare"].prior_w) == (200, 300)
    if way == "restore":
        assert peer.restore()["GPU-bare"].outcome == "restored"
    assert program.stop() == 0
    assert rig.entries() == {}


PICKY_FIELDS = r"""
struct field { unsigned id, scope; long long at, latency; int type, result; union { double d; unsigned u; } value; };
int nvmlDeviceGetFieldValues(H, int count, struct field *fields) {
    for (int i = 0; i < count; i++) {
        if (fields[i].id != 82 && fields[i].id != 230) return 2;
        fields[i].type = 1;
        fields[i].result = 0;
        fields[i].value.u = fields[i].id == 82 ? 61 : 0;
    }
    return 0;
}
"""


def test_a_library_that_refuses_all_fields_for_the_sake_of_one_is_asked_for_each(rig: Rig, tmp_path: Path) -> None:
    rig.start(env=built(tmp_path, BARE + PICKY_FIELDS))
    fast = rig.agent().fast("GPU-bare")["GPU-bare"]
    assert isinstance(fast, wire.FastReply)
    assert fast.values["hbm_c"].value == 61
    assert fast.values["power_instant_w"].reason == "not_in_driver"
    for _ in range(2):  # a zero is a value, also once the fields that it refuses are known
        slow = rig.peers[0].slow("GPU-bare")["GPU-bare"]
        assert isinstance(slow, wire.SlowReply)
        assert [(sample.value, sample.reason) for sample in slow.more["recovery_action"]] == [(0.0, None)]
