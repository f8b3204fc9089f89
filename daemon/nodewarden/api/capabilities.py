"""`nodectl gpus --capabilities`: for every quantity, which GPUs give it, by which call, or why they do not."""

from typing import Any, Literal

from nodewarden.api.status import SCHEMA, rfc3339, sorted_gpus
from nodewarden.api.view import View
from nodewarden.model.gpu_quantities import COMPUTED, GPU_QUANTITIES
from nodewarden.model.quantity import Quantity
from nodewarden.model.readings import Absent, Reading
from nodewarden.model.snapshot import GpuSnapshot

Document = dict[str, Any]
State = Literal["available", "not_on_board", "not_in_driver", "no_permission", "off", "not_read", "no_link", "failed"]

_STATES: dict[str, State] = {
    "not_supported": "not_on_board",
    "not_in_driver": "not_in_driver",
    "deprecated": "not_in_driver",
    "no_permission": "no_permission",
    "off": "off",
    "not_read": "not_read",
    "no_link": "no_link",
}


def capability(gpu: GpuSnapshot, quantity: Quantity) -> tuple[State, str]:
    """Whether a GPU gives a quantity, and the reason why it does not (empty where it does).

    A quantity with labels is there where any of its values is; else its most telling reason counts.
    """
    numbers = [gpu.number(quantity.name), *gpu.series(quantity.name).values()]
    if any(isinstance(number, Reading) for number in numbers):
        return "available", ""
    reasons = [(_state_of(number), number.reason) for number in numbers if not isinstance(number, Reading)]
    told = [found for found in reasons if found[0] != "not_read"]
    return told[0] if told else reasons[0]


def _state_of(number: object) -> State:
    return _STATES.get(number.reason, "failed") if isinstance(number, Absent) else "failed"


def capabilities_document(view: View) -> Document:
    """Every quantity with the GPUs that answer the same about it put together."""
    gpus = sorted_gpus(view)
    return {
        "schema": SCHEMA,
        "node": view.node_name,
        "time": rfc3339(view.wall_s),
        "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "state": gpu.health} for gpu in gpus],
        "quantities": [_row(quantity, gpus) for quantity in GPU_QUANTITIES],
    }


def _row(quantity: Quantity, gpus: list[GpuSnapshot]) -> Document:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for gpu in gpus:
        state, reason = capability(gpu, quantity)
        call = gpu.calls.get(quantity.name, "") if state == "available" else ""
        if state == "available" and quantity.name in COMPUTED:
            call = "computed by the agent"
        groups.setdefault((state, reason, call), []).append(gpu.uuid)
    return {
        "name": quantity.name,
        "metric": f"nodewarden_{quantity.metric}" if quantity.metric else None,
        "every": quantity.every,
        "source": quantity.source,
        "answers": [
            {"state": state, "reason": reason or None, "call": call or None, "gpus": uuids}
            for (state, reason, call), uuids in groups.items()
        ],
    }
