"""The persisted state survives damage and a full disk; one agent owns a state directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from nodewarden.errors import AlreadyRunningError
from nodewarden.state import StateFile

HOLD = """
import sys
from pathlib import Path
from nodewarden.state import StateFile
state = StateFile(Path(sys.argv[1]))
state.lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_armed_survives_and_a_missing_file_means_disarmed(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state")
    state.lock()
    state.read()
    assert not state.armed
    state.write(armed=True)
    again = StateFile(tmp_path / "state")
    again.read()
    assert again.armed


@pytest.mark.parametrize("content", [b"", b"{", b'{"armed": "yes"}', b"\0" * 100, b'{"armed": true'])
def test_a_damaged_file_is_moved_aside_and_means_disarmed(tmp_path: Path, content: bytes) -> None:
    """F70."""
    (tmp_path / "state.json").write_bytes(content)
    state = StateFile(tmp_path)
    state.read()
    assert not state.armed
    aside = [path for path in tmp_path.iterdir() if "damaged" in path.name]
    assert [path.read_bytes() for path in aside] == [content]


def test_a_second_holder_is_refused_with_the_pid_and_a_dead_one_frees_the_lock(tmp_path: Path) -> None:
    """F59: the kernel frees the lock at death, no pid file is believed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(AlreadyRunningError, match=str(process.pid)) as caught:
        StateFile(tmp_path).lock()
    assert caught.value.pid == process.pid
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()
    StateFile(tmp_path).lock()


def test_quick_failures_in_a_row_wait_longer_each_time_up_to_a_minute(tmp_path: Path) -> None:
    """F57: the growing delay is our own, so that systemd never stops for good."""
    delays = []
    for _ in range(12):
        state = StateFile(tmp_path)
        state.read()
        delays.append(state.count_start())
    assert delays[:3] == [0.0, 0.0, 0.0]
    assert delays == sorted(delays)
    assert delays[-1] == 60.0
    state.lived()
    again = StateFile(tmp_path)
    again.read()
    assert again.count_start() == 0.0


def test_a_state_that_cannot_be_written_is_a_problem_not_an_error(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "missing")
    state.write(armed=True)
    assert state.problem is not None
    assert state.armed
    (tmp_path / "missing").mkdir()
    state.write(armed=True)
    assert state.problem is None


def test_what_could_not_be_written_is_written_when_the_disk_is_well_again(tmp_path: Path) -> None:
    """A disarm that never reaches the disk would be undone by the next start."""
    folder = tmp_path / "state"
    state = StateFile(folder)
    state.lock()
    state.write(armed=True)
    (folder / "state.new").mkdir()  # stands in the way of the temporary file
    state.write(armed=False)
    assert state.problem is not None
    state.retry()
    assert state.problem is not None
    (folder / "state.new").rmdir()
    state.retry()
    assert state.problem is None
    again = StateFile(folder)
    again.read()
    assert not again.armed
