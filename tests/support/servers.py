"""Real servers for tests: snmpsim on recordings of real PDUs, Prometheus, and promtool."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from support.ports import free_port, free_udp_port, is_bound
from support.processes import Program
from support.real import require_program
from support.wait import wait_for


class SnmpSimulator(Program):
    """snmpsim serving a folder of .snmprec files over v1 and v2c; the community is the file name without its suffix.

    `scratch` takes snmpsim's index; extra `arguments` go to the command line (SNMPv3 users, for instance).
    """

    def __init__(self, folder: Path, scratch: Path, *, port: int | None = None, arguments: Iterable[str] = ()) -> None:
        self.port = port or free_udp_port()
        cache = scratch / f"snmpsim-{self.port}"
        cache.mkdir(parents=True, exist_ok=True)
        # It insists on changing its user when started by root; root itself can read every Python.
        user = ["--process-user", "root", "--process-group", "root"] if os.geteuid() == 0 else []
        super().__init__(
            [
                Path(sys.executable).with_name("snmpsim-command-responder"),
                *["--data-dir", folder, "--cache-dir", cache],
                *["--agent-udpv4-endpoint", f"127.0.0.1:{self.port}"],
                *user,
                *arguments,
            ],
            env={"HOME": str(scratch), "PYTHONWARNINGS": None},
        )
        self.wait_for_output("Listening at UDP/IPv4 endpoint", 30)
        wait_for(lambda: is_bound(self.port), 30, "snmpsim to have done what it says")

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"


def get(url: str, timeout_s: float = 5) -> bytes:
    """The body of one HTTP answer."""
    with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - loopback only
        return response.read()


def answers(url: str) -> Callable[[], bool]:
    """A condition for `wait_for`: the URL answers with success."""

    def condition() -> bool:
        try:
            get(url, 1)
        except (urllib.error.URLError, OSError):
            return False
        return True

    return condition


class Prometheus(Program):
    """Debian's prometheus, scraping the named targets ("127.0.0.1:10048" or a mapping to their metrics path)."""

    def __init__(
        self,
        scratch: Path,
        targets: Mapping[str, str] | Iterable[str],
        *,
        every_s: float = 1.0,
        rules: Path | None = None,
    ) -> None:
        program = require_program("prometheus")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        paths = targets if isinstance(targets, Mapping) else dict.fromkeys(targets, "/metrics")
        config = {
            "global": {"scrape_interval": f"{round(every_s * 1000)}ms", "evaluation_interval": "1s"},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [
                {"job_name": f"target-{n}", "metrics_path": path, "static_configs": [{"targets": [target]}]}
                for n, (target, path) in enumerate(paths.items())
            ],
        }
        scratch.mkdir(parents=True, exist_ok=True)
        config_file = scratch / "prometheus.yml"
        config_file.write_text(json.dumps(config))  # JSON is YAML
        super().__init__(
            [
                program,
                f"--config.file={config_file}",
                f"--storage.tsdb.path={scratch / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn",
            ]
        )
        wait_for(answers(f"{self.url}/-/ready"), 30, "prometheus to be ready")

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """An instant query: label pairs (sorted, without the name) -> value."""
        body = get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        results = json.loads(body)["data"]["result"]
        return {
            tuple(sorted((k, v) for k, v in row["metric"].items() if k != "__name__")): float(row["value"][1])
            for row in results
        }

    def samples(self, selector: str) -> list[tuple[float, float]]:
        """All stored samples, (unix time, value), of the one series that a range selector (`name{...}[5m]`) matches."""
        body = get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': selector})}")
        results = json.loads(body)["data"]["result"]
        assert len(results) == 1, f"{selector} matches {len(results)} series"
        return [(float(at_s), float(value)) for at_s, value in results[0]["values"]]

    def wait_for_value(self, expression: str, timeout_s: float = 20) -> float:
        """The value of the first series of an instant query, once there is one."""
        rows = wait_for(lambda: self.query(expression), timeout_s, f"prometheus to answer {expression}")
        return next(iter(rows.values()))


def check_metrics(page: str | bytes) -> str:
    """What `promtool check metrics` says about a page; empty when it has no complaint."""
    promtool = require_program("promtool")
    data = page.encode() if isinstance(page, str) else page
    child = subprocess.run([promtool, "check", "metrics"], input=data, capture_output=True, check=False, timeout=30)
    return (child.stdout + child.stderr).decode().strip() or ("" if child.returncode == 0 else "promtool failed")
