"""A training job for the tests: counts steps, mixes a state deterministically, saves atomically, resumes.

Prints one JSON object per thing that happened. Run with the options as one JSON object in argv[1].
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nodewarden_client

OPTIONS: dict[str, Any] = {
    "dir": ".",
    "last": 1_000_000,
    "step_s": 0.005,
    "save": "sync",  # sync, async, raise, never, none
    "save_s": 0.0,
    "connect": {},
} | json.loads(sys.argv[1])
CHECKPOINT = Path(OPTIONS["dir"]) / "checkpoint.json"
_print_lock = threading.Lock()


def tell(what: str, **facts: object) -> None:
    with _print_lock:
        print(json.dumps({"what": what, "at": time.monotonic(), **facts}), flush=True)  # noqa: T201


def write_atomically(step: int, state: int) -> str:
    temporary = CHECKPOINT.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump({"step": step, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(CHECKPOINT)
    return str(CHECKPOINT)


def main() -> None:
    first, state = 0, 1
    if CHECKPOINT.exists():
        saved = json.loads(CHECKPOINT.read_text())
        first, state = saved["step"] + 1, saved["state"]
    tell("began", first=first, pid=os.getpid())

    def save(step: int, request: Any) -> None:
        tell("save", step=step, req=request.id, then=request.then, reason=request.reason)
        if OPTIONS["save"] == "raise":
            raise OSError("no space left on device")
        if OPTIONS["save"] == "never":
            return
        copied = state

        def finish() -> None:
            time.sleep(OPTIONS["save_s"])
            request.persisted(write_atomically(step, copied))
            request.persisted("again, which does not count")
            tell("persisted", step=step, req=request.id)

        request.staged()
        if OPTIONS["save"] == "async":
            threading.Thread(target=finish).start()
        else:
            finish()

    save_fn = None if OPTIONS["save"] == "none" else save
    guard = nodewarden_client.connect(save=save_fn, **OPTIONS["connect"])
    told_at = 0.0
    for step in range(first, OPTIONS["last"]):
        time.sleep(OPTIONS["step_s"])
        state = (state * 6364136223846793005 + step) % 2**64
        if guard.step(step) == "stop":
            tell("stopped", step=step)
            break
        if time.monotonic() - told_at > 0.05:
            told_at = time.monotonic()
            tell("step", step=step)
    guard.close()
    tell("ended", state=state, threads=[thread.name for thread in threading.enumerate()])


main()
