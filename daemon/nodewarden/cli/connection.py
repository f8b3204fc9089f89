"""One request to the agent over control.sock, with one deadline for everything; every way it can fail has its code.

Blocking sockets and the standard library only: `nodectl status` must start fast and must never hang.
"""

import json
import socket
import time
from pathlib import Path
from typing import Any

from nodewarden import paths
from nodewarden.cli.exits import DEGRADED, NO_RIGHTS, NOT_ANSWERING, NOT_RUNNING, USAGE, CliError

DEFAULT_TIMEOUT_S = 2.0  # with the start of Python it stays below 3 s
SCHEMA = 1
_MAX_ANSWER_BYTES = 64 << 20
_RETRY_S = 0.02
_STARTING_RETRY_S = 0.1

# How a program's word for a refusal becomes an exit code; others are DEGRADED: understood, not done.
_CODE_OF_KIND = {
    "forbidden": NO_RIGHTS,
    "unknown_verb": NOT_ANSWERING,
    "limited": NOT_ANSWERING,
    "timeout": NOT_ANSWERING,
    "starting": NOT_ANSWERING,
    "invalid_params": USAGE,
    "unknown_gpu": USAGE,
    "unknown_job": USAGE,
    "out_of_range": USAGE,
}


def ask(runtime: Path, verb: str, params: dict[str, Any] | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """The result of one verb.

    Raises:
        CliError: not running (3), not answering, cut short or still starting (4), no rights (5), refused (1 or 64).
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return _ask_once(paths.control_socket(runtime), verb, params, timeout_s, deadline_s)
        except _StartingError:
            if time.monotonic() + _STARTING_RETRY_S >= deadline_s:
                raise
            time.sleep(_STARTING_RETRY_S)


class _StartingError(CliError):
    """The agent answers, and has nothing to say before its first turn."""


def _ask_once(path: Path, verb: str, params: dict[str, Any] | None, timeout_s: float, deadline_s: float) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        _connect(sock, path, deadline_s)
        request = {"jsonrpc": "2.0", "id": 1, "method": verb, "params": params or {}}
        try:
            sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            sock.sendall(json.dumps(request).encode() + b"\n")
            line = _read_line(sock, deadline_s)
        except TimeoutError:
            raise CliError(
                f"the agent does not answer on {path} within {timeout_s:g} s (it is stopped, stuck or very busy); "
                "look at: systemctl status nodewarden",
                NOT_ANSWERING,
            ) from None
        except OSError as error:
            raise CliError(f"the connection to the agent broke: {error.strerror}", NOT_ANSWERING) from None
    return _result(line)


def _connect(sock: socket.socket, path: Path, deadline_s: float) -> None:
    sock.setblocking(False)
    while True:
        try:
            sock.connect(str(path))
        except BlockingIOError:  # the queue of a stopped or flooded agent is full; the kernel has no way to wait for it
            if time.monotonic() >= deadline_s:
                raise CliError(f"the agent does not accept connections on {path}", NOT_ANSWERING) from None
            time.sleep(_RETRY_S)
            continue
        except (FileNotFoundError, NotADirectoryError):
            raise CliError(f"the agent is not running: there is no {path}{_hint(path)}", NOT_RUNNING) from None
        except ConnectionRefusedError:
            said = f"the agent is not running: nobody listens on {path}{_hint(path)}"
            raise CliError(said, NOT_RUNNING) from None
        except PermissionError:
            raise CliError(f"no right to connect to {path}", NO_RIGHTS) from None
        except OSError as error:
            raise CliError(f"{path} cannot be connected: {error.strerror or error}", NOT_RUNNING) from None
        return


def _hint(path: Path) -> str:
    if path == paths.control_socket(Path(paths.DEFAULT_RUNTIME_DIR)):
        return "; start it: systemctl start nodewarden"
    return "; is --runtime-dir right?"


def _read_line(sock: socket.socket, deadline_s: float) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        sock.settimeout(max(0.001, deadline_s - time.monotonic()))
        chunk = sock.recv(1 << 16)
        if not chunk:
            raise CliError("the agent's answer was cut short", NOT_ANSWERING)
        chunks.append(chunk)
        size += len(chunk)
        if chunk.endswith(b"\n"):
            return b"".join(chunks)
        if size > _MAX_ANSWER_BYTES:
            raise CliError("the agent's answer is too long to be one", NOT_ANSWERING)


def _result(line: bytes) -> Any:
    try:
        answer = json.loads(line)
        error = answer.get("error")
        result = answer["result"] if error is None else None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise CliError("the answer on the control socket is not one of an agent", NOT_ANSWERING) from None
    if error is not None:
        message, kind = str(error.get("message", "refused")), (error.get("data") or {}).get("kind", "")
        failed = _StartingError if kind == "starting" else CliError
        raise failed(message, _CODE_OF_KIND.get(kind, DEGRADED))
    if isinstance(result, dict) and result.get("schema", SCHEMA) != SCHEMA:
        said = f"the agent speaks schema {result['schema']}, this nodectl {SCHEMA}; restart the agent after an upgrade"
        raise CliError(said, NOT_ANSWERING)
    return result
