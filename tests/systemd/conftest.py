"""Containers with systemd for the tests in this folder, and what they have in common: wheels built once per run."""

import pytest

from support.nspawn import wheels
from support.real import require_root


@pytest.fixture(scope="session")
def wheel_folder(tmp_path_factory):
    require_root()
    return wheels(tmp_path_factory.mktemp("wheels"))
