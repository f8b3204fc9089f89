"""Loads the configuration: the TOML file, the overlay of this host, secrets. Every mistake is reported, not the first.

Nothing here opens a device or a socket; `nodectl config check` uses it offline. The agent never writes the file.
"""

import importlib.util
import ipaddress
import os
import re
import socket
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nodewarden.config_check import Mistake, check, dotted, line_of
from nodewarden.config_schema import (
    Config,
    HttpConfig,
    JobsConfig,
    JournalConfig,
    LimitsConfig,
    MqttConfig,
    NodeConfig,
    PduConfig,
    SamplingConfig,
    Secret,
    SnmpAuth,
    SnmpPriv,
    XidConfig,
    split_listen,
)
from nodewarden.errors import ConfigError
from nodewarden.xid_table import TableError, XidTable, load_table

__all__ = [
    "Config",
    "HttpConfig",
    "JobsConfig",
    "JournalConfig",
    "LimitsConfig",
    "MqttConfig",
    "NodeConfig",
    "PduConfig",
    "SamplingConfig",
    "Secret",
    "SnmpAuth",
    "SnmpPriv",
    "XidConfig",
    "load_config",
    "split_listen",
]

_MAX_FILE_BYTES = 1 << 20
_MAX_SECRET_BYTES = 4096
_MIN_V3_SECRET = 8  # RFC 3414, 11.2
_CREDENTIALS = "${CREDENTIALS_DIRECTORY}"


def load_config(
    path: Path, *, hostname: str | None = None, environment: Mapping[str, str] | None = None, offline: bool = False
) -> Config:
    """The configuration in `path`; an empty file is a valid one.

    Args:
        path: the TOML file.
        hostname: whose `[host."name"]` overlay applies; the machine's own by default.
        environment: where CREDENTIALS_DIRECTORY is looked up; the process's own by default.
        offline: secrets that cannot be read here are warnings (another user, another machine).

    Raises:
        ConfigError: with every mistake, one line each: file, line where known, key path, what is allowed.
    """
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError([_syntax_line(path, text, error)]) from None
    loader = _Loader(
        path, hostname or socket.gethostname(), os.environ if environment is None else environment, offline
    )
    config = loader.load(document)
    if loader.mistakes:
        raise ConfigError(_lines(path, text, loader.mistakes))
    assert config is not None
    return msgspec.structs.replace(config, path=path, warnings=tuple(_lines(path, text, loader.warnings)))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        hint = "; give the file with --config or NODEWARDEN_CONFIG" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}{hint}"]) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError([f"{path}: is larger than 1 MiB, which no configuration needs"])
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8 text at this line"]) from None


def _syntax_line(path: Path, text: str, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"{path}: is nested too deeply, allowed: the tables of the example file"
    # tomllib names line and column, and of the text at most key names, never a value
    match = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
    said = str(error)[: match.start()] if match else str(error).removesuffix(" (at end of document)")
    line = f":{match[1]}" if match else f":{max(1, len(text.splitlines()))}"
    what = "written twice" if "overwrite" in said or "twice" in said else "not valid TOML"
    return f"{path}{line}: {what}: {said}"


def _lines(path: Path, text: str, mistakes: list[Mistake]) -> list[str]:
    placed = [(line_of(text, mistake.path) or 0, mistake) for mistake in mistakes]
    placed.sort(key=lambda pair: pair[0])
    return [f"{path}{f':{line}' if line else ''}: {dotted(m.path)}: {m.text}" for line, m in placed]


def _decode_secret(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise NotImplementedError


class _Loader:
    """One pass over one document, collecting mistakes and warnings."""

    def __init__(self, path: Path, hostname: str, environment: Mapping[str, str], offline: bool) -> None:
        self.path = path
        self.hostname = hostname
        self.environment = environment
        self.offline = offline
        self.mistakes: list[Mistake] = []
        self.warnings: list[Mistake] = []

    def load(self, document: dict[str, Any]) -> Config | None:
        overlays = document.pop("host", {})
        where: dict[str, tuple[str | int, ...]] = {
            name: (name,) for name in document
        }  # which keys an overlay replaced, for lines in messages
        self._check(document, ())
        merged = document
        if not isinstance(overlays, dict):
            self.mistakes.append(
                Mistake(("host",), 'found no table, allowed: tables such as [host."gpu-node-07".limits]')
            )
            overlays = {}
        for name, overlay in overlays.items():
            if not isinstance(overlay, dict):
                self.mistakes.append(Mistake(("host", name), "found no table, allowed: the tables of this file"))
                continue
            self._check(overlay, ("host", name))
            if name in {self.hostname, self.hostname.partition(".")[0]}:
                merged = _merge(merged, overlay)
                where |= {key: ("host", name, key) for key in overlay}
        if self.mistakes:
            return None
        short = re.sub(r"[^A-Za-z0-9._-]", "-", self.hostname.partition(".")[0]).lstrip("._-")[:63] or "node"
        merged = _merge({"node": {"name": short}}, merged)
        config = msgspec.convert(merged, Config, dec_hook=_decode_secret)
        config = self._fill_mqtt(config, where.get("mqtt", ("mqtt",)))
        config = self._fill_bmc(config, where.get("bmc", ("bmc",)))
        try:
            xid_table_of(config, self.path)
        except TableError as error:
            problems = self.warnings if self.offline else self.mistakes
            problems += [Mistake((*where.get("xid", ("xid",)), "table"), text) for text in error.mistakes]
        return self._fill_secrets(config, where.get("pdu", ("pdu",)))

    def _check(self, table: dict[str, Any], where: tuple[str | int, ...]) -> None:
        """Types, ranges and unknown keys of the file or of one overlay, where every key may be left out."""
        node = table.get("node")
        padded = (
            {**table, "node": {"name": "x", **node}} if isinstance(node, dict) else {"node": {"name": "x"}, **table}
        )
        self.mistakes += check(padded, Config, _decode_secret, where)
        self._check_pdus(table.get("pdu"), (*where, "pdu"))
        http = table.get("http")
        listen = http.get("listen") if isinstance(http, dict) else None
        if isinstance(listen, str):
            try:
                split_listen(listen)
            except ValueError as error:
                self.mistakes.append(Mistake((*where, "http", "listen"), f'found "{listen[:60]}", {error}'))

    def _check_pdus(self, pdus: Any, where: tuple[str | int, ...]) -> None:
        """What one key alone cannot tell: names used twice, the secrets that a version needs."""
        seen: dict[str, int] = {}
        for index, pdu in enumerate(pdus if isinstance(pdus, list) else []):
            if not isinstance(pdu, dict):
                continue
            here = (*where, index)
            name = pdu.get("name")
            if isinstance(name, str):
                if "/" in name or not name.isprintable():
                    self._wrong((*here, "name"), "has / or control characters, allowed: any other text")
                if name in seen:
                    self._wrong(
                        (*here, "name"), f'"{name}" is also the name of pdu[{seen[name]}], allowed: unique names'
                    )
                seen.setdefault(name, index)
            host = pdu.get("host")
            if isinstance(host, str) and ":" in host and "/" not in host and not _is_ipv6(host):
                self._wrong((*here, "host"), "has a colon, allowed: a name or an address; the port is a key of its own")
            outlets = pdu.get("outlets")
            if isinstance(outlets, list):
                twice = sorted({o for o in outlets if isinstance(o, int) and outlets.count(o) > 1})
                if twice:
                    self._wrong((*here, "outlets"), f"names outlet {twice[0]} twice, allowed: each outlet once")
            if pdu.get("limit_w") is not None and not outlets:
                self._wrong(
                    (*here, "limit_w"), "bounds the sum of `outlets`, but none are named, needed: outlets = [7, 8]"
                )
            self._check_access(pdu, here)

    def _check_access(self, pdu: dict[str, Any], here: tuple[str | int, ...]) -> None:
        version = pdu.get("version", "2c")
        inline, from_file = "community" in pdu, "community_file" in pdu
        if version in {"1", "2c"}:
            if inline and from_file:
                self._wrong(here, "has both community and community_file, allowed: one of them")
            elif not inline and not from_file:
                self._wrong(here, f'version "{version}" needs community_file (or community)')
            for key in ("user", "auth", "priv", "context"):
                if key in pdu:
                    self._wrong((*here, key), f'belongs to version "3", but version is "{version}"')
        elif version == "3":
            if inline or from_file:
                self._wrong(here, 'version "3" has no community, needed: user, auth, priv')
            if "user" not in pdu:
                self._wrong(here, 'version "3" needs user')
            if "priv" in pdu and "auth" not in pdu:
                self._wrong((*here, "priv"), "needs auth as well")

    def _wrong(self, where: tuple[str | int, ...], text: str) -> None:
        self.mistakes.append(Mistake(where, text))

    def _warn(self, where: tuple[str | int, ...], text: str) -> None:
        self.warnings.append(Mistake(where, text))

    def _fill_secrets(self, config: Config, where: tuple[str | int, ...]) -> Config:
        filled = []
        for index, pdu in enumerate(config.pdu):
            here = (*where, index)
            changes: dict[str, Any] = {}
            if pdu.community is not None and self.path.stat().st_mode & stat.S_IROTH:
                self._warn(
                    (*here, "community"), "can be read by everyone in this file; use community_file, or chmod 0640 it"
                )
            if pdu.community_file is not None:
                changes["community"] = self._secret(pdu.community_file, (*here, "community_file"))
            if pdu.auth is not None:
                secret = self._secret(pdu.auth.secret_file, (*here, "auth", "secret_file"))
                changes["auth"] = msgspec.structs.replace(pdu.auth, secret=secret)
            if pdu.priv is not None:
                secret = self._secret(pdu.priv.secret_file, (*here, "priv", "secret_file"))
                changes["priv"] = msgspec.structs.replace(pdu.priv, secret=secret)
            for key in ("auth", "priv"):
                secret = getattr(changes.get(key), "secret", None)
                if secret is not None and len(secret.reveal().encode()) < _MIN_V3_SECRET:
                    self._wrong(
                        (*here, key), f"its password is shorter than {_MIN_V3_SECRET} bytes, which SNMPv3 forbids"
                    )
            if pdu.priv is not None and importlib.util.find_spec("cryptography") is None:
                self._warn((*here, "priv"), "needs the package cryptography: pip install 'nodewarden[snmpv3]'")
            filled.append(msgspec.structs.replace(pdu, **changes))
        return msgspec.structs.replace(config, pdu=tuple(filled))

    def _fill_mqtt(self, config: Config, here: tuple[str | int, ...]) -> Config:
        mqtt = config.mqtt
        if mqtt is None:
            return config
        if mqtt.cert_file is not None and mqtt.key_file is None:
            self._wrong((*here, "cert_file"), "needs key_file as well")
        if mqtt.key_file is not None and mqtt.cert_file is None:
            self._wrong((*here, "key_file"), "needs cert_file as well")
        for key in ("ca_file", "cert_file", "key_file"):
            if getattr(mqtt, key) is not None and not mqtt.tls:
                self._wrong((*here, key), "belongs to TLS, needed: tls = true")
        if mqtt.password_file is not None and mqtt.user is None:
            self._wrong((*here, "password_file"), "needs user as well")
        files = {key: self._file(getattr(mqtt, key), (*here, key)) for key in ("ca_file", "cert_file", "key_file")}
        password = None
        if mqtt.password_file is not None:
            password = self._secret(mqtt.password_file, (*here, "password_file"))
            if not mqtt.tls:
                self._warn((*here, "password_file"), "goes over the network in the clear; tls = true protects it")
        return msgspec.structs.replace(config, mqtt=msgspec.structs.replace(mqtt, password=password, **files))

    def _fill_bmc(self, config: Config, here: tuple[str | int, ...]) -> Config:
        bmc = config.bmc
        if bmc is None:
            return config
        if (bmc.password_file is None) == bool(bmc.user):
            key = "user" if bmc.user else "password_file"
            self._wrong((*here, key), "needs password_file as well" if bmc.user else "needs user as well")
        if bmc.ca_file is not None and bmc.fingerprint is not None:
            self._wrong((*here, "fingerprint"), "stands beside ca_file, allowed: one of them")
        if bmc.url.startswith("http://"):
            self._warn((*here, "url"), "sends the password in the clear; https protects it")
        ca_file = self._file(bmc.ca_file, (*here, "ca_file"))
        password = self._secret(bmc.password_file, (*here, "password_file")) if bmc.password_file else None
        return msgspec.structs.replace(config, bmc=msgspec.structs.replace(bmc, password=password, ca_file=ca_file))

    def _file(self, named: str | None, here: tuple[str | int, ...]) -> str | None:
        """The path that a key names, relative to the configuration file; None where it names none."""
        if named is None:
            return None
        expanded = self._expanded(named, here)
        return str((self.path.parent / expanded).absolute()) if expanded is not None else None

    def _expanded(self, named: str, here: tuple[str | int, ...]) -> str | None:
        directory = self.environment.get("CREDENTIALS_DIRECTORY")
        if _CREDENTIALS in named and not directory:
            problems = self.warnings if self.offline else self.mistakes
            text = "uses ${CREDENTIALS_DIRECTORY}, which only a service with LoadCredential= has"
            problems.append(Mistake(here, text))
            return None
        expanded = named.replace(_CREDENTIALS, directory or "")
        if "$" in expanded:
            self._wrong(here, "has a $, allowed: a path, with ${CREDENTIALS_DIRECTORY} as the only variable")
            return None
        return expanded

    def _secret(self, named: str, here: tuple[str | int, ...]) -> Secret | None:
        problems = self.warnings if self.offline else self.mistakes
        expanded = self._expanded(named, here)
        if expanded is None:
            return None
        file = self.path.parent / expanded
        try:
            with file.open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                text = opened.read(_MAX_SECRET_BYTES + 1).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a text file"
            problems.append(Mistake(here, f"{expanded} cannot be read: {reason}"))
            return None
        if not text or len(text) > _MAX_SECRET_BYTES:
            problems.append(
                Mistake(here, f"{expanded} is {'empty' if not text else 'too long'}, allowed: one line of text")
            )
            return None
        if mode & stat.S_IROTH:
            self._warn(here, f"{expanded} can be read by everyone; chmod 0600 it")
        return Secret(text)


def xid_table_of(config: Config, path: Path | None) -> XidTable:
    """The table of error numbers that the configuration read from `path` names. Raises xid_table.TableError."""
    named = config.xid.table
    if named is None:
        return load_table()
    return load_table((path.parent if path is not None else Path()) / named)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; lists (such as all PDUs) and values are replaced."""
    out = dict(base)
    for key, value in over.items():
        mine = out.get(key)
        out[key] = _merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return out


def check_against_boards(config: Config, path: Path, lows_w: list[float]) -> None:
    """Refuse limits that the boards cannot be held to; only a running agent knows the boards.

    Args:
        config: read from `path`.
        path: for the message.
        lows_w: the lowest cap that each GPU accepts; empty while none is known.

    Raises:
        ConfigError: names each limit that is too low.
    """
    if not lows_w:
        return
    node_power_w, failsafe_w = config.limits.node_power_w, config.limits.failsafe_w
    problems = []
    if node_power_w is not None and node_power_w < sum(lows_w):
        problems.append(
            f"{path}: limits.node_power_w: found {node_power_w:g}, allowed: at least "
            f"{sum(lows_w):g} (the lowest caps of {len(lows_w)} GPUs together)"
        )
    if failsafe_w is not None and failsafe_w < min(lows_w):
        problems.append(
            f"{path}: limits.failsafe_w: found {failsafe_w:g}, allowed: at least "
            f"{min(lows_w):g} (the lowest cap that a GPU here takes)"
        )
    if problems:
        raise ConfigError(problems)
