"""A booted Debian with systemd as process 1, for tests of units and installation. Needs root; everything is cached.

The root file system is built once by mmdebstrap and stays pristine: each container runs on a volatile overlay of it and
has a control group of its own, so that several can run side by side.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.real import REPOSITORY, require, require_program, require_root
from support.wait import wait_for

SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,udev,iproute2,procps"
CGROUPS = Path("/sys/fs/cgroup")


def cache_dir() -> Path:
    """Where what is expensive to build outlives a test run and a clone."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodewarden"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _once(target: Path) -> Iterator[Path | None]:
    """Yields a scratch folder that becomes `target` when the body succeeds, or None when `target` is there already."""
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            yield None
            return
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        try:
            yield scratch
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _run(command: list[str | Path], **kwargs: object) -> str:
    child = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)  # type: ignore[call-overload]
    assert child.returncode == 0, f"{command} failed ({child.returncode}):\n{child.stdout}{child.stderr}"
    return child.stdout


def root_image() -> Path:
    """The root file system; the first call on a machine takes some 20 s and 290 MB."""
    require_root()
    may_mount = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    require(subprocess.run(may_mount, capture_output=True, check=False).returncode == 0, "the right to mount")
    mmdebstrap = require_program("mmdebstrap")
    digest = hashlib.sha256(f"{SUITE} {PACKAGES}".encode()).hexdigest()[:12]
    target = cache_dir() / f"root-{SUITE}-{digest}"
    with _once(target) as scratch:
        if scratch:
            scratch.chmod(0o755)
            mirror = os.environ.get("NODEWARDEN_DEBIAN_MIRROR")
            command = [mmdebstrap, "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, scratch]
            _run([*command, mirror] if mirror else command)
    return target


def wheels(built: Path) -> Path:
    """Fills `built` with the wheels of this working tree and of all it depends on, for the container's Python."""
    pip = next(
        (
            [python, "-m", "pip", "--disable-pip-version-check"]
            for python in (sys.executable, "python3")
            if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
        ),
        None,
    )
    require(pip, "pip")
    assert pip
    _run([*pip, "wheel", "-q", "--no-deps", "-w", built, REPOSITORY])
    wheel = next(built.glob("*.whl"))
    dependencies = re.search(r"(?ms)^dependencies = \[.*?^\]", (REPOSITORY / "pyproject.toml").read_text())
    assert dependencies
    digest = hashlib.sha256(f"{PYTHON} {dependencies[0]}".encode()).hexdigest()[:12]
    cached = cache_dir() / f"wheels-{digest}"
    with _once(cached) as scratch:
        if scratch:
            only = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
            _run([*pip, "download", "-q", *only, "-d", scratch, wheel])
            (scratch / wheel.name).unlink(missing_ok=True)
    for dependency in cached.glob("*.whl"):
        shutil.copy(dependency, built)
    return built


class Container:
    """One booted container; a context manager that powers it off and leaves nothing behind.

    `binds` maps host paths to (path inside, "ro" or "rw").
    """

    def __init__(self, binds: Mapping[Path, tuple[str, str]] | None = None) -> None:
        image = root_image()
        nspawn = require_program("systemd-nspawn")
        self.name = f"nw-{uuid.uuid4().hex[:8]}"
        unified = CGROUPS / "unified" if (CGROUPS / "unified").is_dir() else CGROUPS  # hybrid, else pure version 2
        require(os.access(unified, os.W_OK), f"a writable {unified}")
        self._cgroup = unified / self.name
        self._cgroup.mkdir()
        self._console = tempfile.TemporaryFile(prefix="nw-console-")  # noqa: SIM115 - closed in stop()
        options = " ".join(
            shlex.quote(f"--bind{'-ro' if mode == 'ro' else ''}={host}:{inside}")
            for host, (inside, mode) in (binds or {}).items()
        )
        # A tmpfs of its own on /run/systemd/nspawn, because machines there are usually systemd's business.
        script = f"""
            set -e
            mkdir -p /run/systemd/nspawn
            mount -t tmpfs none /run/systemd/nspawn
            echo $$ >{self._cgroup}/cgroup.procs
            export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
            exec {nspawn} -q --register=no --keep-unit --boot --directory={shlex.quote(str(image))} \
                --machine={self.name} --volatile=overlay --private-network --capability=CAP_SYSLOG \
                --console=pipe {options}
        """
        self._nspawn = subprocess.Popen(
            # If this test process dies, so does the container.
            ["setpriv", "--pdeathsig", "TERM", "unshare", "-m", "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.leader: int | None = None  # process 1 of the container, as seen from here
        try:
            wait_for(self._booted, 60, "the container to boot")
            # As on a machine: one boot id for all (services with ProtectKernelTunables= would see beneath nspawn's own)
            # and mounts that reach services which run already.
            self.run("umount /proc/sys/kernel/random/boot_id; mount --make-rshared /")
        except BaseException:
            self.stop()
            raise

    @property
    def console(self) -> str:
        """What the boot printed."""
        size = os.fstat(self._console.fileno()).st_size
        return os.pread(self._console.fileno(), size, 0).decode(errors="replace")

    def _booted(self) -> bool:
        assert self._nspawn.poll() is None, f"systemd-nspawn ended: {self.console}"
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        if not children:
            return False
        self.leader = int(children[0])  # looked up each time: a short-lived child comes before it
        state = self.run("systemctl is-system-running", check=False)
        return state.stdout.strip() in {"running", "degraded"}

    def run(
        self, command: str, *, check: bool = True, timeout_s: float = 60, user: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command inside, as root or as `user`; fails with its output unless check=False."""
        shell = [*(["runuser", "-u", user, "--"] if user else []), "sh", "-c", command]
        child = subprocess.run(
            ["nsenter", "-t", str(self.leader), "-a", *shell],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )
        assert child.returncode == 0 or not check, f"{command!r}: {child.returncode}\n{child.stdout}{child.stderr}"
        return child

    def write(self, path: str, text: str) -> None:
        """Writes a file inside."""
        command = f"mkdir -p $(dirname {shlex.quote(path)}) && cat >{shlex.quote(path)}"
        subprocess.run(
            ["nsenter", "-t", str(self.leader), "-a", "sh", "-c", command],
            input=text,
            text=True,
            check=True,
            timeout=30,
        )

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        output = self.run(f"systemctl show {unit} {' '.join(f'-p {name}' for name in properties)}").stdout
        return dict(line.split("=", 1) for line in output.splitlines())

    def journal(self, unit: str) -> str:
        """What the unit logged since boot."""
        return self.run(f"journalctl -q --no-pager -o cat -u {unit}").stdout

    def stop(self) -> None:
        """Powers off; kills what does not go."""
        if self._nspawn.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self.leader:
                    os.kill(self.leader, signal.SIGRTMIN + 3)
            try:
                self._nspawn.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._nspawn.pid, signal.SIGKILL)
                self._nspawn.wait(20)
        self._console.close()

        def removed() -> bool:
            folders = sorted((Path(where) for where, _, _ in os.walk(self._cgroup)), reverse=True)
            with contextlib.suppress(OSError):
                for folder in folders:
                    folder.rmdir()
            return not self._cgroup.exists()

        wait_for(removed, 20, f"the last process of {self.name} to go")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- console\n{self.console[-4000:]}")
        self.stop()
