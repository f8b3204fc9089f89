"""`nodectl pdu discover` against a real SNMP agent on loopback."""

import json

import pytest

from nodewarden.cli.main import main
from nodewarden.sim.pdu import PduValues, serve_pdu
from support.nodectl import nodectl
from support.ports import free_udp_port


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
