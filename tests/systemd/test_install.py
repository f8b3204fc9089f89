"""scripts/install in a booted Debian: in place, again, and away, never at the cost of a person's configuration."""

import pytest

from support.nspawn import Container
from support.real import REPOSITORY

pytestmark = [pytest.mark.real, pytest.mark.container, pytest.mark.timeout(300)]

CONFIG = "/etc/nodewarden/nodewarden.toml"


@pytest.fixture(scope="module")
def container(wheel_folder):
    binds = {wheel_folder: ("/wheels", "ro"), REPOSITORY / "scripts": ("/scripts", "ro")}
    with Container(binds) as container:
        container.run("/scripts/install --wheels /wheels --no-start")
        yield container


def test_the_installed_units_are_accepted_without_a_word(container):
    child = container.run("systemd-analyze verify nodewarden.service nodewarden-gpu.service")
    assert child.stdout + child.stderr == ""
    assert container.show("nodewarden.service", "LoadState", "UnitFileState") == {
        "LoadState": "loaded",
        "UnitFileState": "enabled",
    }


def test_the_helpers_device_policy_leaves_a_driver_that_comes_later_usable(container):
    shown = container.show("nodewarden-gpu.service", "DevicePolicy", "DeviceAllow")
    assert shown == {"DevicePolicy": "auto"}  # no DeviceAllow at all


def test_users_groups_folders_and_commands_are_in_place(container):
    assert container.run("stat -c '%a %U %G' /run/nodewarden").stdout.strip() == "2755 root nodewarden"
    for folder in ("control", "job"):
        owner = container.run(f"stat -c '%U %a' /run/nodewarden/{folder}").stdout.split()
        assert owner[0] == "nodewarden"
        assert owner[1].endswith("755")
    assert container.run("stat -c '%a %U' /run/lock/nodewarden").stdout.strip() == "755 root"
    assert container.run("getent group nodewarden-admin").returncode == 0
    assert container.run("readlink -e /usr/local/bin/nodectl").stdout.startswith("/opt/nodewarden/venv-")
    assert container.run(f"stat -c '%a %U %G' {CONFIG}").stdout.strip() == "640 root nodewarden"


def test_the_code_is_compiled_because_the_services_cannot_write_there(container):
    missing = container.run(
        "cd /opt/nodewarden/venv/lib/python3*/site-packages/nodewarden && "
        "for f in *.py; do ls __pycache__/${f%.py}.*.pyc >/dev/null || echo $f; done"
    )
    assert missing.stdout == ""


def test_an_upgrade_keeps_an_edited_configuration_and_removes_the_version_before(container):
    container.write(CONFIG, '[node]\nname = "mine"\n')
    before = container.run("readlink -e /opt/nodewarden/venv").stdout
    upgrade = container.run("/scripts/install --wheels /wheels --no-start")
    after = container.run("readlink -e /opt/nodewarden/venv").stdout
    assert before != after
    assert container.run("ls /opt/nodewarden").stdout.split() == ["venv", after.strip().rpartition("/")[2]]
    assert "kept your" in upgrade.stdout
    assert container.run(f"cat {CONFIG}").stdout == '[node]\nname = "mine"\n'


def test_a_failed_installation_leaves_the_version_before_in_place(container):
    before = container.run("ls /opt/nodewarden; readlink -e /opt/nodewarden/venv").stdout
    failed = container.run("mkdir -p /empty; /scripts/install --wheels /empty --no-start", check=False)
    assert failed.returncode != 0
    assert container.run("ls /opt/nodewarden; readlink -e /opt/nodewarden/venv").stdout == before


def test_wrong_use_is_refused_with_help(container):
    assert container.run("/scripts/install --color", check=False).returncode == 64
    assert container.run("/scripts/install --purge", check=False).returncode == 1
    refused = container.run("/scripts/install", user="nobody", check=False)
    assert refused.returncode == 1
    assert "needs root: sudo /scripts/install" in refused.stderr


def test_uninstalling_takes_all_away_but_configuration_and_state_and_purge_those_too(container):
    container.run("/scripts/install --uninstall")
    assert container.run(f"cat {CONFIG}").stdout == '[node]\nname = "mine"\n'
    left = container.run("ls /opt /usr/local/bin; find /usr/local/lib /etc/systemd/system -name 'nodewarden*'").stdout
    assert "nodewarden" not in left
    assert "nodectl" not in left
    assert container.show("nodewarden.service", "LoadState") == {"LoadState": "not-found"}
    container.run("/scripts/install --uninstall --purge")
    gone = container.run("ls -d /etc/nodewarden /var/lib/nodewarden; getent passwd nodewarden", check=False)
    assert gone.stdout == ""
