"""Where a BMC's temperature sensor sits, told by its name, and what only looks like a temperature. Pure tables.

PhysicalContext is not used: a DGX H100 says Intake of all, iLO says SystemBoard of GPUs, NVSwitches say GPU.
"""

import re
from typing import Final

from nodewarden.model.bmc import Location

# The first that fits. Names are lower case, with blanks for everything that is neither letter, digit nor dot.
_TABLE: Final[tuple[tuple[Location, str], ...]] = (
    ("psu", r"^temp psu ?\d|^psu ?\d|\bp/s \d|\bps ?\d+ temp|power supply"),
    ("inlet", r"system board inlet|inlet ambient|^ambient( temp)?$|^temp ambient$|front panel ambient"),
    ("inlet", r"^(front )?inlet( air)?( temp\w*)?( \d)?$"),
    ("exhaust", r"system board exhaust|^(sys )?exhaust( air)?( temp\w*)?( \d)?$|\bsys exhaust \d|^outlet( air)? temp"),
    ("gpu_board", r"gb ?\d+ inlet"),
    ("gpu_memory", r"(gpu|sxm|xlr8r).*\b(dram|hbm|memory|mem)\b|sxm ?\d+ m$|\bhbm"),
    ("nvswitch", r"nv ?switch|\bnvs ?\d"),
    ("power_distribution", r"\bpdb ?\d*\b|hsc"),
    ("vr", r"\bvr\b|\bvrm\b|vreg"),
    ("storage", r"\bhd\b|ssd|nvme|\bm ?\.?2\b|u\.2|exp bay drive|\bdrive\b|\bhdd\b"),
    ("nic", r"\bnic\b|\blan\b|\blom\b|\bcx ?\d|\bbf ?3|bluefield|network (controller|adapter)|ocp|[oq]sfp|connectx"),
    ("board", r"retimer|pcie? ?sw|pex sw|fpga|\bpcb\b|\bbmc\b|\bhmc\b|\bpch\b|chipset"),
    ("board", r"processormodule.*(inlet|exhaust)"),
    ("board", r"hgx chassis|board inlet|\bmb (inlet|outlet|rear)"),
    ("gpu", r"\bgpu ?\d*\b|gb sxm ?\d|\bxlr8r\b|\bsxm ?\d"),
    ("memory", r"\bdimm|\bpmm\b|\bmemory\b|\bmem\b"),
    ("cpu", r"\bcpu ?\d*\b|\bpkgtmp\b|\bprocessor \d"),
)  # fmt: skip

_MARGIN = re.compile(r"tlimit|temp ?limit|\bdts\b|thermal margin|\bmargin\b")

_EVENT = re.compile(r"\bover ?temp")


def plain(name: str) -> str:
    """The name as the table wants it."""
    words = re.sub(r"[^a-z0-9./]+", " ", name.lower()).strip()
    return re.sub(r"^\d+(\.\d+)? ", "", words)  # iLO numbers its sensors


def location_of(name: str) -> Location:
    """The location of a temperature; "board" for everything that its name does not place elsewhere."""
    words = plain(name)
    for location, pattern in _TABLE:
        if re.search(pattern, words):
            return location
    return "board"


def is_event(name: str | None, unit: object, value: float | None) -> bool:
    """True for a sensor that says whether something happened: XCC types it, with an empty unit, as it does margins."""
    words = plain(name or "")
    return bool(_EVENT.search(words)) or (unit == "" and value == 0 and not _MARGIN.search(words))


def is_margin(name: str, lower: float | None, upper: float | None) -> bool:
    """True for a distance to a limit: its name says so, or it is only ever too low and that at zero or below."""
    return bool(_MARGIN.search(plain(name))) or (upper is None and lower is not None and lower <= 0)
