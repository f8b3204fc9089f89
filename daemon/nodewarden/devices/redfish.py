"""One BMC over HTTPS: a session that is renewed and ended, one request in flight, bounded answers. Reads only.

The only requests besides GET are the POST and DELETE of the session itself. httpx is imported only when a BMC is
configured.
"""

import asyncio
import contextlib
import json
import ssl
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from nodewarden.devices.redfish_tls import pinned_context
from nodewarden.errors import DeviceError

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024  # the largest seen is XCC's report of 4.7 MB
MAX_REDIRECTS: Final = 3
_ROOT: Final = "/redfish/v1"
_SESSIONS: Final = "/redfish/v1/SessionService/Sessions"  # the standard's own place; the root's link comes first
_NO_SESSIONS: Final = frozenset({404, 405, 501})  # iDRAC8 before 2.40: Basic only


class Access:
    """How a BMC is reached.

    Args:
        url: "https://HOST[:PORT]"; http only for tests and tunnels.
        user, password: of an account that may log in; read-only is enough.
        ca: PEM file of who signed its certificate, "" = the system's authorities.
        fingerprint: SHA-256 of the certificate itself, hexadecimal; then nothing else of it counts.
    """

    def __init__(self, url: str, user: str, password: str, *, ca: str = "", fingerprint: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.username:
            raise ValueError(f"{url!r} is not allowed: https://HOST or https://HOST:PORT, without user and path")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host, self.port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.is_tls = parts.scheme == "https"
        self.user, self.password = user, password
        self.ca, self.fingerprint = ca, fingerprint

    def __repr__(self) -> str:
        return f"Access({self.url!r}, {self.user!r})"


class RedfishClient:
    """Reads resources of one BMC; an async context manager that logs out at its end."""

    def __init__(self, access: Access, *, timeout_s: float = 30.0) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._http: Any = None
        self._token: str | None = None
        self._session: str | None = None
        self._basic = False
        self._place: str | None = None
        self._denied: set[str] = set()
        self._one_at_a_time = asyncio.Lock()
        self.logins = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def get(self, path: str) -> dict[str, Any]:
        """One resource.

        Raises:
            DeviceError: reasons "timeout", "unreachable", "refused" (login or certificate), "forbidden" (this resource
                only), "not_found", "busy", "no_answer" (anything that is not a JSON object); the text names the BMC
                and what to do.
        """
        async with self._one_at_a_time:
            # The service root is for everybody; all else wants a login.
            is_root = path.partition("?")[0].rstrip("/") == _ROOT
            if not is_root and self._token is None and not self._basic:
                await self._login()
            answer = await self._read(path)
            if answer.status == 401 and not self._basic and path not in self._denied:
                await self._logout()  # the session ended, or the BMC restarted; if neither, it must not be left open
                await self._login()
                answer = await self._read(path)
                if answer.status == 401:
                    self._denied.add(path)
            found = self._object(path, answer)
            if is_root:
                self._place = _place_of_sessions(found)
            return found

    async def close(self) -> None:
        """Log out, so that the few sessions of a BMC are not used up; never raises."""
        if self._http is None:
            return
        await self._logout()
        await self._drop()

    async def _logout(self) -> None:
        if self._session is not None:
            with contextlib.suppress(DeviceError):  # it ends by itself, later
                await self._send("DELETE", self._session, timeout_s=min(5.0, self._timeout_s))
        self._token = self._session = None

    async def _read(self, path: str) -> "_Answer":
        """GET, once more where a connection that was kept turns out to be closed: BMCs close idle ones any time."""
        was_open = self._http is not None
        try:
            return await self._send("GET", path)
        except DeviceError as error:
            if error.reason != "unreachable" or not was_open:
                raise
            return await self._send("GET", path)

    async def _login(self) -> None:
        access = self._access
        if not access.user:
            return
        self.logins += 1
        body = json.dumps({"UserName": access.user, "Password": access.password}).encode()
        if self._place is None:
            self._place = _place_of_sessions(self._object(_ROOT, await self._read(_ROOT)))
        answer = await self._send("POST", self._place, body)
        if answer.status in _NO_SESSIONS and self._place.rstrip("/") != _SESSIONS:
            answer = await self._send("POST", _SESSIONS, body)
        if answer.status in _NO_SESSIONS:
            self._basic = True
            return
        if answer.status in {400, 401, 403}:
            raise DeviceError(f"{access.url} refuses user {access.user!r}: check user and password file", "refused")
        if answer.status == 503:
            raise DeviceError(f"{access.url} has no session left; end some at the BMC, or wait for their end", "busy")
        token = answer.headers.get("x-auth-token")
        if answer.status not in {200, 201, 202, 204} or not token:
            raise DeviceError(f"{access.url} gives no session (status {answer.status})", "no_answer")
        self._token = token
        where = answer.headers.get("location")
        if not where:
            with contextlib.suppress(DeviceError):
                where = self._object(self._place, answer, allowed=range(200, 300)).get("@odata.id")
        path = urlsplit(where).path if isinstance(where, str) else ""
        self._session = path if path.startswith("/") else None

    def _object(self, path: str, answer: "_Answer", *, allowed: range = range(200, 201)) -> dict[str, Any]:
        url = self._access.url
        if answer.status == 401 and not self._access.user:
            raise DeviceError(f"{url} wants a login for {path}: give user and password file", "refused")
        if answer.status in {401, 403}:
            reason = "refused" if answer.status == 401 and self._basic else "forbidden"
            raise DeviceError(f"{url} does not let {self._access.user!r} read {path}: check user and password", reason)
        if answer.status == 404:
            raise DeviceError(f"{url} has no {path}", "not_found")
        if answer.status in {429, 503}:
            raise DeviceError(f"{url} is busy (status {answer.status})", "busy")
        if answer.status not in allowed:
            raise DeviceError(f"{url} answers {path} with status {answer.status}", "no_answer")
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise DeviceError(f"{url} answers {path} with something that is not JSON", "no_answer") from None
        if not isinstance(document, dict):
            raise DeviceError(f"{url} answers {path} with something that is no object", "no_answer")
        return document

    async def _send(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float | None = None
    ) -> "_Answer":
        import httpx  # noqa: PLC0415 -- 10 MB that a node without a BMC does not pay

        limit_s = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                if self._http is None:
                    self._http = await self._open()
                return await self._exchange(method, path, body)
        except TimeoutError:
            raise DeviceError(f"{self._access.url} does not answer {path} within {limit_s:g} s", "timeout") from None
        except ssl.SSLError as error:
            raise self._distrusted(error) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise self._distrusted(error) from None
            await self._drop()
            text = str(error) or type(error).__name__
            raise DeviceError(f"{self._access.url} cannot be reached: {text}", "unreachable") from None

    def _distrusted(self, error: Exception) -> DeviceError:
        return DeviceError(
            f"{self._access.url} has a certificate that is not trusted ({error}): give its authority (ca_file) or its "
            f"own SHA-256 (fingerprint)",
            "refused",
        )

    async def _open(self) -> Any:
        import httpx  # noqa: PLC0415

        access = self._access
        context: ssl.SSLContext | bool = False
        if access.is_tls and access.fingerprint:
            context = await asyncio.to_thread(
                pinned_context, access.host, access.port, access.fingerprint, self._timeout_s
            )
        elif access.is_tls:
            context = await asyncio.to_thread(ssl.create_default_context, cafile=access.ca or None)
        return httpx.AsyncClient(
            base_url=access.url,
            verify=context,
            timeout=self._timeout_s,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            headers={"Accept": "application/json", "OData-Version": "4.0"},
        )

    async def _drop(self) -> None:
        """A new connection for the next request; the session lives on."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def _exchange(self, method: str, path: str, body: bytes | None) -> "_Answer":
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._once(method, path, body)
            if answer.status not in ({301, 302, 307, 308} if method == "GET" else {307, 308}):
                return answer
            where = urlsplit(answer.headers.get("location") or "")
            same = not where.netloc or where.netloc == urlsplit(self._access.url).netloc
            if not same or not where.path.startswith("/"):
                raise DeviceError(f"{self._access.url} sends elsewhere for {path}: not followed", "no_answer")
            path = where.path + (f"?{where.query}" if where.query else "")
        raise DeviceError(f"{self._access.url} sends in circles for {path}", "no_answer")

    async def _once(self, method: str, path: str, body: bytes | None) -> "_Answer":
        headers = {"X-Auth-Token": self._token} if self._token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        auth = (self._access.user, self._access.password) if self._basic else None
        got = bytearray()
        async with self._http.stream(method, path, content=body, headers=headers, auth=auth) as response:
            async for chunk in response.aiter_bytes():
                got += chunk
                if len(got) > MAX_ANSWER_BYTES:
                    raise DeviceError(f"{self._access.url} answers {path} with more than 16 MiB", "no_answer")
            return _Answer(response.status_code, dict(response.headers), bytes(got))


def _place_of_sessions(root: dict[str, Any]) -> str:
    """Where the service root says that sessions are made (iDRAC8: /redfish/v1/Sessions; iLO4: with a last slash)."""
    links = root.get("Links")
    sessions = links.get("Sessions") if isinstance(links, dict) else None
    path = sessions.get("@odata.id") if isinstance(sessions, dict) else None
    is_path = isinstance(path, str) and path.startswith("/") and not path.startswith("//") and path.isprintable()
    return path if isinstance(path, str) and is_path and " " not in path and len(path) < 1024 else _SESSIONS


class _Answer:
    """Status, headers (lower case) and body of one exchange."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body
