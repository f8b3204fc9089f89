"""Why MQTT does not work, in words a person can act on: one kind per thing that there is to mend."""

import ssl
from typing import Literal

import aiomqtt
import msgspec
from paho.mqtt.reasoncodes import ReasonCode

Kind = Literal["network", "tls", "credentials", "rights", "client_id", "protocol", "broker", "internal"]

CLASH_TEXT = "probably another agent uses the same client id: is its state directory a copy of this one?"

# MQTT 5 reason codes of CONNACK (3.2.2.2) and return codes of MQTT 3.1.1 (3.2.2.3).
_CONNECT_KINDS: dict[int, Kind] = {
    1: "protocol",
    2: "client_id",
    3: "broker",
    4: "credentials",
    5: "credentials",
    0x81: "protocol",
    0x84: "protocol",
    0x85: "client_id",
    0x86: "credentials",
    0x87: "credentials",
    0x88: "broker",
    0x89: "broker",
    0x8A: "credentials",
    0x8C: "credentials",
    0x90: "rights",
    0x9A: "broker",
}


class Trouble(msgspec.Struct, frozen=True):
    """What is wrong; `kind` is stable, `text` is for people."""

    kind: Kind
    text: str

    @property
    def is_slow(self) -> bool:
        """A person must mend it first, so there is no hurry to try again."""
        return self.kind in {"credentials", "rights", "client_id", "internal"}


class Refused(Exception):  # noqa: N818 -- it says what happened
    """The broker takes the connection but not this topic."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason


class TakenOver(Exception):  # noqa: N818
    """The broker closed this connection because another client came with the same id (F42)."""


def trouble_of(error: BaseException) -> Trouble:
    """What an error of the library or of the files means for a person."""
    if isinstance(error, TakenOver):
        return Trouble("client_id", f"taken over by another client; {CLASH_TEXT}")
    if isinstance(error, Refused):
        text = f'the broker refuses to take "{error.topic}" ({error.reason}): allow this user to write below it'
        return Trouble("rights", text)
    if isinstance(error, aiomqtt.MqttCodeError) and type(error) is not aiomqtt.MqttCodeError:
        code = error.rc.value if isinstance(error.rc, ReasonCode) else error.rc
        return Trouble(_CONNECT_KINDS.get(code or 0, "broker"), f"the broker refuses the connection: {error}")
    if isinstance(error, ssl.SSLError) or "SSL" in str(error):
        return Trouble("tls", f"TLS failed: {error}")
    if isinstance(error, (aiomqtt.MqttError, TimeoutError)):
        return Trouble("network", str(error) or "no answer")
    if isinstance(error, OSError):  # of the certificate files
        return Trouble("tls", f"{error.filename or 'certificate file'} cannot be read: {error.strerror or error}")
    return Trouble("internal", f"{type(error).__name__}: {error}")
