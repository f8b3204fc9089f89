"""Redfish at the wire: sushy-static over recorded trees, and a BMC of our own that misbehaves on purpose."""

import base64
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.processes import Program
from support.servers import free_port
from support.wait import wait_for

TREES = Path(__file__).resolve().parents[2].parent / "shared" / "redfish"


class RecordedBmc(Program):
    """sushy-static over one recorded tree."""

    def __init__(self, tree: Path) -> None:
        self.port = free_port()
        super().__init__(
            [Path(sys.executable).with_name("sushy-static"), "-m", tree, "-p", str(self.port), "-i", "127.0.0.1"]
        )
        wait_for(self._accepts, 30, "sushy-static to listen")

    def _accepts(self) -> bool:
        assert self.running, self.output
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Answer = tuple[int, Mapping[str, str], bytes]


class Bmc:
    """A small BMC with sessions.

    Args:
        resources: path -> document, or a function that answers.
        sessions: False = Basic only (405 on the session service).
        tls: PEM files of certificate and key.

    Attributes:
        requests: (method, path) of all that came.
        tokens: of the sessions that are open.
        answer, answer_login: by path, what goes before the usual answer to a GET, to a login; status 0 = hang up.
    """

    def __init__(
        self,
        resources: Mapping[str, Any],
        *,
        user: str = "monitor",
        password: str = "hidden",  # noqa: S107
        sessions: bool = True,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.resources = dict(resources)
        self.user, self.password, self.sessions = user, password, sessions
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        self.answer: Callable[[str], Answer | None] = lambda _: None
        self.answer_login: Callable[[str], Answer | None] = lambda _: None
        self.logins = 0
        self.busiest = 0
        self._now = 0
        self._lock = threading.Lock()
        bmc = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._serve(lambda: bmc._get(self.path, self.headers))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._serve(lambda: bmc._login(self.path, body))

            def do_DELETE(self) -> None:
                self._serve(lambda: bmc._logout(self.headers))

            def _serve(self, made: Callable[[], Answer]) -> None:
                with bmc._lock:
                    bmc.requests.append((self.command, self.path))
                    bmc._now += 1
                    bmc.busiest = max(bmc.busiest, bmc._now)
                try:
                    status, headers, body = made()
                finally:
                    with bmc._lock:
                        bmc._now -= 1
                if status == 0:  # drop the connection
                    self.close_connection = True
                    return
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._tls = tls is not None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for_logout(self) -> None:
        wait_for(lambda: not self.tokens, 5, "the session to be ended")

    def _get(self, path: str, headers: Any) -> Answer:
        if (made := self.answer(path)) is not None:
            return made
        plain = path.partition("?")[0].rstrip("/")
        if plain != "/redfish/v1" and not self._may(headers):
            return 401, {}, b"{}"
        if plain not in self.resources:
            return 404, {}, b"{}"
        return 200, {"Content-Type": "application/json"}, json.dumps(self.resources[plain]).encode()

    def _may(self, headers: Any) -> bool:
        basic = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return headers.get("X-Auth-Token") in self.tokens or headers.get("Authorization") == basic

    def _login(self, path: str, body: bytes) -> Answer:
        if (made := self.answer_login(path)) is not None:
            return made
        if not self.sessions or not path.rstrip("/").endswith("/Sessions"):
            return 405, {}, b"{}"
        asked = json.loads(body)
        if (asked.get("UserName"), asked.get("Password")) != (self.user, self.password):
            return 401, {}, b"{}"
        self.logins += 1
        token = f"token-{self.logins}"
        self.tokens.add(token)
        where = f"/redfish/v1/SessionService/Sessions/{self.logins}"
        return 201, {"X-Auth-Token": token, "Location": where}, b"{}"

    def _logout(self, headers: Any) -> Answer:
        token = headers.get("X-Auth-Token")
        if token not in self.tokens:
            return 401, {}, b"{}"
        self.tokens.discard(token)
        return 204, {}, b""
