"""Every verb of `nodectl` against the real control server: what it prints, what it asks for, how it ends."""

import json
import os
import re
import subprocess
import threading

import msgspec
import pytest

from nodewarden.cli.main import main
from nodewarden.errors import RefusedError
from nodewarden.journal import Entry, Journal
from nodewarden.model.setpoints import Cause, JobSetpoint
from support.fake_node import FakeNode, served
from support.node_views import NOW_S, WALL_S, blind, calm, hot, uuid_of
from support.nodectl import COMMAND, nodectl
from support.wait import wait_for


@pytest.fixture
def hot_node():
    with served(hot(), own_uid=os.getuid()) as there:
        yield there


@pytest.fixture
def run(hot_node, capsys):
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["--runtime-dir", str(hot_node.runtime), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize("verb", ["gpus", "pdus", "jobs", "caps", "events", "explain"])
def test_every_list_has_a_table_and_json(run, verb):
    code, out, err = run(verb)
    assert (code, err) == (0, "")
    assert out.strip()
    code, out, err = run(verb, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == 1


def test_lists_of_nothing_say_so(capsys):
    with served(blind()) as there:
        for verb, said in (("gpus", "No GPU"), ("pdus", "No PDU"), ("jobs", "No job"), ("caps", "No cap")):
            assert main(["--runtime-dir", str(there.runtime), verb]) == 0
            assert capsys.readouterr().out.startswith(said)


def test_explain_is_what_somebody_needs_at_night(run):
    code, out, _ = run("explain", "5")
    assert code == 0
    for words in (
        "GPU 5 is capped at 540 W of 700 W for 100 s",
        "What we did:",
        "Why:",
        "What lifts it:",
        "How to undo it by hand:",
        "nodectl restore --force",
        "nvidia-smi -i",
    ):
        assert words in out


def test_a_cap_says_what_came_of_it_and_how_to_undo_it(run, hot_node):
    code, out, _ = run("cap", "0", "500", "--for", "10m", "--reason", "rack work")
    assert (code, out) == (0, "GPU 0: capped at 500 W for 10 min\nundo: nodectl release 0\n")
    verb, asked, who = hot_node.node.calls[-1]
    assert (verb, asked) == ("cap", ((uuid_of(0),), 500.0, 600.0))
    assert (who.uid, who.pid, who.reason) == (os.getuid(), os.getpid(), "rack work")


def test_a_cap_above_a_protective_one_is_not_in_force_and_says_why(run):
    code, out, _ = run("cap", "5", "600")
    assert code == 1
    assert out.startswith("GPU 5: kept at 540 W, lower than 600 W: cooling removes less heat")
    code, out, _ = run("cap", "5", "600", "--json")
    assert code == 1
    assert json.loads(out)["gpus"][0]["state"] == "lower"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cap", "0", "100"], 64, "power cap 100 W refused for GPU 0: allowed 200 to 700 W"),
        (["cap", "9", "500"], 64, 'no GPU "9"'),
        (["explain", "nine"], 64, 'no GPU "nine"'),
        (["throttle", "nope", "80"], 64, 'no job "nope" on this node; known: slurm-4711'),
        (["checkpoint", "nope"], 64, "known: slurm-4711"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(run, hot_node, words, code, said):
    got, out, err = run(*words, "--json")
    assert (got, out) == (code, "")
    assert said in err
    assert hot_node.node.calls == []


class Starting(FakeNode):
    """An agent that has not finished its first turn when it is first asked."""

    refusals = 2

    def view(self):
        if self.refusals > 0:
            self.refusals -= 1
            raise RefusedError("the agent has not finished its first turn; try again in a second", "starting")
        return super().view()


def test_before_the_first_turn_status_waits_a_little_and_then_says_that_nobody_answers(capsys):
    with served(calm(), node=Starting) as there:
        assert main(["--runtime-dir", str(there.runtime), "status"]) == 0
        assert "OK: within all limits" in capsys.readouterr().out
        there.node.refusals = 1000
        assert main(["--runtime-dir", str(there.runtime), "status", "--timeout", "0.3"]) == 4
        assert "first turn" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["arm"], ["disarm"], ["cap", "0", "500"], ["release", "0"], ["throttle", "all", "80"],
        ["checkpoint", "all"], ["restore"],
    ],
)  # fmt: skip
def test_every_verb_that_changes_something_takes_yes(run, hot_node, words):
    code, _, err = run(*words, "--yes")
    assert (code in {0, 1}, err) == (True, "")
    assert hot_node.node.calls


def test_events_of_a_dry_run_do_not_sound_as_if_it_had_been_done(run, hot_node):
    hot_node.node.journal = [EVENTS[0] | {"text": "dry run: GPU 5 would be capped at 540 W"}]
    assert run("events")[1].endswith("  dry run  GPU 5 would be capped at 540 W\n")


def test_release_says_what_is_left(run):
    run("cap", "0", "600")
    run("cap", "5", "600")
    code, out, _ = run("release", "all")
    assert code == 0
    assert "GPU 0: manual cap released; its limit rises step by step to 700 W" in out
    assert "GPU 5: manual cap released; still capped at 540 W: heat" in out
    assert run("release", "0")[1] == "no manual cap was in force there\n"


def test_throttle_and_checkpoint_reach_the_job(run, hot_node):
    code, out, _ = run("throttle", "slurm-4711", "80%", "--for", "1h30m")
    said = "slurm-4711: slowed to 80% of its time for 90 min\nundo: nodectl throttle slurm-4711 100\n"
    assert (code, out) == (0, said)
    assert hot_node.node.calls[-1][:2] == ("throttle", ("slurm-4711", 0.8, 5400.0))
    code, out, _ = run("checkpoint", "slurm-4711")
    assert code == 0
    assert "request r9" in out
    code, out, err = run("checkpoint", "slurm-4711")
    assert (code, out) == (1, "")
    assert "under way already" in err


def test_a_throttle_that_is_overruled_or_not_confirmed_says_so(capsys, monkeypatch):
    monkeypatch.setattr("nodewarden.api.effects._WAIT_S", 0.1)
    view = hot()
    asked = JobSetpoint(duty=0.6, cause=Cause.THERMAL)
    view = msgspec.structs.replace(view, setpoints=msgspec.structs.replace(view.setpoints, job=asked))
    with served(view, own_uid=os.getuid()) as there:
        assert main(["--runtime-dir", str(there.runtime), "throttle", "all", "80"]) == 1
        assert "slowed to 60% of its time, less than 80%: cooling removes less heat" in capsys.readouterr().out
    with served(view, own_uid=os.getuid(), writes=False) as there:
        assert main(["--runtime-dir", str(there.runtime), "throttle", "all", "70"]) == 1
        assert "not confirmed yet" in capsys.readouterr().out


def test_what_a_job_cannot_do_is_not_asked_of_it(capsys):
    view = hot()
    job = msgspec.structs.replace(view.snapshot.jobs[0], capabilities=("pause",))
    view = msgspec.structs.replace(view, snapshot=msgspec.structs.replace(view.snapshot, jobs=(job,)))
    with served(view, own_uid=os.getuid()) as there:
        for words in (["throttle", "slurm-4711", "80"], ["checkpoint", "slurm-4711"]):
            assert main(["--runtime-dir", str(there.runtime), *words]) == 1
            assert "it said that it can: pause" in capsys.readouterr().err
        assert there.node.calls == []


def test_arm_and_disarm_say_how_to_undo_it(run, hot_node):
    assert run("disarm")[1] == "disarmed; automatic caps are lifted step by step\nundo: nodectl arm\n"
    assert run("disarm")[1].startswith("disarmed already")
    assert run("arm", "--json")[1] == '{\n  "armed": true,\n  "was": false\n}\n'
    assert [call[0] for call in hot_node.node.calls] == ["disarm", "disarm", "arm"]


def test_restore_through_the_agent_keeps_what_protects_unless_forced(run, hot_node):
    code, out, _ = run("restore", "--yes")
    assert code == 1
    assert "kept at 540 W (protects the GPU)" in out
    assert "--force" in out
    code, out, _ = run("restore", "--force", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["way"] == "agent"
    assert [call[1] for call in hot_node.node.calls] == [((), False), ((), True)]


def test_restore_asks_on_a_terminal_and_only_there(hot_node):
    words = f"{' '.join(COMMAND)} --runtime-dir {hot_node.runtime} restore --force"
    script = ["script", "-qec", words, "/dev/null"]
    answer = subprocess.run(script, input="n\n", capture_output=True, text=True, check=False)
    assert "lift ALL caps" in answer.stdout
    assert answer.returncode == 130
    assert hot_node.node.calls == []
    assert nodectl(hot_node.runtime, "restore", "--force").returncode == 0
    assert len(hot_node.node.calls) == 1


EVENTS = [
    {"id": 1, "time": WALL_S - 900, "kind": "event", "code": "gpu_capped", "uuid": None, "text": "540 W", "data": {}},
    {
        "id": 2, "time": WALL_S - 60, "kind": "action", "code": "armed", "uuid": None, "text": "armed",
        "data": {"uid": 0, "pid": 7, "reason": "shift \x1b[31m"},
    },
]  # fmt: skip


def test_events_are_as_old_as_asked_and_name_who_did_it(run, hot_node):
    hot_node.node.journal = list(EVENTS)
    _, out, _ = run("events", "--since", "5m")
    assert "gpu_capped" not in out
    assert re.search(r"armed  armed \(uid 0, pid 7\): shift \?\[31m\n$", out)
    _, out, _ = run("events", "--since", "1h", "--json")
    assert [entry["id"] for entry in json.loads(out)["events"]] == [1, 2]


def test_events_follow_prints_what_comes(hot_node, monkeypatch, capsys):
    monkeypatch.setattr("nodewarden.cli.events._LOOK_EVERY_S", 0.02)
    hot_node.node.journal = [EVENTS[0]]
    seen: list[str] = []
    stop = threading.Event()

    def emit(text: str) -> None:
        seen.append(text)
        if stop.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr("nodewarden.cli.events.emit", emit)
    ended: list[int] = []
    words = ["--runtime-dir", str(hot_node.runtime), "events", "--follow", "--json"]
    thread = threading.Thread(target=lambda: ended.append(main(words)))
    thread.start()
    wait_for(lambda: len(seen) == 1, 5, "the first event")
    hot_node.node.journal = list(EVENTS)
    wait_for(lambda: len(seen) == 2, 5, "the second event")
    stop.set()
    hot_node.node.journal = [*EVENTS, EVENTS[0] | {"id": 3}]
    thread.join(5)
    assert [json.loads(text)["id"] for text in seen] == [1, 2, 3]
    assert ended == [130]


def test_events_come_from_the_journal_file_when_no_agent_runs(tmp_path, monkeypatch, capsys):
    import time  # noqa: PLC0415

    journal = Journal(tmp_path / "journal.db")
    journal.append(
        Entry(wall_s=time.time() - 30, boot_s=1.0, kind="event", code="gpu_capped", uuid=None, text="GPU 5 to 540 W")
    )
    assert journal.flush()
    journal.close()
    monkeypatch.setenv("NODEWARDEN_STATE_DIR", str(tmp_path))
    assert main(["--runtime-dir", str(tmp_path / "none"), "events"]) == 3
    out, err = capsys.readouterr()
    assert "gpu_capped  GPU 5 to 540 W" in out
    assert "read from the journal file" in err


def test_completion_is_a_script_for_each_shell(capsys):
    for shell, word in (("bash", "_nodectl_completion"), ("zsh", "#compdef nodectl"), ("fish", "complete")):
        assert main(["completion", shell]) == 0
        assert word in capsys.readouterr().out


def test_a_missing_range_refuses_a_cap(capsys):
    view = calm()
    view = msgspec.structs.replace(view, limits=msgspec.structs.replace(view.limits, gpus={}))
    with served(view, own_uid=os.getuid()) as there:
        assert main(["--runtime-dir", str(there.runtime), "cap", "0", "500"]) == 64
        assert "allowed range is not known" in capsys.readouterr().err


def test_times_in_the_past_and_future_do_not_break_caps(capsys):
    view = hot()
    entry = msgspec.structs.replace(view.ledger[0], expires_at_s=NOW_S + 600, protects="none")
    with served(msgspec.structs.replace(view, ledger=(entry,), setpoints=calm().setpoints)) as there:
        assert main(["--runtime-dir", str(there.runtime), "caps", "--json"]) == 0
        (cap,) = json.loads(capsys.readouterr().out)["caps"]
        assert cap["expires"] == "2026-11-30T12:10:00Z"


def test_a_cap_for_all_goes_to_every_gpu_that_answers_and_the_rest_is_named(capsys):
    """F29 is about ranges: those are checked for all before the first write. A lost GPU needs no cap."""
    view = calm()
    lost = {
        uuid: msgspec.structs.replace(gpu, health="lost") for uuid, gpu in view.snapshot.gpus.items() if gpu.index == 2
    }
    view = msgspec.structs.replace(
        view, snapshot=msgspec.structs.replace(view.snapshot, gpus=view.snapshot.gpus | lost)
    )
    with served(view, own_uid=os.getuid()) as there:
        assert main(["--runtime-dir", str(there.runtime), "cap", "all", "500"]) == 1
        assert "GPU 2: not capped, it is lost" in capsys.readouterr().out
        assert not any(set(lost) & set(call[1][0]) for call in there.node.calls)
        assert len(there.node.calls) == 1
        assert main(["--runtime-dir", str(there.runtime), "cap", "2", "500"]) == 64
        assert "power cap refused for GPU 2: it is lost" in capsys.readouterr().err
