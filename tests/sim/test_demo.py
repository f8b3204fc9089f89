"""`nodectl demo` as people run it: the whole of it as real processes in fast time, and what is left when it ends."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Program
from support.wait import wait_for

NODECTL = [sys.executable, "-m", "nodewarden.cli.main", "demo"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder with a short path, for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="nw-test-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def temp(folder: Path) -> Iterator[Path]:
    """Where this demo keeps its things; nothing may be left in it, nor a process that works there."""
    yield folder
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []


def processes_in(folder: Path) -> list[str]:
    """Command lines of all processes whose working directory is below `folder`."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(link.readlink()).startswith(str(folder)):
                found.append(link.with_name("cmdline").read_text())
        except OSError:
            continue
    return found


def demo(temp: Path, *arguments: str) -> Program:
    return Program([*NODECTL, *arguments], env={"TMPDIR": str(temp), "PYTHONUNBUFFERED": "1"})


def story_of(temp: Path, *arguments: str) -> dict:
    run = subprocess.run(
        [*NODECTL, "--fast", "--json", *arguments],
        env=os.environ | {"TMPDIR": str(temp)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_armed_the_job_goes_on_no_limit_is_passed_and_all_is_as_before(temp: Path, tmp_path: Path) -> None:
    story = story_of(temp, "--picture", str(tmp_path / "demo.svg"))
    picture = (tmp_path / "demo.svg").read_text()
    assert picture.startswith("<svg")
    assert "Nodewarden&#160;demo" in picture
    assert story["armed"]
    gpus, job, caps = story["gpus"], story["job"], story["caps"]
    assert not gpus["hw_slowdown_reached"]
    assert gpus["lowest_margin_c"] > -1.0
    assert gpus["switched_off"] == []
    assert {cap["gpu"] for cap in caps} == set(range(8)), "one job on all GPUs: none runs ahead of the slowest"
    assert all(cap["lowest_w"] < 500 and cap["prior_w"] == 700 and cap["back_s"] for cap in caps)
    assert story["all_as_before"]
    assert story["top_level"] == 4
    assert job["checkpoint_step"] > job["first_step"]
    assert job["lowest_duty"] < 1.0
    assert job["alive"]
    assert (job["restarts"], story["lost"]) == (0, {"steps": 0, "gpus": 0})
    assert job["last_step"] > job["first_step"] + 100
    assert any("Lost: nothing" in sentence for sentence in story["sentences"])


def test_disarmed_the_same_failure_reaches_hardware_slowdown_and_nobody_does_anything(temp: Path) -> None:
    story = story_of(temp, "--disarmed")
    assert not story["armed"]
    assert story["gpus"]["hw_slowdown_reached"]
    assert story["gpus"]["lowest_margin_c"] < -2.0
    assert story["caps"] == []
    assert story["job"]["checkpoint_step"] is None
    assert story["job"]["lowest_duty"] == 1.0


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "... starting the twin"),
        (signal.SIGINT, "... starting the agent"),
        (signal.SIGINT, "... waiting"),
        (signal.SIGINT, "0:00"),
        (signal.SIGTERM, "0:00"),
    ],
)
def test_a_signal_at_any_moment_leaves_nothing_behind(temp: Path, number: int, moment: str) -> None:
    with demo(temp, "--fast") as program:
        program.wait_for_output(moment, 40)
        program.signal(number)
        assert program.wait_exit(20) == 128 + number
        assert "nothing is left behind" in program.output


def test_a_child_that_dies_ends_the_demo_with_its_last_words(temp: Path) -> None:
    with demo(temp, "--fast") as program:
        program.wait_for_output("0:00", 40)
        job = wait_for(lambda: [p for p in children_of(program.pid) if "train_toy" in p[1]], 5, "the job's process")
        os.kill(job[0][0], signal.SIGKILL)
        assert program.wait_exit(20) == 1
        assert "the job ended with status -9" in program.output


def children_of(pid: int) -> list[tuple[int, str]]:
    numbers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [(int(n), Path(f"/proc/{n}/cmdline").read_text().replace("\0", " ")) for n in numbers]


def test_a_demo_that_is_killed_outright_takes_its_processes_with_it(folder: Path) -> None:
    with demo(folder, "--fast") as program:
        program.wait_for_output("0:00", 40)
        assert len(children_of(program.pid)) == len(processes_in(folder)) == 3
        program.process.kill()
        program.wait_exit(10)
        wait_for(lambda: processes_in(folder) == [], 20, "the end of its processes")


def test_on_a_terminal_it_draws_a_live_table_and_ctrl_c_ends_it(temp: Path) -> None:
    master, terminal = pty.openpty()
    env = os.environ | {
        "TMPDIR": str(temp),
        "COLUMNS": "80",
        "LINES": "24",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    seen = bytearray()
    os.set_blocking(master, False)

    def drawn(text: str) -> bool:
        with contextlib.suppress(OSError):  # nothing new, or the other end is closed
            seen.extend(os.read(master, 65536))
        return text.encode() in seen

    process = subprocess.Popen(
        NODECTL, stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True
    )
    try:
        os.close(terminal)
        wait_for(lambda: drawn("ladder"), 40, "the table")
        for part in ("margin", "power", "cap", "steps/s", "Nodewarden protects this node"):
            wait_for(lambda part=part: drawn(part), 10, part)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: drawn("") and process.poll() is not None, 20, "its end")
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_an_unknown_scenario_is_a_usage_error_with_the_names_that_exist(temp: Path) -> None:
    with demo(temp, "--scenario", "earthquake") as program:
        assert program.wait_exit(20) == 64
        assert "fan-bank" in program.output
