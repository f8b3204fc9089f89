"""Names to addresses without blocking the event loop, or the end of the process."""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from typing import Any


def is_address(host: str) -> bool:
    """True for an IPv4 or IPv6 address, which needs no lookup."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # a zone is resolved to its interface number


async def look_up(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Address family and UDP socket address of a name or address; IPv4 first. Raises OSError.

    The lookup has a daemon thread of its own: a dead name server must delay neither the loop nor the end of the
    process, which waits for the threads of the default executor.
    """
    if is_address(host):
        return (socket.AF_INET6, (host, port, 0, 0)) if ":" in host else (socket.AF_INET, (host, port))
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Any]] = loop.create_future()

    def deliver(result: list[Any] | OSError) -> None:
        if future.done():
            return
        if isinstance(result, OSError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def resolve() -> None:
        result: list[Any] | OSError
        try:
            result = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError as error:
            result = error
        except UnicodeError:
            result = OSError(None, "not a host name")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=resolve, name="nodewarden-resolve", daemon=True).start()
    found = sorted(await future, key=lambda entry: entry[0] != socket.AF_INET)
    if not found:
        raise OSError(None, "the name has no address")
    return int(found[0][0]), tuple(found[0][4])
