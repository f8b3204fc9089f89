"""The host's readings through the real agent and helper, from a built tree of /sys and /proc to page and screen."""

import os
import time

import pytest

from end_to_end.node import TestNode
from support.host_tree import HostTree
from support.wait import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

CONFIG = "[sampling]\nhost_s = 1\n"


def test_the_host_is_on_the_page_and_on_the_screen_and_a_port_that_goes_down_is_a_problem() -> None:
    with TestNode(kinds=("h100",), config=CONFIG) as node:
        tree = HostTree(node.host_root)
        tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp1_input=55000, temp1_label="Package id 0")
        drive = tree.drive(1, 1)
        tree.cpu(0, 0, 0, 3, 4)
        tree.pressure("memory", 1.5)
        port = tree.port("mlx5_0", port_guid="ignored")
        zone = tree.zone("intel-rapl:0", "package-0", 1_000_000)
        node.start_agent()

        def page_has(line: str) -> None:
            wait_for(lambda: f"\n{line}\n" in node.page(), 30, line)

        page_has('nodewarden_host_sensor_celsius{chip="coretemp.0",sensor="Package id 0"} 55.0')
        page_has('nodewarden_host_nvme_celsius{drive="nvme1"} 43.85')
        page_has('nodewarden_host_cpu_package_throttles_total{package="0"} 4.0')
        page_has('nodewarden_host_pressure_ratio{resource="memory",kind="some",window="60s"} 0.015')
        page_has('nodewarden_infiniband_transmit_bytes_total{device="mlx5_0",port="1"} 4000.0')
        page_has('nodewarden_source_up{source="host"} 1')
        tree.write(f"{zone}/energy_uj", 150_000_000)
        wait_for(lambda: "\nnodewarden_host_cpu_power_watts " in node.page(), 30, "power by the helper")
        screen = node.nodectl("host").stdout
        for words in ("55 °C", "mlx5_0/1", "400 Gb/s", "KIOXIA KCD6XLUL3T84", "cores 3, package 4"):
            assert words in screen.replace("\N{DEGREE SIGN}", "°"), screen
        tree.fill(port, state="1: DOWN", phys_state="2: Polling")
        wait_for(lambda: node.json("host")["ports"][0]["down_since"], 30, "the port that is down")
        page_has('nodewarden_infiniband_up{device="mlx5_0",port="1"} 0')
        tree.write(f"{drive}/temp1_input", 2**63)  # F10
        wait_for(lambda: 'nodewarden_host_nvme_celsius{drive="nvme1"}' not in node.page(), 30, "no marker on the page")
        page_has('nodewarden_source_rejected_total{source="host",field="temperature"} 1')


def test_a_host_without_anything_logs_nothing_and_a_file_that_hangs_holds_up_no_end() -> None:
    """F71: absent hardware is a state; and a driver that hangs costs its own file."""
    with TestNode(kinds=("h100",), config=CONFIG) as node:
        tree = HostTree(node.host_root)
        agent = node.start_agent()
        wait_for(lambda: node.json("host")["age_s"] is not None, 30, "the first sweep")
        assert "shows no sensors" in node.nodectl("host").stdout
        said = agent.output
        assert "host" not in said.replace(str(node.host_root), ""), said
        tree.chip(0, "/sys/devices/platform/coretemp.0", "coretemp", temp2_input=51000)
        os.mkfifo(tree.path("/sys/devices/platform/coretemp.0/hwmon/hwmon0/temp1_input"))  # to open it hangs
        wait_for(
            lambda: node.json("host")["hung"] == ["/sys/class/hwmon/hwmon0/temp1_input"], 30, "the file that hangs"
        )
        wait_for(lambda: [s["value"] for s in node.json("host")["sensors"]] == [None, 51.0], 30, "the file beside it")
        assert "host_file_hung" in node.codes()
        began_s = time.monotonic()
        agent.stop(20)
        assert agent.process.returncode == 0
        assert time.monotonic() - began_s < 15
