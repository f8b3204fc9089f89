"""`nodectl restore` with the agent gone, frozen, and the helper gone too: the limits from before come back."""

import json
import os
from pathlib import Path

import pytest

from gpuhelper.rig import Rig, rig_of
from nodewarden.cli.main import main
from support.nodectl import nodectl
from support.real import require_root
from support.wait import wait_for


@pytest.fixture
def rig():
    with rig_of(("h100",) * 2) as found:
        yield found


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("NODEWARDEN_STATE_DIR", str(tmp_path))
    (tmp_path / "state.json").write_text('{"armed": true, "starts": 2}')
    return tmp_path / "state.json"


def cap_both(rig: Rig) -> None:
    """One cap by hand, one that protects."""
    agent = rig.agent()
    manual, thermal = rig.uuids
    agent.cap(manual, 500.0, cause="manual", protects="none")
    agent.cap(thermal, 450.0, keep_w=450.0, cause="thermal", protects="gpu")


def limits_w(rig: Rig) -> list[float]:
    return rig.standin.limits_w


def test_without_an_agent_the_helper_restores_what_protects_nothing(rig, state, capsys):
    rig.start()
    cap_both(rig)
    assert main(["--runtime-dir", str(rig.runtime_dir), "restore", "--yes", "--json"]) == 1
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["way"] == "helper"
    outcomes = {gpu["uuid"]: gpu["outcome"] for gpu in answer["gpus"]}
    assert outcomes == dict(zip(rig.uuids, ("restored", "kept"), strict=True))
    assert "going on without it" in err
    assert limits_w(rig) == [700.0, 450.0]


def test_with_force_everything_comes_back(rig, state, capsys):
    rig.start()
    cap_both(rig)
    assert main(["--runtime-dir", str(rig.runtime_dir), "restore", "--yes", "--force"]) == 0
    assert limits_w(rig) == [700.0, 700.0]
    assert "restored to 700 W" in capsys.readouterr().out
    assert rig.entries() == {}


def test_one_gpu_by_the_beginning_of_its_uuid(rig, state, capsys):
    rig.start()
    cap_both(rig)
    words = ["--runtime-dir", str(rig.runtime_dir), "restore", rig.uuids[1][:20], "--force", "--yes"]
    assert main(words) == 0
    assert limits_w(rig) == [500.0, 700.0]
    words[3] = "GPU-none"
    assert main(words) == 1
    assert rig.uuids[0] in capsys.readouterr().err


def test_the_next_agent_starts_disarmed_and_its_file_stays_its_own(rig, state, capsys):
    rig.start()
    before = state.stat()
    main(["--runtime-dir", str(rig.runtime_dir), "restore", "--yes"])
    assert json.loads(state.read_text()) == {"armed": False, "starts": 2}
    after = state.stat()
    assert (after.st_ino, after.st_uid, after.st_mode) == (before.st_ino, before.st_uid, before.st_mode)
    capsys.readouterr()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_state_file_does_not_stop_a_restore(rig, state, capsys, content):
    state.write_text(content)
    rig.start()
    assert main(["--runtime-dir", str(rig.runtime_dir), "restore", "--yes"]) == 0
    assert "cannot be changed" in capsys.readouterr().err
    assert state.read_text() == content


def test_with_the_helper_killed_it_is_done_by_a_helper_of_its_own(rig, state):
    require_root()
    helper = rig.start()
    cap_both(rig)
    helper.process.kill()
    wait_for(lambda: not helper.running, 10, "the helper to be dead")
    assert limits_w(rig) == [500.0, 450.0]
    env = {**rig.standin.env(), "NODEWARDEN_STATE_DIR": str(state.parent), "NODEWARDEN_LOCK_DIR": str(rig.lock_dir)}
    status = nodectl(rig.runtime_dir, "status", "--json", env=env)
    assert status.returncode == 3
    assert [p["code"] for p in json.loads(status.stdout)["problems"]] == ["cap_kept", "cap_kept"]
    kept = nodectl(rig.runtime_dir, "restore", "--json", env=env)
    assert kept.returncode == 1, kept.stderr
    assert {gpu["outcome"] for gpu in json.loads(kept.stdout)["gpus"]} == {"restored", "kept"}
    assert limits_w(rig) == [700.0, 450.0]
    done = nodectl(rig.runtime_dir, "restore", "--force", env=env)
    assert done.returncode == 0, done.stderr
    assert limits_w(rig) == [700.0, 700.0]
    assert nodectl(rig.runtime_dir, "restore", env=env).stdout.startswith("no cap of ours was in force")


def test_who_may_not_is_told_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["--runtime-dir", str(Path("/nonexistent")), "restore", "--yes"]) == 5
    assert "only root may restore" in capsys.readouterr().err
