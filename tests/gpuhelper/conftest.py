"""A node with eight boards of the stand-in for every test that asks for one."""

from collections.abc import Iterator

import pytest

from gpuhelper.rig import Rig, rig_of


@pytest.fixture
def rig() -> Iterator[Rig]:
    with rig_of() as made:
        yield made
