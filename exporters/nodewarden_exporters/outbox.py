"""What waits for the MQTT broker: the newest state of each topic, and events in their order. Bounded, no I/O.

A broker that is away for hours costs no memory, and its return brings the present, not the past (F46).
"""

from collections import OrderedDict, deque

from nodewarden_exporters.topics import Message

MAX_EVENTS = 1000
MAX_TOPICS = 1024


class Outbox:
    """States overwrite each other, events queue up to `max_events` and then lose their oldest.

    Attributes:
        dropped_events: events that were lost to the bound.
        dropped_states: states of topics beyond `max_topics`.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_topics: int = MAX_TOPICS) -> None:
        self._events: deque[Message] = deque()
        self._known: dict[str, Message] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._max_events = max_events
        self._max_topics = max_topics
        self.dropped_events = 0
        self.dropped_states = 0

    def __len__(self) -> int:
        return len(self._events) + len(self._waiting)

    def put(self, message: Message) -> None:
        """To be sent: a retained message replaces the one of its topic, any other is queued."""
        if not message.retain:
            self._events.append(message)
            while len(self._events) > self._max_events:
                self._events.popleft()
                self.dropped_events += 1
        elif message.topic in self._known or len(self._known) < self._max_topics:
            self._known[message.topic] = message
            self._waiting[message.topic] = None
        else:
            self.dropped_states += 1

    def keep_only(self, topics: set[str]) -> None:
        """Subjects that are gone are cleared at the broker: an empty retained message, sent once, then forgotten."""
        for topic in self._known.keys() - topics:
            if self._known[topic].payload:
                self.put(Message(topic, b""))

    def all_again(self) -> None:
        """A new connection may be to a broker that has forgotten everything (F41)."""
        self._waiting = OrderedDict.fromkeys(self._known)

    def next(self) -> Message | None:
        """What to send next: events before states, states in the order in which they began to wait."""
        if self._events:
            return self._events[0]
        topic = next(iter(self._waiting), None)
        return None if topic is None else self._known[topic]

    def sent(self, message: Message) -> None:
        """The broker has it; a state that changed meanwhile goes on waiting."""
        if not message.retain:
            if self._events and self._events[0] is message:
                self._events.popleft()
        elif self._known.get(message.topic) is message:
            self._waiting.pop(message.topic, None)
            if not message.payload:
                del self._known[message.topic]
