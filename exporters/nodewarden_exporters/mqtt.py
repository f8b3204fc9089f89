"""Publishes the node to an MQTT broker: connects when it can, says everything again at each connection, never waits.

The agent starts and works without a broker. Nothing is subscribed: nobody can command a node over MQTT.
"""

import asyncio
import random
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import aiomqtt
import msgspec
import structlog
from paho.mqtt.reasoncodes import ReasonCode

from nodewarden.api.view import View
from nodewarden.clock import Clock
from nodewarden.config_schema import MqttConfig
from nodewarden.model.events import Event
from nodewarden_exporters.mqtt_trouble import CLASH_TEXT, Refused, TakenOver, Trouble, trouble_of
from nodewarden_exporters.outbox import Outbox
from nodewarden_exporters.topics import Message, Topics

log = structlog.get_logger("nodewarden.mqtt")

FIRST_DELAY_S = 5.0
MOST_DELAY_S = 60.0
SLOW_DELAY_S = 300.0
"""Between attempts that a person must mend first: credentials, rights, an id used twice (F42, F44)."""
ANSWER_S = 5.0
KEEPALIVE_S = 15
PACE_S = 0.02
"""Between messages after a connection, so that a fleet that returns does not flood the broker (F45)."""
SHORT_LIFE_S = 10.0
SHORT_LIVES = 3

State = Literal["connecting", "connected", "waiting"]


class MqttStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How it goes.

    Attributes:
        state: "connected", "connecting", or "waiting" for the next attempt.
        since_s: when it last was connected or, never having been, when it started, CLOCK_BOOTTIME.
        trouble: why it is not connected, or what the broker refuses while it is; None = nothing is wrong.
        published, connects: how often, since the start.
        dropped_events, dropped_states: lost to the bounds of the queue.
        certificate_ends_unix_s: end of the client certificate's validity, None = none is used or it cannot be read.
    """

    state: State = "connecting"
    since_s: float = 0.0
    trouble: Trouble | None = None
    published: int = 0
    connects: int = 0
    dropped_events: int = 0
    dropped_states: int = 0
    certificate_ends_unix_s: float | None = None


class BackOff:
    """Full jitter from the first attempt on: uniform in [0, limit], the limit doubles up to `most_s` (F45)."""

    def __init__(self, *, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._limit_s = first_s

    def next_s(self, *, at_least_s: float = 0.0) -> float:
        """Seconds to wait; with `at_least_s` between half of it and all of it."""
        if at_least_s:
            return random.uniform(at_least_s / 2, at_least_s)
        delay_s = random.uniform(0.0, self._limit_s)
        self._limit_s = min(2 * self._limit_s, self._most_s)
        return delay_s

    def reset(self) -> None:
        """A connection has lasted."""
        self._limit_s = self._first_s


class _Client(aiomqtt.Client):
    """aiomqtt waits for PUBACK but not for what it says: a broker refuses a topic by its reason code (MQTT 5, 3.4)."""

    refusal: ReasonCode | None = None

    def _on_publish(self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any = None) -> None:
        if isinstance(reason_code, ReasonCode) and reason_code.is_failure:
            self.refusal = reason_code
        super()._on_publish(client, userdata, mid, reason_code, properties)


class MqttPublisher:
    """One broker, one connection at a time.

    Args:
        config: where and how.
        node_name: a level of each topic.
        version: of the agent, told at birth.
        client_id: differs between agents, stays over restarts.
        clock: for ages and waits.
        back_off: between attempts.
    """

    def __init__(
        self,
        config: MqttConfig,
        node_name: str,
        version: str,
        client_id: str,
        clock: Clock,
        *,
        back_off: BackOff | None = None,
        slow_delay_s: float = SLOW_DELAY_S,
    ) -> None:
        self._config = config
        self._version = version
        self._clock = clock
        self._client_id = client_id
        self._topics = Topics(config.topic, node_name)
        self._outbox = Outbox()
        self._wake = asyncio.Event()
        self._view: View | None = None
        self._next_states_s = 0.0
        self._announced: set[str] = set()
        self._back_off = back_off or BackOff(first_s=FIRST_DELAY_S, most_s=MOST_DELAY_S)
        self._slow_delay_s = slow_delay_s
        self._protocol = aiomqtt.ProtocolVersion.V5
        self._short_lives = 0
        self._status = MqttStatus(since_s=clock.now_s())

    @property
    def status(self) -> MqttStatus:
        """How it goes, now."""
        box = self._outbox
        return msgspec.structs.replace(
            self._status, dropped_events=box.dropped_events, dropped_states=box.dropped_states
        )

    def observe(self, view: View) -> None:
        """The newest picture of the node; states are made from it every `period_s`."""
        self._view = view
        if view.now_s >= self._next_states_s:
            self._next_states_s = view.now_s + self._config.period_s
            self._take(view)

    def event(self, event: Event) -> None:
        """Something happened; queued until the broker has it."""
        self._put(self._topics.event(event, self._clock.wall_s()))

    async def run(self) -> None:
        """Connect, publish, and again, until cancelled."""
        delay_s = self._back_off.next_s()
        while True:
            await self._clock.sleep_until(self._clock.now_s() + delay_s)
            self._set(state="connecting")
            began_s = self._clock.now_s()
            try:
                await self._session()
            except (aiomqtt.MqttError, OSError, Refused, TakenOver, ValueError) as error:
                delay_s = self._note(trouble_of(error), self._clock.now_s() - began_s)
            except Exception as error:  # a library's own mistake must not end the loop
                log.exception("mqtt_session_failed")
                delay_s = self._note(trouble_of(error), self._clock.now_s() - began_s)

    # One connection ---------------------------------------------------------------------------------------------------

    async def _session(self) -> None:
        config = self._config
        context = await asyncio.to_thread(self._tls) if config.tls else None
        client = _Client(
            config.host,
            config.broker_port,
            username=config.user,
            password=config.password.reveal() if config.password is not None else None,
            identifier=self._client_id,
            protocol=self._protocol,
            will=_will(self._topics.will()),
            keepalive=KEEPALIVE_S,
            timeout=ANSWER_S,
            tls_context=context,
            max_queued_outgoing_messages=8,
        )
        async with client:
            self._set(state="connected", trouble=None, connects=self._status.connects + 1)
            log.info("mqtt_connected", host=config.host, port=config.broker_port)
            watch = asyncio.create_task(_wait_for_the_end(client), name="mqtt-watch")
            send = asyncio.create_task(self._send(client), name="mqtt-send")
            try:
                await asyncio.wait({watch, send}, return_when=asyncio.FIRST_COMPLETED)
                for task in (watch, send):  # the broker's reason first, then what its loss did to us
                    if task.done():
                        task.result()
            except asyncio.CancelledError:
                await _say_goodbye(client, self._topics.will())
                raise
            finally:
                for task in (watch, send):
                    task.cancel()
                await asyncio.gather(watch, send, return_exceptions=True)

    async def _send(self, client: _Client) -> None:
        await self._publish(client, self._topics.birth(self._version, self._clock.wall_s()))
        self._outbox.all_again()
        if self._view is not None:
            self._take(self._view)
        pace_s, connected_s = PACE_S, self._clock.now_s()
        while True:
            message = self._outbox.next()
            if message is None:
                pace_s = 0.0  # said everything once
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._publish(client, message)
            self._outbox.sent(message)
            self._set(published=self._status.published + 1)
            if self._clock.now_s() - connected_s > SHORT_LIFE_S:
                self._back_off.reset()
                self._short_lives = 0
            if pace_s:
                await self._clock.sleep_until(self._clock.now_s() + pace_s)

    async def _publish(self, client: _Client, message: Message) -> None:
        await client.publish(message.topic, message.payload, qos=1, retain=message.retain)
        if client.refusal is not None:
            raise Refused(message.topic, str(client.refusal))

    def _tls(self) -> ssl.SSLContext:
        """A new context from the files as they are now (F47). Always verifies; blocking."""
        config = self._config
        context = ssl.create_default_context(cafile=config.ca_file)
        if config.cert_file is not None:
            context.load_cert_chain(config.cert_file, config.key_file)
            self._set(certificate_ends_unix_s=_certificate_end(Path(config.cert_file)))
        return context

    # Bookkeeping ------------------------------------------------------------------------------------------------------

    def _take(self, view: View) -> None:
        messages = list(self._topics.states(view))
        for message in messages:
            self._put(message)
        topics = {message.topic for message in messages}
        if self._config.home_assistant:
            for message in self._topics.announcements(view, self._config.home_assistant_prefix):
                topics.add(message.topic)
                if message.topic not in self._announced:
                    self._announced.add(message.topic)
                    self._put(message)
        self._outbox.keep_only(topics)
        self._announced &= topics

    def _put(self, message: Message) -> None:
        self._outbox.put(message)
        self._wake.set()

    def _note(self, trouble: Trouble, lasted_s: float) -> float:
        """Tell a change once; seconds until the next attempt."""
        was_connected = self._status.state == "connected"
        if trouble.kind == "protocol" and self._protocol == aiomqtt.ProtocolVersion.V5:
            self._protocol = aiomqtt.ProtocolVersion.V311  # a broker from before MQTT 5
        if was_connected and lasted_s < SHORT_LIFE_S and trouble.kind == "network":
            self._short_lives += 1
            if self._short_lives >= SHORT_LIVES:  # before MQTT 5 a broker closes the older of two equals without a word
                trouble = Trouble("client_id", f"closed right after each connection; {CLASH_TEXT}")
        if trouble.kind == "client_id":
            trouble = Trouble("client_id", f'{trouble.text} (client id "{self._client_id}")')
        before = self._status.trouble
        since_s = self._clock.now_s() if was_connected else self._status.since_s
        self._set(state="waiting", trouble=trouble, since_s=since_s)
        if before is None or before.kind != trouble.kind:
            log.warning("mqtt_unavailable", host=self._config.host, kind=trouble.kind, detail=trouble.text)
        return self._back_off.next_s(at_least_s=self._slow_delay_s if trouble.is_slow else 0.0)

    def _set(self, **changes: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)


async def _wait_for_the_end(client: _Client) -> None:
    """Nothing is subscribed, so this ends only with the connection; raises why."""
    try:
        async for _ in client.messages:
            pass
    except aiomqtt.MqttError as error:
        cause = error.__cause__
        if isinstance(cause, aiomqtt.MqttCodeError):
            if isinstance(cause.rc, ReasonCode) and cause.rc.getName() == "Session taken over":
                raise TakenOver from error
            raise cause from error
        raise


async def _say_goodbye(client: _Client, will: Message) -> None:
    """An orderly stop says itself what the will would say; a broker that does not answer is left."""
    with suppress(aiomqtt.MqttError, ValueError):
        await client.publish(will.topic, will.payload, qos=1, retain=True, timeout=1.0)


def _will(message: Message) -> aiomqtt.Will:
    return aiomqtt.Will(message.topic, message.payload, qos=1, retain=True)


def _certificate_end(path: Path) -> float | None:
    """End of validity of the first certificate in a PEM file, Unix seconds; None where nothing here can read it."""
    try:
        from cryptography import x509  # noqa: PLC0415 -- an extra; without it only this number is missing
    except ImportError:
        return None
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
