"""Containers with systemd for the tests in this folder, and what they have in common: wheels built once per run."""

import pytest

from support.nspawn import wheels
from support.real import require_root


@pytest.fixture(scope="session")
def wheel_folder(tmp_path_factory):
    require_root()
    return wheels(tmp_path_factory.mktemp("wheels"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure shows what the services logged."""
    report = yield
    node = getattr(item, "funcargs", {}).get("node")
    if report.failed and hasattr(node, "story"):
        report.sections.append(("services", node.story()))
    return report
