"""`nodectl gpus --capabilities`, and what `nodectl gpus` says of a GPU that needs attention."""

import json
import os

import pytest
from msgspec.structs import replace

from nodewarden.api.gpu_attention import attention
from nodewarden.cli.main import main
from nodewarden.model.gpu_quantities import GPU_QUANTITIES
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import LinkState
from support.fake_node import served
from support.gpu_values import some_values
from support.node_views import NOW_S, blind, calm, uuid_of


def reading(value: float) -> Reading[float]:
    return Reading(value, NOW_S)


@pytest.fixture
def run(capsys):
    def call(view, *words: str) -> tuple[int, str]:
        with served(view, own_uid=os.getuid()) as there:
            code = main(["--runtime-dir", str(there.runtime), "gpus", *words])
        out, err = capsys.readouterr()
        assert err == ""
        return code, out

    return call


def with_gpu(index: int, **changes):
    view = calm()
    gpus = {
        uuid: replace(gpu, more=some_values(NOW_S), calls={"hbm_c": "field 82"})
        for uuid, gpu in view.snapshot.gpus.items()
    }
    gpus[uuid_of(index)] = replace(gpus[uuid_of(index)], **changes)
    return replace(view, snapshot=replace(view.snapshot, gpus=gpus))


def odd_view():
    """GPU 3 is of another driver's making: what it lacks, it lacks for every reason that there is."""
    more = some_values(NOW_S) | {
        "sm_active": {(): Absent("not_in_driver")},
        "clock_hz": {("graphics",): Absent("deprecated"), ("video",): Absent("deprecated")},
        "ecc_errors": {(): Absent("no_permission")},
        "board_info": {(): Failed("unknown_error", NOW_S)},
        "nvlink_raw_transmit_bytes": {(): Absent("off")},
    }
    more.pop("remap_banks")
    return with_gpu(3, more=more, hbm_c=Absent("not_supported"))


def answers(document: dict, quantity: str) -> dict[str, dict]:
    (row,) = [row for row in document["quantities"] if row["name"] == quantity]
    return {answer["state"]: answer for answer in row["answers"]}


def test_json_says_for_every_quantity_who_gives_it_and_why_others_do_not(run):
    code, out = run(odd_view(), "--capabilities", "--json")
    assert code == 0
    document = json.loads(out)
    assert [row["name"] for row in document["quantities"]] == [each.name for each in GPU_QUANTITIES]
    hbm = answers(document, "hbm_c")
    assert hbm["available"]["call"] == "field 82"
    assert uuid_of(0) in hbm["available"]["gpus"]
    assert hbm["not_on_board"]["gpus"] == [uuid_of(3)]
    assert answers(document, "sm_active")["not_in_driver"]["gpus"] == [uuid_of(3)]
    assert answers(document, "clock_hz")["not_in_driver"]["reason"] == "deprecated"
    assert answers(document, "ecc_errors")["no_permission"]["gpus"] == [uuid_of(3)]
    assert answers(document, "board_info")["failed"]["reason"] == "unknown_error"
    assert answers(document, "nvlink_raw_transmit_bytes")["off"]["gpus"] == [uuid_of(3)]
    assert answers(document, "remap_banks")["not_read"]["gpus"] == [uuid_of(3)]
    assert set(answers(document, "nvlink_up")) == {"available"}
    assert answers(document, "lost_sm_s")["available"]["call"] == "computed by the agent"


def test_the_table_has_a_line_for_each_answer(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out = run(odd_view(), "--capabilities")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "all" in lines["junction_c"]
    hbm = [line for line in out.splitlines() if line.startswith("hbm_c ")]
    assert len(hbm) == 2
    assert "field 82" in hbm[0]
    assert "not on this board" in hbm[1]
    for words in ("not in this driver", "no permission", "switched off", "not read yet", "failed: unknown error"):
        assert words in out


def test_a_node_without_gpus_says_so(run):
    assert run(blind(), "--capabilities") == (0, "No GPU is known.\n")


def test_gpus_shows_what_needs_attention_and_is_silent_where_nothing_does(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    healthy = some_values(NOW_S)
    for name in (
        "recovery_action",
        "row_remap_failure",
        "row_remap_pending",
        "sram_threshold_exceeded",
        "fabric_status",
    ):
        healthy[name] = {(): reading(0)}
    healthy |= {
        "ecc_errors": {("volatile", "uncorrected"): reading(0)},
        "nvlink_total_errors": {("replay",): reading(0)},
        "fabric_state": {(): reading(3)},
        "fabric_trouble": {(): Absent("not_supported")},
        "pcie_width": {("current",): reading(16), ("max",): reading(16)},
    }
    view = with_gpu(0)
    gpus = {uuid: replace(gpu, more=healthy) for uuid, gpu in view.snapshot.gpus.items()}
    assert [attention(gpu) for gpu in gpus.values()] == [[]] * 8
    sick = healthy | {
        "recovery_action": {(): reading(1)},
        "ecc_errors": {("volatile", "uncorrected"): reading(2)},
        "row_remap_pending": {(): reading(1)},
        "nvlink_total_errors": {("replay",): reading(40)},
        "pcie_width": {("current",): reading(8), ("max",): reading(16)},
        "persistence_mode": {(): reading(0)},
    }
    links = tuple(LinkState(link, active=link != 9, present=link != 10) for link in range(10))
    gpus[uuid_of(5)] = replace(gpus[uuid_of(5)], more=sick, links=links)
    view = replace(view, snapshot=replace(view.snapshot, gpus=gpus))
    code, out = run(view)
    assert code == 0
    (line,) = [line for line in out.splitlines() if uuid_of(5) in line]
    for words in (
        "the driver asks: reset the GPU", "2 uncorrected memory errors", "a row remap waits for a GPU reset",
        "NVLink 9 down", "40 NVLink replay errors", "PCIe x8 of x16", "persistence mode is off",
    ):  # fmt: skip
        assert words in line
    code, out = run(view, "--json")
    gpu = json.loads(out)["gpus"][5]
    assert gpu["attention"][0] == "the driver asks: reset the GPU"
    assert gpu["quantities"]["recovery_action"] == 1
    assert gpu["quantities"]["ecc_errors"] == {"volatile/uncorrected": 2}
    assert "nvlink_errors" not in gpu["quantities"]
    assert len(out) < 64 * 1024
