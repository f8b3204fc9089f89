"""The notify protocol of the service manager, without a library: one datagram to $NOTIFY_SOCKET."""

import os
import socket


def notify(state: str = "", **fields: str | int) -> bool:
    """Tell the service manager, such as `notify("READY=1", STATUS="8 GPUs")`.

    Returns False when there is nobody to tell or the datagram could not be sent: never an error, never a wait.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # a name in the abstract namespace
    lines = [state] if state else []
    lines += [f"{name}={_one_line(value)}" for name, value in fields.items()]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            sender.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def _one_line(value: str | int) -> str:
    return " ".join(str(value).split("\n"))
