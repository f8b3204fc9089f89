"""docs/metrics.md and docs/problems.md say what the tables say; NODEWARDEN_UPDATE_GOLDEN=1 writes them."""

import os
from pathlib import Path

import pytest

from nodewarden.model.gpu_quantities import BY_NAME
from nodewarden_alerts import CONDITIONS
from nodewarden_exporters.metric import Metric
from nodewarden_exporters.metrics import MAX_SERIES, METRICS

DOCS = Path(__file__).parents[2] / "docs"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "Served as text 0.0.4 on `/metrics` (port 10048). Base units; labels are identities, what things are called",
        "is on the `_info` series to join with. A series is there only while its reading is fresh: unknown is never",
        f"0. A page never has more than {MAX_SERIES} series. The agent's metrics about itself (`nodewarden_agent_...`,",
        "`process_...`) follow at the end of the page.",
        "",
        "GPU quantities come with the driver calls that give them, in the order in which they are tried (`field` is a",
        "number of `nvmlDeviceGetFieldValues`), the boards that have them, and what a read costs per GPU: fast every",
        "`sampling.gpu_fast_s`, slow every `sampling.gpu_slow_s`, rare every 60 s. What this node's boards have, say",
        "`nodectl gpus --capabilities`. Temperature and errors of NVSwitches are not here: NVML does not give them.",
        "",
        "| name | type | labels | unit | meaning | source | boards | cost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [metric_row(metric) for metric in METRICS]
    return "\n".join(lines) + "\n"


def metric_row(metric: Metric) -> str:
    quantity = BY_NAME.get(metric.quantity)
    source = (quantity.source, quantity.boards, f"{quantity.every}: {quantity.cost}") if quantity else ("", "", "")
    cells = (f"`{metric.name}`", metric.kind, ", ".join(metric.all_labels), metric.unit, metric.help, *source)
    return f"| {' | '.join(cells)} |"


def problems_page() -> str:
    lines = [
        "# Problems",
        "",
        "What `nodectl status` and `nodewarden_problem{code,severity}` can say. A critical one makes `nodectl status`",
        "exit with 2, a warning with 1; info changes nothing.",
        "",
        "| code | severity | what it means | what to do |",
        "| --- | --- | --- | --- |",
    ]
    for each in CONDITIONS:
        meaning = f"{each.title}, for {each.hold_s:.0f} s" if each.hold_s else each.title
        lines.append(f"| `{each.code}` | {each.severity} | {meaning} | {each.advice} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("name", "page"), [("metrics.md", metrics_page()), ("problems.md", problems_page())])
def test_the_reference_says_what_the_table_says(name: str, page: str) -> None:
    file = DOCS / name
    if os.environ.get("NODEWARDEN_UPDATE_GOLDEN") == "1":
        file.write_text(page)
    assert file.read_text() == page, "run with NODEWARDEN_UPDATE_GOLDEN=1 and look at the difference"
