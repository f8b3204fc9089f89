"""F51, F55: the watchdog and health follow the progress of the loops, not an open port and not a sick device."""

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from end_to_end.node import TestNode
from nodewarden.clock import BootClock
from nodewarden.config import load_config
from nodewarden.runtime import Agent, prepare_folders
from nodewarden.state import StateFile
from support.wait import wait_for_async


class Supervisor:
    """The service manager's end of the notify protocol."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))
        self.told: list[str] = []

    def hear(self) -> list[str]:
        with suppress(BlockingIOError):
            while True:
                self.told += self.socket.recv(65536).decode().split("\n")
        return self.told

    def feeds(self) -> int:
        return self.hear().count("WATCHDOG=1")


@pytest.fixture
async def agent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Agent, Supervisor, TestNode]]:
    """An agent in this process, without GPUs, fed by a watchdog of 400 ms."""
    with TestNode([]) as node:
        supervisor = Supervisor(node.folder / "notify")
        monkeypatch.setenv("NOTIFY_SOCKET", str(node.folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        node.write_config("[sampling]\ngpu_fast_s = 0.2\n")
        prepare_folders(node.runtime)
        state = StateFile(node.state)
        state.lock()
        made = Agent(load_config(node.config), node.config, node.runtime, state, BootClock())
        yield made, supervisor, node
        supervisor.socket.close()


async def serve(agent: Agent) -> asyncio.Task[None]:
    await agent.open_sockets()
    return asyncio.create_task(agent.run())


async def end(agent: Agent, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await agent.close()


def healthz(node: TestNode) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/healthz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_ready_comes_first_and_the_watchdog_is_fed_while_loops_turn(agent) -> None:
    made, supervisor, node = agent
    task = await serve(made)
    await wait_for_async(lambda: supervisor.feeds() >= 5, 15, "five feeds")
    assert any(line == "READY=1" for line in supervisor.told)
    assert supervisor.told.index("READY=1") < supervisor.told.index("WATCHDOG=1")
    assert (await asyncio.to_thread(healthz, node))[0] == 200
    await end(made, task)
    assert "STOPPING=1" in supervisor.hear()


@pytest.mark.parametrize(("loop", "where", "method"), [("gpu", "_gpus", "read_fast"), ("control", "_control", "turn")])
async def test_a_frozen_critical_loop_starves_the_watchdog_and_health_names_it(agent, loop, where, method) -> None:
    made, supervisor, node = agent
    part = getattr(made, where)
    real, freeze = getattr(part, method), asyncio.Event()

    async def freezes_later() -> None:
        if freeze.is_set():
            await asyncio.Event().wait()
        await real()

    setattr(part, method, freezes_later)
    task = await serve(made)
    await wait_for_async(lambda: supervisor.feeds() >= 3, 15, "three feeds")
    freeze.set()
    await wait_for_async(lambda: any("stalled" in line for line in supervisor.hear()), 20, "the stall to be told")
    fed = supervisor.feeds()
    answers: list[tuple[int, str]] = []

    async def ask() -> None:
        while not answers or answers[-1][0] == 200:
            answers.append(await asyncio.to_thread(healthz, node))

    async with asyncio.timeout(10):
        await ask()
    assert answers[-1][0] == 503
    assert loop in answers[-1][1]
    told = len(supervisor.told)
    await wait_for_async(lambda: len(supervisor.hear()) > told + 2, 10, "three more turns of the watchdog loop")
    assert supervisor.feeds() == fed
    await end(made, task)


async def test_a_frozen_side_loop_only_degrades_and_is_named(agent) -> None:
    made, supervisor, node = agent
    real, freeze = made._gpus.read_slow, asyncio.Event()

    async def freezes_later() -> None:
        if freeze.is_set():
            await asyncio.Event().wait()
        await real()

    made._gpus.read_slow = freezes_later  # type: ignore[method-assign]
    made._progress["gpu_slow"].period_s = 0.2
    task = await serve(made)
    await wait_for_async(lambda: supervisor.feeds() >= 3, 15, "three feeds")
    freeze.set()
    await wait_for_async(
        lambda: "loop_stalled" in {problem.code for problem in made.node.view().problems}, 20, "the stall to be told"
    )
    assert "gpu_slow" in next(p.text for p in made.node.view().problems if p.code == "loop_stalled")
    fed = supervisor.feeds()
    await wait_for_async(lambda: supervisor.feeds() > fed + 2, 10, "the watchdog to be fed all the same")
    assert (await asyncio.to_thread(healthz, node))[0] == 200
    await end(made, task)
