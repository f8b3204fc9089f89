"""`nodectl bmc`: what a machine tells, on narrow and wide screens; discover over the wire; errors."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodewarden.api.bmc_details import bmc_document, measured
from nodewarden.api.view import View
from nodewarden.cli.bmc import bmc_lines
from nodewarden.cli.main import main
from nodewarden.cli.output import Screen, columns_of
from nodewarden.model.snapshot import SourceStatus
from support.bmc_values import a_bmc
from support.fake_node import served
from support.golden import assert_golden
from support.node_views import NOW_S, calm
from support.redfish import TREES, Bmc, RecordedBmc


def with_bmc() -> View:
    view = calm()
    source = SourceStatus(name="bmc", up=True, last_success_s=NOW_S - 4.0, stale_after_s=90.0)
    snapshot = replace(view.snapshot, bmc=a_bmc(NOW_S), sources={**view.snapshot.sources, "bmc": source})
    return replace(view, snapshot=snapshot)


@pytest.mark.parametrize("width", [40, 80])
def test_the_screen_is_the_golden_one(width: int) -> None:
    lines = bmc_lines(Screen(width=width, colour=False, unicode=True), bmc_document(with_bmc()))
    assert max(columns_of(line) for line in lines) <= width
    assert_golden(f"bmc-{width}.txt", "\n".join(lines) + "\n")


def test_show_says_how_old_it_is_and_json_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    with served(with_bmc()) as there:
        assert main(["--runtime-dir", str(there.runtime), "bmc", "show"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "read 4 s ago"
        assert main(["--runtime-dir", str(there.runtime), "bmc", "show", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert (document["redundancy_lost"], document["leaks"]) == (True, [])
    assert document["psus"][1]["health"] == "Critical"


def test_without_a_bmc_show_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    with served(calm()) as there:
        assert main(["--runtime-dir", str(there.runtime), "bmc", "show"]) == 0
    assert "nodectl bmc discover" in capsys.readouterr().out


@pytest.mark.skipif(not TREES.is_dir(), reason="the recorded trees are not beside the repository")
def test_discover_prints_what_it_found_and_the_lines_for_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    with RecordedBmc(TREES / "lenovo_sr670v2_xcc") as there:
        assert main(["bmc", "discover", there.url]) == 0
        shown = capsys.readouterr().out
        assert main(["bmc", "discover", there.url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert shown.splitlines()[0] == "Lenovo ThinkSystem SR670 V2"
    assert shown.rstrip().endswith(f'[bmc]\nurl = "{there.url}"')
    assert found["chassis_power_w"] == 708
    assert found.keys() == measured(a_bmc(NOW_S)).keys()


def test_discover_says_what_is_wrong_and_never_the_password(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("guess-1234\n")
    with Bmc({}) as there:
        words = ["bmc", "discover", there.url, "--user", "monitor", "--password-file", str(secret)]
        there.resources["/redfish/v1"] = {"Chassis": {"@odata.id": "/redfish/v1/Chassis"}}
        assert main(words) == 1
        told = capsys.readouterr().err
    assert "check user and password file" in told
    assert "guess" not in told
    assert main(["bmc", "discover", "http://127.0.0.1:9"]) == 4
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["bmc", "discover", "bmc-07"]) == 64
    assert "https://HOST" in capsys.readouterr().err
    assert main(["bmc", "discover", "https://bmc-07", "--user", "x"]) == 64
    assert "--password-file" in capsys.readouterr().err
