"""What the wire says of a quantity, as a reading of the snapshot: checked for plausibility, or why there is none."""

from collections.abc import Iterable
from itertools import islice

from nodewarden.gpuhelper import wire
from nodewarden.model.gpu_quantities import BY_NAME
from nodewarden.model.quantity import ABSENT_REASONS, Labels
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import LinkState, Number
from nodewarden.policy.plausibility import accept
from nodewarden.store import SourceRecord

_NEVER_ZERO = frozenset({"power_w", "power_energy_w", "power_average_w", "power_instant_w"})
"""A board that answers uses power: a driver that says 0 W says nothing."""
_ROUNDING = 1e-3
"""A ratio may be this much outside 0 to 1 by rounding, and is clamped; more than that is no measurement (F11)."""
MAX_SERIES_PER_QUANTITY = 36 * 5  # the errors of all links


def quantity(
    name: str, value: float | None, reason: str | None, old: Number, taken_at_s: float, record: SourceRecord
) -> Number:
    """One value of the wire: a reading, or why there is none; a failure keeps the time at which it began."""
    if value is not None:
        known = BY_NAME.get(name)
        if known is not None and known.high == 1.0 and -_ROUNDING <= value <= 1.0 + _ROUNDING:
            value = min(max(value, 0.0), 1.0)
        if accept(name, value) and not (value == 0 and name in _NEVER_ZERO):
            return Reading(value, taken_at_s)
        record.reject(name)
        return old if isinstance(old, Reading | Failed) else Failed("implausible", taken_at_s)
    reason = reason or "error"
    if reason in ABSENT_REASONS:
        return Absent(reason)
    return old if isinstance(old, Failed) and old.reason == reason else Failed(reason, taken_at_s)


def quantities(
    name: str, samples: Iterable[wire.Sample], old: dict[Labels, Number], taken_at_s: float, record: SourceRecord
) -> dict[Labels, Number]:
    """All values of one labelled quantity.

    A helper of another version may label it otherwise, or give what is not in our table: that is left out.
    """
    known = BY_NAME.get(name)
    if known is None:
        return {}
    return {
        sample.labels: quantity(
            name, sample.value, sample.reason, old.get(sample.labels, Absent("not_read")), taken_at_s, record
        )
        for sample in islice(samples, MAX_SERIES_PER_QUANTITY)
        if len(sample.labels) == len(known.labels) or (not sample.labels and sample.value is None)
    }


def checked_board(board: wire.WireBoard, record: SourceRecord) -> wire.WireBoard:
    """The board's limits without those that are markers (F20): whoever needs one then takes the safe default."""
    of_kind = "threshold_offset_c" if board.kind == "tlimit" else "threshold_c"
    fields = {"max_op_c": of_kind, "slowdown_c": of_kind, "shutdown_c": of_kind, "hbm_max_op_c": "threshold_c"}
    for field, quantity_name in fields.items():
        value = getattr(board, field)
        if value is not None and not accept(quantity_name, value):
            record.reject(quantity_name)
            setattr(board, field, None)
    return board


class LinkBaseline:
    """Which NVLinks of a GPU were ever active: one that never was is not there, and not down (F19)."""

    def __init__(self) -> None:
        self._present: dict[str, set[int]] = {}

    def links(self, uuid: str, links: Iterable[wire.WireLink], record: SourceRecord) -> tuple[LinkState, ...]:
        """The links as they are now. Counters that cannot be are dropped and counted."""
        present = self._present.setdefault(uuid, set())
        found = []
        for link in links:
            if link.active:
                present.add(link.link)
            sent = _counter("nvlink_transmit_bytes", link.tx_bytes, record)
            received = _counter("nvlink_receive_bytes", link.rx_bytes, record)
            found.append(LinkState(link.link, link.active, sent, received, link.link in present))
        return tuple(found)


def _counter(name: str, value: float | None, record: SourceRecord) -> float | None:
    if value is None or accept(name, value):
        return value
    record.reject(name)
    return None
