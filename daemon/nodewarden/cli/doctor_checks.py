"""What `nodectl doctor` looks at: one function per check. Each only looks; nothing is changed, nothing hangs."""

import ctypes
import errno
import http.client
import os
import pwd
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from nodewarden import paths
from nodewarden.cli.exits import NO_RIGHTS, NOT_ANSWERING, CliError
from nodewarden.cli.status_screen import grouped, worst_first

State = Literal["ok", "note", "warning", "problem"]
_PROBE_S = 1.0
_LOW_DISK_BYTES = 100 << 20
_TIME_ERROR = 5  # adjtimex: the clock is not synchronised


class Finding:
    """One result: what was looked at, how it is, and what to do."""

    def __init__(self, check: str, state: State, text: str, advice: str = "") -> None:
        self.check = check
        self.state = state
        self.text = text
        self.advice = advice

    def plain(self) -> dict[str, str]:
        """For JSON."""
        return {"check": self.check, "state": self.state, "text": self.text, "advice": self.advice}


class Machine:
    """Where to look. `agent` is its document when it answered, else `error` says why it did not."""

    def __init__(
        self, *, runtime: Path, state: Path, config: Path, agent: dict[str, Any] | None, error: CliError | None
    ) -> None:
        self.runtime = runtime
        self.state = state
        self.config = Path(agent["config_path"]) if agent and agent.get("config_path") else config
        self.agent = agent
        self.error = error


def run_checks(machine: Machine) -> list[Finding]:
    """Every check; one that fails unexpectedly is itself a finding."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(machine)
        except Exception as error:  # noqa: BLE001 -- the doctor must finish the round
            name = check.__name__.removeprefix("_")
            findings.append(Finding(name, "warning", f"could not be checked: {type(error).__name__}: {error}"))
    return findings


def _agent(machine: Machine) -> Iterator[Finding]:
    if machine.agent is not None:
        agent = machine.agent
        mode = "armed" if agent["armed"] else "disarmed: it only watches"
        yield Finding("agent", "ok", f"version {agent['version']} answers, {mode}, running since {agent['started']}")
        for problem in grouped(worst_first(agent["problems"])):
            if problem["severity"] != "info":
                state: State = "problem" if problem["severity"] == "critical" else "warning"
                yield Finding("agent", state, problem["text"], "nodectl explain")
        for name, loop in agent["loops"].items():
            if loop["age_s"] is not None and loop["age_s"] > max(5 * loop["period_s"], 10):
                text = f"its {name} loop has made no progress for {loop['age_s']:.0f} s"
                yield Finding("agent", "problem", text, "systemctl restart nodewarden; keep the journal of before")
        return
    assert machine.error is not None
    advice = "systemctl status nodewarden; journalctl -u nodewarden -n 50"
    if machine.error.code == NOT_ANSWERING:
        advice = (
            "it may be stopped (kill -CONT) or stuck: journalctl -u nodewarden -n 50; then systemctl restart nodewarden"
        )
    if machine.error.code == NO_RIGHTS:
        advice = "run as another user, or with sudo"
    yield Finding("agent", "problem", str(machine.error), advice)


def _sockets(machine: Machine) -> Iterator[Finding]:
    if not machine.runtime.is_dir():
        advice = "systemd-tmpfiles --create nodewarden.conf, or give --runtime-dir"
        yield Finding("sockets", "problem", f"{machine.runtime} does not exist", advice)
        return
    for path, mode in ((paths.control_socket(machine.runtime), 0o666), (paths.job_socket(machine.runtime), 0o666)):
        try:
            found = path.lstat()
        except OSError:
            yield Finding("sockets", "warning", f"{path} is missing", "the agent makes it; is it running?")
            continue
        if not stat.S_ISSOCK(found.st_mode):
            yield Finding("sockets", "problem", f"{path} is not a socket", "move it away; the agent will not")
        elif stat.S_IMODE(found.st_mode) != mode:
            text = f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, not {mode:04o}"
            yield Finding("sockets", "warning", text, "restart the agent, which makes it anew")
        else:
            yield Finding("sockets", "ok", f"{path} is there")


def _helper(machine: Machine) -> Iterator[Finding]:
    if machine.agent is not None:
        helper = machine.agent["helper"]
        if helper["state"] == "ok":
            yield Finding("helper", "ok", f"pid {helper['pid']} of uid {helper['uid']} serves the agent")
            if not helper["can_write"] and machine.agent["gpus"]:
                text = f"caps cannot be set: {helper['write_reason'] or 'no right to write'}"
                yield Finding("helper", "warning", text, "run nodewarden-gpu as its unit does: root, CAP_SYS_ADMIN")
        else:
            text = f"{helper['state']}{': ' + helper['text'] if helper['text'] else ''}"
            yield Finding(
                "helper", "problem", text, "systemctl status nodewarden-gpu; journalctl -u nodewarden-gpu -n 50"
            )
        return
    path = paths.gpu_socket(machine.runtime)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        number = probe.connect_ex(str(path))
    if number == 0:
        yield Finding("helper", "ok", f"somebody listens on {path}")
    elif number in {errno.EACCES, errno.EPERM}:
        yield Finding("helper", "note", f"{path} is there, but not for this user", "sudo nodectl doctor sees more")
    else:
        yield Finding("helper", "problem", f"{path}: {os.strerror(number)}", "systemctl start nodewarden-gpu")


def _driver(machine: Machine) -> Iterator[Finding]:
    expected = machine.agent["expected_gpus"] if machine.agent else None
    absent: State = "problem" if expected else "note"
    if machine.agent is not None and machine.agent["helper"]["state"] == "ok":
        driver = machine.agent["helper"]["driver"]
        if driver != "ok":
            yield Finding(
                "driver", absent, driver.replace("_", " "), "nvidia-smi; load or finish installing the driver"
            )
            return
        count = machine.agent["gpus"]
        if expected is not None and count < expected:
            text = f"{count} of {expected} expected GPUs found"
            yield Finding("driver", "problem", text, "nvidia-smi -L; dmesg | grep -i xid")
        else:
            yield Finding("driver", "ok", f"{count} GPUs")
        return
    try:
        version = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace").splitlines()[0]
        yield Finding("driver", "ok", version)
    except (OSError, IndexError):
        yield Finding("driver", absent, "no NVIDIA kernel driver is loaded", "modprobe nvidia, on a node with GPUs")


def _gpu_errors(machine: Machine) -> Iterator[Finding]:
    """Whether both sources of Xids are listened to; one of them alone does not see everything."""
    if machine.agent is None:
        yield Finding("gpu errors", "note", "not checked without the agent", "dmesg | grep -i xid shows them")
        return
    words = {"xid/nvml": "the driver's events", "xid/kernel": "the kernel's log"}
    known = {source["name"]: source for source in machine.agent["sources"] if source["name"] in words}
    if not known:
        yield Finding("gpu errors", "note", "no source of Xids here", "dmesg | grep -i xid shows them")
    for name, source in known.items():
        if source["up"]:
            yield Finding("gpu errors", "ok", f"Xids come from {words[name]}")
            continue
        reason = source["reason"] or "no reason known"
        advice = (
            "run the helper as its systemd unit does (root with CAP_SYSLOG)"
            if reason == "no_permission"
            else "without it, Xids come from the other source alone"
        )
        yield Finding("gpu errors", "warning", f"{words[name]}: not listened to ({reason.replace('_', ' ')})", advice)


def _rights(machine: Machine) -> Iterator[Finding]:
    del machine
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    import grp  # noqa: PLC0415

    try:
        admin = grp.getgrnam("nodewarden-admin").gr_gid
    except KeyError:
        admin = None
        advice = "systemd-sysusers makes it; until then only root may change things"
        yield Finding("rights", "note", "there is no group nodewarden-admin", advice)
    if uid == 0:
        yield Finding("rights", "ok", "root may change everything")
    elif admin is not None and admin in {os.getegid(), *os.getgroups()}:
        yield Finding("rights", "ok", f"{name} is in nodewarden-admin and may change things")
    else:
        yield Finding("rights", "note", f"{name} may look, not change", "sudo, or be added to nodewarden-admin")


def _config(machine: Machine) -> Iterator[Finding]:
    from nodewarden.config import load_config  # noqa: PLC0415
    from nodewarden.errors import ConfigError  # noqa: PLC0415

    if machine.agent is not None and machine.agent.get("config_error"):
        text = f"the last reload was refused: {machine.agent['config_error']}"
        yield Finding("config", "warning", text, f"nodectl config check {machine.config}")
    if not machine.config.exists() and machine.agent is not None:
        yield Finding("config", "note", f"{machine.config} is not there any more; the agent goes on with what it read")
        return
    if machine.config.exists() and not os.access(machine.config, os.R_OK):
        yield Finding(
            "config", "note", f"{machine.config} cannot be read by this user", "sudo nodectl doctor sees more"
        )
        return
    try:
        loaded = load_config(machine.config, offline=True)
    except ConfigError as error:
        for line in error.problems:
            yield Finding("config", "problem", line, "correct it; nodectl config check names every mistake")
        return
    for line in loaded.warnings:
        yield Finding("config", "warning" if "read by everyone" in line else "note", line)
    yield Finding("config", "ok", f"{machine.config} has no mistakes")


def _disk(machine: Machine) -> Iterator[Finding]:
    if not machine.state.is_dir():
        yield Finding(
            "disk", "note", f"{machine.state} does not exist yet", "the agent's unit makes it at its first start"
        )
        return
    free = shutil.disk_usage(machine.state).free
    if free < _LOW_DISK_BYTES:
        text = f"only {free >> 20} MiB are free for {machine.state}"
        yield Finding("disk", "warning", text, "make room; meanwhile decisions are only in the log")
    else:
        yield Finding("disk", "ok", f"{free >> 30} GiB are free for {machine.state}")


def _pdus(machine: Machine) -> Iterator[Finding]:
    if machine.agent is None:
        yield Finding("pdus", "note", "not checked without the agent", "nodectl pdu discover HOST asks one directly")
        return
    sources = [source for source in machine.agent["sources"] if source["name"].startswith("pdu/")]
    if not sources:
        yield Finding("pdus", "note", "none is configured", "without one, outlet limits cannot be kept: [[pdu]]")
    for source in sources:
        name = source["name"].removeprefix("pdu/")
        if source["up"] and not source["stale"]:
            yield Finding("pdus", "ok", f"{name} answers in {(source['duration_s'] or 0) * 1000:.0f} ms")
        else:
            text = f"{name} does not answer ({source['reason'] or 'no reason known'})"
            advice = "nodectl pdu discover HOST; check network, community and the PDU's access list"
            yield Finding("pdus", "warning", text, advice)


def _clock(machine: Machine) -> Iterator[Finding]:
    if machine.agent is not None:
        try:
            from datetime import datetime  # noqa: PLC0415

            skew_s = datetime.fromisoformat(machine.agent["time"]).timestamp() - time.time()
            if abs(skew_s) > 5:
                yield Finding(
                    "clock", "warning", f"the agent's wall clock is {skew_s:+.0f} s off this one", "check NTP"
                )
        except ValueError:
            pass
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.adjtimex(ctypes.create_string_buffer(512))  # all zero: only asks
    if answer == _TIME_ERROR:
        advice = "chronyc tracking or timedatectl; control does not depend on it, times shown do"
        yield Finding("clock", "warning", "the wall clock is not synchronised", advice)
    elif answer < 0:
        yield Finding("clock", "note", "whether the wall clock is synchronised cannot be asked here")
    else:
        yield Finding("clock", "ok", "the wall clock is synchronised")


def _http(machine: Machine) -> Iterator[Finding]:
    listen = (machine.agent or {}).get("http_listen") or "0.0.0.0:10048"
    host, _, port = listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1", "::": "::1"}.get(host, host.strip("[]"))  # noqa: S104
    connection = http.client.HTTPConnection(host, int(port), timeout=_PROBE_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        server = answer.getheader("Server") or "no name"
    except OSError as error:
        state: State = "problem" if machine.agent else "note"
        advice = f"ss -ltnp 'sport = :{port}' names who holds the port" if machine.agent else "the agent serves it"
        yield Finding("http", state, f"nobody answers on {host}:{port} ({error.strerror or 'timeout'})", advice)
        return
    except http.client.HTTPException:
        yield Finding("http", "problem", f"{host}:{port} is held by something that does not speak HTTP", "ss -ltnp")
        return
    finally:
        connection.close()
    if machine.agent is None:
        yield Finding(
            "http", "warning", f"{host}:{port} is held by something else ({server})", f"ss -ltnp | grep {port}"
        )
    elif answer.status in {200, 503}:
        well = answer.status == 200
        yield Finding(
            "http",
            "ok" if well else "problem",
            f"/healthz on port {port} says {answer.status}",
            "" if well else "nodectl explain",
        )
    else:
        text = f"/healthz on port {port} says {answer.status}: is that the agent?"
        yield Finding("http", "warning", text, "ss -ltnp names who holds the port")


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    _agent,
    _sockets,
    _helper,
    _driver,
    _gpu_errors,
    _rights,
    _config,
    _disk,
    _pdus,
    _clock,
    _http,
)
