"""The training side of Nodewarden in one file: the standard library only, Python 3.8 or newer, free to be vendored.

    guard = nodewarden_client.connect(save=save_checkpoint)
    for step in range(first, last):
        train(step)
        if guard.step(step) == "stop":
            break
    guard.close()

One background thread talks to the node's agent over its job socket. The training thread pays one attribute store and
one compare per step while nothing is asked of it. Without an agent, and whatever the agent sends, training goes on:
nothing here raises into it.

    idle ── prepare, vote ok ──> armed ── step() at or past the agreed step ──> begun ──> staged ──> persisted
                                   │ abort, deadline                              │ save raised
                                   └──> gone (nothing was saved)                  └──> failed (training goes on)
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import logging
import math
import os
import random
import re
import select
import signal
import socket
import sys
import threading
import time
import weakref
from typing import Any, Callable, Sequence

CONTINUE = "continue"
STOP = "stop"

PROTOCOL = 1
MAX_LINE_BYTES = 64 * 1024
FIRST_BACKOFF_S = 0.2
LAST_BACKOFF_S = 5.0
REFUSED_BACKOFF_S = 30.0
HELLO_TIMEOUT_S = 5.0
SILENCE_S = 30.0
"""An agent that has not sent a ping for this long is taken for frozen: drop the connection and try again."""
MAX_PAUSE_S = 30.0
"""Longest sleep in one step: other nodes of the job are waiting."""
MIN_PAUSE_S = 0.001
DURATIONS_KEPT = 5

log = logging.getLogger("nodewarden_client")
monotonic = time.monotonic

_NEVER = math.inf
_NOW = -math.inf

_ARMED, _BEGUN, _STAGED, _PERSISTED, _FAILED, _GONE = range(6)


def connect(
    save: Callable[[int, Request], object] | None = None,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    gpus: Sequence[str] | str | None = None,
    framework: str = "torch",
) -> Guard:
    """Start talking to the node's agent; returns at once, never raises, works without an agent.

    Args:
        save: called as `save(step, request)` in the training thread at the agreed step. It calls `request.staged()`
            when the state is copied away and `request.persisted(path)` when the checkpoint is complete on storage;
            both may come later, from any thread. What it raises is reported as a failed save; training goes on.
        job: name of the job; by default from the launcher (Slurm, torchrun), else the process id.
        rank: by default from RANK or SLURM_PROCID.
        world: by default from WORLD_SIZE or the Slurm step.
        gpus: uuids of this rank's GPUs, as a sequence or separated by commas; by default from torch or
            CUDA_VISIBLE_DEVICES.
        framework: shown to people; "torch" also drains the GPU's queue before a throttle sleeps.
    """
    guard = Guard(save, framework)
    try:
        guard._start(_identity(job, rank, world, gpus, framework))
    except Exception as error:  # noqa: BLE001 - training must go on
        guard._detach(error)
    return guard


class Request:
    """One save that the agent asked for. Thread-safe; every acknowledgement counts once.

    Attributes:
        id: the agent's name for it.
        step: the step at which the save runs.
        then: "continue" or "stop".
        reason: why, as the agent said it: `cause` and, where one GPU is to blame, `gpu`.
    """

    def __init__(self, guard: Guard, message: dict[str, Any], deadline: float) -> None:
        self.id: str = message["req"]
        self.step: int = message["step"]
        self.then: str = message["then"]
        self.reason: dict[str, Any] = message["reason"]
        self._guard = guard
        self._round: int = message["round"]
        self._deadline = deadline
        self._began = 0.0
        self._phase = _ARMED
        self._late = False
        self._ended = threading.Event()

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self._deadline - monotonic()

    def staged(self) -> None:
        """The state is copied away: the GPU's power may change."""
        self._acknowledge(_STAGED, "staged")

    def persisted(self, path: str | os.PathLike[str] | None = None) -> None:
        """The checkpoint is complete on storage: the process may end. Implies `staged()`."""
        self._acknowledge(_PERSISTED, "persisted", path=None if path is None else _words(path, 1000))

    def failed(self, error: object = "failed") -> None:
        """An asynchronous save failed after `save` had returned."""
        self._acknowledge(_FAILED, "failed", error=_words(error, 500))

    def _acknowledge(self, phase: int, state: str, **fields: str | None) -> None:
        try:
            self._guard._on_acknowledged(self, phase, state, fields)
        except Exception as error:  # noqa: BLE001 - training must go on
            self._guard._detach(error)


class Guard:
    """The handle that `connect` returns: call `step` once per training step and `close` at the end.

    Attributes:
        save: as given to `connect`.
        sync: called before a throttle sleeps, so that queued GPU work is done and the GPU really rests; replace it for
            a framework other than torch.
    """

    def __init__(self, save: Callable[[int, Request], object] | None, framework: str) -> None:
        self.save = save
        self.sync: Callable[[], object] | None = _torch_sync if framework == "torch" else None
        # Written by the training thread at every step, read by the background thread; no lock, by design.
        self._cur: Any = None
        # The first step at which `step` has something to do. Stored after everything that the slow path reads.
        self._due: float = _NEVER
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._open: Request | None = None
        self._throttle: tuple[float, float] | None = None  # duty, monotonic time at which it ends
        self._mark: float | None = None  # when the training thread last left a throttled step
        self._owed_s = 0.0  # work for which it has not rested yet
        self._stop = False
        self._durations: dict[str, collections.deque[float]] = {
            name: collections.deque(maxlen=DURATIONS_KEPT) for name in ("staged", "persisted")
        }
        self._last_checkpoint: dict[str, Any] | None = None
        self._link: _Link | None = None
        self._closed = False

    def step(self, step: int) -> str:
        """Say that training is at the boundary of `step` (an int that grows); once per step.

        Returns "continue", or "stop" when a checkpoint was persisted and the job is to end. May sleep while the agent
        throttles the job, and calls `save(step, request)` at the agreed step. Never raises by itself.
        """
        self._cur = step
        try:
            if step < self._due:
                return CONTINUE
        except TypeError as error:
            self._detach(error)
            return CONTINUE
        return self._act(step)

    def close(self) -> None:
        """Stop and join the background thread; `step` then asks for nothing more. May be called any number of times."""
        self._closed = True
        link = self._link
        if link is not None and link.pid == os.getpid():
            link.close()
        with self._lock:
            self._throttle = None
            request, self._open = self._open, None
            self._refresh()
        self._changed.set()
        if request is not None:
            request._ended.set()

    # The training thread's slow path -----------------------------------------------------------------------------

    def _act(self, step: int) -> str:
        try:
            if self._stop:
                return STOP
            request = self._begin(step)
            if request is None:
                self._rest()
                return CONTINUE
            return self._run_save(step, request)
        except Exception as error:  # noqa: BLE001 - training must go on
            self._detach(error)
            return CONTINUE

    def _begin(self, step: int) -> Request | None:
        with self._lock:
            request = self._open
            if request is None or request._phase != _ARMED or step < request.step:
                return None
            now = monotonic()
            late = now >= request._deadline
            if late:
                request._phase, self._open = _GONE, None
            else:
                request._phase, request._began = _BEGUN, now
                whole = _whole(step)
                request.step = request.step if whole is None else whole
            self._refresh()
        self._post_state(request, "expired" if late else "started")
        return None if late else request

    def _run_save(self, step: int, request: Request) -> str:
        try:
            assert self.save is not None
            self.save(step, request)
        except Exception as error:
            log.warning("nodewarden: the save at step %s failed, training goes on", step, exc_info=True)
            request.failed(f"{type(error).__name__}: {error}")
        if request.then == STOP:
            # The job is about to end: the training thread may as well wait here for an asynchronous save.
            request._ended.wait(max(0.0, request.remaining_s))
            self._stop = request._phase == _PERSISTED and not request._late
        with self._lock:
            self._mark = None
            self._refresh()
        return STOP if self._stop else CONTINUE

    def _rest(self) -> None:
        """Sleep so that the share of time spent outside this function is the duty that the agent asked for."""
        mark = self._mark
        if mark is not None and self._throttle is not None:
            self._drain()
        worked_s = None if mark is None else monotonic() - mark
        while True:
            self._changed.clear()  # before the look, so that what changes after it ends the wait below
            throttle, now = self._throttle, monotonic()
            if throttle is None or now >= throttle[1]:
                self._end_throttle(throttle)
                return
            duty, until = throttle
            if worked_s is not None:
                # What is owed is counted as work, so that a change of duty in the middle of a pause is right at once.
                self._owed_s = min(self._owed_s + worked_s, MAX_PAUSE_S * duty / (1 - duty))
                worked_s = None
            pause_s = min(self._owed_s * (1 - duty) / duty, MAX_PAUSE_S, until - now)
            if pause_s < MIN_PAUSE_S:
                break
            changed = self._changed.wait(pause_s)
            self._owed_s = max(0.0, self._owed_s - (monotonic() - now) * duty / (1 - duty))
            if not changed:
                break
        self._mark = monotonic()

    def _drain(self) -> None:
        sync = self.sync
        if sync is None:
            return
        try:
            sync()
        except Exception:
            self.sync = None
            log.warning("nodewarden: sync before a throttle failed; it is not called again", exc_info=True)

    def _end_throttle(self, seen: tuple[float, float] | None) -> None:
        with self._lock:
            if self._throttle is seen:
                self._throttle, self._mark, self._owed_s = None, None, 0.0
            self._refresh()

    # Both threads ------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Recompute the step at which the training thread must look up; with the lock held."""
        if self._throttle is not None or self._stop:
            self._due = _NOW
        elif self._open is not None and self._open._phase == _ARMED:
            self._due = self._open.step
        else:
            self._due = _NEVER

    def _on_acknowledged(self, request: Request, phase: int, state: str, fields: dict[str, str | None]) -> None:
        with self._lock:
            if not _BEGUN <= request._phase < phase or request._phase == _PERSISTED:
                return
            request._phase = phase
            now = monotonic()
            request._late = now > request._deadline  # for the agent it has expired: nothing follows from it
            dur_s = now - request._began
            if phase != _FAILED:
                self._durations[state].append(dur_s)
            if phase == _PERSISTED:
                self._last_checkpoint = {"step": request.step, "path": fields.get("path"), "at": now}
            if phase != _STAGED and self._open is request:
                self._open = None
            self._refresh()
        self._post_state(request, state, dur_s=round(dur_s, 3), **fields)
        if phase != _STAGED:
            request._ended.set()

    def _post_state(self, request: Request, state: str, **fields: object) -> None:
        body = {"req": request.id, "state": state, "step": request.step}
        body.update((key, value) for key, value in fields.items() if value is not None)
        self._post("state", body)

    def _post(self, method: str, body: dict[str, Any]) -> None:
        link = self._link
        if link is not None:
            link.post(method, body)

    def _detach(self, error: BaseException) -> None:
        """Become a no-op: after an error of our own, training goes on without us."""
        already, self._closed = self._closed, True
        self._due, self._throttle, self._open = _NEVER, None, None
        self._changed.set()
        link = self._link
        if link is not None:
            link.stop()
        if not already:
            log.warning("nodewarden: detached after an internal error, training goes on: %r", error)

    def _forked(self) -> None:
        """In a forked child: the connection belongs to the parent, so let go of it and do nothing."""
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed, self._due, self._throttle, self._open = True, _NEVER, None, None
        link, self._link = self._link, None
        if link is not None:
            link.abandon()

    # The background thread ---------------------------------------------------------------------------------------

    def _start(self, identity: dict[str, Any]) -> None:
        for other in list(_guards):
            link = other._link
            if link is not None and (link.identity["job"], link.identity["rank"]) == (
                identity["job"],
                identity["rank"],
            ):
                other.close()
        self._link = _Link(self, identity, _socket_path())
        _guards.add(self)
        self._link.start()

    def _expected_s(self, state: str) -> float | None:
        """How long a save takes until `state`: the longest of the last few, or what was declared; None = unknown."""
        with self._lock:
            measured = max(self._durations[state], default=None)
        return _declared_s(state) if measured is None else measured

    def _on_throttle(self, message: dict[str, Any]) -> None:
        duty, ttl_s = float(message["duty"]), float(message["ttl_s"])
        if not 0 < duty <= 1 or not 0 <= ttl_s <= 3600:
            raise _GarbageError(f"throttle to {duty} for {ttl_s} s")
        duty = max(duty, 0.05)
        with self._lock:
            before = self._throttle
            self._throttle = None if duty == 1 or ttl_s == 0 else (duty, monotonic() + ttl_s)
            if self._throttle is None or before is None:
                self._mark, self._owed_s = None, 0.0
            self._refresh()
        if before is not None and (self._throttle is None or self._throttle[0] != before[0]):
            self._changed.set()

    def _on_prepare(self, message: dict[str, Any], step_s: float | None) -> None:
        reason, need_s = self._objection(message, step_s)
        if reason is None:
            request = Request(self, message, monotonic() + message["deadline_s"])
            with self._lock:
                self._open = request
                self._refresh()
        vote = {"req": message["req"], "round": message["round"], "ok": reason is None, "step": _whole(self._cur)}
        if reason is not None:
            vote["reason"] = reason
        if need_s is not None:
            vote["need_s"] = round(need_s, 3)
        self._post("vote", {key: value for key, value in vote.items() if value is not None})

    def _objection(self, message: dict[str, Any], step_s: float | None) -> tuple[str | None, float | None]:
        """Why this rank cannot do what is proposed, and with "deadline" how long it would take."""
        if self._closed:
            return "closing", None
        if self.save is None or message["kind"] != "checkpoint" or message["then"] not in {CONTINUE, STOP}:
            return "unsupported", None
        link = self._link
        if link is None or link.identity["world"] > 1:
            # Saving alone would leave the other ranks in a collective; ranks must first agree on the step.
            return "no_agreement", None
        with self._lock:
            request = self._open
            # A save that never ended does not block later requests for longer than its own deadline.
            if request is not None and request._phase != _GONE and request.remaining_s > 0:
                return "busy", None
        expected_s = self._expected_s("persisted")
        if expected_s is not None:
            need_s = expected_s + (step_s or 0.0)
            if need_s > message["deadline_s"]:
                return "deadline", need_s
        return None, None

    def _on_abort(self, req: str) -> None:
        with self._lock:
            request = self._open
            if request is None or request.id != req or request._phase != _ARMED:
                return
            request._phase, self._open = _GONE, None
            self._refresh()
        self._post_state(request, "aborted")

    def _expire(self) -> None:
        """Let go of what has passed its time, even when the training thread never comes by."""
        now = monotonic()
        throttle = self._throttle
        if throttle is not None and now >= throttle[1]:
            self._end_throttle(throttle)
        request = self._open
        if request is None or now < request._deadline:
            return
        with self._lock:
            if self._open is not request:
                return
            self._open = None
            unstarted = request._phase == _ARMED
            if unstarted:
                request._phase = _GONE
            self._refresh()
        if unstarted:
            self._post_state(request, "expired")

    def _next_expiry(self) -> float:
        throttle, request = self._throttle, self._open
        return min(throttle[1] if throttle else _NEVER, request._deadline if request else _NEVER)


class _GarbageError(Exception):
    """The peer sent what the protocol does not allow."""


class _RefusedError(Exception):
    """The agent does not want this rank; asking again soon is pointless."""


class _Link:
    """The background thread and its connection: connects, says hello, answers pings, reconnects."""

    def __init__(self, guard: Guard, identity: dict[str, Any], path: str) -> None:
        self.guard = guard
        self.identity = identity
        self.path = path
        self.pid = os.getpid()
        self._stopping = False
        self._outbox: collections.deque[bytes] = collections.deque(maxlen=256)
        self._socket: socket.socket | None = None
        self._pipe_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._buffer = bytearray()
        self._welcomed = False
        self._heard = 0.0
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=8)
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="nodewarden", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; from any thread."""
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """Stop, and wait until the thread has ended (it never blocks for long)."""
        self.stop()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    def abandon(self) -> None:
        """In a forked child: close our copies of the descriptors, so that the agent sees the parent's end."""
        self._stopping = True
        self._disconnect()
        self._pipe_lock = threading.Lock()
        self._close_pipe()

    def post(self, method: str, body: dict[str, Any]) -> None:
        """Queue a notification; never blocks. What cannot be sent now is sent after the next hello."""
        self._outbox.append(_line({"jsonrpc": "2.0", "method": method, "params": body}))
        self._wake()

    def _wake(self) -> None:
        # The lock keeps the descriptor ours: closed meanwhile, its number might name one of the training's files.
        # OSError: full, then the thread has been told; closed, then it has ended.
        with self._pipe_lock, contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def _run(self) -> None:
        try:
            # Signals belong to the training thread, except those that this one would cause itself.
            own = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - own)
            self._loop()
        except BaseException as error:  # noqa: BLE001 - nothing may surface in the training process
            self.guard._detach(error)
        finally:
            self._disconnect()
            self._close_pipe()

    def _loop(self) -> None:
        delay_s = FIRST_BACKOFF_S
        while not self._stopping:
            began = monotonic()
            try:
                self._session()
            except _RefusedError as error:
                self._log_once(f"nodewarden: the agent refuses this process: {error}")
                delay_s = REFUSED_BACKOFF_S
            except _GarbageError as error:
                self._log_once(f"nodewarden: not understood from the agent, trying again later: {error}")
            except OSError as error:
                log.debug("nodewarden: no agent: %s", error)
            self._disconnect()
            if self._welcomed and monotonic() - began > LAST_BACKOFF_S:
                delay_s = FIRST_BACKOFF_S
            self._welcomed = False
            self._sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(delay_s * 2, LAST_BACKOFF_S)

    def _sleep(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._stopping:
            left_s = min(until, self.guard._next_expiry()) - monotonic()
            if left_s > 0:
                self._wait(left_s)
            self.guard._expire()
            if monotonic() >= until:
                return

    def _wait(self, seconds: float) -> bool:
        """Wait for the socket or a wake-up; True when the socket has something."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(max(0, math.ceil(min(seconds, 60.0) * 1000)))}
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        return self._socket is not None and self._socket.fileno() in ready

    def _session(self) -> None:
        """One connection, from connect to its end. Raises what ended it; returns when asked to stop."""
        self._buffer.clear()
        self._steps.clear()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = sock
        sock.settimeout(1.0)
        sock.connect(self.path)
        sock.sendall(_line({"jsonrpc": "2.0", "id": 1, "method": "hello", "params": self._hello()}))
        self._heard = monotonic()
        while not self._stopping:
            limit_s = SILENCE_S if self._welcomed else HELLO_TIMEOUT_S
            now = monotonic()
            if now - self._heard > limit_s:
                raise OSError("the agent is silent")
            if self._wait(min(self._heard + limit_s, self.guard._next_expiry()) - now + 0.001):
                self._receive(sock)
            self.guard._expire()
            self._flush(sock)
        if self._welcomed:
            self._flush(sock)
            sock.sendall(_line({"jsonrpc": "2.0", "method": "bye", "params": {}}))

    def _flush(self, sock: socket.socket) -> None:
        while self._welcomed and self._outbox:
            sock.sendall(self._outbox[0])
            self._outbox.popleft()

    def _receive(self, sock: socket.socket) -> None:
        chunk = sock.recv(MAX_LINE_BYTES)
        if not chunk:
            raise OSError("the agent closed the connection")
        self._buffer += chunk
        *lines, rest = bytes(self._buffer).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise _GarbageError("a line longer than 64 KiB")
        self._buffer = bytearray(rest)
        for line in lines:
            try:
                self._handle(sock, json.loads(line.decode("utf-8")))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise _GarbageError(f"{type(error).__name__} in {bytes(line[:80])!r}") from error

    def _handle(self, sock: socket.socket, message: dict[str, Any]) -> None:
        if "error" in message:
            raise _RefusedError(_words(message["error"]["message"], 300))
        self._heard = monotonic()
        if "result" in message:
            self._welcomed = message["result"]["proto"] == PROTOCOL
            return
        if not self._welcomed:
            raise _GarbageError("something other than the answer to hello")
        method, params = message["method"], message["params"]
        if method == "ping":
            step = _whole(self.guard._cur)
            if step is not None and (not self._steps or self._steps[-1][1] != step):
                self._steps.append((self._heard, step))
            pong = {"seq": int(params["seq"]), "step": step}
            sock.sendall(_line({"jsonrpc": "2.0", "method": "pong", "params": pong}))
        elif method == "throttle":
            self.guard._on_throttle(params)
        elif method == "prepare":
            params = {
                "req": str(params["req"]),
                "round": int(params["round"]),
                "step": int(params["step"]),
                "kind": str(params["kind"]),
                "then": str(params.get("then", CONTINUE)),
                "deadline_s": min(max(0.0, float(params["deadline_s"])), 86400.0),
                "reason": dict(params.get("reason") or {}),
            }
            self.guard._on_prepare(params, self._step_s())
        elif method == "decide" and params["value"] == "abort":
            self.guard._on_abort(params["req"])

    def _step_s(self) -> float | None:
        """Seconds per step over the last few pings, None when unknown."""
        if len(self._steps) < 2:
            return None
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        return (last_at - first_at) / (last - first) if last > first else None

    def _hello(self) -> dict[str, Any]:
        guard = self.guard
        hello = dict(self.identity)
        can_save = guard.save is not None
        hello["caps"] = ["throttle", "checkpoint", "stop"] if can_save else ["throttle"]
        hello["step"] = _whole(guard._cur)
        expected = {name: guard._expected_s(name) for name in ("staged", "persisted")}
        hello["ckpt_s"] = {name: round(value, 3) for name, value in expected.items() if value is not None}
        last = guard._last_checkpoint
        if last is not None:
            hello["last_ckpt"] = {"step": last["step"], "path": last["path"], "age_s": monotonic() - last["at"]}
        return hello

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _close_pipe(self) -> None:
        with self._pipe_lock:
            descriptors, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _log_once(self, text: str) -> None:
        if text not in self._logged and len(self._logged) < 16:
            self._logged.add(text)
            log.warning("%s", text)


# Who this process is, from what the launcher says ---------------------------------------------------------------------


def _identity(
    job: str | None, rank: int | None, world: int | None, gpus: Sequence[str] | str | None, framework: str
) -> dict[str, Any]:
    slurm_step = "SLURM_STEP_ID" in os.environ  # the batch script itself is no rank of the step
    world = world if world is not None else _env_int("WORLD_SIZE", "SLURM_STEP_NUM_TASKS" if slurm_step else "") or 1
    rank = rank if rank is not None else _env_int("RANK", "SLURM_PROCID" if slurm_step else "") or 0
    local_world = _env_int("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE" if slurm_step else "") or 1
    local_rank = _env_int("LOCAL_RANK", "SLURM_LOCALID" if slurm_step else "") or 0
    named = gpus if gpus is not None else _gpus(local_rank, local_world)
    named = named.split(",") if isinstance(named, str) else named
    identity: dict[str, Any] = {
        "proto": [PROTOCOL],
        "job": _name(job or _job_name(), 128),
        "rank": max(0, int(rank)),
        "world": max(1, int(world)),
        "local_rank": max(0, local_rank),
        "local_world": max(1, local_world),
        "run": max(0, _env_int("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0),
        "gpus": [_name(gpu, 96) for gpu in named][:64],
        "framework": _words(framework, 64),
    }
    pg_timeout_s = _env_float("NODEWARDEN_PG_TIMEOUT_S")
    if pg_timeout_s is not None:
        identity["pg_timeout_s"] = pg_timeout_s
    return identity


def _job_name() -> str:
    env = os.environ
    if env.get("NODEWARDEN_JOB"):
        return env["NODEWARDEN_JOB"]
    if env.get("SLURM_JOB_ID"):
        return "slurm-" + env["SLURM_JOB_ID"]
    if env.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return "torchrun-" + env["TORCHELASTIC_RUN_ID"]
    if env.get("MASTER_PORT") and (_env_int("WORLD_SIZE") or 1) > 1:
        return "ranks-{}-{}".format(env.get("MASTER_ADDR", "local"), env["MASTER_PORT"])
    return f"pid-{os.getpid()}"


def _gpus(local_rank: int, local_world: int) -> list[str]:
    """Uuids of this rank's GPUs where they can be known without touching the driver, else none."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            return [f"GPU-{properties.uuid}"]
    except Exception:
        log.debug("nodewarden: torch does not tell its GPU's uuid", exc_info=True)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not all(name.startswith(("GPU-", "MIG-")) for name in visible):
        return []  # numbers: Slurm and containers renumber them, so they name nothing
    return [visible[local_rank]] if len(visible) == local_world > local_rank else visible


def _socket_path() -> str:
    explicit = os.environ.get("NODEWARDEN_JOB_SOCKET")
    runtime_dir = os.environ.get("NODEWARDEN_RUNTIME_DIR") or "/run/nodewarden"
    return explicit or os.path.join(runtime_dir, "job", "job.sock")


def _declared_s(state: str) -> float | None:
    """Declared duration of a save in seconds: NODEWARDEN_CHECKPOINT_S (persisted)."""
    return _env_float("NODEWARDEN_CHECKPOINT_S") if state == "persisted" else None


def _env_int(*names: str) -> int | None:
    for name in names:
        try:
            return int(os.environ[name])
        except (KeyError, ValueError):
            continue
    return None


def _env_float(name: str) -> float | None:
    try:
        value = float(os.environ[name])
    except (KeyError, ValueError):
        return None
    return value if 0 <= value <= 1e7 else None


# Small things ---------------------------------------------------------------------------------------------------------


def _torch_sync() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _whole(step: Any) -> int | None:
    """A step as the protocol carries it; None for what is no number."""
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**53) <= number <= 2**53 else None


def _words(value: object, limit: int) -> str:
    """A text that survives UTF-8 and a line's limit, whatever it was."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:limit]


def _name(value: object, limit: int) -> str:
    """A name in the characters that the protocol has for names."""
    return re.sub(r"[^A-Za-z0-9._:@/+-]", "-", str(value).strip())[:limit]


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("utf-8") + b"\n"


# Guards of this process, for exit and fork ----------------------------------------------------------------------------

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for guard in list(_guards):
        guard.close()


def _after_fork_in_child() -> None:
    for guard in list(_guards):
        guard._forked()
    _guards.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
