"""Trust in exactly one certificate, named by its SHA-256: BMCs sign theirs themselves, and let them expire."""

import hashlib
import socket
import ssl

from nodewarden.errors import DeviceError

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL; the pin is the whole trust


def fingerprint_of(certificate_der: bytes) -> str:
    """SHA-256 of a certificate, 64 hexadecimal digits."""
    return hashlib.sha256(certificate_der).hexdigest()


def plain_fingerprint(text: str) -> str:
    """64 hexadecimal digits, from what openssl or a browser shows. Raises ValueError for anything else."""
    digits = text.lower().removeprefix("sha256:").replace(":", "").replace(" ", "")
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"{text!r} is not allowed: the SHA-256 of a certificate has 64 hexadecimal digits")
    return digits


def shown_certificate(host: str, port: int, timeout_s: float) -> bytes:
    """The certificate that a server shows now, DER. Blocking; nothing is sent over this connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=timeout_s) as raw,
        context.wrap_socket(raw, server_hostname=host) as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""


def pinned_context(host: str, port: int, fingerprint: str, timeout_s: float) -> ssl.SSLContext:
    """A context in which only the certificate with this fingerprint is trusted.

    Raises:
        DeviceError: "refused" when the server shows another one; with both fingerprints.
    """
    shown = shown_certificate(host, port, timeout_s)
    if fingerprint_of(shown) != plain_fingerprint(fingerprint):
        raise DeviceError(
            f"https://{host}:{port} shows the certificate {fingerprint_of(shown)}, expected {fingerprint}: someone "
            f"else answers, or the BMC has a new one (then change fingerprint)",
            "refused",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(shown))
    context.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    return context
