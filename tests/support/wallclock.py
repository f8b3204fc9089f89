"""Steps the wall clock of a program under test, and of nothing else, by a preloaded library (wallclock.c)."""

import subprocess
from pathlib import Path


class WallClock:
    """`env()` goes to the program; `offset_s` may be set while it runs."""

    def __init__(self, folder: Path, offset_s: float = 0.0) -> None:
        self._file = folder / "wall-offset"
        self._library = folder / "libwallclock.so"
        source = Path(__file__).with_suffix(".c")
        command = ["gcc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", str(source), "-o", str(self._library)]
        subprocess.run(command, check=True)
        self.offset_s = offset_s

    @property
    def offset_s(self) -> float:
        return float(self._file.read_text())

    @offset_s.setter
    def offset_s(self, value: float) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_text(str(value))
        beside.rename(self._file)

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "NODEWARDEN_TEST_WALL_OFFSET": str(self._file)}
