"""Programs under test: started in their own process group, output collected in a file, always reaped, by pid."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from support.wait import wait_for


class Program:
    """One running program; a context manager that ends it and whatever it started.

    `env` is laid over this process's environment; a None value removes a name. interactive=True opens its input, for
    `send`.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
        interactive: bool = False,
    ) -> None:
        merged: dict[str, str | None] = {**os.environ, **(env or {})}
        self.command = [str(word) for word in command]
        self._output = tempfile.TemporaryFile(prefix="nw-out-")  # noqa: SIM115 - closed in stop()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in merged.items() if value is not None},
            cwd=cwd,
            user=user,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """All it has printed so far, both streams."""
        if self._output.closed:
            return self._kept_output
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_for_output(self, text: str, timeout_s: float = 10) -> None:
        """Until it has printed `text`; fails at once when it ends before."""

        def printed() -> bool:
            ended = not self.running
            if text in self.output:
                return True
            assert not ended, f"{self.command[0]} ended ({self.process.returncode}) before {text!r}:\n{self.output}"
            return False

        wait_for(printed, timeout_s, f"{text!r} from {self.command[0]}")

    def wait_exit(self, timeout_s: float = 10) -> int:
        """Its exit status; fails with its output when it goes on."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} still runs after {timeout_s:g} s:\n{self.output}") from None

    def send(self, text: str = "\n") -> None:
        """Writes to its input."""
        assert self.process.stdin, "not started with interactive=True"
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Sends one signal to the program itself."""
        self.process.send_signal(number)

    def stop(self, timeout_s: float = 5) -> int:
        """SIGTERM, then SIGKILL to its whole group; returns the exit status. May be called again."""
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        status = self.process.wait(timeout_s)
        if not self._output.closed:
            self._kept_output = self.output
            self._output.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None:
            error.add_note(f"--- output of {' '.join(self.command)}\n{self.output[-8000:]}")
