"""What the demo sees, kept as samples: the agent's status over its control socket, the plant's truth, the job's words.

The demo knows nothing that it has not read here; every number of its story comes from these samples.
"""

import itertools
import json
import socket
from pathlib import Path
from typing import Any

import msgspec

from nodewarden.sim.job_link import BOARDS, BoardTruth, JobLink
from nodewarden.sim.stage import Child

ANSWER_WITHIN_S = 5.0
EVENTS_AT_ONCE = 200


class ControlError(Exception):
    """The agent refused or did not answer."""


class Control:
    """A connection to control.sock: one request at a time, JSON-RPC 2.0 lines."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_WITHIN_S)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rb")
        self._ids = itertools.count(1)

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()

    def call(self, method: str, **params: Any) -> Any:
        """The result of one verb; ControlError when it is refused, OSError when nobody answers."""
        number = next(self._ids)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError(f"the agent hung up on {method}")
        answer = json.loads(line)
        if "error" in answer:
            raise ControlError(f"{method}: {answer['error'].get('message', answer['error'])}")
        return answer["result"]


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as status showed it. Degrees, watts; None where it showed none."""

    index: int
    margin_c: float | None = None
    power_w: float | None = None
    cap_w: float | None = None
    cause: str | None = None
    lifts_when: str = ""
    paced_by: str | None = None
    slow: tuple[str, ...] = ()
    state: str = "ok"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment; `at_s` is scenario seconds, negative before it begins."""

    at_s: float
    gpus: tuple[GpuSample, ...] = ()
    ladder: int = 0
    health: str = "ok"
    armed: bool = False
    pdu_w: float | None = None
    pdu_limit_w: float | None = None
    job_state: str | None = None
    step: int | None = None
    steps_per_s: float | None = None
    duty: float = 1.0
    checkpoint_age_s: float | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the agent's journal, with the scenario second at which it was first seen."""

    at_s: float
    code: str
    text: str
    uuid: str | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that the job reported."""

    at_s: float
    step: int
    asked: bool
    path: str


class Watcher:
    """Collects samples, events and what the job printed.

    Attributes:
        samples, events, saves: in the order in which they came, from the scenario's beginning.
    """

    def __init__(self, control: Control, link: JobLink, job: Child) -> None:
        self._control = control
        self._link = link
        self._job = job
        self._last_event = 0
        self._job_lines = 0
        self.samples: list[Sample] = []
        self.events: list[Told] = []
        self.saves: list[Saved] = []
        self.job_starts = 0
        self.job_ended: dict[str, Any] | None = None

    def begin(self) -> None:
        """The scenario begins: what was before does not count, but for the first sample."""
        self.look()
        self.samples = self.samples[-1:]
        self.events.clear()
        self.saves.clear()

    def look(self) -> Sample:
        """Take one sample."""
        at_s = self._scenario_s()
        sample = sample_of(self._control.call("status"), at_s)
        self.samples.append(sample)
        answer = self._control.call("events", since_s=3600, limit=EVENTS_AT_ONCE, after_id=self._last_event)
        for event in answer["events"]:
            self._last_event = max(self._last_event, event["id"])
            self.events.append(Told(at_s=at_s, code=event["code"], text=event["text"], uuid=event.get("uuid")))
        self._read_job(at_s)
        return sample

    def _scenario_s(self) -> float:
        begin_s = self._link.begin_s()
        return self._link.now_s() - begin_s if begin_s is not None else -1.0

    def _read_job(self, at_s: float) -> None:
        lines = self._job.lines()
        for line in lines[self._job_lines :]:
            if line["event"] == "saved":
                self.saves.append(Saved(at_s=at_s, step=line["step"], asked=line["asked"], path=line["path"]))
            elif line["event"] == "started":
                self.job_starts += 1
            elif line["event"] == "ended":
                self.job_ended = line
        self._job_lines = len(lines)

    def truth(self) -> list[BoardTruth]:
        """The plant's truth of every board since the scenario began."""
        return [self._link.board(board) for board in range(BOARDS)]


def sample_of(status: dict[str, Any], at_s: float) -> Sample:
    """The parts of a status document that the demo shows."""
    gpus = tuple(
        GpuSample(
            index=gpu["index"],
            margin_c=gpu["margin_to_max_op_c"],
            power_w=gpu["power_w"],
            cap_w=gpu["cap_w"],
            cause=gpu["cap"]["cause"] if gpu["cap"] else None,
            lifts_when=gpu["cap"]["lifts_when"] if gpu["cap"] else "",
            paced_by=gpu["cap"].get("paced_by") if gpu["cap"] else None,
            slow=tuple(gpu["slow"] or ()),
            state=gpu["state"],
        )
        for gpu in status["gpus"]
    )
    pdu = status["pdus"][0] if status["pdus"] else None
    job = status["jobs"][0] if status["jobs"] else None
    return Sample(
        at_s=at_s,
        gpus=gpus,
        ladder=status["ladder"] or 0,
        health=status["health"] or "ok",
        armed=bool(status["armed"]),
        pdu_w=(pdu["outlets_w"] if pdu["outlets_w"] is not None else pdu["power_w"]) if pdu else None,
        pdu_limit_w=pdu["limit_w"] if pdu else None,
        job_state=job["state"] if job else None,
        step=job["step"] if job else None,
        steps_per_s=job["steps_per_s"] if job else None,
        duty=job["duty"] if job else 1.0,
        checkpoint_age_s=job["last_checkpoint_age_s"] if job else None,
    )
