"""The few facts that outlive the agent: armed or not, recent starts, which instance. One small JSON file.

Written as a temporary file, fsync, rename, directory fsync; the copy before is kept. A damaged file is moved aside and
means "disarmed": nothing is written to hardware on the word of a broken file (F70).
"""

import contextlib
import os
import secrets
import time
from pathlib import Path

import msgspec
import structlog

from nodewarden.errors import AlreadyRunningError
from nodewarden.file_lock import FileLock

log = structlog.get_logger("nodewarden.state")

QUICK_START_S = 60.0  # an agent that lived shorter than this counts as failed
DELAY_MAX_S = 60.0
FREE_STARTS = 3


class _State(msgspec.Struct, kw_only=True):
    armed: bool = False
    starts: int = 0  # starts in a row that did not live QUICK_START_S
    started_wall_s: float = 0.0
    instance: str = ""


class StateFile:
    """`state.json` in the state directory, and the lock that makes this the only agent on it.

    Attributes:
        armed: as last persisted.
        problem: why the last write failed, None = it did not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "state.json"
        self.problem: str | None = None
        self._lock = FileLock(folder / "lock")
        self._state = _State()

    @property
    def armed(self) -> bool:
        """Whether automatic setpoints reach the hardware."""
        return self._state.armed

    @property
    def instance(self) -> str:
        """A random word of this state directory, stays over restarts: tells agents of one image apart (F42)."""
        if not self._state.instance:
            self._state.instance = secrets.token_hex(4)
            self._save()
        return self._state.instance

    def lock(self) -> None:
        """Become the only agent on this directory; the kernel frees the lock when the process ends.

        Raises:
            AlreadyRunningError: another agent holds it.
            LockFailedError, OSError: the directory cannot be made or written.
        """
        self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except AlreadyRunningError as error:
            raise AlreadyRunningError(
                f"another nodewarden (pid {error.pid}) uses {self.folder}; "
                "stop it, or give this one its own --state-dir",
                error.pid,
            ) from None

    def read(self) -> None:
        """Load what was persisted; a missing file is a fresh start, a broken one is moved aside."""
        try:
            self._state = msgspec.json.decode(self.path.read_bytes(), type=_State)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            aside = self.path.with_name(f"state.json.damaged-{time.time_ns()}")
            with contextlib.suppress(OSError):
                self.path.rename(aside)
            log.warning("state_damaged", path=str(self.path), moved_to=str(aside), reason=str(error))

    def count_start(self) -> float:
        """Count this start; how many seconds to wait before devices are opened (grows with quick failures, <= 60)."""
        lived_s = time.time() - self._state.started_wall_s
        quick = 0 <= lived_s < QUICK_START_S + DELAY_MAX_S
        self._state.starts = self._state.starts + 1 if quick else 1
        self._state.started_wall_s = time.time()
        self._save()
        late = self._state.starts - FREE_STARTS
        return 0.0 if late <= 0 else min(DELAY_MAX_S, 2.0**late)

    def lived(self) -> None:
        """This agent has run well, or ends in order: the next start is the first again."""
        if self._state.starts:
            self._state.starts = 0
            self._save()

    def write(self, *, armed: bool) -> None:
        """Persist whether the agent is armed."""
        self._state.armed = armed
        self._save()

    def retry(self) -> None:
        """Write again what could not be written: a disarm that is only in memory ends with this process."""
        if self.problem is not None:
            self._save()

    def _save(self) -> None:
        temporary = self.path.with_suffix(".new")
        try:
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(self._state))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.path)
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            problem = f"{self.path}: {error}"
            if problem != self.problem:
                log.warning("state_not_written", reason=problem)
            self.problem = problem
        else:
            if self.problem is not None:
                log.info("state_written", path=str(self.path))
            self.problem = None
