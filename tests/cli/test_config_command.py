"""`nodectl config`: offline, complete, and silent about secrets."""

import json
import tomllib
from pathlib import Path

import pytest

from nodewarden.cli.main import main

ROOT = Path(__file__).parents[2]
BROKEN = '[limits]\nnode_powr_w = 400\nfailsafe_w = "400 W"\n'
SECRET = "Xq7-unique-secret"
GOOD = f"""
[node]
expected_gpus = 8
[[pdu]]
name = "a"
host = "192.0.2.1"
community = "{SECRET}"
outlets = [7, 8]
limit_w = 6000
[host.other.limits]
failsafe_w = 300
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nodewarden.toml"
    path.touch(mode=0o640)
    return path


def test_a_good_file_is_0(file, capsys):
    file.write_text(GOOD)
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: no mistakes\n", "")


def test_every_mistake_is_named_and_the_code_is_78(file, capsys):
    file.write_text(BROKEN)
    assert main(["config", "check", str(file)]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f'{file}:2: limits.node_powr_w: is not a known key; did you mean "node_power_w"?',
        f'{file}:3: limits.failsafe_w: found the text "400 W", allowed: a number from 50 to 3000 (watts per GPU)',
    ]
    assert main(["config", "check", str(file), "--json"]) == 78
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], len(answer["problems"])) == (False, 2)


def test_the_file_of_the_environment_is_the_default(file, capsys, monkeypatch):
    monkeypatch.setenv("NODEWARDEN_CONFIG", str(file))
    assert main(["config", "check"]) == 0
    assert str(file) in capsys.readouterr().out


def test_a_missing_file_is_78(tmp_path, capsys):
    assert main(["config", "check", str(tmp_path / "none")]) == 78
    assert main(["config", "show", str(tmp_path / "none")]) == 78
    assert "No such file" in capsys.readouterr().err


def test_show_is_valid_toml_with_defaults_overlay_and_hidden_secrets(file, capsys):
    file.write_text(GOOD)
    assert main(["config", "show", str(file), "--host", "other"]) == 0
    out = capsys.readouterr().out
    shown = tomllib.loads(out)
    assert shown["limits"] == {"target_margin_c": 2.0, "failsafe_w": 300.0}
    assert shown["pdu"][0]["community"] == "***"
    assert shown["node"] == {"name": "other", "expected_gpus": 8}
    assert SECRET[:6] not in out
    assert main(["config", "show", str(file), "--json"]) == 0
    as_json = capsys.readouterr().out
    assert json.loads(as_json)["sampling"]["gpu_fast_s"] == 1.0
    assert SECRET[:6] not in as_json


def test_the_installed_example_has_no_mistakes_also_with_every_line_switched_on(file, capsys):
    text = (ROOT / "systemd" / "nodewarden.toml").read_text()
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 0
    lines = []
    for line in text.splitlines():
        body = line.removeprefix("# ")
        is_setting = body != line and (body.startswith("[[") or " = " in body.split("#")[0])
        lines.append(body if is_setting else line)
    file.write_text("\n".join(lines))
    assert main(["config", "check", str(file)]) == 0, capsys.readouterr().err
    assert "pdu_auth" in "\n".join(lines)


def test_the_reference_in_docs_is_what_the_command_prints(capsys):
    assert main(["config", "keys"]) == 0
    kept = (ROOT / "docs" / "configuration.md").read_text()
    assert capsys.readouterr().out == kept, "run: nodectl config keys > docs/configuration.md"


def test_every_key_of_the_example_is_in_the_reference(capsys):
    assert main(["config", "keys", "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)
    known = {key["key"] for section in sections for key in section["keys"]}
    text = (ROOT / "systemd" / "nodewarden.toml").read_text()
    used = {line.removeprefix("# ").split(" = ")[0] for line in text.splitlines() if " = " in line.split("#", 2)[-1]}
    assert {key for key in used if key.isidentifier()} <= known
    assert "secret" not in known
