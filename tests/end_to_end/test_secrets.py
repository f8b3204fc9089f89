"""F75: a community never shows, wherever one looks, whatever fails."""

import os
from pathlib import Path

import pytest

from end_to_end.node import TestNode
from support.ports import free_udp_port
from support.wait import wait_for

pytestmark = pytest.mark.real

SECRET = "xk7Qz9-unique-community"
OTHER = "pl5Wv3-in-a-file"


def looks_like(text: str) -> bool:
    """Prefixes of six characters count as a find."""
    return any(secret[:6] in text for secret in (SECRET, OTHER))


def test_no_secret_in_logs_status_metrics_events_or_the_process_list(tmp_path: Path) -> None:
    file = tmp_path / "community"
    file.write_text(OTHER + "\n")
    file.chmod(0o600)
    pdus = "".join(
        f'[[pdu]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {free_udp_port()}\n{how}\n'
        for name, how in (("silent", f'community = "{SECRET}"'), ("filed", f'community_file = "{file}"'))
    )
    with TestNode(["h100"], config=pdus) as node:
        agent = node.start_agent("--log-level", "debug")
        wait_for(lambda: "pdu_stale" in node.codes(), 40, "the silent PDUs to be told")
        texts = [agent.output, node.page(), str(node.call("agent"))]
        texts += [str(node.call(verb)) for verb in ("status", "pdus", "events", "explain")]
        texts += [node.nodectl(*words, check=None).stdout for words in (["doctor"], ["config", "show"])]
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and process.name != str(os.getpid()):
                try:
                    command = (process / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                texts.append(command)
        assert agent.stop() == 0
        texts += [agent.output]
        for path in node.state.iterdir():
            texts.append(path.read_bytes().decode(errors="replace"))
    assert [text[:200] for text in texts if looks_like(text)] == []
    assert any("silent" in text for text in texts)


def test_a_mistake_beside_a_secret_does_not_show_it(tmp_path: Path) -> None:
    with TestNode(["h100"]) as node:
        node.write_config(f'[[pdu]]\nname = "a"\nhost = "127.0.0.1"\ncommunity = ["{SECRET}"]\ncommunity_file = 5\n')
        agent = node.start_agent(ready=False)
        assert agent.wait_exit(15) == 78
        assert "community" in agent.output
        assert not looks_like(agent.output)
