"""Rules that hold for any readings at all, plausible or not: thousands of scenes in seconds."""

import itertools
import pickle
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewarden.model.readings import Reading
from nodewarden.model.setpoints import PROTECTS, Cause
from nodewarden.model.snapshot import GpuSnapshot
from nodewarden.policy import accept, decide, initial_state
from policy.scenes import FIELDS, Pass, garbage, play, scene

NUMBERS = st.integers(0, 2**63)


@settings(max_examples=700, deadline=None)
@given(NUMBERS)
def test_whatever_the_readings_say_caps_stay_between_the_floor_and_the_prior_limit(number: int) -> None:
    limits, passes = scene(number)
    for _, setpoints in play(limits, passes):
        assert set(setpoints.caps) == set(limits.gpus)
        for uuid, cap in setpoints.caps.items():
            bounds = limits.gpus[uuid]
            assert bounds.min_w <= cap.w <= bounds.prior_w
            assert (cap.cause is Cause.NONE) == (cap.w == bounds.prior_w)
            assert cap.protects is PROTECTS[cap.cause]
            assert cap.keep_w is None or cap.w <= cap.keep_w < bounds.prior_w
            assert cap.manual_w is None or cap.w <= cap.manual_w < bounds.prior_w
            assert cap.cause is Cause.NONE or cap.lifts_when
        assert 0 <= setpoints.level <= 4
        assert 0.5 <= setpoints.job.duty <= 1.0
        assert setpoints.job.request in {"none", "checkpoint"}


@settings(max_examples=200, deadline=None)
@given(NUMBERS)
def test_the_same_inputs_give_bit_identical_decisions_and_no_state_is_changed_in_place(number: int) -> None:
    limits, passes = scene(number)
    state = initial_state(limits)
    for snapshot, now_s in passes:
        before = pickle.dumps(state)
        first = decide(state, snapshot, limits, now_s)
        second = decide(pickle.loads(before), snapshot, limits, now_s)  # noqa: S301 our own bytes
        assert pickle.dumps(state) == before
        assert repr(first[0]) == repr(second[0])
        assert msgspec.msgpack.encode(first[1:]) == msgspec.msgpack.encode(second[1:])
        state = first[0]


@settings(max_examples=700, deadline=None)
@given(NUMBERS)
def test_a_cap_rises_only_slowly_and_only_on_a_fresh_plausible_cool_temperature(number: int) -> None:
    limits, passes = scene(number)
    last_w: dict[str, float] = {}
    last_s = rose = 0.0
    for (snapshot, now_s), (_, setpoints) in zip(passes, play(limits, passes), strict=True):
        for uuid, cap in setpoints.caps.items():
            if cap.w > last_w.get(uuid, cap.w):
                rose += 1
                assert 0 < now_s - last_s <= 10, "no rise over a long gap or a clock that goes back"
                assert cap.w - last_w[uuid] <= 8 * (now_s - last_s) + 1e-6
                gpu = snapshot.gpus[uuid]
                readings = [
                    quantity
                    for field, quantity in (("junction_c", gpu.junction_c), ("margin_c", gpu.margin_c))
                    if isinstance(quantity, Reading)
                    and accept(field, quantity.value)
                    and accept("t_s", quantity.taken_at_s)
                ]
                assert any(-1 <= now_s - quantity.taken_at_s <= 3 for quantity in readings)
                assert isinstance(gpu.slow, Reading)
                assert not set(gpu.slow.value) & {"sw_thermal", "hw_thermal"}
            last_w[uuid] = cap.w
        last_s = now_s


@settings(max_examples=200, deadline=None)
@given(NUMBERS)
def test_garbage_from_one_gpu_counts_as_silence_and_never_raises_the_cap_of_another(number: int) -> None:
    limits, passes = scene(number)
    rng = random.Random(number)
    lying, silent = [], []
    for snapshot, now_s in passes:
        lies = {field: garbage(rng, field, now_s) for field in FIELDS}
        for passes_of, liar in ((lying, GpuSnapshot(uuid="GPU-0", **lies)), (silent, GpuSnapshot(uuid="GPU-0"))):
            gpus = {**snapshot.gpus, "GPU-0": liar}
            passes_of.append(Pass(msgspec.structs.replace(snapshot, gpus=gpus), now_s))
    for (_, lied), (_, unknown) in zip(play(limits, lying), play(limits, silent), strict=True):
        assert lied.caps == unknown.caps


@settings(max_examples=200, deadline=None)
@given(NUMBERS)
def test_the_sum_of_caps_fits_the_node_limit_wherever_the_floors_do(number: int) -> None:
    limits, passes = scene(number)
    if limits.node_power_w is None:
        limits = msgspec.structs.replace(limits, node_power_w=1100.0)
    assert limits.node_power_w is not None
    floors_w = sum(gpu.min_w for gpu in limits.gpus.values())
    for state, setpoints in play(limits, passes):
        answering = all(gpu.stalled_s == 0 for gpu in state.gpus.values())
        if answering and floors_w <= limits.node_power_w - state.trim_w:
            assert sum(cap.w for cap in setpoints.caps.values()) <= limits.node_power_w + 1e-6


def test_the_scenes_of_the_properties_do_raise_and_lower_caps() -> None:
    rises = falls = 0
    for number in range(60):
        limits, passes = scene(number, calm=0.97)
        decisions = [setpoints for _, setpoints in play(limits, passes)]
        for before, after in itertools.pairwise(decisions):
            rises += sum(after.caps[uuid].w > before.caps[uuid].w for uuid in limits.gpus)
            falls += sum(after.caps[uuid].w < before.caps[uuid].w for uuid in limits.gpus)
    assert rises > 20
    assert falls > 20
