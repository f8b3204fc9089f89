"""Limits and snapshots from plain data, plausibility, margins, and the small helpers around a decision."""

import math
from typing import Any

import pytest

from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.setpoints import Cause, Protects
from nodewarden.policy import accept, limits_from, margins, snapshot_from, worth_writing
from nodewarden.policy.arbiter import Demand, arbitrate
from nodewarden.policy.plausibility import RANGES

GPU = {"min_w": 200, "max_w": 700, "prior_w": 650}


def test_limits_have_the_boards_usual_thresholds_where_none_are_given() -> None:
    limits = limits_from({"gpus": {"a": GPU, "b": {**GPU, "kind": "tlimit"}}})
    assert limits.gpus["a"].slowdown_above_max_op_c == 4.0
    assert (limits.gpus["b"].max_op_c, limits.gpus["b"].slowdown_above_max_op_c) == (0.0, 2.0)
    assert limits.target_margin_c == 2.0
    assert limits.node_power_w is None
    assert limits.gpus["a"].prior_w == 650.0


def test_all_keys_of_the_limits_arrive() -> None:
    plain = {
        "gpus": {
            "a": {**GPU, "kind": "tlimit", "max_op_c": 87, "slowdown_c": 89, "shutdown_c": 92, "hbm_max_op_c": 95},
        },
        "target_margin_c": 3, "node_power_w": 5000, "outlets": {"rack": 6000}, "failsafe_w": 300,
        "manual": {"a": {"w": 400, "expires_s": 12.5, "cause": "lease"}},
    }  # fmt: skip
    limits = limits_from(plain)
    assert limits.gpus["a"].slowdown_above_max_op_c == 2.0
    assert (limits.target_margin_c, limits.node_power_w, limits.failsafe_w) == (3.0, 5000.0, 300.0)
    assert limits.outlets == {"rack": 6000.0}
    assert (limits.manual["a"].w, limits.manual["a"].expires_s, limits.manual["a"].cause) == (400.0, 12.5, "lease")


@pytest.mark.parametrize(
    ("plain", "key"),
    [
        ({"gpus": {"a": {"max_w": 700}}}, "limits.gpus.a.min_w"),
        ({"gpus": {"a": {**GPU, "kind": "guess"}}}, "limits.gpus.a.kind"),
        ({"gpus": []}, "limits.gpus"),
        ({"gpus": [1]}, "limits.gpus"),
        ({"outlets": {"rack": "6000"}}, "limits.outlets.rack"),
        ({"manual": {"a": {"expires_s": 3}}}, "limits.manual.a.w"),
        ({"manual": {"a": {"w": 3, "cause": "mood"}}}, "limits.manual.a.cause"),
    ],
)
def test_a_mistake_in_the_limits_names_its_key(plain: dict[str, Any], key: str) -> None:
    if plain == {"gpus": []}:
        assert limits_from(plain).gpus == {}
        return
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        limits_from(plain)


@pytest.mark.parametrize(
    ("thresholds", "above_c"),
    [
        ({"max_op_c": 0, "slowdown_c": -2, "shutdown_c": -8}, 2.0),
        ({"max_op_c": 87, "slowdown_c": 90, "shutdown_c": 95}, 3.0),
        ({"max_op_c": 87, "slowdown_c": -3}, 3.0),
        ({"max_op_c": 87}, 2.0),
        ({"slowdown_c": -3}, 3.0),
        ({"slowdown_c": 89}, 2.0),
        ({"max_op_c": 0, "slowdown_c": 89}, 2.0),
    ],
)
def test_a_signed_margin_boards_thresholds_are_offsets_or_degrees_each_on_its_own(
    thresholds: dict[str, float], above_c: float
) -> None:
    limits = limits_from({"gpus": {"a": {**GPU, "kind": "tlimit", **thresholds}}})
    assert limits.gpus["a"].slowdown_above_max_op_c == above_c


def test_keys_that_the_policy_does_not_know_are_ignored() -> None:
    """A record of more than the policy knows can be played to it."""
    limits = limits_from({"gpus": {"a": {**GPU, "hbm_slowdown_c": 105}}, "note": "as bought"})
    assert (limits.gpus["a"].max_w, limits.gpus["a"].hbm_max_op_c) == (700.0, None)
    more = {"gpus": {"a": {"fan": {"v": 1, "t_s": 5.0}, "power_w": {"v": 70, "t_s": 5.0, "unit": "W"}}}, "pdus": {}}
    assert snapshot_from(more).gpus["a"].power_w == Reading(70, 5.0)


def test_a_jobs_numbers_may_be_said_with_their_time() -> None:
    job = {"id": "j", "step": {"v": 7, "t_s": 5.0}, "steps_per_s": {"v": 0.5, "t_s": 5.0}, "ckpt_s": {"absent": True}}
    (read,) = snapshot_from({"jobs": [job]}).jobs
    assert (read.step, read.steps_per_s) == (7, 0.5)
    assert read.ckpt_s == snapshot_from({"jobs": [{"id": "j"}]}).jobs[0].ckpt_s


def test_readings_are_read_as_they_are_said() -> None:
    snapshot = snapshot_from(
        {
            "gpus": {
                "a": {
                    "junction_c": {"v": 70, "t_s": 5.0}, "hbm_c": {"absent": True},
                    "power_w": {"failed": "timeout", "t_s": 4.0}, "slow": {"v": ["sw_thermal"], "t_s": 5.0},
                }
            },
            "outlets": {"rack": {"v": 4000.0, "t_s": 3.0}},
            "jobs": [{"id": "j", "gpus": ["a"], "step": 7, "steps_per_s": 0.5, "ckpt_s": 12.0}],
        }
    )  # fmt: skip
    gpu = snapshot.gpus["a"]
    assert gpu.junction_c == Reading(70, 5.0)
    assert gpu.hbm_c == Absent()
    assert gpu.power_w == Failed("timeout", 4.0)
    assert gpu.slow == Reading(("sw_thermal",), 5.0)
    assert gpu.margin_c == Absent()
    assert snapshot.outlets["rack"] == Reading(4000.0, 3.0)
    assert (snapshot.jobs[0].gpus, snapshot.jobs[0].step, snapshot.jobs[0].ckpt_s) == (("a",), 7, 12.0)


@pytest.mark.parametrize(
    ("plain", "key"),
    [
        ({"gpus": {"a": {"junction_c": {"v": 70}}}}, "snapshot.gpus.a.junction_c.t_s"),
        ({"gpus": {"a": {"junction_c": 70}}}, "snapshot.gpus.a.junction_c"),
        ({"gpus": {"a": {"slow": {"v": "sw_thermal", "t_s": 1}}}}, "snapshot.gpus.a.slow.v"),
        ({"gpus": {"a": {"power_w": {"value": 70, "t_s": 1}}}}, "snapshot.gpus.a.power_w"),
        ({"jobs": [{"gpus": []}]}, r"snapshot.jobs\[0\].id"),
    ],
)
def test_a_mistake_in_a_snapshot_names_its_key(plain: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        snapshot_from(plain)


@pytest.mark.parametrize(
    ("field", "believed", "refused"),
    [
        ("junction_c", [1, 41, 125], [0, -5, 126, 127, 255, 655, math.nan, math.inf, 2**63, None, True, "41"]),
        ("hbm_c", [36, 95], [0, 255, 655, 127]),
        ("margin_c", [-50, 0, 57, 120], [-51, 121, 127, 255, 9223372036854775794]),
        ("power_w", [0, 72.5, 127, 255, 1400], [-1, 1401, 4294967295, 140737488355328.0, math.nan]),
        ("cap_w", [200, 255, 700], [0, -1, 1401, 4294967295]),
        ("utilisation", [0, 0.5, 1], [1.01, -0.1, 100, 9223372036854775794]),
        ("sm_clock_hz", [1.98e9], [-1, 2**63, 4294967295e6]),
        ("outlets_w", [0, 127, 6000], [-1, 1e6, 4294967295]),
        ("a field nobody knows", [0, 127, -7.5], [math.nan, 2**63, None]),
    ],
)
def test_not_available_markers_are_refused_and_measurements_are_believed(
    field: str, believed: list[Any], refused: list[Any]
) -> None:
    assert [value for value in believed if not accept(field, value, 700.0)] == []
    assert [value for value in refused if accept(field, value, 700.0)] == []


def test_every_range_is_a_range() -> None:
    assert all(bounds.low < bounds.high for bounds in RANGES.values())


def test_margins_are_positive_when_safe_and_none_when_unknown() -> None:
    limits = limits_from(
        {
            "gpus": {
                "absolute": {**GPU, "max_op_c": 85, "slowdown_c": 89, "hbm_max_op_c": 95},
                "tlimit": {**GPU, "kind": "tlimit", "slowdown_c": -2, "max_op_c": 0},
            }
        }
    ).gpus

    def gpu(**values: float) -> Any:
        plain = {name: {"v": value, "t_s": 0.0} for name, value in values.items()}
        return snapshot_from({"gpus": {"a": plain}}).gpus["a"]

    assert margins(gpu(junction_c=80.0, hbm_c=88.0), limits["absolute"]) == (5.0, 9.0)
    assert margins(gpu(junction_c=80.0, hbm_c=94.0), limits["absolute"]) == (1.0, 9.0)
    assert margins(gpu(junction_c=127.0), limits["absolute"]) == (None, None)
    assert margins(gpu(margin_c=3.0, junction_c=84.0), limits["tlimit"]) == (3.0, 5.0)
    assert margins(gpu(margin_c=-1.0), limits["tlimit"]) == (-1.0, 1.0)
    assert margins(gpu(junction_c=50.0), limits["tlimit"]) == (None, None)


@pytest.mark.parametrize(
    ("current_w", "wanted_w", "hot", "worth"),
    [
        (700, 696, False, False), (700, 695, False, True), (500, 504, False, False), (500, 505, False, True),
        (500, 498, True, True), (500, 499.5, True, False), (500, 503, True, False),
    ],
)  # fmt: skip
def test_small_differences_are_not_written_unless_the_gpu_is_hot(
    current_w: float, wanted_w: float, hot: bool, worth: bool
) -> None:
    assert worth_writing(current_w, wanted_w, hot) is worth


def test_the_arbiter_takes_the_lowest_and_keeps_what_protects_apart() -> None:
    demands = [
        Demand(Cause.THERMAL, 540.0, "margin"), Demand(Cause.LEASE, 400.0, "its end", 99.0),
        Demand(Cause.NODE_POWER, 600.0, "others"), Demand(Cause.MANUAL, 900.0, "a person"),
    ]  # fmt: skip
    cap = arbitrate(demands, floor_w=200, prior_w=700, out_w=400.0, last=Cause.NONE, held="")
    assert (cap.w, cap.cause, cap.protects) == (400.0, Cause.LEASE, Protects.NONE)
    assert (cap.keep_w, cap.manual_w, cap.expires_s) == (540.0, 400.0, 99.0)


def test_a_cap_on_its_way_back_keeps_its_cause_and_protects_nothing_more() -> None:
    cap = arbitrate([], floor_w=200, prior_w=700, out_w=600.0, last=Cause.MANUAL, held="")
    assert (cap.cause, cap.keep_w, cap.manual_w) == (Cause.MANUAL, None, None)
    held = arbitrate([], floor_w=200, prior_w=700, out_w=600.0, last=Cause.THERMAL, held="a fresh temperature")
    assert (held.keep_w, held.lifts_when) == (600.0, "a fresh temperature")
    free = arbitrate([], floor_w=200, prior_w=700, out_w=700.0, last=Cause.THERMAL, held="")
    assert (free.w, free.cause, free.lifts_when) == (700.0, Cause.NONE, "")
