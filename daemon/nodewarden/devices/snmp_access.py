"""What a device asks for before it answers: a community (v1, v2c) or a user (v3). None of it ever shows its secrets."""

from typing import Final, Literal, get_args

import msgspec

AuthProtocol = Literal["md5", "sha", "sha224", "sha256", "sha384", "sha512"]
# aes192 and aes256 stretch a short key as net-snmp does, aes192c and aes256c as Cisco and many PDU vendors do
PrivProtocol = Literal["des", "aes", "aes192", "aes256", "aes192c", "aes256c"]

AUTH_PROTOCOLS: Final[tuple[AuthProtocol, ...]] = get_args(AuthProtocol)
PRIV_PROTOCOLS: Final[tuple[PrivProtocol, ...]] = get_args(PrivProtocol)

MIN_PASSWORD = 8  # RFC 3414, 11.2

# Reasons of errors that only other credentials can mend; asking again soon may lock the user out.
CREDENTIALS_REASONS: Final = frozenset(
    {"auth", "auth_failed", "unknown_user", "decryption", "security_level", "unknown_context"}
)


class Community:
    """What v1 and v2c ask for. Never shows itself."""

    __slots__ = ("community", "version")

    def __init__(self, community: str, version: Literal["1", "2c"] = "2c") -> None:
        if not community:
            raise ValueError("the community is empty; give the one that the device allows to read")
        self.community = community
        self.version: Literal["1", "2c", "3"] = version

    def __repr__(self) -> str:
        return f"Community(***, version={self.version!r})"


class Key(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A protocol of authentication or privacy and its password."""

    protocol: str
    password: str

    def __repr__(self) -> str:
        return f"Key({self.protocol!r}, ***)"


class User:
    """What v3 asks for: a user, and a password each for authentication and privacy as the device wants them.

    Args:
        name: of the user; no secret.
        auth: protocol of `AUTH_PROTOCOLS` and its password; None = noAuthNoPriv.
        priv: protocol of `PRIV_PROTOCOLS` and its password; needs `auth`.
        context: name of the context, empty for the default one.

    Raises:
        ValueError: with what is allowed; the text holds no password.
    """

    __slots__ = ("auth", "context", "name", "priv")
    version: Literal["3"] = "3"

    def __init__(
        self,
        name: str,
        *,
        auth: tuple[AuthProtocol, str] | None = None,
        priv: tuple[PrivProtocol, str] | None = None,
        context: str = "",
    ) -> None:
        if not 0 < len(name.encode()) <= 32:
            raise ValueError("the name of an SNMPv3 user has 1 to 32 bytes")
        if priv is not None and auth is None:
            raise ValueError("SNMPv3 has privacy only with authentication: give both or authentication alone")
        for word, given, allowed in (
            ("authentication", auth, AUTH_PROTOCOLS),
            ("privacy", priv, PRIV_PROTOCOLS),
        ):
            if given is None:
                continue
            if given[0] not in allowed:
                raise ValueError(f"no {word} protocol {given[0]!r}, allowed: {', '.join(allowed)}")
            if len(given[1].encode()) < MIN_PASSWORD:
                raise ValueError(f"the {word} password is shorter than {MIN_PASSWORD} bytes, which SNMPv3 forbids")
        self.name = name
        self.auth = None if auth is None else Key(*auth)
        self.priv = None if priv is None else Key(*priv)
        self.context = context

    @property
    def level(self) -> str:
        """How much is protected: "noAuthNoPriv", "authNoPriv" or "authPriv"."""
        if self.auth is None:
            return "noAuthNoPriv"
        return "authNoPriv" if self.priv is None else "authPriv"

    @property
    def secrets(self) -> tuple[Key | None, Key | None]:
        """Two users of one name with different secrets need an engine each."""
        return self.auth, self.priv

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.level})"


Credentials = Community | User
