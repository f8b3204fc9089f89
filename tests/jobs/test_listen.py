"""F58: what may lie in the socket's place at start, and F74: who may connect from the first moment."""

import os
import socket
import stat

import pytest

from jobs.rig import node, short_dir
from nodewarden.errors import AlreadyRunningError, RefusedError
from nodewarden.jobs.listen import listen


def test_the_socket_has_its_mode_from_the_first_moment_and_the_umask_is_left_as_it_was():
    before = os.umask(0o077)
    try:
        with short_dir() as directory, listen(directory / "s"):
            assert stat.S_IMODE((directory / "s").stat().st_mode) == 0o666
            assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)


def test_a_dead_socket_file_is_replaced():
    with short_dir() as directory:
        path = directory / "s"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with listen(path), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            assert client.getpeername() == str(path)


def test_a_live_socket_is_left_to_its_daemon_even_when_that_is_frozen_with_a_full_backlog():
    with short_dir() as directory:
        path = directory / "s"
        with socket.socket(socket.AF_UNIX) as frozen:
            frozen.bind(str(path))
            frozen.listen(0)
            waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(str(path))
            inode = path.stat().st_ino
            with pytest.raises(AlreadyRunningError, match="another daemon listens there"):
                listen(path)
            assert path.stat().st_ino == inode
            for one in waiting:
                one.close()


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "fifo"])
def test_anything_else_in_its_place_is_refused_and_nothing_is_deleted(kind):
    with short_dir() as directory:
        path, target = directory / "s", directory / "target"
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
        with pytest.raises(RefusedError, match="is not a socket; it is left alone") as refused:
            listen(path)
        assert refused.value.code == "in_the_way"
        assert path.lstat().st_ino == before.st_ino
        assert target.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_dead_socket_of_another_user_is_refused():
    with short_dir() as directory:
        path = directory / "s"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        os.chown(path, 65534, 65534)
        with pytest.raises(RefusedError, match="socket of uid 65534; it is left alone"):
            listen(path)
        assert path.is_socket()


def test_a_path_that_is_too_long_for_the_kernel_is_refused_in_words():
    with short_dir() as directory, pytest.raises(RefusedError, match="107 bytes; choose a shorter runtime directory"):
        listen(directory / ("x" * 120))


async def test_a_server_takes_its_socket_away_when_it_ends_but_not_that_of_the_next():
    async with node() as it:
        path = it.socket
        await it.server.close()
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
            await it.server.close()
            assert path.is_socket()
