"""The rack PDU of the twin: a real SNMP agent that answers as a three-phase APC with 24 metered outlets.

It publishes new readings every 5 s and in the device's own steps: 10 W for device and phases, 1 W for outlets, 0.1 A.
"""

import time
from collections.abc import Callable, Mapping

import msgspec

from nodewarden.sim.snmp_agent import (
    COUNTER32,
    GAUGE32,
    INTEGER,
    OBJECT_ID,
    OCTETS,
    TIME_TICKS,
    Oid,
    SnmpAgent,
    Typed,
)

MODEL = "AP8681-SIM"
OUTLETS = 24
PHASES = 3
PUBLISH_S = 5.0

_APC: Oid = (1, 3, 6, 1, 4, 1, 318)
_RPDU2: Oid = (*_APC, 1, 1, 26)
_SYSTEM: Oid = (1, 3, 6, 1, 2, 1, 1)
_RATED_A = 32


class PduValues(msgspec.Struct, frozen=True, kw_only=True):
    """What flows through the PDU now.

    Attributes:
        outlets_w: real power of each outlet by its number, 1 to 24; others carry nothing.
        outlets_off: numbers of the outlets that are switched off.
        voltage_v: of each phase to neutral.
        power_factor: of the whole load.
    """

    outlets_w: Mapping[int, float] = {}
    outlets_off: frozenset[int] = frozenset()
    voltage_v: float = 230.0
    power_factor: float = 0.97


class PduHandle:
    """A running PDU. `community` and the address are what an agent's configuration needs."""

    def __init__(self, agent: SnmpAgent, community: str) -> None:
        self._agent = agent
        self.community = community

    @property
    def host(self) -> str:
        """Address that it answers at."""
        return self._agent.host

    @property
    def port(self) -> int:
        """UDP port that it answers at."""
        return self._agent.port

    def close(self) -> None:
        """Stop answering, as if its cable were pulled. Returns when the thread has ended."""
        self._agent.close()


def serve_pdu(
    values: Callable[[], PduValues],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    community: str = "public",
    now_s: Callable[[], float] = time.monotonic,
    publish_s: float = PUBLISH_S,
) -> PduHandle:
    """Start the PDU in a thread of its own; an event loop in the caller is neither needed nor touched.

    Args:
        values: asked from the PDU's thread when new readings are due.
        host: address to bind.
        port: UDP port; 0 lets the system choose, the handle tells.
        community: what requests must carry.
        now_s: the twin's clock, so that a fast twin has a fast PDU.
        publish_s: seconds of that clock between new readings.

    Raises:
        OSError: when the port is taken.
    """
    pdu = _Pdu(values, now_s, publish_s)
    agent = SnmpAgent(pdu.objects, community=community)
    agent.start(host, port)
    return PduHandle(agent, community)


class _Pdu:
    """The objects of the PDU, rebuilt when it publishes."""

    def __init__(self, values: Callable[[], PduValues], now_s: Callable[[], float], publish_s: float) -> None:
        self._values, self._now_s, self._publish_s = values, now_s, publish_s
        self._started_s = now_s()
        self._published_s: float | None = None
        self._outlet_wh = [0.0] * (OUTLETS + 1)
        self._device_wh = 0.0
        self._current = PduValues()
        self._objects: dict[Oid, Typed] = {}

    def objects(self) -> Mapping[Oid, Typed]:
        """The tree of the last publication."""
        now_s = self._now_s()
        if self._published_s is None or now_s - self._published_s >= self._publish_s:
            self._publish(now_s)
        self._objects[*_SYSTEM, 3, 0] = Typed((TIME_TICKS, int((now_s - self._started_s) * 100) % 2**32))
        return self._objects

    def _publish(self, now_s: float) -> None:
        hours = 0.0 if self._published_s is None else (now_s - self._published_s) / 3600
        for outlet, watts in self._current.outlets_w.items():
            self._outlet_wh[outlet] += watts * hours
            self._device_wh += watts * hours
        self._published_s = now_s
        self._current = self._values()
        self._objects = _build(self._current, self._outlet_wh, self._device_wh)


def _build(values: PduValues, outlet_wh: list[float], device_wh: float) -> dict[Oid, Typed]:
    objects: dict[Oid, Typed] = {}

    def put(oid: Oid, tag: int, value: int | bytes | Oid) -> None:
        objects[oid] = Typed((tag, value))

    volt_amps_per_watt = 1 / values.power_factor
    factor = round(values.power_factor * 100)
    put((*_SYSTEM, 1, 0), OCTETS, f"Nodewarden twin, APC rPDU2 objects (MN:{MODEL})".encode())
    put((*_SYSTEM, 2, 0), OBJECT_ID, (*_APC, 1, 3, 4, 6))
    put((*_RPDU2, 2, 1, 8, 1), OCTETS, MODEL.encode())
    for column, count in ((4, OUTLETS), (5, OUTLETS), (6, OUTLETS), (7, PHASES), (8, 0)):
        put((*_RPDU2, 4, 2, 1, column, 1), INTEGER, count)

    phase_w = [0.0] * (PHASES + 1)
    for outlet in range(1, OUTLETS + 1):
        on = outlet not in values.outlets_off
        watts = max(0.0, values.outlets_w.get(outlet, 0.0)) if on else 0.0
        phase_w[1 + (outlet - 1) % PHASES] += watts
        amps = watts * volt_amps_per_watt / values.voltage_v
        metered, switched = (*_RPDU2, 9, 4, 3, 1), (*_RPDU2, 9, 2, 3, 1)
        put((*metered, 1, outlet), INTEGER, outlet)
        put((*metered, 2, outlet), INTEGER, 1)
        put((*metered, 3, outlet), OCTETS, f"Outlet {outlet}".encode())
        put((*metered, 4, outlet), INTEGER, outlet)
        put((*metered, 5, outlet), INTEGER, 2 if watts else 1)
        put((*metered, 6, outlet), GAUGE32, round(amps * 10))
        put((*metered, 7, outlet), GAUGE32, round(watts))
        put((*metered, 11, outlet), COUNTER32, int(outlet_wh[outlet] / 100))
        put((*switched, 3, outlet), OCTETS, f"Outlet {outlet}".encode())
        put((*switched, 5, outlet), INTEGER, 2 if on else 1)

    device_w = sum(phase_w)
    device, phases = (*_RPDU2, 4, 3, 1), (*_RPDU2, 6, 3, 1)
    for column, number in (
        (1, 1),
        (2, 1),
        (4, 2),
        (5, round(device_w / 10)),
        (9, int(device_wh / 100)),
        (16, round(device_w * volt_amps_per_watt / 10)),
        (17, factor),
    ):
        put((*device, column, 1), INTEGER, number)
    for phase in range(1, PHASES + 1):
        amps = phase_w[phase] * volt_amps_per_watt / values.voltage_v
        for column, number in (
            (1, phase),
            (2, 1),
            (3, phase),
            (4, 4 if amps > _RATED_A else 3 if amps > 0.8 * _RATED_A else 2),
            (5, round(amps * 10)),
            (6, round(values.voltage_v)),
            (7, round(phase_w[phase] / 10)),
            (8, round(phase_w[phase] * volt_amps_per_watt / 10)),
            (9, factor),
        ):
            put((*phases, column, phase), INTEGER, number)
    return objects
