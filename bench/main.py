"""Runs the parts that are named on the command line, or all."""

import sys

import bmc
import gpus
import host
import node
import render
from table import show

PARTS = {
    "render": ("Rendering one page (CPU time)", render.measure),
    "node": ("Agent and helper, 8 GPUs, a PDU with 24 outlets, default periods, one scrape a second", node.measure),
    "calls": ("Driver calls by function, 8 GPUs, default periods", gpus.measure_calls),
    "quick": ("100 ms mode, 8 GPUs", gpus.measure_quick),
    "beside": ("Beside nvitop-exporter, 8 GPUs, period 1 s, one scrape a second each", gpus.measure_beside),
    "cap": ("From heat to cap", node.measure_cap),
    "host": ("One sweep over the host's sensors (CPU time, a built tree: no driver behind it)", host.measure),
    "bmc": ("One full BMC refresh over each recorded Redfish tree", bmc.measure),
    "status": ("nodectl status", node.measure_status),
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 64
    for name in names or PARTS:
        title, measure = PARTS[name]
        show(title, measure())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
