"""A toy training job that shows how a training script works with Nodewarden. Run: `python -m nodewarden.sim.train_toy`.

What to copy into a real script is marked with (1) to (4). The training is real but tiny: a two-layer network learns a
function in plain Python, deterministically, so that a resumed run is bit-identical to one that never stopped. Steps
take `--step-s` seconds, or, with `--twin FILE`, as long as the twin's eight boards need at their present speed.

Prints one JSON object per line: "started", "saved" (one per checkpoint), "ended".
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import nodewarden_client
from nodewarden.sim.toy_pace import Pace, TwinPace
from nodewarden_client.client import Request

HIDDEN = 6
BATCH = 8
LEARNING_RATE = 0.05
MOMENTUM = 0.9
KEEP = 3
MARKER = "COMPLETE"


class Model:
    """One input, `HIDDEN` tanh units, one output; momentum SGD. Its whole state is in `state()`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.step = 0
        self.loss = 0.0
        self.weights = [self.random.gauss(0.0, 0.5) for _ in range(3 * HIDDEN + 1)]
        self.momenta = [0.0] * len(self.weights)

    def train_step(self) -> None:
        """One batch of fresh samples of sin(2x), one update."""
        gradients = [0.0] * len(self.weights)
        self.loss = 0.0
        for _ in range(BATCH):
            x = self.random.uniform(-1.5, 1.5)
            self.loss += self._backward(x, math.sin(2 * x), gradients) / BATCH
        for i, gradient in enumerate(gradients):
            self.momenta[i] = MOMENTUM * self.momenta[i] - LEARNING_RATE * gradient / BATCH
            self.weights[i] += self.momenta[i]
        self.step += 1

    def _backward(self, x: float, target: float, gradients: list[float]) -> float:
        w = self.weights
        hidden = [math.tanh(w[3 * i] * x + w[3 * i + 1]) for i in range(HIDDEN)]
        error = sum(w[3 * i + 2] * h for i, h in enumerate(hidden)) + w[-1] - target
        for i, h in enumerate(hidden):
            inner = error * w[3 * i + 2] * (1.0 - h * h)
            gradients[3 * i] += inner * x
            gradients[3 * i + 1] += inner
            gradients[3 * i + 2] += error * h
        gradients[-1] += error
        return 0.5 * error * error

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, the random numbers included."""
        version, words, gauss = self.random.getstate()
        return {
            "step": self.step,
            "loss": self.loss,
            "weights": self.weights,
            "momenta": self.momenta,
            "random": [version, list(words), gauss],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state` was taken."""
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))
        self.step, self.loss = state["step"], state["loss"]
        self.weights, self.momenta = list(state["weights"]), list(state["momenta"])


# (1) A save that a crash at any moment cannot spoil: written beside, forced to disk, complete only with its marker,
# then renamed, and the rename itself forced to disk.


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write one checkpoint folder atomically; its path. Older ones beyond the newest `KEEP` are removed."""
    final = folder / f"step-{state['step']:08d}"
    beside = folder / f".step-{state['step']:08d}.{os.getpid()}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    body = json.dumps(state).encode()
    _write_durably(beside / "state.json", body)
    _write_durably(beside / MARKER, hashlib.sha256(body).hexdigest().encode())
    _sync_folder(beside)
    if final.exists():  # the same step saved again: the old one is as good
        shutil.rmtree(beside)
    else:
        beside.rename(final)
    _sync_folder(folder)
    for old in checkpoints(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoint folders, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def load_newest(folder: Path) -> dict[str, Any] | None:
    """State of the newest checkpoint that is complete and undamaged, None when there is none."""
    for path in checkpoints(folder):
        with contextlib.suppress(OSError, ValueError):
            body = (path / "state.json").read_bytes()
            if (path / MARKER).read_text() == hashlib.sha256(body).hexdigest():
                state: dict[str, Any] = json.loads(body)
                return state
    return None


def _write_durably(path: Path, body: bytes) -> None:
    with path.open("xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def say(event: str, **facts: Any) -> None:
    """One line of JSON for whoever watches."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 - this is the program's output


def train(model: Model, folder: Path, pace: Pace, options: argparse.Namespace) -> str:
    """Train up to `options.steps` steps; why it ended: "finished", "stop" (asked by Nodewarden) or "signal"."""
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)

    # (2) The one function that saves; `request` is None when the script saves on its own account.
    def save(step: int, request: Request | None) -> None:
        began_s = time.monotonic()
        pace.save(step)
        state = model.state()
        if request is not None:
            request.staged()  # the state is copied: power may change now
        path = save_checkpoint(folder, state)
        if request is not None:
            request.persisted(str(path))  # on disk: the process may end now
        took_s = round(time.monotonic() - began_s, 3)
        say("saved", step=step, path=str(path), asked=request is not None, took_s=took_s, loss=model.loss)

    # (3) Say hello. Never raises, and works without an agent.
    guard = nodewarden_client.connect(save=save, job=options.job, gpus=options.gpus or None, framework="toy")
    reason = "finished"
    try:
        while model.step < options.steps:
            pace.step(model.step)
            model.train_step()
            pace.rest(model.step)
            # (4) Once per step. May sleep (throttle) and may save; "stop" means: saved, now end.
            if guard.step(model.step) == "stop":
                reason = "stop"
                break
            if interrupted:
                reason = "signal"
                break
            if options.save_every and model.step % options.save_every == 0:
                save(model.step, None)
    finally:
        guard.close()
        pace.end()
    return reason


def main() -> int:
    """Run the toy job."""
    parser = argparse.ArgumentParser(prog="train_toy", description="A toy training job that works with Nodewarden.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints; resumes from it")
    parser.add_argument("--steps", type=int, default=1_000_000, help="train up to this step")
    parser.add_argument("--save-every", type=int, default=0, help="steps between own checkpoints, 0 = only when asked")
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds a step takes")
    parser.add_argument("--save-s", type=float, default=0.0, help="seconds a save takes on top of the writing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", help="name of the job; by default from the launcher")
    parser.add_argument("--gpus", nargs="*", help="uuids of its GPUs; by default from the launcher")
    parser.add_argument("--twin", type=Path, help="the file that the twin shares with the job")
    options = parser.parse_args()

    pace = Pace(options.step_s, options.save_s)
    if options.twin is not None:
        pace = TwinPace(options.twin, options.save_s)
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    model = Model(options.seed)
    state = load_newest(options.checkpoints)
    if state is not None:
        model.load(state)
    say("started", step=model.step, resumed=state is not None, pid=os.getpid())
    reason = train(model, options.checkpoints, pace, options)
    digest = hashlib.sha256(json.dumps(model.state()).encode()).hexdigest()
    say("ended", step=model.step, reason=reason, loss=model.loss, state_sha256=digest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
