"""`nodectl topology` on a node of eight H100 with eight cards, as a person reads it."""

import pytest

from nodewarden.api.details import topology_document
from nodewarden.cli.output import Screen
from nodewarden.cli.topology import topology_lines
from nodewarden.model.topology import Links, Place, matrix
from support.golden import assert_golden
from support.node_views import calm


def hgx() -> dict[str, object]:
    """Four switches, each with two GPUs and two cards; GPUs linked through NVSwitches."""

    def at(name: str, switch: int, port: int, **more: object) -> Place:
        root = f"pci0000:{switch}0"
        path = (root, f"0000:{switch}0:01.0", f"0000:{switch}1:00.0", f"0000:{switch}2:0{port}.0", name)
        half = switch // 3
        return Place(name=name, path=path, numa=half, cpus=f"{56 * half}-{56 * half + 55}", **more)

    gpus = [(f"GPU-{n}", n, at(f"GPU {n}", n // 2 + 1, n % 2), Links(18)) for n in range(8)]
    nics = [at(f"mlx5_{n}", n // 2 + 1, 2 + n % 2, ports=(f"ib{n}",)) for n in range(8)]
    return topology_document(calm(), matrix(gpus, nics))


@pytest.mark.parametrize("width", [80, 140])
def test_the_matrix_is_one_that_a_person_can_read(width: int) -> None:
    lines = topology_lines(Screen(width=width, colour=False, unicode=True), hgx())
    assert max(map(len, lines)) <= width
    assert_golden(f"topology-{width}.txt", "\n".join(lines) + "\n")


def test_each_gpu_has_its_nearest_cards_and_the_legend_explains_only_what_is_there() -> None:
    document = hgx()
    assert [gpu["nearest_nics"] for gpu in document["gpus"]][2] == ["mlx5_2", "mlx5_3"]
    text = "\n".join(topology_lines(Screen(width=100, colour=False, unicode=False), document))
    assert "one PCIe switch at most" in text
    assert "host bridge (root complex)" not in text
