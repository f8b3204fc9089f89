"""pysnmp behind one small class: sockets, targets, one request as one future. Imported only when a PDU is configured.

The requests go to pysnmp's command generators as plain names and nulls. Its high-level functions would resolve each
name in a MIB view first, which loads MIB files inside the event loop (0.25 s of CPU) and costs 7 MB.
"""

import asyncio
import contextlib
import math
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from pyasn1.type import constraint, univ
from pysnmp.carrier.asyncio.dgram import udp, udp6
from pysnmp.carrier.asyncio.dispatch import AsyncioDispatcher
from pysnmp.entity import config
from pysnmp.entity.engine import SnmpEngine
from pysnmp.entity.rfc3413 import cmdgen
from pysnmp.error import PySnmpError
from pysnmp.proto import rfc1155, rfc1902, rfc1905
from pysnmp.proto.secmod.rfc3414.priv import des

from nodewarden.devices.snmp_access import Key, User

Value = int | float | bytes | str | None

# An answer: pysnmp's error indication, error status, error index, variable bindings.
Answer = tuple[Any, int, int, list[tuple[str, Value]]]

_AUTH = {
    "md5": config.USM_AUTH_HMAC96_MD5,
    "sha": config.USM_AUTH_HMAC96_SHA,
    "sha224": config.USM_AUTH_HMAC128_SHA224,
    "sha256": config.USM_AUTH_HMAC192_SHA256,
    "sha384": config.USM_AUTH_HMAC256_SHA384,
    "sha512": config.USM_AUTH_HMAC384_SHA512,
}
_PRIV = {
    "des": config.USM_PRIV_CBC56_DES,
    "aes": config.USM_PRIV_CFB128_AES,
    "aes192": config.USM_PRIV_CFB192_AES_BLUMENTHAL,
    "aes256": config.USM_PRIV_CFB256_AES_BLUMENTHAL,
    "aes192c": config.USM_PRIV_CFB192_AES,
    "aes256c": config.USM_PRIV_CFB256_AES,
}
_V3 = 3  # as message processing model and as security model
_PEERS = "_SnmpV3MessageProcessingModel__engineIdCache"

_TICK_S = 1.0  # pysnmp forgets late requests at this pace; deadlines are ours
_OPAQUE_FLOAT = b"\x9f\x78\x04"  # net-snmp's float inside an Opaque


_UNSIGNED = (rfc1902.Counter32, rfc1902.Gauge32, rfc1902.Unsigned32, rfc1902.TimeTicks, rfc1902.Counter64)


def _accept_any_integer() -> None:
    """Let the decoder pass integers outside the range of their type.

    Agents send 4294967295 as INTEGER and unsigned values with the sign bit set; pysnmp would drop the whole answer.
    """
    anything = constraint.ConstraintsIntersection()
    for syntax in (rfc1902.SimpleSyntax, rfc1902.ApplicationSyntax, rfc1155.SimpleSyntax, rfc1155.ApplicationSyntax):
        for named in syntax.componentType.namedTypes:
            kind = named.asn1Object
            if isinstance(kind, univ.Integer):
                kind._readOnly["subtypeSpec"] = anything  # noqa: SLF001  pyasn1 has no other way to relax a type
                kind.__dict__["subtypeSpec"] = anything


_accept_any_integer()


class EndOfMib:
    """Stands where a walk has reached the end of the agent's tree."""


END = EndOfMib()


class _Guarded:
    """A UDP transport that survives anything a peer sends, and never shows a datagram (it carries the community).

    What comes from an address that was never asked is dropped: pysnmp would believe anyone who guesses a request id.
    """

    asked: set[tuple[str, int]]
    garbage: dict[tuple[str, int], int]
    parse_errors: Any  # pysnmp's own counter
    send_error: OSError | None = None

    def datagram_received(self, datagram: bytes, address: Any) -> None:
        peer = (str(address[0]), int(address[1]))
        if peer not in self.asked:
            return
        errors = int(self.parse_errors.syntax)
        try:
            self._callback_function(self, address, datagram)  # type: ignore[attr-defined]
            understood = int(self.parse_errors.syntax) == errors
        except Exception:  # noqa: BLE001  the decoder raises whatever garbage leads it to; nothing of it may be logged
            understood = False
        if not understood and (peer in self.garbage or len(self.garbage) < 256):
            self.garbage[peer] = self.garbage.get(peer, 0) + 1

    def error_received(self, exc: OSError) -> None:
        self.send_error = exc


class _Udp4(_Guarded, udp.UdpAsyncioTransport):  # type: ignore[misc]
    """IPv4."""


class _Udp6(_Guarded, udp6.Udp6AsyncioTransport):  # type: ignore[misc]
    """IPv6."""


_FAMILIES: dict[int, tuple[tuple[int, ...], type[Any]]] = {
    socket.AF_INET: (udp.DOMAIN_NAME, _Udp4),
    socket.AF_INET6: (udp6.DOMAIN_NAME, _Udp6),
}


class Engine:
    """One pysnmp engine on one event loop. May be built in another thread, because pysnmp reads its own MIB files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = SnmpEngine()
        self._name_itself()
        self._engine.register_transport_dispatcher(AsyncioDispatcher(timeout=_TICK_S, loop=loop))
        self._generators = {
            "get": cmdgen.GetCommandGenerator(),
            "next": cmdgen.NextCommandGeneratorSingleRun(),
            "bulk": cmdgen.BulkCommandGeneratorSingleRun(),
        }
        self._transports: dict[int, Any] = {}
        self._opening = asyncio.Lock()
        self._communities: dict[str, str] = {}
        self._parameters: set[str] = set()
        self._names: dict[str, tuple[Any, Any]] = {}
        self._targets: dict[tuple[Any, ...], str] = {}
        self._users: dict[str, tuple[Key | None, Key | None]] = {}
        self._asked: set[tuple[str, int]] = set()
        self.garbage: dict[tuple[str, int], int] = {}
        # pysnmp reads files with the first target of each family and the first answer: here, never on the event loop
        self._engine.get_mib_builder().load_modules(
            *("SNMPv2-MIB", "__SNMPv2-MIB", "SNMP-USER-BASED-SM-MIB", "__SNMP-USER-BASED-SM-MIB"),
            *("PYSNMP-USM-MIB", "__PYSNMP-USM-MIB", "SNMP-FRAMEWORK-MIB", "__SNMP-FRAMEWORK-MIB"),
        )
        for family, address in ((socket.AF_INET, ("127.0.0.1", 9)), (socket.AF_INET6, ("::1", 9, 0, 0))):
            for model in (0, 1):
                self.add_community_target(family, address, "public", model, 1.0)

    def _name_itself(self) -> None:
        """Be unlike any other engine; pysnmp's own name would be that of every pysnmp of this host.

        Not by the constructor: it keeps a file in the temporary directory for each name that it is given.
        """
        (name,) = self._engine.get_mib_builder().import_symbols("__SNMP-FRAMEWORK-MIB", "snmpEngineID")
        # RFC 3411: our number, format "octets", anything unique
        name.syntax = name.syntax.clone(b"\x80\x00\x4f\xb8\x05" + os.urandom(8))
        self._engine.snmpEngineID = name.syntax

    async def open_family(self, family: int) -> None:
        """Open the socket for one address family, once."""
        async with self._opening:
            if family in self._transports:
                return
            domain, kind = _FAMILIES[family]
            transport = kind()
            transport.garbage, transport.asked = self.garbage, self._asked
            (transport.parse_errors,) = self._engine.get_mib_builder().import_symbols(
                "__SNMPv2-MIB", "snmpInASNParseErrs"
            )
            loop = asyncio.get_running_loop()
            await loop.create_datagram_endpoint(lambda: transport, family=family)
            config.add_transport(self._engine, domain, transport)
            self._transports[family] = transport

    def add_community_target(
        self, family: int, address: tuple[Any, ...], community: str, model: int, timeout_s: float
    ) -> str:
        """The name for `send` of a peer of v1 (`model` 0) or v2c (1); the same for the same peer."""
        index = self._communities.get(community)
        if index is None:
            index = self._communities[community] = f"c{len(self._communities)}"
            config.add_v1_system(self._engine, index, community.encode(), securityName=index)
        return self._add_target(family, address, index, "noAuthNoPriv", model, timeout_s)

    def fits(self, user: User) -> bool:
        """False when this engine knows a user of that name with other secrets: pysnmp keeps one per name."""
        return self._users.get(user.name, user.secrets) == user.secrets

    def add_user_target(
        self, family: int, address: tuple[Any, ...], user: User, keys: "Keys", timeout_s: float, level: str
    ) -> str:
        """The name for `send` of a peer of v3; `keys` are from `keys_of`, `level` may be lower than the user's."""
        if user.name not in self._users:
            config.add_v3_user(
                self._engine,
                user.name,
                authProtocol=keys.auth_protocol,
                authKey=keys.auth,
                privProtocol=keys.priv_protocol,
                privKey=keys.priv,
                authKeyType=config.USM_KEY_TYPE_MASTER,
                privKeyType=config.USM_KEY_TYPE_MASTER,
            )
            self._users[user.name] = user.secrets
        return self._add_target(family, address, user.name, level, _V3, timeout_s)

    def knows_peer(self, address: tuple[Any, ...]) -> bool:
        """True when the v3 engine of that peer has been discovered."""
        return bool(self._peer_keys(address))

    def forget_peer(self, address: tuple[Any, ...]) -> None:
        """Discover the v3 engine of that peer anew: its identity, boots and time as we know them may be of the past.

        pysnmp would keep them for five minutes and offers no way to drop them.
        """
        queues = self._processing["_SnmpV3MessageProcessingModel__engineIdCacheExpQueue"].values()
        timeline = vars(self._engine.security_models[_V3])["_SnmpUSMSecurityModel__timeline"]
        for key in self._peer_keys(address):
            known = self._processing[_PEERS].pop(key)
            timeline.pop(known["securityEngineId"], None)
            for queue in queues:
                if key in queue:
                    queue.remove(key)

    @property
    def _processing(self) -> dict[str, Any]:
        processing: dict[str, Any] = vars(self._engine.message_processing_subsystems[_V3])
        return processing

    def _peer_keys(self, address: tuple[Any, ...]) -> list[Any]:
        """How pysnmp calls a peer: domain and address."""
        peer = (str(address[0]), int(address[1]))
        return [key for key in self._processing[_PEERS] if (str(key[1][0]), int(key[1][1])) == peer]

    def _add_target(
        self, family: int, address: tuple[Any, ...], security: str, level: str, model: int, timeout_s: float
    ) -> str:
        parameters = f"p-{security}-{level}-{model}"
        if parameters not in self._parameters:
            config.add_target_parameters(self._engine, parameters, security, level, model)
            self._parameters.add(parameters)
        self._asked.add((str(address[0]), int(address[1])))
        key = (family, address, parameters, timeout_s)
        name = self._targets.get(key)
        if name is None:
            name = self._targets[key] = f"t{len(self._targets)}"
            ticks = max(1, round(timeout_s * 100))
            config.add_target_address(self._engine, name, _FAMILIES[family][0], address, parameters, ticks, 0)
        return name

    def send(
        self,
        kind: str,
        family: int,
        target: str,
        oids: Sequence[str],
        repetitions: int,
        future: asyncio.Future[Answer],
        *,
        context: bytes = b"",
        typed: bool = False,
    ) -> None:
        """Send one request ("get", "next" or "bulk"; there is no other kind), to be answered in `future`.

        The same future may be given again when the request is repeated: whichever answer comes first counts.

        Args:
            kind: "get", "next" or "bulk".
            family: of the address.
            target: from `add_community_target` or `add_user_target`.
            oids: dotted.
            repetitions: of a bulk request.
            future: for the answer.
            context: name of the v3 context.
            typed: values as `(tag, value)` of a recording instead of plain Python.

        Raises:
            OSError: when the machine has no way to the peer.
        """
        convert = _tagged if typed else _plain

        def answered(
            _engine: Any, _handle: Any, indication: Any, status: Any, index: Any, varbinds: Any, _context: Any
        ) -> None:
            if not future.done():
                pairs = [(str(name), convert(value)) for name, value in varbinds]
                future.set_result((indication, int(status), int(index), pairs))

        transport = self._transports[family]
        transport.send_error = None
        bindings = [self._binding(oid) for oid in oids]
        generator = self._generators[kind]
        try:
            if kind == "bulk":
                generator.send_varbinds(self._engine, target, None, context, 0, repetitions, bindings, answered)
            else:
                generator.send_varbinds(self._engine, target, None, context, bindings, answered)
        except PySnmpError as error:
            raise OSError(None, f"the request could not be sent ({type(error).__name__})") from None
        if transport.send_error is not None:
            raise transport.send_error

    def _binding(self, oid: str) -> tuple[Any, Any]:
        """Name and null, built once per OID."""
        binding = self._names.get(oid)
        if binding is None:
            if len(self._names) >= 4096:
                self._names.clear()
            binding = self._names[oid] = (rfc1902.ObjectName(oid), rfc1905.unSpecified)
        return binding

    def close(self) -> None:
        """Close the sockets and the timer."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed already
            self._engine.close_dispatcher()
        self._transports.clear()


class Keys:
    """Protocols and master keys of a v3 user as pysnmp wants them. Never shows itself."""

    __slots__ = ("auth", "auth_protocol", "priv", "priv_protocol")

    def __init__(self, user: User) -> None:
        self.auth_protocol, self.priv_protocol = config.USM_AUTH_NONE, config.USM_PRIV_NONE
        self.auth = self.priv = None
        if user.auth is not None:
            self.auth_protocol = _AUTH[user.auth.protocol]
            self.auth = config.AUTH_SERVICES[self.auth_protocol].hash_passphrase(user.auth.password.encode())
        if user.priv is not None:
            self.priv_protocol = _PRIV[user.priv.protocol]
            service = config.PRIV_SERVICES[self.priv_protocol]
            self.priv = service.hash_passphrase(self.auth_protocol, user.priv.password.encode())


def keys_of(user: User) -> Keys:
    """Hash the passwords of a user: a megabyte each (RFC 3414, A.2), so not on an event loop."""
    return Keys(user)


def has_ciphers() -> bool:
    """True when the package that v3 privacy needs is installed."""
    return not des.PysnmpCryptoError


_TAGS: tuple[tuple[type[Any], int], ...] = (
    (rfc1902.Counter64, 70),
    (rfc1902.TimeTicks, 67),
    (rfc1902.Counter32, 65),
    (rfc1902.Gauge32, 66),
    (rfc1902.Unsigned32, 66),
    (rfc1902.IpAddress, 64),
    (rfc1902.Opaque, 68),
    (univ.Integer, 2),
    (univ.ObjectIdentifier, 6),
    (univ.OctetString, 4),
)


def _tagged(value: Any) -> Any:
    """A value with its number in a .snmprec file; `END` at the end of the tree, None for what is not there."""
    if isinstance(value, rfc1905.EndOfMibView):
        return END
    if isinstance(value, rfc1905.NoSuchObject | rfc1905.NoSuchInstance):
        return None
    if isinstance(value, univ.Null):
        return 5, None
    for kind, tag in _TAGS:
        if isinstance(value, kind):
            return tag, bytes(value) if tag == 68 else _plain(value)
    return None


def _plain(value: Any) -> Any:
    """A value as plain Python; None for noSuchObject, noSuchInstance and NULL; `END` for endOfMibView."""
    if isinstance(value, rfc1905.EndOfMibView):
        return END
    if isinstance(value, univ.Null):
        return None
    if isinstance(value, univ.Integer):
        number = int(value)
        if number < 0 and isinstance(value, _UNSIGNED):
            number %= 2**64 if isinstance(value, rfc1902.Counter64) else 2**32
        return number
    if isinstance(value, univ.ObjectIdentifier):
        return str(value)
    if isinstance(value, rfc1902.IpAddress):
        return value.prettyPrint()
    if isinstance(value, univ.OctetString):
        data = bytes(value)
        if isinstance(value, rfc1902.Opaque) and data[:3] == _OPAQUE_FLOAT and len(data) == 7:
            return _float(data[3:])
        return data
    return None


def _float(data: bytes) -> float | None:
    """Four big-endian bytes of IEEE 754; None for NaN and infinities."""
    number: float = struct.unpack(">f", data)[0]
    return number if math.isfinite(number) else None
