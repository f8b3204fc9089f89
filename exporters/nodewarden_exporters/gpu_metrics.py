"""The metrics of the GPUs: every quantity of `GPU_QUANTITIES`, and what is made from several of them."""

from functools import partial

from nodewarden.model.gpu_quantities import APART, GPU_QUANTITIES
from nodewarden.model.readings import value_or_none
from nodewarden_exporters import readers
from nodewarden_exporters.metric import Metric, quantity_row, row

_gpu = partial(row, "gpu_", scope="gpu")

# What the snapshot carries in a form of its own.
_APART: dict[str, Metric] = {
    "slow": quantity_row(
        "slow", scope="fast", read=readers.slow_reasons, key=lambda facts: value_or_none(facts.gpu.slow)
    ),
    "slow_s": quantity_row(
        "slow_s",
        scope="fast",
        read=readers.slow_seconds,
        key=lambda facts: [value_or_none(seconds) for seconds in facts.gpu.slow_s.values()],
    ),
    "pids": quantity_row("pids", scope="gpu", read=readers.compute_processes),
    "nvlink_up": quantity_row(
        "nvlink_up",
        scope="links",
        read=readers.per_link(lambda link: int(link.active) if link.present else None),
    ),
    "nvlink_transmit_bytes": quantity_row(
        "nvlink_transmit_bytes", scope="links", read=readers.per_link(lambda link: link.tx_bytes)
    ),
    "nvlink_receive_bytes": quantity_row(
        "nvlink_receive_bytes", scope="links", read=readers.per_link(lambda link: link.rx_bytes)
    ),
}

# More series than there are errors: a link shows the kinds that it has had, the totals per GPU are always there.
_ONLY_NONZERO = {"nvlink_errors"}

GPU_METRICS: tuple[Metric, ...] = (
    _gpu(
        "info",
        "What the GPU is; always 1.",
        readers.gpu_info,
        ("index", "model", "pci_bus_id"),
        key=lambda facts: (facts.gpu.index, facts.gpu.model, facts.gpu.pci_bus_id),
    ),
    _gpu(
        "state",
        "1 for the state the GPU is in, 0 for the others.",
        readers.gpu_state,
        ("state",),
        key=lambda f: f.gpu.health,
    ),
    _gpu(
        "job_info",
        "A job on the GPU, whether or not it is connected, and who says so (client, slurm, prolog, kubernetes); "
        "always 1.",
        readers.gpu_jobs,
        ("job_id", "source", "namespace", "pod", "container"),
        key=lambda facts: facts.jobs,
    ),
    *(
        _APART[each.name] if each.name in APART else quantity_row(each.name, nonzero=each.name in _ONLY_NONZERO)
        for each in GPU_QUANTITIES
        if each.metric
    ),
    _gpu(
        "margin_to_max_op_celsius",
        "Distance to max-operating, degrees Celsius, negative above it.",
        readers.margin_to(0),
    ),
    _gpu("margin_to_slowdown_celsius", "Distance to the hardware's slowdown, degrees Celsius.", readers.margin_to(1)),
    _gpu(
        "margin_source",
        "From which limit the margin to max-operating or slowdown is taken: the board's T.Limit, junction or HBM; 1.",
        readers.margin_sources,
        ("limit", "source"),
    ),
    _gpu(
        "junction_min_celsius",
        "Lowest junction in the trailing window.",
        readers.over_window("junction_c", 0),
        ("window",),
    ),
    _gpu(
        "junction_max_celsius",
        "Highest junction in the trailing window.",
        readers.over_window("junction_c", 1),
        ("window",),
    ),
    _gpu(
        "power_min_watts",
        "Lowest mean power in the trailing window, watts.",
        readers.over_window("power_w", 0),
        ("window",),
    ),
    _gpu(
        "power_max_watts",
        "Highest mean power in the trailing window, watts.",
        readers.over_window("power_w", 1),
        ("window",),
    ),
    _gpu(
        "power_instant_max_watts",
        "Highest instant power in the trailing window, watts; with gpu_fast_s = 0.1 out of ten readings a second.",
        readers.over_window("power_instant_w", 1),
        ("window",),
    ),
    _gpu(
        "power_cap_requested_watts",
        "Power cap that Nodewarden asked for last, while it owns one.",
        readers.cap_requested,
        key=lambda facts: facts.entry,
    ),
    _gpu(
        "power_cap_prior_watts",
        "Power cap before Nodewarden's own, to which it is restored, watts.",
        readers.value_of(lambda facts: facts.entry.prior_w if facts.entry is not None else None),
        key=lambda facts: facts.entry,
    ),
    _gpu(
        "power_cap_cause",
        "Why the cap is what it is; 1 while there is one.",
        readers.cap_cause,
        ("cause",),
        key=readers.cause_of,
    ),
)
