"""What the service manager is told."""

import socket
from pathlib import Path

import pytest

from gpuhelper.rig import Rig
from nodewarden.sdnotify import notify


def test_nobody_to_tell_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notify("READY=1") is False
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert notify("READY=1") is False
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:2:1234")
    assert notify("READY=1") is False


@pytest.mark.parametrize("abstract", [False, True])
def test_state_and_fields_are_one_line_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, abstract: bool) -> None:
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1", STATUS="two\nlines", MAINPID=7)
        assert manager.recv(1000) == b"READY=1\nSTATUS=two lines\nMAINPID=7"


def test_the_helper_is_ready_without_any_gpu_and_says_what_it_does(rig: Rig) -> None:
    rig.standin.device_count = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(10)
        manager.bind(str(rig.folder / "notify"))
        program = rig.start(env={"NOTIFY_SOCKET": str(rig.folder / "notify")})
        told = [manager.recv(1000).decode()]
        while "no agent" not in told[-1]:
            told.append(manager.recv(1000).decode())
        assert told[0].startswith("READY=1")
        assert told[-1] == "STATUS=0 GPUs; no agent"
        assert program.stop() == 0
        while "STOPPING" not in told[-1]:
            told.append(manager.recv(1000).decode())


def test_a_waiting_helper_is_ready_and_names_the_other(rig: Rig) -> None:
    first = rig.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(10)
        manager.bind(str(rig.folder / "notify"))
        rig.start(ready=False, env={"NOTIFY_SOCKET": str(rig.folder / "notify")})
        assert manager.recv(1000).decode() == f"READY=1\nSTATUS=waiting for pid {first.pid}"
