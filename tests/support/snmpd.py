"""Debian's snmpd (net-snmp) on loopback: the real peer for SNMPv3, with users of all kinds and two contexts."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from support.ports import free_udp_port, is_bound
from support.processes import Program
from support.real import require_program
from support.wait import wait_for

AUTH_PASSWORD = "auth-7Kq2xWm9"
PRIV_PASSWORD = "priv-4Zt8vRn3"
# our word -> net-snmp's
AUTH = {"md5": "MD5", "sha": "SHA", "sha224": "SHA-224", "sha256": "SHA-256", "sha384": "SHA-384", "sha512": "SHA-512"}
PRIV = {
    "des": "DES",
    "aes": "AES",
    "aes192": "AES-192",
    "aes256": "AES-256",
    "aes192c": "AES-192-C",
    "aes256c": "AES-256-C",
}


class Snmpd(Program):
    """snmpd with the users that `users` yields: (name, auth protocol, priv protocol), each in our words, or None.

    `engine_id` in hexadecimal; snmpd makes one of its own without it. Everything else is read from a new directory.
    """

    def __init__(
        self,
        users: Iterable[tuple[str, str | None, str | None]],
        *,
        port: int | None = None,
        engine_id: str | None = None,
        auth_password: str = AUTH_PASSWORD,
        more: str = "",
    ) -> None:
        program = require_program("snmpd")
        self.port = port or free_udp_port()
        self.scratch = tempfile.TemporaryDirectory(prefix="nw-snmpd-")
        folder = Path(self.scratch.name)
        lines = [f"agentaddress udp:127.0.0.1:{self.port}", "view everything included .1", "sysServices 72"]
        if engine_id is not None:
            lines.append(f"exactEngineID 0x{engine_id}")
        for name, auth, priv in users:
            line = f"createUser {name}"
            level = "noauth"
            if auth is not None:
                line, level = f'{line} {AUTH[auth]} "{auth_password}"', "auth"
            if priv is not None:
                line, level = f'{line} {PRIV[priv]} "{PRIV_PASSWORD}"', "priv"
            lines += [line, f"rouser {name} {level} -V everything *"]
        config = folder / "snmpd.conf"
        config.write_text("\n".join([*lines, more, ""]))
        super().__init__(
            [program, "-f", "-Lf", folder / "log", "-C", "-c", config, "-p", folder / "pid", "-I", "-smux"],
            env={"SNMP_PERSISTENT_DIR": str(folder), "SNMPCONFPATH": str(folder), "MIBS": ""},
        )
        wait_for(lambda: is_bound(self.port), 30, "snmpd to listen")

    def stop(self) -> None:
        super().stop()
        self.scratch.cleanup()
