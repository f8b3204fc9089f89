"""A real mosquitto for tests, with or without TLS, users and rights; and a certificate authority of the test's own."""

import datetime as dt
import ipaddress
import subprocess
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.ports import free_port
from support.processes import Program
from support.real import require_program


class Authority:
    """Signs certificates for 127.0.0.1; writes PEM files into a folder."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.BasicConstraints(ca=True, path_length=0)
        self.certificate = self._signed(self._name, self._key.public_key(), usage, hours=24)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extra: x509.ExtensionType, hours: float
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=2))
            .not_valid_after(now + dt.timedelta(hours=hours))
            .add_extension(extra, critical=isinstance(extra, x509.BasicConstraints))
        )
        return builder.sign(self._key, hashes.SHA256())

    def write(self, folder: Path) -> Path:
        """ca.pem"""
        path = folder / "ca.pem"
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, folder: Path, name: str, *, hours: float = 24) -> tuple[Path, Path]:
        """NAME.pem and NAME.key; with negative `hours` it has ended already."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._signed(subject, key.public_key(), names, hours)
        cert_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_path, key_path


class Broker:
    """mosquitto without persistence on a port of its own; `start` and `stop` as often as wanted.

    lines: of its configuration, after the listener.
    """

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port = free_port()
        self._program: Program | None = None
        self._config = folder / "mosquitto.conf"
        self._lines = lines or ("allow_anonymous true",)
        self._binary = require_program("mosquitto")

    def start(self) -> Self:
        head = [f"listener {self.port} 127.0.0.1", "user root", "log_type all", "connection_messages true"]
        self._config.write_text("\n".join([*head, *self._lines]) + "\n")
        self._program = Program([self._binary, "-c", self._config])
        self._program.wait_for_output("running", 10)
        return self

    @property
    def output(self) -> str:
        assert self._program is not None
        return self._program.output

    def stop(self) -> None:
        if self._program is not None:
            self._program.stop()
            self._program = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def password_file(folder: Path, user: str, password: str) -> Path:
    """As mosquitto_passwd makes it."""
    path = folder / "passwords"
    subprocess.run(
        [require_program("mosquitto_passwd"), "-b", "-c", path, user, password], check=True, capture_output=True
    )
    path.chmod(0o644)
    return path
