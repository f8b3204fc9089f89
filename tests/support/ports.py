"""Free loopback ports for servers that cannot be told to choose one themselves."""

import socket


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port on 127.0.0.1 that nobody had a moment ago."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_udp_port() -> int:
    """The same for UDP."""
    return free_port(socket.SOCK_DGRAM)
