"""A node in a container: both services as they are installed, on the stand-in GPUs of this test."""

import contextlib
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from standin.standin import Standin
from support.nspawn import Container, cache_dir
from support.real import REPOSITORY, require
from support.wait import wait_for

HELPER, AGENT = "nodewarden-gpu.service", "nodewarden.service"
CONFIG = "/etc/nodewarden/nodewarden.toml"
DEAF = "/mnt/deaf"
FUSE = Path("/dev/fuse")
KERNEL_LOG, REAL_KERNEL_LOG = Path("/dev/kmsg"), "/dev/real-kmsg"
DEFAULT_CONFIG = """\
[node]
name = "gpu-node-07"
[limits]
failsafe_w = 350
[http]
listen = "127.0.0.1:10048"
"""
STANDIN_DROP_IN = """\
[Service]
Environment=LD_LIBRARY_PATH=/standin/lib NODEWARDEN_STANDIN_STATE=/standin/state/nvml.state
ReadWritePaths=/standin/state
"""


def build_deaf_fs() -> Path:
    """The folder with the file system that never answers, built once per source."""
    source = Path(__file__).with_name("deaf_fs.c")
    folder = cache_dir() / f"deaf-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        scratch = Path(tempfile.mkdtemp(dir=cache_dir()))
        subprocess.run(
            ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", source, "-o", scratch / "deaf-fs"], check=True
        )
        with contextlib.suppress(OSError):  # another process was first
            scratch.rename(folder)
    return folder


class ServiceNode:
    """The container with everything installed, and what tests ask of it."""

    def __init__(self, container: Container, standin: Standin) -> None:
        self.container = container
        self.standin = standin
        self.run = container.run

    @classmethod
    @contextlib.contextmanager
    def booted(
        cls,
        wheel_folder: Path,
        state: Path,
        kinds: Sequence[str],
        *,
        config: str = DEFAULT_CONFIG,
        agent_drop_in: str = "",
        start: bool = True,
    ) -> Iterator["ServiceNode"]:
        """Boots, installs from wheels, and starts both services unless start=False."""
        standin = Standin(state, kinds)
        standin.write_right = "capability"  # as the driver has it
        binds = {
            wheel_folder: ("/wheels", "ro"),
            REPOSITORY / "scripts": ("/scripts", "ro"),
            standin.library_dir: ("/standin/lib", "ro"),
            state: ("/standin/state", "rw"),
            build_deaf_fs(): ("/deaf", "ro"),
        }
        if KERNEL_LOG.exists():  # the container has a FIFO in its place
            binds[KERNEL_LOG] = (REAL_KERNEL_LOG, "ro")
        if FUSE.exists():
            binds[FUSE] = (str(FUSE), "rw")
        with Container(binds) as container:
            container.run("/scripts/install --wheels /wheels --no-start")
            container.write(f"/etc/systemd/system/{HELPER}.d/standin.conf", STANDIN_DROP_IN)
            if agent_drop_in:
                container.write(f"/etc/systemd/system/{AGENT}.d/test.conf", agent_drop_in)
            node = cls(container, standin)
            node.configure(config)
            container.run("systemctl daemon-reload")
            if start:
                node.start()
            try:
                yield node
            except BaseException as error:
                error.add_note(node.story())
                raise

    def configure(self, text: str) -> None:
        """Replaces the configuration file; no reload."""
        self.container.write(CONFIG, text)
        self.run(f"chgrp nodewarden {CONFIG}; chmod 640 {CONFIG}")

    def start(self) -> None:
        """Starts both services and waits until every board is read."""
        self.run(f"systemctl start {HELPER} {AGENT}")
        self.wait_status(
            lambda status: (
                len([gpu for gpu in status["gpus"] if gpu["state"] == "ok" and gpu["cap_w"] is not None])
                == self.standin.device_count
            ),
            "all GPUs in nodectl status",
        )

    def story(self) -> str:
        """What the services logged last, for a test that failed."""
        return self.run(f"journalctl -q --no-pager -o short-monotonic -n 80 -u {HELPER} -u {AGENT}", check=False).stdout

    def status(self) -> tuple[int, dict]:
        """Exit code and document of `nodectl status --json`, asked as an ordinary user."""
        child = self.run("nodectl status --json", check=False, user="nobody")
        return child.returncode, json.loads(child.stdout) if child.stdout else {}

    def wait_status(self, condition, what: str, timeout_s: float = 20) -> dict:
        """The first status of a running agent for which `condition` holds."""

        def look() -> dict | None:
            code, document = self.status()
            return document if code in {0, 1, 2} and condition(document) else None

        return wait_for(look, timeout_s, f"{what} in nodectl status")

    def problems(self) -> set[str]:
        """The codes of all problems that status shows."""
        return {problem["code"] for problem in self.status()[1].get("problems", [])}

    def wait_problem(self, code: str, timeout_s: float = 20) -> dict:
        """The first problem of that code."""
        document = self.wait_status(
            lambda status: any(problem["code"] == code for problem in status["problems"]), code, timeout_s
        )
        return next(problem for problem in document["problems"] if problem["code"] == code)

    def wait_limit(self, gpu: int, w: float, timeout_s: float = 10) -> None:
        """Until a board has this limit."""
        wait_for(lambda: self.standin.gpus[gpu].limit_w == w, timeout_s, f"GPU {gpu} to have a limit of {w:g} W")

    def main_pid(self, unit: str) -> int:
        """Process id inside; 0 = none."""
        return int(self.container.show(unit, "MainPID")["MainPID"])

    def state(self, unit: str) -> str:
        """ActiveState of a unit."""
        return self.container.show(unit, "ActiveState")["ActiveState"]

    def restarts(self, unit: str) -> int:
        """How often systemd restarted it by itself."""
        return int(self.container.show(unit, "NRestarts")["NRestarts"])

    def uptime_s(self, unit: str) -> float:
        """Seconds since the unit became active."""
        since_us = int(self.container.show(unit, "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])
        return float(self.run("cut -d' ' -f1 /proc/uptime").stdout) - since_us / 1e6

    def events(self) -> list[dict]:
        """The agent's journal, oldest first."""
        return json.loads(self.run("nodectl events --json").stdout)

    @contextlib.contextmanager
    def deaf_file_system(self) -> Iterator[Path]:
        """A mounted file system that never answers; who hangs on it goes on when the block ends."""
        require(FUSE.exists(), str(FUSE))
        self.run(f"mkdir -p {DEAF}")
        self.run(f"systemd-run -q --unit=deaf --service-type=exec /deaf/deaf-fs {DEAF}")
        wait_for(lambda: f" {DEAF} " in self.run("cat /proc/mounts").stdout, 10, "the deaf file system")
        try:
            yield Path(DEAF) / "never"
        finally:
            self.run(f"systemctl stop deaf; umount -l {DEAF}", check=False)

    def process_state(self, pid: int) -> str:
        """The states of all threads of a process inside, such as "SSD"; empty when it is gone."""
        shown = self.run(f"cat /proc/{pid}/task/*/stat 2>/dev/null", check=False).stdout
        return "".join(line.rpartition(")")[2].split()[0] for line in shown.splitlines())
