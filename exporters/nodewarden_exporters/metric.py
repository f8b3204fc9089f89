"""What a metric is: one row of the tables in `gpu_metrics` and `metrics`."""

from typing import Literal

import msgspec

from nodewarden.model.gpu_quantities import BY_NAME
from nodewarden_exporters.readers import Key, Reader, nothing

Scope = Literal["node", "gpu", "fast", "slow", "rare", "links", "pdu", "host", "bmc", "job", "source", "loop"]


_UNITS = {
    "_bytes_per_second": "bytes per second",
    "_steps_per_second": "steps per second",
    "_celsius": "degrees Celsius",
    "_watts": "watts",
    "_joules": "joules",
    "_hertz": "hertz",
    "_ratio": "0 to 1",
    "_bytes": "bytes",
    "_seconds": "seconds",
    "_volts": "volts",
    "_amperes": "amperes",
    "_voltamperes": "volt-amperes",
}


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        scope: what it is about: the node, a GPU (`fast`: all of its lines as old as its newest fast reading; `slow`,
            `rare`: lines that live as long as those sets do; `links`: its NVLinks), a PDU, the host, the BMC, a job, a
            source or a loop.
        labels: after the labels that identify the subject.
        read: from the subject (`View`, `GpuFacts`, `PduSnapshot`, `JobSnapshot`, `SourceStatus`, `LoopHealth`) and the
            time; a `Reading` brings its own age.
        field: instead of `read`: the quantity of the GPU's snapshot, for the many rows that are just that.
        quantity: its row in `GPU_QUANTITIES`, which says where it comes from; empty where it is none.
        nonzero: values of 0 have no line.
        key: what the lines are made from; while it stays equal they are not made again.
        live: depends on the time of the scrape, not only on the snapshot.
    """

    name: str
    help: str
    scope: Scope
    labels: tuple[str, ...] = ()
    read: Reader
    field: str = ""
    quantity: str = ""
    nonzero: bool = False
    key: Key | None = None
    live: bool = False

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """What the name says: what ends in `_total` only grows."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """The unit that ends the name; empty for a count or a state."""
        stem = self.name.removesuffix("_total")
        return next((words for ending, words in _UNITS.items() if stem.endswith(ending)), "")

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Identity first."""
        return (*IDENTITY[self.scope], *self.labels)


IDENTITY: dict[Scope, tuple[str, ...]] = {
    "node": (),
    "gpu": ("uuid",),
    "fast": ("uuid",),
    "slow": ("uuid",),
    "rare": ("uuid",),
    "links": ("uuid",),
    "pdu": ("pdu",),
    "host": (),
    "bmc": (),
    "job": ("job_id",),
    "source": ("source",),
    "loop": ("loop",),
}


_SCOPE_OF: dict[str, Scope] = {"fast": "gpu", "slow": "slow", "rare": "rare"}


def row(
    prefix: str,
    name: str,
    help_text: str,
    read: Reader = nothing,
    labels: tuple[str, ...] = (),
    *,
    scope: Scope,
    field: str = "",
    key: Key | None = None,
    live: bool = False,
) -> Metric:
    """A row, written short."""
    full = f"nodewarden_{prefix}{name}"
    return Metric(name=full, help=help_text, scope=scope, labels=labels, read=read, field=field, key=key, live=live)


def quantity_row(
    name: str, *, scope: Scope | None = None, read: Reader = nothing, key: Key | None = None, nonzero: bool = False
) -> Metric:
    """The row of a quantity of the GPU, from its row in `GPU_QUANTITIES`; `read` where it is not read as it is."""
    quantity = BY_NAME[name]
    return Metric(
        name=f"nodewarden_{quantity.metric}",
        help=quantity.help,
        scope=scope or _SCOPE_OF[quantity.every],
        labels=quantity.labels,
        read=read,
        field=name if read is nothing else "",
        quantity=name,
        nonzero=nonzero,
        key=key,
    )
