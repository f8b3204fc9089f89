"""The life of a condition, for any history of facts: pending, firing, resolved."""

from hypothesis import given
from hypothesis import strategies as st

from nodewarden.model.snapshot import NodeSnapshot
from nodewarden_alerts import ConditionEngine, Facts, health_of
from nodewarden_alerts.conditions import Condition, Finding, Problem
from nodewarden_alerts.facts import clock_time

IDENTITIES = ("a", "b", "c")


def table(hold_s: float, severity: str = "warning") -> tuple[Condition, ...]:
    """One condition that holds for each name of `facts.stalled`, beginning when its value says (None = when seen)."""

    def find(facts: Facts, now_s: float):
        for name, since_s in facts.stalled.items():
            yield Finding(what=name, key=name, since_s=since_s if since_s >= 0 else None)

    return (Condition(code="x", title="x", severity=severity, find=find, hold_s=hold_s, advice="x"),)


def facts(names: frozenset[str], since_s: float = -1.0) -> Facts:
    return Facts(snapshot=NodeSnapshot(), stalled=dict.fromkeys(sorted(names), since_s))


histories = st.lists(
    st.tuples(st.floats(0.01, 30.0), st.frozensets(st.sampled_from(IDENTITIES))), min_size=1, max_size=40
)


@given(history=histories, hold_s=st.sampled_from([0.0, 1.0, 10.0]))
def test_a_problem_is_told_exactly_while_it_has_held_for_its_hold_time(history, hold_s) -> None:
    engine, now_s, began = ConditionEngine(table(hold_s)), 1000.0, {}
    for step_s, names in history:
        now_s += step_s
        began = {name: began.get(name, now_s) for name in names}
        told = {p.text[0]: p for p in engine.evaluate(facts(names), now_s)}
        assert set(told) == {name for name in names if now_s - began[name] >= hold_s}
        assert all(problem.since_s == began[name] for name, problem in told.items())


@given(history=histories, hold_s=st.sampled_from([0.0, 5.0]))
def test_every_problem_that_is_told_begins_once_and_ends_once(history, hold_s) -> None:
    engine, now_s, open_problems = ConditionEngine(table(hold_s)), 1000.0, set()
    for step_s, names in [*history, (1.0, frozenset())]:
        now_s += step_s
        engine.evaluate(facts(names), now_s)
        for change in engine.changes:
            name = change.problem.text[0]
            if change.what == "firing":
                assert name not in open_problems
                open_problems.add(name)
            else:
                open_problems.remove(name)
                assert change.lasted_s == now_s - change.problem.since_s
    assert not open_problems


@given(since_s=st.floats(0.0, 2000.0), steps=st.lists(st.floats(0.01, 50.0), min_size=1, max_size=10))
def test_since_never_moves_while_a_problem_lasts_and_never_lies_ahead(since_s, steps) -> None:
    engine, now_s = ConditionEngine(table(0.0)), 1000.0
    first = engine.evaluate(facts(frozenset("a"), since_s), now_s)[0].since_s
    assert first == min(since_s, now_s)
    for step_s in steps:
        now_s += step_s
        assert engine.evaluate(facts(frozenset("a"), since_s), now_s)[0].since_s == first


def test_a_problem_that_comes_back_begins_anew() -> None:
    engine = ConditionEngine(table(0.0))
    engine.evaluate(facts(frozenset("a")), 10.0)
    engine.evaluate(facts(frozenset()), 20.0)
    (problem,) = engine.evaluate(facts(frozenset("a")), 30.0)
    assert problem.since_s == 30.0


@given(severities=st.lists(st.sampled_from(["critical", "warning", "info"])))
def test_health_is_the_worst_of_the_problems(severities) -> None:
    problems = [Problem(code="x", severity=s, text="", since_s=0.0) for s in severities]
    expected = "critical" if "critical" in severities else "degraded" if "warning" in severities else "ok"
    assert health_of(problems) == expected


def test_a_time_of_more_than_a_day_ago_carries_its_date() -> None:
    assert len(clock_time(0.0, 10.0, 0.0)) == len("11:58:20")
    assert len(clock_time(0.0, 90_000.0, 0.0)) == len("2026-11-30 11:58")
