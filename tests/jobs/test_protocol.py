"""The protocol's public face: the schema file is current and describes what really goes over the socket."""

import ast
import json
import re
from pathlib import Path

import msgspec
import pytest

import nodewarden.jobs
import nodewarden_client
from jobs.rig import Peer, node
from nodewarden.jobs import protocol

REPOSITORY = Path(__file__).parents[2]


def test_the_schema_file_is_current():
    kept = json.loads((REPOSITORY / "docs/job-protocol.schema.json").read_text())
    assert kept == protocol.schema(), "run scripts/job-schema"


def test_the_document_names_every_method_state_and_error_code():
    text = (REPOSITORY / "docs/job-protocol.md").read_text()
    states = msgspec.json.schema(protocol.State)["$defs"]["State"]["properties"]["state"]["enum"]
    for word in [*protocol.FROM_RANK, *protocol.TO_RANK, *states]:
        assert f"`{word}`" in text, word
    sources = "".join(path.read_text() for path in Path(nodewarden.jobs.__file__).parent.glob("*.py"))
    codes = re.findall(r'(?:refuse|LineError)\((?:\w+, )?"(\w+)"', sources)
    codes += re.findall(r'RefusedError\([^\n]*, "(\w+)"\)', sources)
    assert len(set(codes)) > 15
    for code in set(codes) - {"in_the_way"}:  # that one is about the socket's path, at start
        assert f"`{code}`" in text, code


async def test_what_the_server_sends_fits_the_structs():
    async with node() as it:
        peer = await Peer.connect(it.socket)
        result = (await peer.hello())["result"]
        assert msgspec.convert(result, protocol.HelloResult).proto == 1
        it.server.throttle(0.5, ttl_s=60, cause="thermal", gpu="GPU-1")
        (request_id,) = it.server.request_checkpoint(deadline_s=20, cause="manual", job="toy")
        peer.send("vote", req=request_id, round=0, ok=True, step=1)
        heard = {}
        while len(heard) < len(protocol.TO_RANK):
            message = await peer.hear()
            heard[message["method"]] = msgspec.convert(message["params"], protocol.TO_RANK[message["method"]])
        assert heard["decide"] == protocol.Decide(req=request_id, round=0, value="commit")
        assert heard["throttle"].reason == protocol.Reason(cause="thermal", gpu="GPU-1")
        await peer.close()


@pytest.mark.parametrize("package", [nodewarden.jobs, nodewarden_client])
def test_no_time_of_day_is_used_on_the_job_path(package):
    """F73: a step of the wall clock can reach neither a ttl nor a deadline, because nothing here reads it."""
    for path in Path(package.__file__).parent.glob("*.py"):
        for node_ in ast.walk(ast.parse(path.read_text())):
            if isinstance(node_, ast.Attribute):
                assert node_.attr not in {"time_ns", "wall_s", "utcnow", "datetime"}, path
                owner = node_.value.id if isinstance(node_.value, ast.Name) else ""
                assert (owner, node_.attr) != ("time", "time"), path
