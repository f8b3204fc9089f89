"""The job server as a process of its own, so that tests can kill, stop and restart it. argv: socket path.

Reads one JSON command per line (`checkpoint`, `throttle`) and prints one JSON object per event and answer.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from nodewarden.clock import BootClock
from nodewarden.jobs.server import JobServer
from nodewarden.model.events import Event


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201


async def main() -> None:
    def on_event(event: Event) -> None:
        tell(event=event.code, text=event.text)

    server = JobServer(Path(sys.argv[1]), BootClock(), verify="none", pids_of=lambda _: None, on_event=on_event)
    await server.start()
    tell(event="ready", text="")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        name = command.pop("do")
        if name == "throttle":
            tell(answer=server.throttle(**command))
        elif name == "checkpoint":
            tell(answer=server.request_checkpoint(**command))
    await server.close()


asyncio.run(main())
