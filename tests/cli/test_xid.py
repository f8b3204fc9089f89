"""`nodectl xid`: a number in words, without an agent; a GPU said to be well, with one."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from nodewarden.cli.main import main
from support.fake_node import served
from support.views import a_view, gpu_uuid, some_xids


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NODEWARDEN_CONFIG", str(tmp_path / "nodewarden.toml"))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    return out + err


def test_a_number_is_explained_without_an_agent(capsys):
    text = said(capsys, "xid", "79")
    assert "Xid 79: GPU has fallen off the bus" in text
    assert "critical" in text
    assert "power-cycle" in text


def test_an_unknown_number_says_so(capsys):
    document = json.loads(said(capsys, "xid", "4711", "--json"))
    assert (document["known"], document["severity"]) == (False, "warning")


def test_without_a_number_all_are_listed(capsys):
    document = json.loads(said(capsys, "xid", "--json"))
    assert {31, 79, 119} <= {row["xid"] for row in document["xids"]}
    assert "GSP RPC time-out" in said(capsys, "xid")


def test_the_table_of_the_configuration_is_used(capsys, tmp_path):
    (tmp_path / "nodewarden.toml").write_text('[xid]\ntable = "own.toml"\n')
    (tmp_path / "own.toml").write_text('[xid.4711]\nname = "ours"\n')
    assert "Xid 4711: ours" in said(capsys, "xid", "4711")
    (tmp_path / "own.toml").write_text("[xid.4711]\nnam = 3\n")
    assert "xid.4711.nam" in said(capsys, "xid", "4711", code=78)


@pytest.mark.parametrize("word", ["0", "x", "-1", "99999999999999999999", "²"])
def test_what_is_no_number_is_refused_with_what_is_allowed(capsys, word):
    assert main(["xid", word]) == 64
    assert "1 to 65535" in capsys.readouterr().err or word == "-1"


def test_a_person_may_say_that_a_gpu_is_well(capsys):
    with served(a_view(), own_uid=os.getuid()) as there:
        text = said(capsys, "--runtime-dir", str(there.runtime), "xid", "clear", "5", "--reason", "reseated")
        assert text.strip() == "GPU 5: Xid 31 cleared"
        verb, uuids, who = there.node.calls[-1]
        assert (verb, uuids, who.reason) == ("xid_clear", (gpu_uuid(5),), "reseated")
        assert "no Xid was open there" in said(capsys, "--runtime-dir", str(there.runtime), "xid", "clear", "1")


def test_a_gpu_that_cannot_be_seen_is_named_by_its_address(capsys):
    view = a_view()
    xids = {"pci-0000:e3:00.0": some_xids(view.now_s)}
    view = msgspec.structs.replace(view, snapshot=msgspec.structs.replace(view.snapshot, xids=xids))
    with served(view, own_uid=os.getuid()) as there:
        text = said(capsys, "--runtime-dir", str(there.runtime), "xid", "clear", "0000:e3:00.0")
        assert "Xid 31 cleared" in text


def test_gpus_and_explain_show_what_is_open(capsys):
    with served(a_view(), own_uid=os.getuid()) as there:
        runtime = ["--runtime-dir", str(there.runtime)]
        document = json.loads(said(capsys, *runtime, "gpus", "--json"))
        (fifth,) = [gpu for gpu in document["gpus"] if gpu["index"] == 5]
        assert [(each["xid"], each["count"]) for each in fifth["xids"]["open"]] == [(31, 2)]
        assert "31 x2" in said(capsys, *runtime, "gpus")
        assert "Xid 31, GPU memory page fault, 2 times" in said(capsys, *runtime, "explain", "5")
