"""A whole node for tests: stand-in GPUs, the real agent with its real helper, and a small plant that heats them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from standin.standin import Gpu, Standin
from support.kernel_log import KernelLogFile
from support.ports import free_port
from support.processes import Program
from support.wait import wait_for

BIN = Path(sys.executable).parent


class Heat(threading.Thread):
    """Heats each board from its power: one lump of `c_j_per_k` cooled through `r_k_per_w` into the inlet air."""

    def __init__(self, gpus: Sequence[Gpu], *, demand_w: float = 650.0) -> None:
        super().__init__(name="heat", daemon=True)
        self.gpus = gpus
        self.inlet_c = 28.0
        self.c_j_per_k = 600.0
        self.demand_w = [demand_w] * len(gpus)
        self.r_k_per_w = [0.065] * len(gpus)
        self.junction_c = [self.inlet_c + 0.065 * demand_w] * len(gpus)
        self.hottest_c = [0.0] * len(gpus)
        self._stop_now = threading.Event()

    def run(self) -> None:
        before_s = time.monotonic()
        while not self._stop_now.wait(0.05):
            now_s = time.monotonic()
            for n, gpu in enumerate(self.gpus):
                power_w = min(self.demand_w[n], gpu.enforced_w)
                removed_w = (self.junction_c[n] - self.inlet_c) / self.r_k_per_w[n]
                self.junction_c[n] += (power_w - removed_w) / self.c_j_per_k * (now_s - before_s)
                self.hottest_c[n] = max(self.hottest_c[n], self.junction_c[n])
                gpu.junction_c = round(self.junction_c[n])
                gpu.hbm_c = round(self.junction_c[n]) + 4
            before_s = now_s

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


class TestNode:
    """One node in a short temporary folder. `start_agent` runs `nodewarden` with the helper it spawns."""

    __test__ = False

    def __init__(self, kinds: Sequence[str] = ("h100",) * 8, *, config: str = "", name: str = "node-a") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nw-"))
        self.runtime = self.folder / "run"
        self.state = self.folder / "state"
        self.config = self.folder / "nodewarden.toml"
        self.standin = Standin(self.folder, kinds)
        self.kernel_log = KernelLogFile(self.folder / "kmsg")
        self.host_root = self.folder / "host"  # no sensors, whatever the machine has
        self.port = free_port()
        self.write_config(config, name)
        for gpu in self.standin.gpus:
            gpu.power_w = 650.0
            gpu.utilisation_pct = 99
            gpu.junction_c, gpu.hbm_c, gpu.sm_mhz = 70, 74, 1900
        self.extra_env: dict[str, str] = {}
        self.agent: Program | None = None
        self.programs: list[Program] = []

    def write_config(self, extra: str, name: str = "node-a") -> None:
        node = f'[node]\nname = "{name}"\nexpected_gpus = {len(self.standin.gpus)}\n'
        self.config.write_text(f'{node}[http]\nlisten = "127.0.0.1:{self.port}"\n{extra}')

    def env(self) -> dict[str, str | None]:
        return {
            **self.standin.env(),
            "NODEWARDEN_RUNTIME_DIR": str(self.runtime),
            "NODEWARDEN_STATE_DIR": str(self.state),
            "NODEWARDEN_LOCK_DIR": str(self.folder / "lock"),
            "NODEWARDEN_KERNEL_LOG": str(self.kernel_log.path),
            "NODEWARDEN_HOST_ROOT": str(self.host_root),
            "NODEWARDEN_CONFIG": str(self.config),
            "NOTIFY_SOCKET": None,
            "INVOCATION_ID": None,
            **self.extra_env,
        }

    def start_agent(self, *arguments: str, ready: bool = True) -> Program:
        program = Program([BIN / "nodewarden", *arguments], env=self.env())
        self.programs.append(program)
        self.agent = program
        if ready:
            program.wait_for_output("ready gpus=", 30)
        return program

    def start_helper(self) -> Program:
        """`nodewarden-gpu` on its own, as the service runs it; agents then connect."""
        command = [BIN / "nodewarden-gpu", "--runtime-dir", self.runtime, "--lock-dir", self.folder / "lock"]
        self.runtime.mkdir(exist_ok=True)
        program = Program(command, env=self.env())
        self.programs.append(program)
        wait_for((self.runtime / "gpu.sock").exists, 15, "the helper's socket")
        return program

    def call(self, method: str, **params: Any) -> Any:
        """One request on control.sock; the result, or the error object."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(10)
            peer.connect(str(self.runtime / "control" / "control.sock"))
            peer.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
            answer = json.loads(peer.makefile().readline())
        return answer.get("result", answer.get("error"))

    def cap(self, gpu: str, w: float, for_s: float = 3600) -> None:
        """A manual cap, and wait until the boards have it."""
        self.call("cap", gpu=gpu, w=w, for_s=for_s)
        boards = self.standin.gpus if gpu == "all" else [self.standin.gpus[int(gpu)]]
        wait_for(lambda: all(board.limit_w == w for board in boards), 10, f"{w} W on GPU {gpu}")

    def codes(self) -> set[str]:
        """Problem codes that hold now."""
        return {problem["code"] for problem in self.call("status")["problems"]}

    def nodectl(self, *arguments: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **{k: v for k, v in self.env().items() if v is not None}}
        done = subprocess.run(
            [BIN / "nodectl", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        if check is not None and done.returncode != check:
            log = self.agent.output[-4000:] if self.agent is not None else ""
            raise AssertionError(f"{done.args} -> {done.returncode}\n{done.stdout}\n{done.stderr}\n--- agent\n{log}")
        return done

    def json(self, *arguments: str, check: int | None = None) -> Any:
        done = self.nodectl(*arguments, "--json", check=check)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def status(self) -> dict[str, Any]:
        return self.json("status")

    def page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            return answer.read().decode()

    def helper_pid(self) -> int:
        """The pid of the helper that owns gpu.sock, from its lock file."""
        return wait_for(self._helper_pid, 10, "the helper's pid")

    def _helper_pid(self) -> int | None:
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    command = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"gpuhelper.main" in command and str(self.runtime).encode() in command:
                    return int(process.name)
        return None

    def close(self) -> None:
        for program in reversed(self.programs):
            program.stop(10)
        pid = self._helper_pid()
        if pid is not None:
            self.standin.clear()
            os.kill(pid, 15)
            wait_for(lambda: self._helper_pid() is None, 15, "the helper to end")
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs if "PYTEST_CURRENT_TEST" in os.environ else ():  # shown when the test failed
            print(f"--- {program.command[0]} {program.output[-8000:]}")  # noqa: T201
        self.close()
