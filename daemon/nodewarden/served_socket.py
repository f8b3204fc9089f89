"""A Unix socket with its asyncio server, made anew when somebody removed its file."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from nodewarden.unix_socket import OwnedSocket

log = structlog.get_logger("nodewarden.sockets")


class ServedSocket:
    """An `OwnedSocket` with the server on it, made anew when somebody removed its file.

    Args:
        path: where.
        serve: makes the asyncio server on the bound socket.
    """

    def __init__(self, path: Path, serve: Callable[[socket.socket], Awaitable[asyncio.Server]]) -> None:
        self._path = path
        self._serve = serve
        self._owned: OwnedSocket | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Bind and serve. AlreadyRunningError or RefusedError when the place is taken."""
        self._owned = OwnedSocket(self._path)
        self._server = await self._serve(self._owned.socket)

    async def start_again(self) -> None:
        """Make the socket anew when its file is gone; who is connected stays. Raises as `start`."""
        if self._owned is not None and not self._owned.is_missing:
            return
        if self._server is not None:
            log.warning("socket_removed", path=str(self._path))
        self.refuse()
        self.close()
        await self.start()

    def refuse(self) -> None:
        """Take no new connection; who is connected stays."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Take the file away; after `refuse`."""
        if self._owned is not None:
            self._owned.close()
            self._owned = None
