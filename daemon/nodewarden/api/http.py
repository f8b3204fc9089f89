"""The HTTP port: /metrics and /metrics/dcgm for Prometheus, /healthz from the progress of the loops. Read only.

No access log. It runs in the agent's loop and serves what the last view holds: no request reaches a device. A port that
is taken is tried again and reported, never fatal.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.config import Config

from nodewarden.api.http_protocol import IDLE_S, MAX_HEADER_BYTES, Connections, protocol_factory
from nodewarden.api.view import LoopHealth, View
from nodewarden.clock import Clock
from nodewarden.errors import NodewardenError

log = structlog.get_logger("nodewarden.http")

RETRY_S = 5.0
LAG_PROBE_S = 1.0
# A flood of connections waits in the kernel and is accepted in small portions, so that the loops get their turn.
BACKLOG = 512
ACCEPT_AT_ONCE = 8

TEXT = "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HINT = "not here; there is /metrics (Prometheus), /metrics/dcgm and /healthz\n"


class Own(Protocol):
    """Where we count what we do."""

    def answered(self, path: str, status: int) -> None:
        """A request was answered."""
        ...

    def dropped(self, reason: str) -> None:
        """A connection was closed by us."""
        ...

    def connections(self, count: int) -> None:
        """So many are open."""
        ...

    def lagged(self, lag_s: float) -> None:
        """The event loop woke up this late."""
        ...


class PageRenderer(Protocol):
    """Renders the exposition page."""

    @property
    def own(self) -> Own:
        """The agent's metrics about itself."""
        ...

    def render(self, view: View, now_s: float) -> bytes:
        """The page."""
        ...

    def render_gzip(self, view: View, now_s: float) -> bytes:
        """The page, compressed."""
        ...


class DcgmRenderer(Protocol):
    """Renders the page under the names of dcgm-exporter."""

    def render(self, view: View, now_s: float, hostname_label: str) -> bytes:
        """The page."""
        ...


def stalled_loops(view: View, now_s: float) -> dict[str, LoopHealth]:
    """Loops without progress at `now_s`.

    The view is made by the control loop: when it is old, control has stalled and nothing newer is known of the others.
    """
    return {
        name: loop
        for name, loop in view.loops.items()
        if loop.is_stalled(now_s if name == "control" else min(now_s, view.now_s))
    }


class HttpServer:
    """Serves `view` on `listen`.

    Attributes:
        problem: why nothing is served now, in words for people; None = all is well.
        port: the port that is bound, None while none is.
    """

    def __init__(
        self,
        listen: str,
        view: Callable[[], View],
        renderer: PageRenderer,
        clock: Clock,
        dcgm: DcgmRenderer | None = None,
    ) -> None:
        self._listen = listen
        self._view = view
        self._renderer = renderer
        self._dcgm = dcgm
        self._clock = clock
        self._own = renderer.own
        self._connections = Connections(self._own.dropped, self._own.connections)
        self._server: asyncio.Server | None = None
        self._retry: asyncio.Task[None] | None = None
        self._probe: asyncio.TimerHandle | None = None
        self.problem: str | None = "not started yet"
        self.port: int | None = None

    async def start(self) -> None:
        """Bind, or go on trying every 5 s in the background. Never raises for a port that cannot be had."""
        self._probe_lag()
        if not await self._bind():
            self._retry = asyncio.create_task(self._bind_later(), name="http_bind")

    async def close(self) -> None:
        """Stop listening and close all connections at once."""
        for pending in (self._retry, self._probe):
            if pending is not None:
                pending.cancel()
        if self._server is not None:
            self._server.close()
            self._connections.abort_all()
            await self._server.wait_closed()
        self._server, self.port = None, None

    async def _bind(self) -> bool:
        host, port = split_listen(self._listen)
        config = Config(
            self._app(),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(IDLE_S),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        try:
            listener = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            if self.problem is None or not self.problem.startswith(self._listen):
                log.warning("http_unavailable", listen=self._listen, reason=reason)
            self.problem = f"{self._listen}: {reason}"
            return False
        factory = protocol_factory(config, self._connections)
        self._server = await asyncio.get_running_loop().create_server(factory, sock=listener, backlog=ACCEPT_AT_ONCE)
        listener.listen(BACKLOG)  # asyncio's backlog is both this and how many it accepts in one go
        self.problem, self.port = None, listener.getsockname()[1]
        log.info("http_listening", listen=self._listen, port=self.port)
        return True

    async def _bind_later(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now_s() + RETRY_S)
            if await self._bind():
                return

    def _probe_lag(self, expected_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if expected_s is not None:
            self._own.lagged(max(0.0, now_s - expected_s))
        self._probe = loop.call_at(now_s + LAG_PROBE_S, self._probe_lag, now_s + LAG_PROBE_S)

    # Requests -----------------------------------------------------------------------------------------------------

    def _app(self) -> Starlette:
        routes = [Route("/metrics", self._metrics), Route("/healthz", self._healthz)]
        if self._dcgm is not None:
            routes.append(Route("/metrics/dcgm", partial(self._dcgm_metrics, self._dcgm)))
        return Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._not_here, Exception: self._failed},
        )

    async def _metrics(self, request: Request) -> Response:
        packed = "gzip" in request.headers.get("accept-encoding", "")
        try:
            view = self._view()
        except NodewardenError as error:
            return self._answer("/metrics", 503, f"{error}\n".encode(), TEXT)
        now_s = self._clock.now_s()
        render = self._renderer.render_gzip if packed else self._renderer.render
        response = self._answer("/metrics", 200, render(view, now_s), METRICS_TYPE)
        response.headers["vary"] = "accept-encoding"
        if packed:
            response.headers["content-encoding"] = "gzip"
        return response

    async def _dcgm_metrics(self, dcgm: DcgmRenderer, request: Request) -> Response:
        """The node's name is under `?hostname_label=`, "hostname" by default, "Hostname" as before 2026."""
        path, label = "/metrics/dcgm", request.query_params.get("hostname_label", "hostname")
        if label not in ("hostname", "Hostname"):
            return self._answer(path, 400, b"hostname_label is hostname (the default) or Hostname\n", TEXT)
        try:
            view = self._view()
        except NodewardenError as error:
            return self._answer(path, 503, f"{error}\n".encode(), TEXT)
        return self._answer(path, 200, dcgm.render(view, self._clock.now_s(), label), METRICS_TYPE)

    async def _healthz(self, request: Request) -> Response:
        del request
        try:
            view = self._view()
        except NodewardenError as error:
            starting = {"status": "starting", "detail": str(error)}
            return self._answer("/healthz", 503, msgspec.json.encode(starting), "application/json")
        now_s = self._clock.now_s()
        stalled = stalled_loops(view, now_s)
        critical = any(loop.critical for loop in stalled.values())
        body = {
            "status": "stalled" if critical else "degraded" if stalled else "ok",
            "stalled": [
                {"loop": name, "critical": loop.critical, "age_s": round(now_s - loop.progress_s, 1)}
                for name, loop in stalled.items()
            ],
            "node": view.node_name,
            "version": view.version,
        }
        return self._answer("/healthz", 503 if critical else 200, msgspec.json.encode(body), "application/json")

    def _not_here(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        text = HINT if status == 404 else f"{request.method} is not allowed here; {HINT}"
        response = self._answer("other", status, text.encode(), TEXT)
        response.headers["connection"] = "close"
        return response

    def _failed(self, request: Request, error: Exception) -> Response:
        log.error("http_request_failed", path=request.url.path[:80], error=repr(error))
        return self._answer("other", 500, b"internal error; the agent's log says more\n", TEXT)

    def _answer(self, path: str, status: int, body: bytes, media_type: str) -> Response:
        self._own.answered(path, status)
        return Response(body, status, media_type=media_type)


def split_listen(listen: str) -> tuple[str, int]:
    """ADDRESS:PORT in two, `[::]:10048` included.

    Raises:
        ValueError: the port is no number.
    """
    host, _, port = listen.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - documented default: all interfaces, read only
