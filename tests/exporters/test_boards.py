"""A scrape of each kind of board, through the real helper; and how many series a full node has."""

import re

import pytest

from gpuhelper.rig import rig_of
from nodewarden.model.readings import Reading
from nodewarden_exporters.prometheus import Renderer
from support.golden import assert_golden
from support.gpu_agent import Watched, watched
from support.views import a_view
from support.wait import ask_until

# Depends on the moment of the scrape.
MOVING = re.compile(r"nodewarden_gpu_(energy_joules_total|power_by_energy_watts|power_min_watts|power_max_watts)\b")


async def settled(node: Watched, uuid: str) -> None:
    """Until everything is there that needs two reads."""
    await node.sweep()
    if "sm_active" not in node.gpu(uuid).more or node.gpu(uuid).calls.get("sm_active"):

        async def is_there() -> bool:
            await node.sweep()
            return isinstance(node.gpu(uuid).number("sm_active"), Reading)

        await ask_until(is_there, 20, "GPM")


@pytest.mark.parametrize("kind", ["a100", "h100", "h100-pcie", "h100-nvl"])
async def test_the_scrape_of_each_board_is_the_golden_one(kind: str) -> None:
    with rig_of([kind]) as rig:
        (gpu,) = rig.standin.gpus
        gpu.uuid = "GPU-00000000-0000-4000-8000-000000000000"
        gpu._state.serial = b"1650000000001"
        rig.start()
        async with watched(rig.socket_path) as node:
            await settled(node, gpu.uuid)
            lines = [line for line in node.page().splitlines() if not line.startswith("#")]
    shown = [f"{line.rpartition(' ')[0]} ..." if MOVING.match(line) else line for line in lines]
    assert_golden(f"board-{kind}.prom", "\n".join(dict.fromkeys(shown)) + "\n")


async def test_a_node_of_eight_h100_has_at_most_3000_series() -> None:
    with rig_of(["h100"] * 8) as rig:
        rig.start()
        async with watched(rig.socket_path) as node:
            await settled(node, rig.uuids[0])
            real = node.page()
    gpus = [line for line in real.splitlines() if line and not line.startswith("#")]
    assert sum("nodewarden_nvlink_" in line for line in gpus) == 8 * 18 * 5  # state, bytes both ways, speed, other end
    page = Renderer().render(a_view()).decode()  # a whole node, with PDU, job and the agent's own metrics
    others = [
        line
        for line in page.splitlines()
        if line and not line.startswith(("#", "nodewarden_gpu_", "nodewarden_nvlink_"))
    ]
    assert len(gpus) + len(others) <= 3000, (len(gpus), len(others))
