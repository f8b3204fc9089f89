"""F58: what may lie in a socket's place at start, and F74: who may connect from the first moment."""

import contextlib
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from nodewarden.errors import AlreadyRunningError, RefusedError
from nodewarden.unix_socket import OwnedSocket
from support.credentials import as_user
from support.real import require_root
from support.wait import wait_for

NOBODY = 65534


def leave_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_the_socket_has_its_mode_from_the_first_moment_and_the_umask_is_left_as_it_was(tmp_path):
    before = os.umask(0o077)
    try:
        owned = OwnedSocket(tmp_path / "s")
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o666
        assert os.umask(0o077) == 0o077
        owned.close()
    finally:
        os.umask(before)


def test_the_socket_is_never_seen_with_another_mode_than_0666():
    seen = []
    with tempfile.TemporaryDirectory(prefix="nw-") as directory:
        path = Path(directory) / "control" / "control.sock"
        stop = threading.Event()

        def look():
            while not stop.is_set():
                with contextlib.suppress(FileNotFoundError):
                    seen.append(stat.S_IMODE(path.lstat().st_mode))

        watcher = threading.Thread(target=look)
        watcher.start()
        for _ in range(20):
            looks = len(seen)
            owned = OwnedSocket(path)
            wait_for(lambda looks=looks: len(seen) > looks, 5, "a look at the socket")
            owned.close()
        stop.set()
        watcher.join()
    assert set(seen) == {0o666}


def test_its_lock_file_can_be_opened_by_its_owner_only(tmp_path):
    """Whoever can open a file can lock it, and so keep the agent from starting."""
    owned = OwnedSocket(tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "s.lock").stat().st_mode) == 0o600
    owned.close()


def test_a_dead_socket_is_replaced_and_taken_away_at_the_end(tmp_path):
    path = tmp_path / "s"
    leave_dead_socket(path)
    owned = OwnedSocket(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert client.getpeername() == str(path)
    owned.close()
    assert not path.exists()


def test_the_socket_of_a_successor_is_left_to_it(tmp_path):
    path = tmp_path / "s"
    owned = OwnedSocket(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        owned.close()
        assert path.is_socket()


def test_a_live_socket_is_left_to_its_daemon_even_when_that_is_frozen_with_a_full_backlog(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(path))
        frozen.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(path))
        inode = path.stat().st_ino
        with pytest.raises(AlreadyRunningError, match="somebody listens on"):
            OwnedSocket(path)
        assert path.stat().st_ino == inode
        for one in waiting:
            one.close()


def test_of_two_that_start_together_exactly_one_serves(tmp_path):
    path = tmp_path / "s"
    for _ in range(30):
        leave_dead_socket(path)
        together, done = threading.Barrier(2), threading.Barrier(2)
        results: list[str] = []

        def start(together=together, done=done, results=results):
            together.wait()
            try:
                owned = OwnedSocket(path)
            except AlreadyRunningError:
                results.append("refused")
                done.wait(5)
            else:
                results.append("serves")
                done.wait(5)
                owned.close()

        threads = [threading.Thread(target=start) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == ["refused", "serves"]


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "fifo"])
def test_anything_else_in_its_place_is_refused_and_nothing_is_deleted(tmp_path, kind):
    path, target = tmp_path / "s", tmp_path / "target"
    target.write_text("kept")
    match kind:
        case "file":
            path.write_text("kept")
        case "directory":
            path.mkdir()
        case "symlink":
            path.symlink_to(target)
        case "fifo":
            os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(RefusedError, match="not a socket; it is left alone") as refused:
        OwnedSocket(path)
    assert refused.value.code == "in_the_way"
    assert path.lstat() == before
    assert target.read_text() == "kept"


def test_another_users_socket_that_may_not_be_probed_is_refused_and_left():
    require_root()
    with tempfile.TemporaryDirectory(prefix="nw-") as directory:
        path = Path(directory) / "s"
        leave_dead_socket(path)
        path.chmod(0o600)
        os.chown(directory, NOBODY, NOBODY)

        def start() -> str:
            try:
                OwnedSocket(path)
            except RefusedError as error:
                return str(error)
            return "served"

        assert "cannot be probed (Permission denied)" in as_user(NOBODY, NOBODY, [], start)
        assert path.is_socket()


def test_a_directory_that_everybody_may_write_is_refused(tmp_path):
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(RefusedError, match="written by everyone"):
        OwnedSocket(directory / "s")


def test_a_path_that_is_too_long_for_the_kernel_is_refused_in_words(tmp_path):
    with pytest.raises(RefusedError, match="shorter --runtime-dir"):
        OwnedSocket(tmp_path / ("x" * 120) / "s")
