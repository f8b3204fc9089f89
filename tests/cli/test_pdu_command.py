"""`nodectl pdu discover` against a real SNMP agent on loopback."""

import json

import pytest

from nodewarden.cli.main import main
from nodewarden.sim.pdu import PduValues, serve_pdu
from support.nodectl import nodectl
from support.ports import free_udp_port
from support.snmpd import AUTH_PASSWORD, PRIV_PASSWORD, Snmpd


@pytest.fixture
def pdu():
    handle = serve_pdu(lambda: PduValues(outlets_w={7: 2600.0, 8: 2500.0}), community="c0mmun1ty")
    yield f"127.0.0.1:{handle.port}"
    handle.close()


def test_it_prints_a_list_with_one_object(pdu, tmp_path):
    (tmp_path / "c").write_text("c0mmun1ty\n")
    done = nodectl(None, "pdu", "discover", pdu, "--community-file", str(tmp_path / "c"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)
    assert {"vendor", "model", "sysObjectID", "total_power_w", "phases", "outlets", "suspect"} <= set(found)
    assert {o["index"]: o["power_w"] for o in found["outlets"]}[7] == pytest.approx(2600, abs=10)


def test_for_people_it_is_a_table_and_the_lines_for_the_configuration(pdu, capsys):
    assert main(["pdu", "discover", pdu, "--community", "c0mmun1ty"]) == 0
    out = capsys.readouterr().out
    assert "OUTLET" in out
    assert f"port = {pdu.partition(':')[2]}" in out
    assert "c0mmun1ty" not in out


def test_a_wrong_community_and_a_silent_port_are_4_without_the_secret(pdu, capsys):
    for address in (pdu, f"127.0.0.1:{free_udp_port()}"):
        words = ["pdu", "discover", address, "--community", "s3cret-community", "--timeout", "0.2", "--json"]
        assert main(words) == 4
        out, err = capsys.readouterr()
        assert out == ""
        assert address.partition(":")[2] in err
        assert "s3cret" not in err


@pytest.fixture
def passwords(tmp_path):
    for name, text in (("auth", AUTH_PASSWORD), ("priv", PRIV_PASSWORD), ("wrong", "wrong-password")):
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


@pytest.mark.real
def test_a_v3_user_is_given_by_files_and_a_refusal_is_named(passwords, capsys):
    auth, priv, wrong = (str(passwords / name) for name in ("auth", "priv", "wrong"))
    with Snmpd([("monitor", "sha256", "aes256")]) as snmpd:
        words = ["pdu", "discover", f"127.0.0.1:{snmpd.port}", "--user", "monitor", "--auth-protocol", "sha256"]
        words += ["--timeout", "1", "--json", "--priv-protocol", "aes256"]
        assert main([*words, "--auth-file", auth, "--priv-file", priv]) == 1
        assert "is an unknown device" in capsys.readouterr().err, "net-snmp is no PDU: it was read, though"
        assert main([*words, "--auth-file", wrong, "--priv-file", priv]) == 1
        assert "authentication password or protocol is wrong" in capsys.readouterr().err
        assert main([*words, "--auth-file", auth, "--priv-file", wrong]) == 1
        said = capsys.readouterr().err
        assert "privacy password or protocol is wrong" in said
        assert not [secret for secret in ("wrong-", AUTH_PASSWORD[:6], PRIV_PASSWORD[:6]) if secret in said]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--user", "u", "--community", "c"], "belongs to SNMP 1 and 2c"),
        (["--version", "2c", "--user", "u"], "belongs to SNMPv3"),
        (["--version", "3"], "SNMPv3 needs --user"),
        (["--user", "u", "--priv-file", "{auth}"], "privacy only with authentication"),
        (["--user", "u", "--auth-protocol", "sha"], "--auth-protocol needs --auth-file"),
        ([], "give either --community or --community-file"),
        (["--community", ""], "--community is empty"),
    ],
)
def test_options_that_do_not_belong_together_are_usage_errors(words, said, passwords, capsys):
    words = [word.format(auth=passwords / "auth") for word in words]
    assert main(["pdu", "discover", "127.0.0.1", *words]) == 64
    assert said in capsys.readouterr().err
