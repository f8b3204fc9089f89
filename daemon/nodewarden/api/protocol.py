"""JSON-RPC 2.0, one object per line, as control.sock speaks it: requests, answers, errors and their sizes.

A request is at most `MAX_REQUEST_BYTES`; answers are not limited, they are ours. Batches are not spoken.
"""

from typing import Any

import msgspec

from nodewarden.errors import ProtocolError

MAX_REQUEST_BYTES = 64 * 1024

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
UNKNOWN_VERB = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED = -32001  # understood, but not allowed now; the message says what is
FORBIDDEN = -32002  # the peer has no right to it
LIMITED = -32003  # too many connections, too slow, too large

RequestId = int | str | None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Without an id it is a notification: it is done, and not answered."""

    jsonrpc: str
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    id: RequestId | msgspec.UnsetType = msgspec.UNSET


class RpcError(ProtocolError):
    """An error that goes to the peer as it is. `kind` is a stable word for programs, such as "refused"."""

    def __init__(self, code: int, message: str, kind: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


_decoder = msgspec.json.Decoder(Request)
_encoder = msgspec.json.Encoder()


def parse_request(line: bytes) -> Request:
    """One line from a peer; raises RpcError for anything that is not a request."""
    try:
        request = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"not a JSON-RPC 2.0 request: {error}", "invalid_request") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RpcError(PARSE_ERROR, "not JSON; allowed: one JSON-RPC 2.0 object per line", "parse_error") from None
    if request.jsonrpc != "2.0":
        raise RpcError(INVALID_REQUEST, f'jsonrpc is "{request.jsonrpc[:20]}", allowed: "2.0"', "invalid_request")
    return request


def result_line(request_id: RequestId, result: Any) -> bytes:
    """An answer, with its newline."""
    return _encoder.encode({"jsonrpc": "2.0", "id": request_id, "result": result}) + b"\n"


def error_line(request_id: RequestId, error: RpcError) -> bytes:
    """A refusal or a complaint, with its newline."""
    body = {"code": error.code, "message": str(error), "data": {"kind": error.kind}}
    return _encoder.encode({"jsonrpc": "2.0", "id": request_id, "error": body}) + b"\n"
