"""The queue to the MQTT broker: bounded, the newest state wins, events keep their order. F46."""

from hypothesis import given
from hypothesis import strategies as st

from nodewarden_exporters.outbox import Outbox
from nodewarden_exporters.topics import Message, level

STATES = st.builds(lambda t, n: Message(f"t/{t}", b"%d" % n), st.integers(0, 5), st.integers(0, 99))
EVENTS = st.builds(lambda n: Message("event", b"%d" % n, retain=False), st.integers())
STEPS = st.lists(st.one_of(STATES, EVENTS, st.just("send"), st.just("lose")), max_size=80)


@given(STEPS)
def test_whatever_happens_the_newest_state_and_the_newest_events_arrive_in_order(steps: list[Message | str]) -> None:
    box = Outbox(max_events=4, max_topics=10)
    put: list[Message] = []
    got: list[Message] = []
    for step in steps:
        if isinstance(step, Message):
            box.put(step)
            put.append(step)
        elif (message := box.next()) is not None and step == "send":
            got.append(message)
            box.sent(message)
    while (message := box.next()) is not None:
        got.append(message)
        box.sent(message)
    events = [m for m in put if not m.retain]
    arrived = [m for m in got if not m.retain]
    assert len(arrived) + box.dropped_events == len(events)
    remaining = iter(events)
    assert all(any(event is one for one in remaining) for event in arrived)
    assert arrived[-1:] == events[-1:]
    for topic in {m.topic for m in put if m.retain}:
        newest = [m for m in put if m.topic == topic][-1]
        assert [m for m in got if m.topic == topic][-1].payload == newest.payload
    assert len(box) == 0


def test_a_broker_that_is_away_for_hours_costs_no_memory() -> None:
    """F46: six hours at 300 messages a second, a hundredth of it here."""
    box = Outbox(max_events=1000, max_topics=100)
    for n in range(64_800):
        box.put(Message(f"t/{n % 300}", b"x"))
        box.put(Message("event", b"%d" % n, retain=False))
    assert len(box) == 1100
    assert (box.dropped_events, box.dropped_states) == (63_800, 64_800 - 21_600)


def test_a_subject_that_is_gone_is_cleared_once_and_forgotten() -> None:
    box = Outbox()
    box.put(Message("a", b"1"))
    box.put(Message("b", b"1"))
    box.keep_only({"a"})
    box.keep_only({"a"})
    sent = []
    while (message := box.next()) is not None:
        sent.append((message.topic, message.payload))
        box.sent(message)
    assert sent == [("a", b"1"), ("b", b"")]
    box.all_again()
    assert box.next() == Message("a", b"1")


def test_a_state_that_changes_while_it_is_sent_is_sent_again() -> None:
    box = Outbox()
    old, new = Message("a", b"1"), Message("a", b"2")
    box.put(old)
    assert box.next() is old
    box.put(new)
    box.sent(old)
    assert box.next() is new


@given(st.text(max_size=40))
def test_any_name_is_one_level_of_a_topic(name: str) -> None:
    made = level(name)
    assert made
    assert not set(made) & set("/+#\x00")
