"""The demo's stage: a temporary folder, the processes in it, and the promise that nothing of them is left behind."""

import atexit
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from nodewarden.errors import NodewardenError

END_WITHIN_S = 5.0
LOOK_EVERY_S = 0.02
TAIL_LINES = 12
LONGEST_FOLDER = 60  # a Unix socket's path has 107 bytes in all

_PR_SET_PDEATHSIG = 1


class StageError(NodewardenError):
    """Something on the stage did not come up or died; the text says what and shows its last words."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What the twin says when it is up."""

    pid: int
    pdu_host: str
    pdu_port: int
    community: str
    outlets: list[int]
    gpus: list[str]


def _die_with_parent() -> None:
    """In the child, before exec: a demo that is killed outright takes its processes with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Child:
    """One process of the stage: its own session, so that Ctrl-C reaches only the demo, which ends it in order."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.name = name
        self.output = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        with self.output.open("xb") as output, self.log.open("xb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=env,
                cwd=folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the demo has no other thread at this point
            )

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self.process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects that it has printed so far, one per finished line."""
        text = self.output.read_bytes()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]

    def last_words(self) -> str:
        """The end of what it wrote to its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:]) or "(it said nothing)"

    def end(self) -> None:
        """SIGTERM, a few seconds, then SIGKILL."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stage:
    """A context manager: on its way out every process ends and the folder goes, whatever happened.

    Attributes:
        folder: everything of this demo is in here.
    """

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        self.folder = Path(tempfile.mkdtemp(prefix="nw-demo-", dir=base if len(base) < LONGEST_FOLDER else "/tmp"))  # noqa: S108 - mkdtemp makes it private
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.runtime_dir = self.folder / "run"
        self.state_dir = self.folder / "state"
        self.lock_dir = self.folder / "lock"
        self.checkpoints = self.folder / "checkpoints"
        self.link_path = self.folder / "link"
        self.children: list[Child] = []
        for path in (self.runtime_dir, self.state_dir, self.lock_dir):
            path.mkdir(mode=0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C while this runs must not stop it half way.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for child in reversed(self.children):  # the job, then the agent, then what it talks to
                child.end()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self, name: str, module: str, *arguments: str | Path) -> Child:
        """Start one of our own modules as a program."""
        env = {
            **os.environ,
            "NODEWARDEN_RUNTIME_DIR": str(self.runtime_dir),
            "NODEWARDEN_STATE_DIR": str(self.state_dir),
            "PYTHONUNBUFFERED": "1",
        }
        for foreign in ("NODEWARDEN_CONFIG", "NODEWARDEN_JOB_SOCKET", "NOTIFY_SOCKET", "WATCHDOG_USEC"):
            env.pop(foreign, None)
        child = Child(name, [sys.executable, "-m", module, *map(str, arguments)], self.folder, env)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raises StageError when a process has ended that should not have."""
        for child in self.children:
            if not child.running:
                raise StageError(
                    f"the {child.name} ended with status {child.process.returncode} in the middle of the demo; "
                    f"its last words:\n{child.last_words()}"
                )

    def wait_for(self, what: str, within_s: float, condition: Callable[[], Any]) -> Any:
        """The first true answer of `condition`; StageError when a process ends or nothing comes within `within_s`."""
        deadline_s = time.monotonic() + within_s
        while True:
            answer = condition()
            if answer:
                return answer
            self.check()
            if time.monotonic() > deadline_s:
                words = "\n".join(f"--- {child.name}\n{child.last_words()}" for child in self.children)
                raise StageError(f"waited {within_s:g} s in vain for {what}\n{words}")
            time.sleep(LOOK_EVERY_S)
