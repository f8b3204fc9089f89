"""The journal's events as a spectator wants them: each thing once, eight GPUs in one line, no long paths."""

import re
from collections.abc import Sequence

import msgspec

from nodewarden.sim.watch import Told

# Said by another event in better words, or about the agent's own life.
SILENT = frozenset(
    {
        "journal_opened",
        "agent_started",
        "agent_ready",
        "armed",
        "disarmed",
        "source_back",
        "checkpoint_wanted",
        "checkpoint_staged",
        "checkpoint_done",
        "gpu_capped_firing",
        "ladder_high_firing",
        "disarmed_firing",
        "loop_stalled_firing",
    }
)
GROUPED = frozenset({"gpu_capped", "gpu_uncapped"})
DECISIONS = frozenset({"gpu_capped", "gpu_uncapped", "ladder_raised", "ladder_lowered"})
SAME_WITHIN_S = 3.0
_PATH = re.compile(r": /\S+$")
_SINCE = re.compile(r" since \d\d:\d\d:\d\d")  # the agent's clock, which runs faster here; the line has the scenario's
_GPU = re.compile(r"(GPU \S+)(?: \(and \d+ more\))?")


def plainly(events: Sequence[Told]) -> list[Told]:
    """What is worth a line, oldest first."""
    out: list[Told] = []
    others: dict[str, int] = {}  # by code: GPUs that the line before stands for
    for event in events:
        if event.code in SILENT or event.code.endswith("_resolved") or event.at_s < 0.0:
            continue
        before = next((told for told in reversed(out) if told.code == event.code), None)
        is_repeat = before is not None and event.at_s - before.at_s <= SAME_WITHIN_S
        if is_repeat and event.code in GROUPED and event.uuid != (before.uuid if before else None):
            others[event.code] += 1
            i = max(i for i, told in enumerate(out) if told.code == event.code)
            out[i] = msgspec.structs.replace(out[i], text=_with_others(out[i].text, others[event.code]))
            continue
        if is_repeat and event.code not in DECISIONS:
            continue
        others[event.code] = 0
        out.append(msgspec.structs.replace(event, text=_SINCE.sub("", _PATH.sub("", event.text))))
    return out


def _with_others(text: str, count: int) -> str:
    return _GPU.sub(rf"\1 (and {count} more)", text, count=1)
