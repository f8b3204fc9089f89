"""The agent with a BMC over TLS: its values on all ways out, its password on none, its session ended at the end."""

import subprocess
from pathlib import Path

from end_to_end.node import TestNode
from nodewarden.devices.redfish_tls import fingerprint_of, shown_certificate
from support.brokers import Authority
from support.redfish import Bmc
from support.wait import wait_for

ROOT = "/redfish/v1"
RIGHT, WRONG = "Zt9-right-password", "Wm4-wrong-password"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def server() -> dict[str, object]:
    chassis = f"{ROOT}/Chassis/1"
    enabled = {"State": "Enabled", "Health": "OK"}
    return {
        ROOT: {"Chassis": link(f"{ROOT}/Chassis")},
        f"{ROOT}/Chassis": {"Members": [link(chassis)]},
        chassis: {"Manufacturer": "Acme", "Power": link(f"{chassis}/Power"), "Thermal": link(f"{chassis}/Thermal")},
        f"{chassis}/Power": {
            "PowerControl": [{"PowerConsumedWatts": 5210}],
            "PowerSupplies": [{"Name": "PSU 1", "PowerInputWatts": 2600, "Status": enabled}],
        },
        f"{chassis}/Thermal": {
            "Temperatures": [{"Name": "Inlet Temp", "ReadingCelsius": 27, "Status": enabled}],
            "Fans": [{"Name": "Fan 1", "Reading": 9000, "ReadingUnits": "RPM", "Status": enabled}],
        },
    }


def test_a_bmc_is_read_shown_and_left_and_its_password_is_nowhere(tmp_path: Path) -> None:
    """F75, for BMCs."""
    secret = tmp_path / "password"
    secret.write_text(f"{RIGHT}\n")
    secret.chmod(0o600)
    with Bmc(server(), password=RIGHT, tls=Authority("site").issue(tmp_path, "bmc")) as bmc:
        pin = fingerprint_of(shown_certificate("127.0.0.1", bmc.port, 5))
        config = f'[bmc]\nurl = "{bmc.url}"\nuser = "monitor"\npassword_file = "{secret}"\nfingerprint = "{pin}"\n'
        with TestNode(("h100",), config=f"{config}period_s = 2\n") as node:
            agent = node.start_agent("--log-level", "debug")
            wait_for(lambda: "nodewarden_bmc_chassis_power_watts 5210" in node.page(), 30, "the BMC's power")
            page = node.page()
            assert 'nodewarden_bmc_temperature_celsius{sensor="Inlet Temp",location="inlet"} 27' in page
            shown = node.json("bmc", "show", check=0)
            assert (shown["up"], shown["chassis_power_w"], shown["fans"][0]["rpm"]) == (True, 5210, 9000)

            refused = tmp_path / "wrong"
            refused.write_text(WRONG)
            told = node.nodectl(
                "bmc", "discover", bmc.url, "--user", "monitor", "--password-file", str(refused),
                "--fingerprint", pin, check=None,
            )  # fmt: skip
            assert told.returncode != 0
            assert "check user and password" in told.stderr

            seen = {"page": page, "discover": told.stdout + told.stderr}
            seen["processes"] = subprocess.run(
                ["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True
            ).stdout
            for words in ("status", "doctor", "events", "config show", "bmc show"):
                done = node.nodectl(*words.split(), check=None)
                seen[words] = done.stdout + done.stderr
            seen["state"] = "".join(p.read_bytes().decode("latin-1") for p in node.state.iterdir() if p.is_file())
            agent.stop(15)
            bmc.wait_for_logout()
            seen["log"] = agent.output
    for password in (RIGHT, WRONG):
        assert [where for where, text in seen.items() if password in text] == []
    assert {method for method, _ in bmc.requests} == {"GET", "POST", "DELETE"}
