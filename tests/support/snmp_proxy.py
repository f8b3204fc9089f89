"""A UDP relay in front of an SNMP agent that notes the type of every PDU on its way there: what the wire carries."""

import select
import socket
import threading
from collections import Counter
from typing import Self

from nodewarden.sim.snmp_agent import GET, GET_BULK, GET_NEXT, decode

READING = {GET, GET_NEXT, GET_BULK}


class SnmpProxy:
    """Relays to `port` on 127.0.0.1. `kinds` counts PDU types; a v3 message with privacy counts as "encrypted"."""

    def __init__(self, port: int) -> None:
        self.kinds: Counter[int | str] = Counter()
        self._target = ("127.0.0.1", port)
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(("127.0.0.1", 0))
        self.port = self._front.getsockname()[1]
        self._backs: dict[tuple[str, int], socket.socket] = {}
        self._ending, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._relay, name="snmp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.send(b"x")
        self._thread.join()
        for one in (self._front, self._ending, self._end, *self._backs.values()):
            one.close()

    def _relay(self) -> None:
        while True:
            backs = {back: client for client, back in self._backs.items()}
            readable, _, _ = select.select([self._front, self._ending, *backs], [], [])
            if self._ending in readable:
                return
            for one in readable:
                try:
                    data, peer = one.recvfrom(65535)
                except OSError:
                    continue  # the agent's port is closed
                if one is self._front:
                    self.kinds[kind_of(data)] += 1
                    if peer not in self._backs:
                        self._backs[peer] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    self._backs[peer].sendto(data, self._target)
                else:
                    self._front.sendto(data, backs[one])


def kind_of(datagram: bytes) -> int | str:
    """The tag of the PDU: 0xa0 GET, 0xa1 GETNEXT, 0xa3 SET, 0xa5 GETBULK."""
    _, message, _ = decode(datagram)
    _, version, position = decode(message)
    _, _, position = decode(message, position)  # community, or v3's header
    tag, content, end = decode(message, position)
    if version != b"\x03":
        return tag
    tag, content, _ = decode(message, end)  # v3: security parameters come first
    if tag != 0x30:
        return "encrypted"
    _, _, position = decode(content)
    _, _, position = decode(content, position)
    return decode(content, position)[0]
