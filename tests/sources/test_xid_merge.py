"""One event told by two sources counts once, however the reports come in."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from nodewarden.sources.xid_merge import WINDOW_S, Merge, Source

KEY = ("GPU-a", 31)
Report = tuple[Source, float]


def counted(reports: Sequence[Report]) -> int:
    merge = Merge()
    return sum(merge.add(KEY, source, at_s, at_s) for source, at_s in reports)


def most_pairs(a: list[float], b: list[float]) -> int:
    """As many pairs within the window as there can be; both sorted."""
    i = j = pairs = 0
    while i < len(a) and j < len(b):
        if abs(a[i] - b[j]) <= WINDOW_S:
            pairs, i, j = pairs + 1, i + 1, j + 1
        elif a[i] < b[j]:
            i += 1
        else:
            j += 1
    return pairs


@st.composite
def interleaved(draw: st.DrawFn, a: Sequence[Report], b: Sequence[Report]) -> list[Report]:
    """Both in their own order, mixed anyhow."""
    left, right, out = list(a), list(b), []
    while left or right:
        from_left = bool(left) and (not right or draw(st.booleans()))
        out.append((left if from_left else right).pop(0))
    return out


@st.composite
def true_events(draw: st.DrawFn) -> tuple[int, list[Report]]:
    """Events far enough apart, each told by one source or by both, within the window."""
    gaps = draw(st.lists(st.floats(2 * WINDOW_S + 0.1, 100.0), max_size=12))
    told: dict[Source, list[Report]] = {"nvml": [], "kernel": []}
    at_s = 0.0
    for gap in gaps:
        at_s += gap
        by = draw(st.sampled_from([("nvml",), ("kernel",), ("nvml", "kernel")]))
        for source in by:
            told[source].append((source, at_s + draw(st.floats(0.0, WINDOW_S))))
    return len(gaps), draw(interleaved(told["nvml"], told["kernel"]))


@given(true_events())
def test_every_event_counts_exactly_once_in_any_interleaving(given_events: tuple[int, list[Report]]) -> None:
    """F13: two sources, merged and told apart."""
    count, reports = given_events
    assert counted(reports) == count


@given(st.integers(0, 30), st.data())
def test_a_burst_told_by_both_counts_once_each(count: int, data: st.DataObject) -> None:
    at_s = [n * 0.01 for n in range(count)]
    reports = data.draw(interleaved([("nvml", t) for t in at_s], [("kernel", t + 0.3) for t in at_s]))
    assert counted(reports) == count


_TIMES = st.lists(st.floats(0.0, 60.0), max_size=15).map(sorted)


@given(_TIMES, _TIMES, st.data())
@example([0.0, 3.0], [5.0, 8.0], None)
def test_as_many_as_can_be_are_matched(a: list[float], b: list[float], data: st.DataObject | None) -> None:
    first: list[Report] = [("nvml", t) for t in a]
    second: list[Report] = [("kernel", t) for t in b]
    reports = data.draw(interleaved(first, second)) if data is not None else first + second
    assert counted(reports) == len(a) + len(b) - most_pairs(a, b)


@given(_TIMES)
def test_one_source_alone_is_never_merged_with_itself(times: list[float]) -> None:
    assert counted([("kernel", at_s) for at_s in times]) == len(times)


def test_a_burst_of_many_is_matched_by_number() -> None:
    merge = Merge()
    assert merge.add(KEY, "kernel", 0.0, 4.0, 1000) == 1000
    assert merge.add(KEY, "nvml", 1.0, 1.0, 300) == 0
    assert merge.add(KEY, "nvml", 2.0, 3.0, 900) == 200
    assert merge.add(KEY, "nvml", 200.0, 200.0) == 1


def test_the_words_off_the_bus_count_only_where_nothing_else_told_it() -> None:
    """F04: with and without an Xid 79."""
    merge, key = Merge(), ("GPU-a", 79)
    assert merge.add(key, "kernel", 0.0, 0.0) == 1
    assert merge.add(key, "notice", 0.001, 0.001) == 0
    assert merge.add(key, "notice", 30.0, 30.0) == 0
    other = ("GPU-b", 79)
    assert merge.add(other, "notice", 0.0, 0.0) == 1
    assert merge.add(other, "nvml", 0.5, 0.5) == 0


def test_what_is_kept_is_bounded() -> None:
    merge = Merge()
    for n in range(10_000):
        merge.add(KEY, "kernel", n * 10.0, n * 10.0)
    assert len(merge.open[KEY]) <= 64
    merge.forget_before(10_000 * 10.0)
    assert merge.open == {}
