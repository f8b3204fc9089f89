"""The toy training job as a real process: what it saves survives anything, and what it resumes is the same training."""

import json
import sys
from pathlib import Path

import pytest

from nodewarden.sim.train_toy import Model, checkpoints, load_newest, save_checkpoint
from support.processes import Program
from support.wait import wait_for


def toy(folder: Path, *arguments: str) -> Program:
    command = [sys.executable, "-m", "nodewarden.sim.train_toy", "--checkpoints", str(folder), *arguments]
    return Program(command, env={"NODEWARDEN_RUNTIME_DIR": str(folder / "no-agent-here")})


def said(program: Program, event: str) -> list[dict]:
    lines = [line for line in program.output.splitlines(keepends=True) if line.endswith("\n")]
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def run_to_end(folder: Path, *arguments: str) -> dict:
    with toy(folder, *arguments) as program:
        assert program.wait_exit(30) == 0
        return said(program, "ended")[0]


def test_an_interrupted_and_resumed_training_ends_bit_identical_to_an_uninterrupted_one(tmp_path: Path) -> None:
    straight = run_to_end(tmp_path / "a", "--steps", "300", "--step-s", "0")
    with toy(tmp_path / "b", "--steps", "300", "--step-s", "0.005", "--save-every", "20") as first:
        wait_for(lambda: len(said(first, "saved")) >= 3, 20, "three checkpoints")
        first.process.terminate()
        assert first.wait_exit(10) == 0
        assert said(first, "ended")[0]["reason"] == "signal"
        assert said(first, "ended")[0]["step"] < 300
    with toy(tmp_path / "b", "--steps", "300", "--step-s", "0") as second:
        assert second.wait_exit(30) == 0
        started, ended = said(second, "started")[0], said(second, "ended")[0]
    assert started["resumed"]
    assert started["step"] >= 60
    assert ended["reason"] == straight["reason"] == "finished"
    assert ended["loss"] == straight["loss"]
    assert ended["state_sha256"] == straight["state_sha256"]


def test_training_learns_something() -> None:
    model = Model(1)
    losses = []
    for _ in range(400):
        model.train_step()
        losses.append(model.loss)
    assert sum(losses[-50:]) < 0.5 * sum(losses[:50])


def test_kill_9_in_the_middle_of_saving_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    reported = 0
    for attempt in range(6):
        with toy(tmp_path, "--step-s", "0", "--save-every", "1") as program:
            wait_for(lambda p=program, n=attempt: len(said(p, "saved")) > 3 + 2 * n, 20, "some checkpoints")
            program.process.kill()
            program.wait_exit(10)
            started = said(program, "started")[0]
            assert started["step"] >= reported, "the resumed run lost a checkpoint that was reported"
            reported = said(program, "saved")[-1]["step"]
        state = load_newest(tmp_path)
        assert state is not None
        assert state["step"] >= reported


def test_a_damaged_or_unfinished_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    model = Model(3)
    for _ in range(3):
        model.train_step()
        save_checkpoint(tmp_path, model.state())
    newest, middle, _ = checkpoints(tmp_path)
    body = bytearray((newest / "state.json").read_bytes())
    body[len(body) // 2] ^= 1
    (newest / "state.json").write_bytes(body)
    (middle / "COMPLETE").unlink()
    state = load_newest(tmp_path)
    assert state is not None
    assert state["step"] == 1


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    model = Model(3)
    for _ in range(8):
        model.train_step()
        save_checkpoint(tmp_path, model.state())
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000008", "step-00000007", "step-00000006"]
    assert not list(tmp_path.glob(".*.tmp"))


def test_saving_the_same_step_twice_is_harmless(tmp_path: Path) -> None:
    model = Model(3)
    model.train_step()
    assert save_checkpoint(tmp_path, model.state()) == save_checkpoint(tmp_path, model.state())
    assert load_newest(tmp_path) == json.loads(json.dumps(model.state()))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_loaded_model_continues_exactly(seed: int) -> None:
    one = Model(seed)
    for _ in range(10):
        one.train_step()
    two = Model(99)
    two.load(json.loads(json.dumps(one.state())))
    for _ in range(10):
        one.train_step()
        two.train_step()
    assert one.state() == two.state()
