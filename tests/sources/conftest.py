"""What tests of sources share: simulators on recordings, one SNMP engine per test, a clock that is set by hand."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodewarden.devices.snmp import SnmpEngine
from support.real import REPOSITORY, recordings_dir
from support.servers import SnmpSimulator

OWN_RECORDINGS = REPOSITORY / "tests" / "recordings"


@pytest.fixture(scope="session")
def own_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnmpSimulator]:
    """snmpsim on the recordings of this repository."""
    simulator = SnmpSimulator(OWN_RECORDINGS, tmp_path_factory.mktemp("own"))
    yield simulator
    simulator.stop()


@pytest.fixture(scope="session")
def real_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnmpSimulator]:
    """snmpsim on the recordings of real devices."""
    simulator = SnmpSimulator(recordings_dir(), tmp_path_factory.mktemp("real"))
    yield simulator
    simulator.stop()


@pytest.fixture
async def snmp() -> AsyncIterator[SnmpEngine]:
    engine = SnmpEngine()
    await engine.warm_up()
    yield engine
    await engine.close()


class HandClock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return self.time_s + 1.7e9

    async def sleep_until(self, deadline_s: float) -> None:
        self.time_s = max(self.time_s, deadline_s)

    def real_s(self, seconds: float) -> float:
        return seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def recording(name: str) -> Path:
    return OWN_RECORDINGS / f"{name}.snmprec"
