"""What a quantity of a GPU is: one row of the table in `gpu_quantities`.

A row is the only place where a quantity is named. The helper reads it under its `name`, the wire and the snapshot carry
it under that name, plausibility takes its range from the row, and its metric, docs/metrics.md and
`nodectl gpus --capabilities` are made from it.
"""

from typing import Literal

import msgspec

Every = Literal["fast", "slow", "rare"]
Labels = tuple[str, ...]

ABSENT_REASONS = frozenset(
    {"not_supported", "not_in_driver", "deprecated", "no_permission", "off", "not_read", "no_link"}
)
"""Reasons that mean "this board, driver or process has no such quantity", not "it stopped answering"."""

FIELDS = "shares the one field call"
CALL = "1 call"
NONE = "none, computed by the agent"
ALL = "all"
HOPPER = "Hopper and newer (T.Limit boards)"
ECC = "boards with ECC memory"
NVLINK = "boards with NVLink"


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        name: everywhere inside, with its unit: the key of `GpuSnapshot.more` or an attribute of `GpuSnapshot`.
        metric: public name after `nodewarden_`; ends in `_total` where it only grows. Empty = no metric of its own.
        help: what it means, for a person.
        every: "fast" (1 s), "slow" (10 s) or "rare" (60 s and at the start).
        labels: beyond the GPU's uuid.
        source: the calls it comes from, in the order in which they are tried.
        boards: which boards have it.
        cost: driver calls per read and GPU.
        low, high: what is believed, both included; outside it is dropped and counted.
    """

    name: str
    metric: str
    help: str
    every: Every
    source: str
    labels: Labels = ()
    boards: str = ALL
    cost: str = CALL
    low: float = 0.0
    high: float = 1e18

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """What the metric's name says."""
        return "counter" if self.metric.endswith("_total") else "gauge"


def row(
    name: str,
    metric: str,
    text: str,
    every: Every,
    source: str,
    labels: Labels = (),
    *,
    boards: str = ALL,
    cost: str = CALL,
    low: float = 0.0,
    high: float = 1e18,
) -> Quantity:
    """A row, written short."""
    return Quantity(
        name=name,
        metric=metric,
        help=text,
        every=every,
        source=source,
        labels=labels,
        boards=boards,
        cost=cost,
        low=low,
        high=high,
    )
