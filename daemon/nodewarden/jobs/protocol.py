"""What training processes and the agent say to each other over job.sock: JSON-RPC 2.0, one object per line.

A line is at most `MAX_LINE_BYTES`. Requests (only `hello`) carry an `id` and get a result; the rest are notifications.
Unknown fields and unknown notifications are ignored, so that both sides may grow. Durations (`*_s`) are real seconds as
the receiver's own monotonic clock counts them, relative to receipt; no time of day crosses this socket.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from nodewarden.errors import ProtocolError

MAX_LINE_BYTES = 64 * 1024
PROTOCOL = 1

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
REFUSED = -32000

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:@/+-]{1,128}$")]
Short = Annotated[str, Meta(max_length=64)]
RequestId = Annotated[str, Meta(max_length=64)]
Step = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class CheckpointSeconds(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How long a save takes from its start, as the job measured or declared it."""

    staged: Seconds | None = None
    persisted: Seconds | None = None


class LastCheckpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The newest checkpoint that this process persisted on request, for an agent that has just started."""

    step: Step | None = None
    path: Annotated[str, Meta(max_length=4096)] | None = None
    age_s: Seconds = 0.0


class Hello(msgspec.Struct, kw_only=True, omit_defaults=True):
    """rank -> agent, a request: who this process is.

    Attributes:
        proto: protocol versions that the client speaks; the highest common one is used.
        run: restart count of the launcher.
        gpus: uuids; they count once the driver lists the peer's process there.
        caps: what the client can be asked for.
        step: the last step, null before the first.
        pg_timeout_s: the process group's time-out, null when unknown.
    """

    proto: Annotated[list[int], Meta(min_length=1, max_length=16)]
    job: Name
    rank: Count = 0
    world: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    local_rank: Count = 0
    local_world: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    run: Count = 0
    gpus: Annotated[list[Name], Meta(max_length=64)] = []
    framework: Short = ""
    caps: Annotated[list[Short], Meta(max_length=16)] = []
    step: Step | None = None
    ckpt_s: CheckpointSeconds | None = None
    last_ckpt: LastCheckpoint | None = None
    pg_timeout_s: Seconds | None = None

    def __post_init__(self) -> None:
        """A rank outside its world would be waited for by nobody, or stand in for another."""
        if self.rank >= self.world:
            raise ValueError(f"rank {self.rank} is not in a world of {self.world}: allowed 0 to {self.world - 1}")


class HelloResult(msgspec.Struct, kw_only=True):
    """agent -> rank: the result of hello. `ping_s` is how often a ping comes; `verified` see `jobs.verify`."""

    proto: int
    session: str
    ping_s: float
    verified: bool


class Ping(msgspec.Struct, kw_only=True):
    """agent -> rank: answer with a pong."""

    seq: int


class Pong(msgspec.Struct, kw_only=True):
    """rank -> agent: alive, and at this step."""

    seq: int
    step: Step | None = None


class Reason(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why something is asked of a job."""

    cause: str = "none"
    gpu: str | None = None


class Throttle(msgspec.Struct, kw_only=True):
    """agent -> rank: run only this share of the time (0.05 to 1) for `ttl_s`; 1 ends it. No answer."""

    req: str
    duty: float
    ttl_s: float
    reason: Reason


class Prepare(msgspec.Struct, kw_only=True):
    """agent -> rank: get ready to act at the first step at or past `step`; answered by a vote.

    Attributes:
        then: "stop": after the save is persisted, `guard.step()` returns "stop".
        deadline_s: seconds from receipt within which the save must be persisted.
    """

    req: str
    round: int
    step: int
    kind: Literal["checkpoint"]
    then: Literal["continue", "stop"]
    deadline_s: float
    reason: Reason


class Vote(msgspec.Struct, kw_only=True, omit_defaults=True):
    """rank -> agent: can this rank act at the proposed step?

    Attributes:
        reason: why not: "deadline", "busy", "late", "unsupported", "no_agreement", "closing".
        need_s: with "deadline": how long the save is expected to take.
    """

    req: RequestId
    round: Count = 0
    ok: bool
    step: Step | None = None
    reason: Short = ""
    need_s: Seconds | None = None


class Decide(msgspec.Struct, kw_only=True):
    """agent -> rank: the decision of a round. "abort" is honoured until the save has started."""

    req: str
    round: int
    value: Literal["commit", "abort"]


class State(msgspec.Struct, kw_only=True, omit_defaults=True):
    """rank -> agent: how far a request is.

    Attributes:
        state: "staged" (safe to change power) and "persisted" (safe to end the process) are the two completions;
            "aborted" answers a decide "abort", "expired" says that the deadline passed before the save started.
        dur_s: seconds since the save started.
    """

    req: RequestId
    state: Literal["started", "staged", "persisted", "failed", "aborted", "expired"]
    step: Step | None = None
    dur_s: Seconds | None = None
    path: Annotated[str, Meta(max_length=4096)] | None = None
    error: Annotated[str, Meta(max_length=4096)] | None = None


class Bye(msgspec.Struct, kw_only=True):
    """rank -> agent: a clean end; an end of file without it means that the process died."""


class ErrorData(msgspec.Struct, kw_only=True):
    """The stable word for an error."""

    code: str


class ErrorObject(msgspec.Struct, kw_only=True):
    """JSON-RPC error: `message` is for people, `data.code` for programs."""

    code: int
    message: str
    data: ErrorData


FromRank = Hello | Pong | Vote | State | Bye
ToRank = Ping | Throttle | Prepare | Decide

# Method names; the direction says who sends it.
FROM_RANK: dict[str, type[FromRank]] = {"hello": Hello, "pong": Pong, "vote": Vote, "state": State, "bye": Bye}
TO_RANK: dict[str, type[ToRank]] = {"ping": Ping, "throttle": Throttle, "prepare": Prepare, "decide": Decide}
_METHOD_OF = {kind: name for name, kind in TO_RANK.items()}


class _Envelope(msgspec.Struct):
    method: Annotated[str, Meta(max_length=64)]
    jsonrpc: Literal["2.0"]
    id: int | Annotated[str, Meta(max_length=64)] | None = None
    params: Raw = Raw(b"{}")


class Message(msgspec.Struct, frozen=True):
    """One decoded line. `body` is None for a method that this version does not know."""

    method: str
    id: int | str | None
    body: FromRank | None


_envelope_decoder = msgspec.json.Decoder(_Envelope)
_body_decoders = {name: msgspec.json.Decoder(kind) for name, kind in FROM_RANK.items()}
_encoder = msgspec.json.Encoder()


class LineError(ProtocolError):
    """A line that is not a message. `number` is the JSON-RPC code, `code` the stable word, `id` the request's."""

    def __init__(self, number: int, code: str, text: str, id: int | str | None = None) -> None:  # noqa: A002
        super().__init__(text)
        self.number = number
        self.code = code
        self.id = id


def decode(line: bytes | bytearray) -> Message:
    """Read one line that a rank sent.

    Raises:
        LineError: it is no JSON-RPC message, or its params do not fit the method.
    """
    try:
        envelope = _envelope_decoder.decode(line)
    except msgspec.ValidationError as error:
        raise LineError(INVALID_REQUEST, "invalid_request", f"not a JSON-RPC 2.0 message: {error}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        text = "not JSON: one JSON-RPC 2.0 object per line is expected"
        raise LineError(PARSE_ERROR, "parse_error", text) from None
    decoder = _body_decoders.get(envelope.method)
    if decoder is None:
        return Message(envelope.method, envelope.id, None)
    try:
        body: FromRank = decoder.decode(envelope.params)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        text = f"params of {envelope.method}: {error}"
        raise LineError(INVALID_PARAMS, "invalid_params", text, envelope.id) from None
    return Message(envelope.method, envelope.id, body)


def notification(body: ToRank) -> bytes:
    """One notification as a line."""
    return _line({"jsonrpc": "2.0", "method": _METHOD_OF[type(body)], "params": body})


def result(request_id: int | str | None, body: HelloResult) -> bytes:
    """The answer to a request as a line."""
    return _line({"jsonrpc": "2.0", "id": request_id, "result": body})


def error(request_id: int | str | None, number: int, code: str, text: str) -> bytes:
    """An error as a line; `request_id` None where it answers no request."""
    body = ErrorObject(code=number, message=text, data=ErrorData(code=code))
    return _line({"jsonrpc": "2.0", "id": request_id, "error": body})


def schema() -> dict[str, Any]:
    """JSON schema of all messages, as kept in docs/job-protocol.schema.json."""
    kinds: list[type] = [*FROM_RANK.values(), HelloResult, *TO_RANK.values(), ErrorObject]
    refs, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    by_kind = dict(zip(kinds, refs, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Nodewarden job protocol, version 1: params and results of job.sock",
        "from_rank": {name: by_kind[kind] for name, kind in FROM_RANK.items()},
        "to_rank": {name: by_kind[kind] for name, kind in TO_RANK.items()},
        "results": {"hello": by_kind[HelloResult]},
        "error": by_kind[ErrorObject],
        "$defs": dict(sorted(components.items())),
    }


def _line(message: dict[str, Any]) -> bytes:
    return _encoder.encode(message) + b"\n"
