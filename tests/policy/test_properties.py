"""Rules that hold for any readings at all, plausible or not: thousands of cases in seconds."""

import math
import pickle
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.model.limits import GpuLimits, Limits, ManualCap
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.setpoints import PROTECTS, Cause, Protects, Setpoints
from nodewarden.model.snapshot import GpuSnapshot, JobSnapshot, NodeSnapshot
from nodewarden.policy import PolicyState, decide, initial_state

START_S = 500.0
GARBAGE: list[Any] = [
    math.nan, math.inf, -math.inf, -5.0, 0.0, 127.0, 255.0, 655.35, 4294967295, 9223372036854775794, 2**63, -1, 1e308,
    140737488355328.0, None, True, "87", [], 10**400,
]  # fmt: skip
FIELDS = ("junction_c", "hbm_c", "margin_c", "power_w", "cap_w", "utilisation")
SANE = {
    "junction_c": st.integers(30, 100),
    "hbm_c": st.integers(30, 105),
    "margin_c": st.integers(-12, 57),
    "power_w": st.floats(40, 760),
    "cap_w": st.floats(200, 700),
    "utilisation": st.floats(0, 1),
}


def quantity(field: str, now_s: float) -> st.SearchStrategy[Any]:
    """Mostly a fresh and sane reading; else stale, from the future, garbage, absent or failed."""
    ages = st.one_of(
        st.just(0.0), st.floats(0, 2), st.floats(3.1, 90), st.floats(-500, -2), st.sampled_from([math.nan])
    )
    return st.one_of(
        st.builds(Reading, SANE[field], st.just(now_s)),
        st.builds(Reading, SANE[field], st.just(now_s)),
        st.builds(lambda v, age: Reading(v, now_s - age), st.one_of(SANE[field], st.sampled_from(GARBAGE)), ages),
        st.builds(Absent),
        st.builds(Failed, st.just("timeout"), st.just(now_s)),
    )


@st.composite
def gpu_limits(draw: st.DrawFn) -> GpuLimits:
    kind = draw(st.sampled_from(["tlimit", "absolute"]))
    margin_board = kind == "tlimit" and draw(st.booleans())
    thresholds = {"max_op_c": 0.0, "slowdown_c": -2.0} if margin_board else {"max_op_c": 87.0, "slowdown_c": 89.0}
    return GpuLimits(
        min_w=200.0, max_w=700.0, prior_w=draw(st.sampled_from([700.0, 650.0, 500.0, 200.0])), kind=kind,
        hbm_max_op_c=draw(st.sampled_from([None, 95.0])), **thresholds,
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Limits, list[tuple[NodeSnapshot, float]]]:
    uuids = [f"GPU-{i}" for i in range(draw(st.integers(1, 3)))]
    limits = Limits(
        gpus={uuid: draw(gpu_limits()) for uuid in uuids},
        node_power_w=draw(st.sampled_from([None, 900.0, 1500.0, 300.0, 0.0])),
        outlets=draw(st.sampled_from([{}, {"a": 2600.0}, {"a": 2600.0, "b": 500.0}])),
        manual=draw(
            st.dictionaries(
                st.sampled_from(uuids),
                st.builds(
                    ManualCap,
                    w=st.floats(100, 800),
                    expires_s=st.sampled_from([None, START_S + 5, START_S - 5]),
                    cause=st.sampled_from(["manual", "lease"]),
                ),
                max_size=2,
            )
        ),
        failsafe_w=draw(st.sampled_from([None, 350.0, 50.0])),
    )
    now_s = START_S
    passes: list[tuple[NodeSnapshot, float]] = []
    for _ in range(draw(st.integers(1, 12))):
        now_s += draw(st.sampled_from([1.0, 1.0, 1.0, 0.1, 0.0, 5.0, 12.0, -30.0, 3600.0, 2.6e6]))
        gpus = {
            uuid: GpuSnapshot(
                uuid=uuid,
                slow=Reading(
                    tuple(draw(st.lists(st.sampled_from(["sw_thermal", "hw_thermal", "idle"]), max_size=1))), now_s
                ),
                **{field: draw(quantity(field, now_s)) for field in FIELDS},
            )
            for uuid in uuids
            if draw(st.integers(0, 9)) > 0
        }
        outlets = {
            name: draw(
                st.one_of(
                    st.builds(Reading, st.floats(0, 9000), st.just(now_s)),
                    st.builds(Reading, st.sampled_from(GARBAGE), st.just(now_s)),
                    st.builds(Absent),
                )
            )
            for name in ("a", "b")
        }
        jobs = (
            JobSnapshot(id="job", gpus=(*uuids, "GPU-elsewhere"), ckpt_s=draw(st.sampled_from([None, 5.0, math.nan]))),
        )
        passes.append((NodeSnapshot(gpus=gpus, outlets=outlets, jobs=jobs if draw(st.booleans()) else ()), now_s))
    return limits, passes


def play(limits: Limits, passes: list[tuple[NodeSnapshot, float]]) -> list[tuple[PolicyState, Setpoints]]:
    state = initial_state(limits)
    decisions = []
    for snapshot, now_s in passes:
        state, setpoints, _ = decide(state, snapshot, limits, now_s)
        decisions.append((state, setpoints))
    return decisions


@settings(max_examples=600, deadline=None)
@given(scenes())
def test_whatever_the_readings_say_caps_stay_between_the_floor_and_the_prior_limit(scene: Any) -> None:
    limits, passes = scene
    for _, setpoints in play(limits, passes):
        assert set(setpoints.caps) == set(limits.gpus)
        for uuid, cap in setpoints.caps.items():
            bounds = limits.gpus[uuid]
            assert min(bounds.min_w, bounds.prior_w) <= cap.w <= bounds.prior_w
            assert (cap.cause is Cause.NONE) == (cap.w == bounds.prior_w)
            assert cap.protects is PROTECTS[cap.cause]
            assert cap.keep_w is None or cap.w <= cap.keep_w + 1e-9 <= bounds.prior_w + 1e-9
            assert cap.manual_w is None or cap.manual_w >= cap.w - 1e-9
            assert cap.protects is not Protects.NONE or cap.keep_w is None or cap.keep_w >= cap.w
            assert cap.cause is Cause.NONE or cap.lifts_when
        assert 0 <= setpoints.level <= 4
        assert 0.5 <= setpoints.job.duty <= 1.0


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_the_same_inputs_give_bit_identical_decisions_and_no_state_is_changed_in_place(scene: Any) -> None:
    limits, passes = scene
    state = initial_state(limits)
    for snapshot, now_s in passes:
        before = pickle.dumps(state)
        first, second = decide(state, snapshot, limits, now_s), decide(pickle.loads(before), snapshot, limits, now_s)
        assert pickle.dumps(state) == before
        assert msgspec.msgpack.encode(first[1]) == msgspec.msgpack.encode(second[1])
        assert first[2] == second[2]
        assert repr(first[0]) == repr(second[0])
        state = first[0]


@settings(max_examples=600, deadline=None)
@given(scenes())
def test_caps_never_rise_faster_than_8_w_per_second_nor_on_a_clock_step_nor_without_fresh_temperature(
    scene: Any,
) -> None:
    limits, passes = scene
    last_w: dict[str, float] = {}
    last_s: float | None = None
    for (snapshot, now_s), (_, setpoints) in zip(passes, play(limits, passes), strict=True):
        for uuid, cap in setpoints.caps.items():
            if uuid in last_w and cap.w > last_w[uuid]:
                assert last_s is not None
                gap_s = now_s - last_s
                assert 0 < gap_s <= 10
                assert cap.w - last_w[uuid] <= 8 * min(gap_s, 2.0) + 1e-6
                gpu = snapshot.gpus[uuid]
                core = [q for q in (gpu.junction_c, gpu.margin_c) if isinstance(q, Reading)]
                assert any(1 <= abs(q.value) <= 125 and -1 <= now_s - q.taken_at_s <= 3 for q in core)
                assert not set(gpu.slow.value) & {"sw_thermal", "hw_thermal"}
            last_w[uuid] = cap.w
        last_s = now_s


@settings(max_examples=300, deadline=None)
@given(scenes(), st.data())
def test_garbage_from_one_gpu_never_raises_the_cap_of_another(scene: Any, data: Any) -> None:
    limits, passes = scene
    if len(limits.gpus) < 2:
        limits = msgspec.structs.replace(limits, gpus={**limits.gpus, "GPU-x": next(iter(limits.gpus.values()))})
    liar = "GPU-0"
    broken = []
    for snapshot, now_s in passes:
        lies = {field: Reading(data.draw(st.sampled_from(GARBAGE)), now_s) for field in FIELDS}
        gpus = {**snapshot.gpus, liar: GpuSnapshot(uuid=liar, **lies)}
        broken.append((msgspec.structs.replace(snapshot, gpus=gpus, outlets={}), now_s))
    silent = [(msgspec.structs.replace(s, gpus={**s.gpus, liar: GpuSnapshot(uuid=liar)}), now_s) for s, now_s in broken]
    for (_, lied), (_, unknown) in zip(play(limits, broken), play(limits, silent), strict=True):
        for uuid in limits.gpus:
            if uuid != liar:
                assert lied.caps[uuid].w <= unknown.caps[uuid].w + 1e-9


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_the_sum_of_caps_fits_the_node_limit_wherever_the_floors_do(scene: Any) -> None:
    limits, passes = scene
    for (snapshot, _), (state, setpoints) in zip(passes, play(limits, passes), strict=True):
        if limits.node_power_w is None or set(snapshot.gpus) != set(limits.gpus):
            continue
        floors_w = sum(min(g.min_w, g.prior_w) for g in limits.gpus.values())
        reachable = all(gpu.stalled_s == 0 for gpu in state.gpus.values())
        if reachable and floors_w <= limits.node_power_w * 0.94:
            assert sum(cap.w for cap in setpoints.caps.values()) <= limits.node_power_w + 1e-6
