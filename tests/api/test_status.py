"""The status document: exact keys, null for whatever is missing, nothing that is too old to be true."""

import json
from pathlib import Path

import msgspec
import pytest

from nodewarden.api.details import agent_document, caps_document, gpus_document, jobs_document, pdus_document
from nodewarden.api.effects import wait_for_cap
from nodewarden.api.explain import explanation, for_long
from nodewarden.api.gpu_names import gpus_named
from nodewarden.api.node import Who
from nodewarden.api.status import Status, schema, status_document, status_without_agent
from nodewarden.api.view import View
from nodewarden.errors import RefusedError
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, Level, Protects, Setpoints
from support.fake_node import FakeNode
from support.node_views import NOW_S, WALL_S, blind, calm, degraded, hot, uuid_of

ROOT = Path(__file__).parents[2]
GPU_KEYS = (
    "uuid index model state junction_c hbm_c margin_to_max_op_c margin_to_slowdown_c power_w cap_w cap utilisation "
    "slow age_s time_to_slowdown_s"
)


def plain(view: View) -> dict:
    return json.loads(msgspec.json.encode(status_document(view)))


def test_the_schema_in_docs_is_the_one_of_the_code():
    kept = (ROOT / "docs" / "status.schema.json").read_bytes()
    assert kept == schema(), "run: python -m nodewarden.api.status > docs/status.schema.json"


@pytest.mark.parametrize("view", [calm(), hot(), degraded(), blind()], ids=["calm", "hot", "degraded", "blind"])
def test_the_document_has_exactly_the_keys_of_the_schema_whatever_is_missing(view):
    document = plain(view)
    assert " ".join(document) == "schema node time armed health ladder gpus pdus jobs problems"
    for gpu in document["gpus"]:
        assert " ".join(gpu) == GPU_KEYS
    assert msgspec.convert(document, Status).node == "gpu-node-07"


def test_a_capped_gpu_says_why_since_when_and_what_would_lift_it():
    document = plain(hot())
    gpu = document["gpus"][5]
    assert gpu["cap"] == {
        "cause": "thermal",
        "since": "2026-11-30T11:58:20Z",
        "lifts_when": "margin > 4 degC for 60 s",
        "prior_w": 700,
        "protects": "gpu",
        "paced_by": None,
    }
    assert (gpu["junction_c"], gpu["power_w"], gpu["cap_w"], gpu["time_to_slowdown_s"]) == (84, 523.1, 540, 48)
    assert (document["health"], document["ladder"], document["time"]) == ("critical", 3, "2026-11-30T12:00:00Z")


def test_a_lost_gpu_stays_in_the_list_with_null_readings():
    gpu = plain(hot())["gpus"][2]
    assert gpu["state"] == "lost"
    assert gpu["age_s"] == 3661
    readings = {key: value for key, value in gpu.items() if key not in {"uuid", "index", "model", "state", "age_s"}}
    assert set(readings.values()) == {None}


def test_a_reading_older_than_stale_is_null_and_its_age_is_shown():
    view = calm()
    later = msgspec.structs.replace(view, now_s=NOW_S + 30, wall_s=WALL_S + 30)
    document = plain(later)
    gpu, pdu = document["gpus"][0], document["pdus"][0]
    assert gpu["age_s"] == 30.4
    assert gpu["junction_c"] is gpu["power_w"] is gpu["margin_to_max_op_c"] is gpu["slow"] is None
    assert (pdu["age_s"], pdu["power_w"], pdu["limit_w"]) == (33.1, None, 6000)


@pytest.mark.parametrize(
    "field", ["junction_c", "hbm_c", "margin_c", "power_w", "cap_w", "utilisation", "slow", "energy_j", "pids"]
)
@pytest.mark.parametrize("missing", [Absent(), Failed("timeout", NOW_S - 5)])
def test_one_missing_field_is_one_null_and_no_document_breaks(field, missing):
    view = calm()
    uuid = uuid_of(0)
    broken = msgspec.structs.replace(view.snapshot.gpus[uuid], **{field: missing})
    view = msgspec.structs.replace(
        view, snapshot=msgspec.structs.replace(view.snapshot, gpus=view.snapshot.gpus | {uuid: broken})
    )
    gpu = plain(view)["gpus"][0]
    if field in gpu:
        assert gpu[field] is None
    for document in (gpus_document, pdus_document, jobs_document, caps_document, agent_document, explanation):
        assert msgspec.json.encode(document(view))


def test_a_value_that_is_not_finite_is_null():
    view = calm()
    uuid = uuid_of(0)
    odd = msgspec.structs.replace(view.snapshot.gpus[uuid], power_w=Reading(float("nan"), NOW_S))
    view = msgspec.structs.replace(
        view, snapshot=msgspec.structs.replace(view.snapshot, gpus=view.snapshot.gpus | {uuid: odd})
    )
    assert plain(view)["gpus"][0]["power_w"] is None


def test_a_high_ladder_is_critical_whatever_the_problems_say():
    assert plain(msgspec.structs.replace(calm(), setpoints=Setpoints(level=Level.CHECKPOINT)))["health"] == "critical"


def test_without_an_agent_the_ledger_speaks_in_the_same_document():
    entry = LedgerEntry(uuid=uuid_of(5), prior_w=700, w=540, cause="thermal", protects="gpu", since_s=NOW_S - 60)
    document = json.loads(msgspec.json.encode(status_without_agent("n", WALL_S, NOW_S, [entry])))
    assert list(document) == list(plain(calm()))
    assert (document["health"], document["gpus"], document["armed"]) == (None, [], None)
    (problem,) = document["problems"]
    assert (problem["code"], problem["since"]) == ("cap_kept", "2026-11-30T11:59:00Z")
    assert "540 W" in problem["text"]
    assert "700 W" in problem["text"]


def test_the_long_documents_of_a_hot_node_hold_what_a_person_looks_for():
    view = hot()
    (cap,) = caps_document(view)["caps"]
    assert (cap["index"], cap["cap_w"], cap["prior_w"], cap["keep_w"], cap["in_force"]) == (5, 540, 700, 540, True)
    assert gpus_document(view)["gpus"][2]["missing"]["junction_c"] == "lost"
    assert pdus_document(view)["pdus"][1]["reason"] == "timeout"
    assert jobs_document(view)["jobs"][0]["duty"] == 0.85
    assert agent_document(view)["helper"]["pid"] == 812


def test_explain_answers_what_why_what_was_done_and_how_to_undo_it():
    told = explanation(hot(), [uuid_of(5)])
    (gpu,) = told.gpus
    assert gpu.headline == "GPU 5 is capped at 540 W of 700 W for 100 s: cooling removes less heat."
    assert "Its power limit was set from 700 W to 540 W (protects this GPU)." in gpu.done
    assert "junction 84 °C, read 0 s ago" in gpu.why
    assert gpu.lifts_when == "margin > 4 degC for 60 s"
    assert any("restore --force" in line for line in gpu.undo)
    assert any("nvidia-smi -i 00000000:1D:00.0 -pl 700" in line for line in gpu.undo)
    assert [p.code for p in told.problems] == ["gpu_capped", "pdu_stale"]


def test_explain_without_a_name_speaks_of_those_that_are_not_fine():
    assert [gpu.index for gpu in explanation(hot()).gpus] == [2, 5]
    told = explanation(calm())
    assert (told.gpus, told.headline) == ([], "Everything is within its limits.")


def test_explain_while_disarmed_says_what_would_have_been_done():
    view = calm()
    caps = view.setpoints.caps | {uuid_of(1): CapSetpoint(w=500, cause=Cause.NODE_POWER)}
    setpoints = msgspec.structs.replace(view.setpoints, caps=caps)
    limits = msgspec.structs.replace(view.limits, node_power_w=5000)
    view = msgspec.structs.replace(view, setpoints=setpoints, limits=limits, armed=False)
    (gpu,) = explanation(view).gpus
    assert gpu.headline.startswith("GPU 1 would be capped at 500 W if the node were armed")
    assert any("all GPUs together 5020 W, limit 5000 W" in line for line in gpu.why)
    assert gpu.undo == []


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0 s"), (40, "40 s"), (719, "12 min"), (11_100, "3 h 5 min"), (260_000, "3 days")]
)
def test_lengths_of_time_are_told_in_words(seconds, words):
    assert for_long(seconds) == words


def test_gpus_are_named_by_index_uuid_or_a_unique_beginning():
    view = calm()
    assert gpus_named(view, "3") == [uuid_of(3)]
    assert gpus_named(view, uuid_of(3).upper()) == [uuid_of(3)]
    assert gpus_named(view, "00000003") == [uuid_of(3)]
    assert gpus_named(view, "gpu-00000004") == [uuid_of(4)]
    assert len(gpus_named(view, "all")) == 8
    for name in ("8", "GPU-zzzz", "", "x", "-1", "\uff19"):
        with pytest.raises(RefusedError, match="allowed: 0, 1"):
            gpus_named(view, name)
    with pytest.raises(RefusedError, match="stands for 8 GPUs"):
        gpus_named(view, "gpu-0000000")
    with pytest.raises(RefusedError, match="no GPU is known"):
        gpus_named(blind(), "all")


@pytest.mark.parametrize(
    ("view", "gpu", "w", "writes", "state", "said"),
    [
        (calm(), 0, 500.0, True, "in_force", "GPU 0: capped at 500 W"),
        (hot(), 5, 600.0, True, "lower", "GPU 5: kept at 540 W, lower than 600 W: cooling removes less heat"),
        (calm(), 0, 500.0, False, "pending", "GPU 0: asked for 500 W, not confirmed yet; nodectl caps shows it"),
    ],
)
async def test_the_answer_to_a_cap_is_what_came_of_it(view, gpu, w, writes, state, said, monkeypatch):
    monkeypatch.setattr("nodewarden.api.effects._WAIT_S", 0.1)
    node = FakeNode(view, writes=writes)
    await node.set_manual_cap([uuid_of(gpu)], w, 60, Who(0, 1))
    (effect,) = await wait_for_cap(node, [uuid_of(gpu)], w, asked_at_s=NOW_S)
    assert (effect.state, effect.text) == (state, said)


def paced(view: View) -> View:
    """GPU 1 beside the hot GPU 5: cool itself, kept at its pace."""
    cap = CapSetpoint(w=550, cause=Cause.THERMAL, protects=Protects.GPU, lifts_when="GPU 5 is", paced_by="GPU 5")
    entry = LedgerEntry(uuid=uuid_of(1), prior_w=700, w=550, keep_w=550, protects="gpu", cause="thermal")
    setpoints = msgspec.structs.replace(view.setpoints, caps=view.setpoints.caps | {uuid_of(1): cap})
    return msgspec.structs.replace(view, setpoints=setpoints, ledger=[*view.ledger, entry])


def test_a_gpu_that_keeps_the_pace_of_another_says_so_and_is_explained_in_full_only_when_asked_for():
    view = paced(hot())
    cap = plain(view)["gpus"][1]["cap"]
    assert (cap["cause"], cap["paced_by"]) == ("thermal", "GPU 5")
    explained = {gpu.index: gpu for gpu in explanation(view).gpus}
    assert explained[1].headline.endswith("kept at the pace of GPU 5.")
    assert (explained[1].done, explained[1].why, explained[1].undo) == ([], [], [])
    assert explained[5].why
    (asked,) = explanation(view, [uuid_of(1)]).gpus
    assert asked.why
    assert any(command.startswith("nodectl disarm") for command in asked.undo)


def test_the_advice_for_a_cap_is_that_of_its_cause():
    view = paced(hot())
    by_hand = LedgerEntry(uuid=uuid_of(6), prior_w=700, w=600, protects="none", cause="manual")
    alike = [msgspec.structs.replace(view.problems[1], uuid=uuid_of(i)) for i in (1, 5, 6)]
    view = msgspec.structs.replace(view, ledger=[*view.ledger, by_hand], problems=tuple(alike))
    assert [problem["advice"] for problem in plain(view)["problems"]] == [
        "nodectl explain 1",
        "nodectl explain 5; look at cooling",
        "nodectl explain 6; nodectl release 6",
    ]


async def test_while_disarmed_a_persons_cap_is_in_force_although_heat_would_ask_for_less():
    view = msgspec.structs.replace(hot(), armed=False, ledger=[])
    node = FakeNode(view)
    await node.set_manual_cap([uuid_of(5)], 600, 60, Who(0, 1))
    (effect,) = await wait_for_cap(node, [uuid_of(5)], 600, asked_at_s=NOW_S)
    assert effect.state != "lower"


async def test_a_cap_that_the_hardware_refuses_is_told_as_refused():
    node = FakeNode(msgspec.structs.replace(calm(), refusals={uuid_of(0): "locked by pid 77"}))
    (effect,) = await wait_for_cap(node, [uuid_of(0)], 500, asked_at_s=NOW_S)
    assert (effect.state, effect.text) == ("refused", "GPU 0: refused: locked by pid 77")
