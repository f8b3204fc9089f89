"""The unit files by themselves: systemd accepts every line, and how exposed the services are is bounded."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.real import REPOSITORY, require_program

UNITS = REPOSITORY / "systemd"
SERVICES = ("nodewarden.service", "nodewarden-gpu.service")


@pytest.fixture
def units(tmp_path) -> Path:
    """Copies that start programs which exist here: the installed paths do not."""
    for name in SERVICES:
        text = (UNITS / name).read_text()
        assert "/opt/nodewarden/venv/bin/" in text
        (tmp_path / name).write_text(re.sub(r"/opt/nodewarden/venv/bin/[\w-]+", sys.executable, text))
    return tmp_path


@pytest.mark.real
def test_systemd_accepts_every_line_of_the_units(units):
    analyze = require_program("systemd-analyze")
    child = subprocess.run(
        [analyze, "verify", *(units / name for name in SERVICES)], capture_output=True, text=True, check=False
    )
    assert child.stderr == ""  # an unknown key is only printed: the exit status stays 0
    assert child.returncode == 0


@pytest.mark.real
@pytest.mark.parametrize(("name", "limit"), [("nodewarden.service", 1.8), ("nodewarden-gpu.service", 2.0)])
def test_the_exposure_stays_small(units, name, limit):
    analyze = require_program("systemd-analyze")
    child = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", units / name], capture_output=True, text=True, check=True
    )
    found = re.search(r"exposure level for \S+: ([\d.]+)", child.stdout)
    assert found, child.stdout
    assert float(found[1]) <= limit, child.stdout


def settings(name: str) -> list[tuple[str, str]]:
    lines = (line.strip() for line in (UNITS / name).read_text().splitlines())
    return [
        (key, value) for key, equals, value in (line.partition("=") for line in lines if line[:1] not in "#[") if equals
    ]


def test_the_helper_names_no_device_because_the_driver_may_come_later():
    keys = {key for key, _ in settings("nodewarden-gpu.service")}
    # ProtectClock= and PrivateDevices= bring a device policy with them
    assert keys & {"DeviceAllow", "DevicePolicy", "ProtectClock", "PrivateDevices"} == set()


def test_the_helper_may_read_the_kernels_log():
    keys = dict(settings("nodewarden-gpu.service"))
    assert "CAP_SYSLOG" in keys["CapabilityBoundingSet"].split()
    assert "ProtectKernelLogs" not in keys  # takes both /dev/kmsg and the right away


def test_the_helper_is_never_killed_and_the_agent_never_depends_on_it():
    helper, agent = dict(settings("nodewarden-gpu.service")), dict(settings("nodewarden.service"))
    assert helper["SendSIGKILL"] == "no"
    assert helper["KillMode"] == "process"  # else systemd starts no successor beside a helper stuck in the driver
    assert "WatchdogSec" not in helper
    assert agent["Wants"] == "nodewarden-gpu.service"
    assert not {"Requires", "BindsTo", "PartOf", "Requisite", "RuntimeDirectory", "PrivateUsers"} & agent.keys()
    assert agent["CapabilityBoundingSet"] == ""
    assert agent["RestartPreventExitStatus"] == "64 75 78"
    assert {unit["StartLimitIntervalSec"] for unit in (helper, agent)} == {"0"}


def test_every_relaxed_line_of_the_units_is_explained():
    for name in SERVICES:
        text = (UNITS / name).read_text()
        for key in ("PrivateUsers", "ProtectProc", "ProcSubset"):
            assert f"# No {key}=" in text or f"no {key}=" in text, f"{name} does not say why it has no {key}="


def test_the_example_configuration_is_valid_as_it_is_and_with_every_example_line_in_force(tmp_path):
    from nodewarden.config import load_config  # noqa: PLC0415

    example = UNITS / "nodewarden.toml"
    assert load_config(example).pdu == ()
    everything = re.sub(r"(?m)^# ((?:\[\[pdu\]\]|# Files|\w+ = ).*)$", r"\1", example.read_text())
    everything = everything.replace("${CREDENTIALS_DIRECTORY}", str(tmp_path))
    for secret in ("pdu_auth", "pdu_priv"):
        (tmp_path / secret).write_text("long enough a secret")
        (tmp_path / secret).chmod(0o600)
    assert len(tomllib.loads(everything)["pdu"]) == 1
    (tmp_path / "nodewarden.toml").write_text(everything)
    config = load_config(tmp_path / "nodewarden.toml")
    assert config.node.name == "gpu-node-07"
    assert config.pdu[0].outlets == (7, 8)
    assert config.limits.failsafe_w == 350
    assert config.jobs.verify == "gpu-process"


@pytest.mark.parametrize("name", ["README.md", "systemd/nodewarden.toml"])
def test_secrets_in_examples_have_the_names_that_the_service_gives_them(name):
    (given,) = re.findall(r"(?m)^LoadCredential=(\w+):/etc/nodewarden/pdu$", (UNITS / SERVICES[0]).read_text())
    used = re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([\w-]+)", (REPOSITORY / name).read_text())
    assert used
    assert all(secret.startswith(f"{given}_") for secret in used)


def test_the_configuration_in_the_readme_has_no_mistakes(tmp_path):
    from nodewarden.config import load_config  # noqa: PLC0415

    (example,) = re.findall(r"(?s)```toml\n(.*?)```", (REPOSITORY / "README.md").read_text())
    (tmp_path / "pdu_rack12-a").write_text("public")
    (tmp_path / "pdu_rack12-a").chmod(0o600)
    (tmp_path / "nodewarden.toml").write_text(example)
    config = load_config(tmp_path / "nodewarden.toml", environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert (config.pdu[0].outlets, config.limits.node_power_w, config.warnings) == ((7, 8), 5200, ())


def test_the_run_time_folders_belong_to_whom_the_sockets_need():
    rows = [
        line.split() for line in (UNITS / "nodewarden.tmpfiles").read_text().splitlines() if line[:1] not in {"#", ""}
    ]
    folders = {row[1]: tuple(row[2:5]) for row in rows if row[0] == "d"}
    assert folders["/run/nodewarden"] == ("2755", "root", "nodewarden")
    assert folders["/run/nodewarden/control"] == folders["/run/nodewarden/job"] == ("0755", "nodewarden", "nodewarden")
    assert folders["/run/lock/nodewarden"][1:] == ("root", "root")
    assert folders["/etc/nodewarden/pdu"] == ("0700", "root", "root")
