"""MIG instances that come and go under the agent: F09, and ids that are used again at once."""

from collections.abc import AsyncIterator

import pytest

from gpuhelper.rig import Rig
from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import GpuSnapshot
from standin.standin import GIB, NO_PERMISSION
from support.gpu_agent import Watched, watched

pytestmark = pytest.mark.real


@pytest.fixture
async def node(rig: Rig) -> AsyncIterator[Watched]:
    rig.start()
    async with watched(rig.socket_path) as seen_by:
        yield seen_by


def instances(gpu: GpuSnapshot) -> dict[str, tuple[str, str]]:
    """MIG uuid -> GPU instance id and profile."""
    return {labels[0]: (labels[1], labels[3]) for labels in gpu.series("mig_info") if len(labels) == 4}


async def seen(rig: Rig, node: Watched) -> GpuSnapshot:
    await node.sweep()
    return node.gpu(rig.standin.gpus[0].uuid)


async def test_instances_come_and_go_and_an_id_used_again_is_another_instance(rig: Rig, node: Watched) -> None:
    board = rig.standin.gpus[0]
    gpu = await seen(rig, node)
    assert instances(gpu) == {}
    assert gpu.number("mig_memory_used_bytes", "x") == Absent("off")
    assert "nodewarden_gpu_mig_info" not in node.page().replace("# HELP", "").replace("# TYPE", "")

    first, second = board.set_mig((7, "1g.10gb", 2 * GIB), (9, "2g.20gb", 0))
    gpu = await seen(rig, node)
    assert instances(gpu) == {first: ("7", "1g.10gb"), second: ("9", "2g.20gb")}
    used = gpu.number("mig_memory_used_bytes", first)
    assert isinstance(used, Reading)
    assert used.value == 2 * GIB
    page = node.page()
    assert f'mig_uuid="{first}",gpu_instance="7",compute_instance="0",profile="1g.10gb"}} 1' in page
    assert page.count("nodewarden_gpu_power_watts{") == len(rig.standin.gpus)  # physical quantities once per GPU

    (third,) = board.set_mig((7, "1g.10gb", 0))
    gpu = await seen(rig, node)
    assert instances(gpu) == {third: ("7", "1g.10gb")}
    assert first not in node.page()

    board.set_mig()
    gpu = await seen(rig, node)
    assert instances(gpu) == {}
    assert third not in node.page()


async def test_an_instance_whose_memory_is_hidden_is_named_without_it(rig: Rig, node: Watched) -> None:
    (only,) = rig.standin.gpus[0].set_mig((7, "1g.10gb", GIB))
    rig.standin.fault("nvmlDeviceGetMemoryInfo_v2", gpu=0, error=NO_PERMISSION)
    gpu = await seen(rig, node)
    assert instances(gpu) == {only: ("7", "1g.10gb")}
    assert gpu.number("mig_memory_used_bytes", only) == Absent("no_permission")
    assert isinstance(gpu.junction_c, Reading)


async def test_memory_of_each_process_is_carried_and_makes_no_series(rig: Rig, node: Watched) -> None:
    rig.standin.gpus[0].pids = [4711, 4712]
    gpu = await seen(rig, node)
    assert {labels for labels in gpu.series("process_bytes") if labels} == {("4711",), ("4712",)}
    assert "4711" not in node.page()
