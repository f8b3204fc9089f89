"""Free loopback ports for servers that cannot be told to choose one themselves."""

import socket
from pathlib import Path


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port on 127.0.0.1 that nobody had a moment ago."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_bound(port: int) -> bool:
    """Somebody has that UDP port on IPv4: what is sent to it before is lost."""
    return any(f":{port:04X} " in line[:30] for line in Path("/proc/net/udp").read_text().splitlines())


def free_udp_port() -> int:
    """The same for UDP."""
    return free_port(socket.SOCK_DGRAM)
