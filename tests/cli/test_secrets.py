"""F75: secrets of the configuration are found nowhere: not in logs, verbs, metrics, journal or the process list."""

import subprocess
from pathlib import Path

from end_to_end.node import TestNode
from nodewarden.sim.pdu import PduValues, serve_pdu
from support.ports import free_udp_port
from support.wait import wait_for

RIGHT, WRONG, FILED = "Zt9-right-community", "Wm4-wrong-community", "Kp2-filed-community"


def test_no_secret_leaves_the_configuration_whatever_goes_wrong(tmp_path: Path) -> None:
    good = serve_pdu(lambda: PduValues(outlets_w={7: 2000.0}), community=RIGHT)
    filed = tmp_path / "community"
    filed.write_text(FILED)
    filed.chmod(0o600)

    def pdu(name: str, port: int, secret: str) -> str:
        return f'[[pdu]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {port}\ntimeout_s = 0.2\n{secret}\n'

    config = "".join([
        pdu("good", good.port, f'community = "{RIGHT}"'),
        pdu("refuses", good.port, f'community = "{WRONG}"'),
        pdu("silent", free_udp_port(), f'community_file = "{filed}"'),
    ])  # fmt: skip
    with TestNode(("h100",), config=config) as node:
        node.config.chmod(0o600)
        agent = node.start_agent("--log-level", "debug")
        wait_for(lambda: node.call("status")["pdus"][0]["up"], 20, "the good PDU to be read")
        wait_for(lambda: "pdu_stale" in node.codes(), 30, "the refusing PDU to be noticed")
        processes = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
        seen = {"processes": processes, "metrics": node.page()}
        for words in ("status", "pdus", "doctor", "explain", "events", "config show"):
            for as_json in ((), ("--json",)):
                done = node.nodectl(*words.split(), *as_json, check=None)
                assert done.stdout, done.stderr
                seen[f"nodectl {words}"] = done.stdout + done.stderr
        seen["agent document"] = str(node.call("agent"))
        seen["state"] = "".join(p.read_bytes().decode("latin-1") for p in node.state.iterdir() if p.is_file())
    seen["log"] = agent.output
    good.close()
    for secret in (RIGHT, WRONG, FILED):
        hits = [where for where, text in seen.items() if secret[:6] in text]
        assert hits == []
