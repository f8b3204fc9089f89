"""How `nodectl status` ends: soon, with the right code, and never with half a document (F52, F53)."""

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodewarden import paths
from nodewarden.cli.main import main
from support.credentials import as_user
from support.fake_node import served
from support.node_views import blind, calm, degraded, hot, uuid_of
from support.nodectl import COMMAND, nodectl
from support.processes import Program
from support.real import require_root
from support.wait import wait_for

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def empty_runtime() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nw-") as directory:
        (Path(directory) / "control").mkdir()
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextlib.contextmanager
def answering(talk: Callable[[socket.socket], None]) -> Iterator[Path]:
    """A runtime directory where `talk` has each accepted connection."""
    with empty_runtime() as runtime, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(paths.control_socket(runtime)))
        listener.listen(8)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield runtime
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def run_main(capsys, *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("view", "code"), [(calm, 0), (blind, 0), (degraded, 1), (hot, 2)])
def test_the_exit_code_is_the_health(view, code):
    with served(view()) as there:
        done = nodectl(there.runtime, "status")
        assert (done.returncode, done.stderr) == (code, "")
        assert "gpu-node-07" in done.stdout
        as_json = nodectl(there.runtime, "status", "--json")
        assert as_json.returncode == code
        assert json.loads(as_json.stdout)["node"] == "gpu-node-07"


@pytest.mark.parametrize("mode", [(), ("--json",)])
@pytest.mark.parametrize("what", ["no directory", "no socket", "dead socket"])
def test_not_running_is_3(capsys, mode, what):
    with empty_runtime() as runtime:
        if what == "dead socket":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(paths.control_socket(runtime)))
        where = runtime / "nowhere" if what == "no directory" else runtime
        code, out, err = run_main(capsys, "--runtime-dir", str(where), "status", *mode)
        assert code == 3
        if mode:
            document = json.loads(out)
            assert (document["health"], document["gpus"], document["problems"]) == (None, [], [])
            assert "not running" in err
        else:
            assert "NOT RUNNING" in out
            assert "No cap of ours is in force." in out


def talk_nothing(connection: socket.socket) -> None:
    connection.settimeout(5)
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass


def talk_half(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b'{"jsonrpc":"2.0","id":1,"result":{"schema":1,"node":"x","ti')


def talk_slowly(connection: socket.socket) -> None:
    """One byte now and then: activity is not an answer."""
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(b" ")
            threading.Event().wait(0.05)


def line(document: object) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(json.dumps(document).encode() + b"\n")

    return talk


NOT_ANSWERS = {
    "accepts and says nothing": talk_nothing,
    "cuts the answer": talk_half,
    "trickles": talk_slowly,
    "hangs up": lambda _: None,
    "says nonsense": line("hello"),
    "says a list": line([1]),
    "answers without a result": line({"jsonrpc": "2.0", "id": 1}),
    "answers another schema": line({"jsonrpc": "2.0", "id": 1, "result": {"schema": 99}}),
    "knows no status": line(
        {"id": 1, "error": {"code": -32601, "message": "no verb", "data": {"kind": "unknown_verb"}}}
    ),
    "leaves keys out": line({"jsonrpc": "2.0", "id": 1, "result": {"schema": 1, "node": "x"}}),
}


@pytest.mark.parametrize("mode", [(), ("--json",)])
@pytest.mark.parametrize("what", NOT_ANSWERS)
def test_not_answering_is_4_and_stdout_is_empty(capsys, what, mode):
    with answering(NOT_ANSWERS[what]) as runtime:
        began_s = time.monotonic()
        code, out, err = run_main(capsys, "--runtime-dir", str(runtime), "status", "--timeout", "0.5", *mode)
        assert (code, out) == (4, "")
        assert err.startswith("nodectl: ")
        assert time.monotonic() - began_s < 5


SERVER = """
import sys
sys.path.insert(0, "tests")
from support.credentials import as_user
from support.fake_node import served
from support.node_views import hot
with served(hot()) as there:
    print(there.runtime, flush=True)
    sys.stdin.read()
"""


def test_a_stopped_agent_is_4_in_less_than_3_seconds():
    with Program([sys.executable, "-c", SERVER], cwd=ROOT, interactive=True) as agent:
        runtime = Path(wait_for(lambda: agent.output.partition(chr(10))[0], 20, "the agent to serve"))
        assert nodectl(runtime, "status").returncode == 2
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            done = nodectl(runtime, "status", timeout_s=10)
            assert (done.returncode, done.stdout) == (4, "")
            assert "does not answer" in done.stderr
            assert "within 2 s" in done.stderr
            with contextlib.ExitStack() as stack:  # and with the queue of its socket full
                for _ in range(600):
                    waiting = stack.enter_context(
                        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                    )
                    with contextlib.suppress(BlockingIOError):
                        waiting.connect(str(paths.control_socket(runtime)))
                full = nodectl(runtime, "status", "--timeout", "0.3", timeout_s=10)
                assert (full.returncode, full.stdout) == (4, "")
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        assert nodectl(runtime, "status").returncode == 2


def as_nobody(*words: str) -> tuple[int, str, str]:
    def work() -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        return code, out.getvalue(), err.getvalue()

    importlib.import_module("nodewarden.cli.status")
    importlib.import_module("nodewarden.cli.change")
    return tuple(as_user(65534, 65534, [], work))


def test_no_right_to_connect_is_5():
    require_root()
    with served(calm()) as there:
        there.socket.chmod(0o600)
        code, out, err = as_nobody("--runtime-dir", str(there.runtime), "status", "--json")
        assert (code, out) == (5, "")
        assert "no right to connect" in err


def test_no_right_to_change_is_5():
    require_root()
    with served(calm()) as there:
        code, out, err = as_nobody("--runtime-dir", str(there.runtime), "arm")
        assert (code, out) == (5, "")
        assert "nodewarden-admin" in err
        assert there.node.calls == []
        (entry,) = [entry for entry in there.logs if entry["event"] == "verb_forbidden"]
        assert entry["uid"] == 65534


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stats"], 'did you mean "status"?'),
        (["status", "--jsno"], "--jsno"),
        (["cap", "0"], "Missing argument 'W'"),
        (["cap", "0", "many"], "watts as a number"),
        (["cap", "0", "500", "--for", "10"], "10m"),
        (["cap", "0", "500", "--for", "0s"], "out of range"),
        (["throttle", "j", "200%"], "5 to 100 percent"),
        (["status", "--timeout", "0"], "0.05"),
        ([], "Usage: nodectl"),
        (["config"], "Usage: nodectl config"),
        (["pdu", "discover", "h"], "--community or --community-file"),
        (["pdu", "discover", "h:0", "--community", "c"], "is no address"),
        (["pdu", "discover", "h", "--community-file", "/nowhere"], "cannot be read"),
    ],
)
def test_a_usage_error_is_64_and_says_what_is_allowed(capsys, words, said):
    code, out, err = run_main(capsys, *words)
    assert (code, out) == (64, "")
    assert said in err


def test_help_is_for_every_verb_with_an_example(capsys):
    from nodewarden.cli.main import nodectl as group  # noqa: PLC0415

    for verb in group.commands_by_name():
        if verb == "demo":
            continue  # its own tests
        code, out, _ = run_main(capsys, verb, "--help")
        assert code == 0, verb
        assert out.startswith("Usage: nodectl")
        assert "Examples:" in out or "Commands:" in out, verb


def test_an_internal_error_is_70_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr("nodewarden.cli.status.ask", lambda *_, **__: 1 / 0)
    code, out, err = run_main(capsys, "status")
    assert (code, out) == (70, "")
    assert "internal error: ZeroDivisionError" in err
    assert "Traceback" not in err


def test_ctrl_c_is_130(capsys, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nodewarden.cli.status.ask", interrupt)
    assert run_main(capsys, "status")[0] == 130


def test_a_reader_that_leaves_is_no_error():
    with served(hot()) as there:
        command = [*COMMAND, "--runtime-dir", str(there.runtime), "gpus", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        piped = f"{' '.join(COMMAND)} --runtime-dir {there.runtime} status | head -1"
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {piped}"], capture_output=True, text=True, check=False)
        assert done.stdout.startswith("gpu-node-07  CRITICAL")
        assert done.stderr == ""
        assert done.returncode == 2


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [(">&-", 2, ""), (">&- 2>&-", 2, ""), (">/dev/full", 70, "cannot be written: No space left"), ("2>&-", 2, "")],
)
def test_a_closed_or_full_output_is_no_traceback(where, code, said):
    with served(hot()) as there:
        words = f"{' '.join(COMMAND)} --runtime-dir {there.runtime} status {where}"
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {"LANG": "C", "LC_ALL": None, "LC_CTYPE": None},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"TERM": None, "LANG": "C.UTF-8"},
        {"NO_COLOR": "1"},
        {"COLUMNS": "40", "LANG": "C.UTF-8"},
        {"COLUMNS": "junk"},
    ],
)
def test_no_locale_and_no_terminal_breaks_it(env):
    with served(hot()) as there:
        done = nodectl(there.runtime, "status", env=env)
        assert (done.returncode, done.stderr) == (2, "")
        assert "\x1b" not in done.stdout
        if env.get("LC_ALL") in {"C", "POSIX"} or env.get("LANG") == "C":
            assert done.stdout.isascii()
        assert uuid_of(2)[:8] in done.stdout


def test_on_a_terminal_there_is_colour_unless_it_is_not_wanted():
    with served(hot()) as there:
        words = f"{' '.join(COMMAND)} --runtime-dir {there.runtime} status"

        def on_terminal(**env: str) -> str:
            done = subprocess.run(
                ["script", "-qec", words, "/dev/null"],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LANG": "C.UTF-8", **env},
            )
            assert done.returncode == 2
            return done.stdout

        assert "\x1b[1;31mCRITICAL\x1b[0m" in on_terminal(TERM="xterm")
        assert "\x1b" not in on_terminal(TERM="dumb")
        assert "\x1b" not in on_terminal(TERM="xterm", NO_COLOR="1")


def test_status_loads_nothing_that_it_does_not_need():
    heavy = ["rich", "asyncio", "msgspec", "pysnmp", "starlette", "prometheus_client", "structlog", "nodewarden.config"]
    with served(hot()) as there:
        program = (
            "import sys; from nodewarden.cli.main import main; "
            f"code = main(['--runtime-dir', {str(there.runtime)!r}, 'status']); "
            f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.strip()) == (2, "[]")
