"""The demo's stage: whatever happens on it, nothing is left behind."""

import os
import signal
from pathlib import Path

import pytest

from nodewarden.sim.demo import Interrupted, interruptible
from nodewarden.sim.stage import Stage, StageError
from support.wait import wait_for


def started(stage: Stage, *arguments: str):
    return stage.start("job", "nodewarden.sim.train_toy", "--checkpoints", stage.checkpoints, *arguments)


def test_children_and_folder_are_gone_afterwards_even_if_the_demo_failed() -> None:
    stage = Stage()

    def fail() -> None:
        with stage:
            stage.wait_for("the job", 20, started(stage).lines)
            assert stage.children[0].running
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    child = stage.children[0]
    assert child.process.returncode == 0
    assert not Path(f"/proc/{child.process.pid}").exists()
    assert not stage.folder.exists()


def test_a_child_that_dies_is_named_with_its_last_words() -> None:
    with Stage() as stage:
        started(stage, "--no-such-option")
        with pytest.raises(StageError, match=r"(?s)the job ended with status 2.*--no-such-option"):
            stage.wait_for("the job", 20, lambda: False)


def test_waiting_in_vain_ends_with_what_was_waited_for() -> None:
    with Stage() as stage:
        started(stage)
        with pytest.raises(StageError, match="in vain for a miracle"):
            stage.wait_for("a miracle", 0.1, lambda: False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_clears_the_stage(number: int) -> None:
    before = signal.getsignal(number)
    stage = Stage()

    def be_interrupted() -> None:
        with interruptible(), stage:
            stage.wait_for("the job", 20, started(stage).lines)
            os.kill(os.getpid(), number)
            wait_for(lambda: False, 10, "the signal")

    with pytest.raises(Interrupted) as caught:
        be_interrupted()
    assert caught.value.number == number
    assert not stage.children[0].running
    assert not stage.folder.exists()
    assert signal.getsignal(number) == before


def test_socket_paths_fit_where_the_system_keeps_temporary_files_far_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with Stage() as stage:
        assert len(str(stage.runtime_dir / "control" / "control.sock")) < 100
