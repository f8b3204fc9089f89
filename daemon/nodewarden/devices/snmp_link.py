"""One request to one SNMP peer: its address, its v3 engine, the repetition of a lost datagram, and errors in words."""

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nodewarden.devices.resolve import look_up
from nodewarden.devices.snmp_access import Community, Credentials, User
from nodewarden.errors import DeviceError, DeviceTimeoutError, NotSupportedError

if TYPE_CHECKING:
    from nodewarden.devices.snmp import SnmpEngine

Value = int | float | bytes | str | None
Answer = tuple[int, int, list[tuple[str, Value]]]  # error status, error index, names and values

_UP_TIME = "1.3.6.1.2.1.1.3.0"
# What pysnmp calls a refusal -> our reason, and what a person should look at.
_REFUSALS = {
    "UnknownUserName": ("unknown_user", "it does not know this user"),
    "UnknownSecurityName": ("unknown_user", "it does not know this user"),
    "WrongDigest": ("auth_failed", "the authentication password or protocol is wrong"),
    "AuthenticationFailure": ("auth_failed", "the authentication password or protocol is wrong"),
    "AuthenticationError": ("auth_failed", "the authentication password or protocol is wrong"),
    "DecryptionError": ("decryption", "the privacy password or protocol is wrong"),
    "UnsupportedSecurityLevel": ("security_level", "it has no authentication or privacy of this kind for this user"),
    "UnsupportedAuthProtocol": ("security_level", "this authentication protocol is not available"),
    "UnsupportedPrivProtocol": ("security_level", "this privacy protocol is not available"),
    "EncryptionError": ("security_level", "this privacy protocol is not available"),
    "UnknownContextName": ("unknown_context", "it has no such context"),
    "UnavailableContext": ("unknown_context", "it has no such context"),
}
_OUT_OF_STEP = frozenset({"NotInTimeWindow", "UnknownEngineID"})
_FORGET_AFTER = 2  # v3 time-outs in a row, after which the peer's engine is discovered anew
_DISCOVERY = 3  # v3 needs up to so many answers before the first value


def load_pysnmp() -> Any:
    """The module with pysnmp behind it: 20 MB and 0.4 s that only nodes with a PDU pay."""
    from nodewarden.devices import pysnmp_engine  # noqa: PLC0415

    return pysnmp_engine


class Link:
    """Requests to one peer with one set of credentials. The caller sees to it that there is one at a time.

    Attributes:
        latency_s: how long the last answer took, None before the first.
        timeout_s: how long one answer may take.
    """

    def __init__(self, engine: "SnmpEngine", host: str, port: int, credentials: Credentials, timeout_s: float) -> None:
        self.engine = engine
        self.host, self.port, self.timeout_s = host, port, timeout_s
        self.latency_s: float | None = None
        self._credentials = credentials
        self._user = credentials if isinstance(credentials, User) else None
        self._keys: Any = None  # of a v3 user, once hashed
        self._raw: Any = None  # the pysnmp engine that knows `_target`
        self._target: str | None = None
        self._probe_target: str | None = None  # the same v3 user without privacy
        self._address: tuple[Any, ...] = ()
        self._family: int = socket.AF_INET
        self._timeouts = 0  # in a row
        self._proved = False  # the peer's v3 engine, as we know it, has answered

    def forget_address(self) -> None:
        """Look the name up again before the next request."""
        self._target = None

    def first_timeout_s(self) -> float:
        """How long one GET may take: with v3 the peer's engine has to be discovered first, or a refusal found out."""
        return self.timeout_s if self._user is None or self._proved else (_DISCOVERY + 1) * self.timeout_s

    async def request(self, kind: str, oids: Sequence[str], repetitions: int = 0, *, typed: bool = False) -> Answer:
        """One request, sent twice when the device usually answers fast enough for that (UDP may lose one).

        Raises:
            DeviceError: with reason "timeout", "unreachable", "bad_answer" or one of `CREDENTIALS_REASONS`.
        """
        await self._resolve()
        assert self._target is not None
        attempts = [self.timeout_s if self._user is None or self._proved else _DISCOVERY * self.timeout_s]
        if self.latency_s is not None and self.latency_s < self.timeout_s / 6:
            attempts = [attempts[0] / 2] * 2
        garbage = self.garbage()
        began_s = time.monotonic()
        for again in (True, False):
            answer = await self._ask(self._target, kind, oids, repetitions, attempts, typed=typed)
            if answer is None:
                await self._find_refusal()
                raise self.no_answer(garbage, sum(attempts))
            indication, status, index, pairs = answer
            if indication is None:
                self.latency_s = time.monotonic() - began_s
                self._timeouts, self._proved = 0, True
                return status, index, pairs
            if again and indication in _OUT_OF_STEP:
                self._forget_peer()
                continue
            raise self._indicated(indication)
        raise AssertionError  # the second turn always ends

    async def _ask(
        self,
        target: str,
        kind: str,
        oids: Sequence[str],
        repetitions: int,
        attempts: Sequence[float],
        *,
        typed: bool = False,
    ) -> tuple[str | None, int, int, list[tuple[str, Value]]] | None:
        """What pysnmp says of one request (its word for an error first), None when nothing came in time."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        context = b"" if self._user is None else self._user.context.encode()
        for attempt_s in attempts:
            try:
                self._raw.send(kind, self._family, target, oids, repetitions, future, context=context, typed=typed)
            except OSError as error:
                raise self._unreachable(error.strerror or "the address cannot be reached") from None
            await asyncio.wait({future}, timeout=attempt_s)
            if future.done():
                indication, status, index, pairs = future.result()
                word = None
                if indication:
                    word = indication if isinstance(indication, str) else type(indication).__name__
                return None if word == "RequestTimedOut" else (word, status, index, pairs)
        return None

    # v3

    async def _find_refusal(self) -> None:
        """Silence of a v3 peer that has told its engine: does it answer without privacy? Then that is what is wrong."""
        if self._probe_target is None or self._proved or not self._raw.knows_peer(self._address):
            return
        answer = await self._ask(self._probe_target, "get", [_UP_TIME], 0, [self.timeout_s])
        if answer is not None and answer[0] not in _OUT_OF_STEP:
            raise self._indicated("DecryptionError" if answer[0] in {None, "UnsupportedSecurityLevel"} else answer[0])

    def _forget_peer(self) -> None:
        self._raw.forget_peer(self._address)
        self._timeouts, self._proved = 0, False

    # address and target

    async def _resolve(self) -> None:
        raw = await self.engine.raw(self._credentials)
        if raw is not self._raw:
            self._raw, self._target = raw, None
        if self._target is not None:
            return
        if self._user is not None and self._keys is None:
            if self._user.priv is not None and not load_pysnmp().has_ciphers():
                raise NotSupportedError(
                    "SNMPv3 privacy needs the package `cryptography`, which is not installed:"
                    " pip install 'nodewarden[snmpv3]' (Debian: python3-cryptography)"
                )
            self._keys = await asyncio.to_thread(load_pysnmp().keys_of, self._user)
        before = self._address
        try:
            self._family, self._address = await look_up(self.host, self.port)
            await raw.open_family(self._family)
            self._add_targets(raw)
        except OSError as error:
            raise self._unreachable(error.strerror or "the name cannot be looked up") from None
        if before != self._address:
            self._timeouts, self._proved = 0, False

    def _add_targets(self, raw: Any) -> None:
        if isinstance(self._credentials, Community):
            model = 0 if self._credentials.version == "1" else 1
            self._target = raw.add_community_target(
                self._family, self._address, self._credentials.community, model, self.timeout_s
            )
            return
        user = self._credentials
        where = (self._family, self._address, user, self._keys, _DISCOVERY * self.timeout_s)
        self._target = raw.add_user_target(*where, user.level)
        self._probe_target = None if user.priv is None else raw.add_user_target(*where, "authNoPriv")

    def garbage(self) -> int:
        """How many datagrams of this peer were no SNMP so far."""
        if self._raw is None or not self._address:
            return 0
        return int(self._raw.garbage.get((str(self._address[0]), int(self._address[1])), 0))

    # errors, none of which can hold a secret

    def _indicated(self, word: str | None) -> DeviceError:
        if word in _REFUSALS:
            reason, why = _REFUSALS[word]
            who = "" if self._user is None else f" of user {self._user.name} ({self._user.level})"
            return DeviceError(f"{self.host}:{self.port} refused the credentials{who}: {why}", reason)
        return self.bad(word or "nothing")

    def no_answer(self, garbage_before: int, deadline_s: float) -> DeviceError:
        """The error for silence; for garbage where that came instead.

        A v3 peer that stays silent may be another engine now (a swapped card): it is discovered anew.
        """
        self._timeouts += 1
        if self._timeouts >= _FORGET_AFTER and self._user is not None and self._raw is not None:
            self._forget_peer()
        if self.garbage() > garbage_before:
            return self.bad("what it sends is not SNMP")
        last = "" if self.latency_s is None else f"; its last answer took {self.latency_s:.1f} s"
        access = "community" if self._user is None else "SNMPv3 user"
        return DeviceTimeoutError(
            f"no answer from {self.host}:{self.port} within {deadline_s:g} s{last}"
            f" (check the address, UDP port, {access} and the device's list of allowed managers)"
        )

    def _unreachable(self, why: str) -> DeviceError:
        return DeviceError(f"{self.host}:{self.port} is unreachable: {why}", "unreachable")

    def bad(self, why: str) -> DeviceError:
        """The error for an answer that makes no sense."""
        return DeviceError(f"{self.host}:{self.port} gave a bad answer: {why}", "bad_answer")
