"""What is said over MQTT: one table of topics with their payloads, and the Home Assistant announcements of them.

All topics are below `PREFIX/NODE/`. States are retained JSON objects with the time of their newest reading and a
sequence number that grows with every message of this agent; numbers that are unknown are null, never 0.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nodewarden.api.status import rfc3339, sorted_gpus, status_document
from nodewarden.api.view import View
from nodewarden.model.events import Event

encode: Callable[[object], bytes] = msgspec.json.Encoder().encode

EVENT = "event"
AVAILABILITY = "availability"


class Message(msgspec.Struct, frozen=True):
    """One publication, always QoS 1; an event is not retained."""

    topic: str
    payload: bytes
    retain: bool = True


def level(text: str) -> str:
    """A name as one level of a topic: the characters that mean something there become "_" (MQTT 5, section 4.7)."""
    return re.sub(r"[/+#\x00-\x1f\x7f]", "_", text) or "_"


class Topics:
    """The topics of one node.

    Args:
        prefix: first levels of every topic.
        node_name: the next level.
    """

    def __init__(self, prefix: str, node_name: str) -> None:
        self.base = f"{prefix.strip('/')}/{level(node_name)}"
        self._node_name = node_name
        self._seq = 0

    def birth(self, version: str, wall_s: float) -> Message:
        """The agent is there; the first message of each connection."""
        return self._message(AVAILABILITY, {"state": "online", "time": rfc3339(wall_s), "version": version})

    def will(self) -> Message:
        """What the broker says for us when the connection breaks, and we when we stop."""
        return Message(f"{self.base}/{AVAILABILITY}", encode({"state": "offline"}))

    def event(self, event: Event, wall_s: float) -> Message:
        """Something happened or was decided."""
        body = {"time": rfc3339(wall_s), "code": event.code, "uuid": event.uuid, "text": event.text}
        return self._message(EVENT, body, retain=False)

    def states(self, view: View) -> Iterator[Message]:
        """Everything as it is now, one topic per subject; what is too old to trust is null in it."""
        document = status_document(view)
        now = rfc3339(view.wall_s)
        node = {
            "time": now,
            "armed": document.armed,
            "health": document.health,
            "ladder": document.ladder,
            "problems": [msgspec.to_builtins(problem) for problem in document.problems],
        }
        yield self._message("node", node)
        yield self._message("jobs", {"time": now, "jobs": [msgspec.to_builtins(job) for job in document.jobs]})
        for gpu in document.gpus:
            yield self._reading(view, f"gpu/{gpu.uuid}", gpu, gpu.age_s)
        for pdu in document.pdus:
            yield self._reading(view, f"pdu/{level(pdu.name)}", pdu, pdu.age_s)

    def _reading(self, view: View, path: str, status: Any, age_s: float | None) -> Message:
        body = msgspec.to_builtins(status)
        body.pop("age_s")  # meaningless in a retained message: its time is what stays true
        taken = rfc3339(view.wall_s - age_s) if age_s is not None else None
        return self._message(path, {"time": taken, **body})

    def _message(self, path: str, body: dict[str, Any], *, retain: bool = True) -> Message:
        self._seq += 1
        return Message(f"{self.base}/{path}", encode({"seq": self._seq, **body}), retain)

    # Home Assistant ---------------------------------------------------------------------------------------------------

    def announcements(self, view: View, prefix: str) -> Iterator[Message]:
        """Home Assistant's MQTT discovery: one retained configuration per quantity of `SENSORS`."""
        subjects = [("node", "", "node")]
        subjects += [
            ("gpu", gpu.name, f"gpu/{gpu.uuid}") for gpu in sorted_gpus(view)
        ]  # the state topic carries the uuid
        subjects += [("pdu", pdu.name, f"pdu/{level(pdu.name)}") for pdu in view.snapshot.pdus.values()]
        for kind, name, path in subjects:
            for sensor in SENSORS[kind]:
                yield self._announcement(prefix, sensor, name, path)

    def _announcement(self, prefix: str, sensor: "Sensor", name: str, path: str) -> Message:
        unique = re.sub(r"[^A-Za-z0-9_-]", "_", f"nodewarden_{self._node_name}_{path}_{sensor.field}")
        config: dict[str, Any] = {
            "name": f"{name} {sensor.words}".strip(),
            "unique_id": unique,
            "object_id": unique,
            "state_topic": f"{self.base}/{path}",
            "value_template": f"{{{{ value_json.{sensor.field} }}}}",
            "availability_topic": f"{self.base}/{AVAILABILITY}",
            "availability_template": "{{ value_json.state }}",
            "device": {
                "identifiers": [f"nodewarden_{self._node_name}"],
                "name": self._node_name,
                "manufacturer": "Nodewarden",
            },
        }
        if sensor.unit:
            config |= {"unit_of_measurement": sensor.unit, "state_class": "measurement"}
        if sensor.device_class:
            config["device_class"] = sensor.device_class
        return Message(f"{prefix.strip('/')}/sensor/{unique}/config", encode(config))


class Sensor(msgspec.Struct, frozen=True):
    """One quantity as Home Assistant names and measures it."""

    field: str
    words: str
    unit: str = ""
    device_class: str = ""


SENSORS: dict[str, tuple[Sensor, ...]] = {
    "node": (Sensor("health", "health"), Sensor("ladder", "ladder level")),
    "gpu": (
        Sensor("junction_c", "junction", "°C", "temperature"),
        Sensor("hbm_c", "HBM", "°C", "temperature"),
        Sensor("power_w", "power", "W", "power"),
        Sensor("cap_w", "power cap", "W", "power"),
        Sensor("margin_to_slowdown_c", "margin to slowdown", "K"),
    ),
    "pdu": (
        Sensor("power_w", "power", "W", "power"),
        Sensor("outlets_w", "this node's outlets", "W", "power"),
    ),
}
