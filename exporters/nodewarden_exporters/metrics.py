"""The metrics that describe the node: one table of name, help with unit, where the value comes from, labels.

Names are `nodewarden_<subject>_<quantity>_<unit>` in base units; labels are identities only (uuid, pdu, outlet, job_id)
and never what a workload can make unbounded; names, models and indexes are on `*_info` series to join with.
Unknown is never 0. Rendering and expiry are in `prometheus.py`.
"""

from functools import partial
from typing import Literal

import msgspec

from nodewarden.model.readings import value_or_none
from nodewarden_exporters import readers
from nodewarden_exporters.readers import Key, Part, Reader

Scope = Literal["node", "gpu", "fast", "links", "pdu", "job", "source", "loop"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        scope: what it is about: the node, a GPU (`fast`: all of its lines as old as its newest fast
            reading; `links`: what is read slowly), a PDU, a job, a source or a loop.
        labels: after the labels that identify the subject.
        read: from the subject (`View`, `GpuFacts`, `PduSnapshot`, `JobSnapshot`, `SourceStatus`, `LoopHealth`) and the
            time; a `Reading` brings its own age.
        field: instead of `read`: the quantity of the GPU's snapshot, for the many rows that are just that.
        key: what the lines are made from; while it stays equal they are not made again.
        live: depends on the time of the scrape, not only on the snapshot.
    """

    name: str
    help: str
    scope: Scope
    labels: tuple[str, ...] = ()
    read: Reader
    field: str = ""
    key: Key | None = None
    live: bool = False

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """What the name says: what ends in `_total` only grows."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Identity first."""
        return (*IDENTITY[self.scope], *self.labels)


IDENTITY: dict[Scope, tuple[str, ...]] = {
    "node": (),
    "gpu": ("uuid",),
    "fast": ("uuid",),
    "links": ("uuid",),
    "pdu": ("pdu",),
    "job": ("job_id",),
    "source": ("source",),
    "loop": ("loop",),
}


# The table -----------------------------------------------------------------------------------------------------------


def _row(
    prefix: str,
    name: str,
    help_text: str,
    read: Reader = readers.nothing,
    labels: tuple[str, ...] = (),
    *,
    scope: Scope,
    field: str = "",
    key: Key | None = None,
    live: bool = False,
) -> Metric:
    full = f"nodewarden_{prefix}{name}"
    return Metric(name=full, help=help_text, scope=scope, labels=labels, read=read, field=field, key=key, live=live)


_node = partial(_row, "", scope="node")
_gpu = partial(_row, "gpu_", scope="gpu")
_link = partial(_row, "nvlink_", scope="links")
_pdu = partial(_row, "pdu_", scope="pdu")
_job = partial(_row, "job_", scope="job")
_source = partial(_row, "source_", scope="source")
_loop = partial(_row, "loop_", scope="loop")


def _part(part: Part, name: str, help_text: str, field: str, scale: float = 1.0) -> Metric:
    """A row of phases, banks or outlets: parts that were not polled since are not rendered again."""
    parts = f"{part}s"
    read = readers.per_part(part, field, scale)
    return _pdu(f"{part}_{name}", help_text, read, (part,), key=lambda pdu: getattr(pdu, parts))


METRICS: tuple[Metric, ...] = (
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
    _gpu("junction_celsius", "Hottest point of the GPU die, degrees Celsius.", field="junction_c"),
    _gpu("hbm_celsius", "Hottest HBM stack, degrees Celsius.", field="hbm_c"),
    _gpu(
        "margin_celsius",
        "The board's own signed margin to its nearest limit, degrees Celsius, positive when safe.",
        field="margin_c",
    ),
    _gpu(
        "margin_to_max_op_celsius",
        "Distance to max-operating, degrees Celsius, negative above it.",
        readers.margin_to(0),
    ),
    _gpu("margin_to_slowdown_celsius", "Distance to the hardware's slowdown, degrees Celsius.", readers.margin_to(1)),
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
    _gpu("power_watts", "Mean power over about 1 s, watts.", field="power_w"),
    _gpu("power_instant_watts", "Instant power, watts.", field="power_instant_w"),
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
    _gpu("energy_joules_total", "Energy used since the driver was loaded, joules.", field="energy_j"),
    _gpu("power_cap_watts", "Power cap in force as the driver tells it, watts.", field="cap_w"),
    _gpu("power_enforced_watts", "Lowest of all power limiters, out-of-band included, watts.", field="enforced_w"),
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
    _gpu(
        "power_cap_min_watts",
        "Lowest cap that the board accepts, watts.",
        readers.board_limit("min_w"),
        key=lambda f: f.gpu.board,
    ),
    _gpu(
        "power_cap_max_watts",
        "Highest cap that the board accepts, watts.",
        readers.board_limit("max_w"),
        key=lambda f: f.gpu.board,
    ),
    _gpu(
        "power_cap_default_watts",
        "The board's default cap, watts.",
        readers.board_limit("default_w"),
        key=lambda f: f.gpu.board,
    ),
    _gpu("utilisation_ratio", "Share of time in which a kernel ran, 0 to 1.", field="utilisation"),
    _gpu("memory_used_bytes", "GPU memory in use, bytes.", field="memory_used_bytes"),
    _gpu("memory_total_bytes", "GPU memory installed, bytes.", field="memory_total_bytes"),
    _gpu("sm_clock_hertz", "SM clock, hertz.", field="sm_clock_hz"),
    _gpu("memory_clock_hertz", "Memory clock, hertz.", field="memory_clock_hz"),
    _gpu(
        "slow",
        "1 while the hardware or driver holds clocks down for this reason.",
        readers.slow_reasons,
        ("reason",),
        scope="fast",
        key=lambda facts: value_or_none(facts.gpu.slow),
    ),
    _gpu(
        "slow_seconds_total",
        "Time with clocks held down for this reason, seconds, by the driver's own counters.",
        readers.slow_seconds,
        ("reason",),
        scope="fast",
        key=lambda facts: [value_or_none(seconds) for seconds in facts.gpu.slow_s.values()],
    ),
    _gpu("compute_processes", "Processes that compute on the GPU.", readers.compute_processes),
    _link("up", "1 while the NVLink is active.", readers.per_link(lambda link: int(link.active)), ("link",)),
    _link(
        "transmit_bytes_total",
        "Payload sent over the NVLink, bytes.",
        readers.per_link(lambda link: link.tx_bytes),
        ("link",),
    ),
    _link(
        "receive_bytes_total",
        "Payload received over the NVLink, bytes.",
        readers.per_link(lambda link: link.rx_bytes),
        ("link",),
    ),
    _pdu("info", "What the PDU is; always 1.", readers.pdu_info, ("feed", "vendor", "model", "profile")),
    _pdu("power_watts", "Real power of the whole PDU, watts.", readers.pdu_quantity("power_w")),
    _pdu(
        "apparent_power_voltamperes",
        "Apparent power of the whole PDU, volt-amperes.",
        readers.pdu_quantity("apparent_va"),
    ),
    _pdu("power_factor_ratio", "Power factor of the whole PDU.", readers.pdu_quantity("power_factor")),
    _pdu(
        "energy_joules_total",
        "Energy through the PDU, joules, by its own resettable counter.",
        readers.pdu_quantity("energy_wh", readers.JOULES_PER_WH),
    ),
    _pdu("node_power_watts", "Real power of this node's outlets together, watts.", readers.pdu_quantity("outlets_w")),
    _pdu(
        "node_limit_watts",
        "Configured limit on this node's outlets together.",
        readers.value_of(lambda pdu: pdu.limit_w),
    ),
    _pdu("suspect_quantities", "Quantities that contradict others.", readers.value_of(lambda pdu: len(pdu.suspect))),
    _part("phase", "voltage_volts", "Voltage of the phase, volts.", "voltage_v"),
    _part("phase", "current_amperes", "Current of the phase, amperes.", "current_a"),
    _part("phase", "power_watts", "Real power of the phase, watts.", "power_w"),
    _part("phase", "apparent_power_voltamperes", "Apparent power of the phase.", "apparent_va"),
    _part("phase", "power_factor_ratio", "Power factor of the phase.", "power_factor"),
    _part("phase", "energy_joules_total", "Energy through the phase, joules.", "energy_wh", readers.JOULES_PER_WH),
    _part("bank", "current_amperes", "Current of the bank (breaker), amperes.", "current_a"),
    _part("outlet", "power_watts", "Real power of the outlet, watts.", "power_w"),
    _part("outlet", "current_amperes", "Current of the outlet, amperes.", "current_a"),
    _part("outlet", "voltage_volts", "Voltage at the outlet, volts.", "voltage_v"),
    _part("outlet", "apparent_power_voltamperes", "Apparent power of the outlet.", "apparent_va"),
    _part("outlet", "power_factor_ratio", "Power factor of the outlet.", "power_factor"),
    _part("outlet", "energy_joules_total", "Energy through the outlet, joules.", "energy_wh", readers.JOULES_PER_WH),
    _pdu(
        "outlet_on", "1 while the outlet is switched on.", readers.outlet_on, ("outlet",), key=lambda pdu: pdu.outlets
    ),
    _job("info", "What the job is; always 1.", readers.job_info, ("framework",)),
    _job("state", "1 for the state the job is in, 0 for the others.", readers.job_state, ("state",)),
    _job("ranks", "Ranks of the job on this node that are connected.", readers.value_of(lambda job: job.ranks)),
    _job("step", "Training step that the job has reached.", readers.value_of(lambda job: job.step)),
    _job("steps_per_second", "Training steps per second.", readers.value_of(lambda job: job.steps_per_s)),
    _job(
        "duty_ratio",
        "Share of time that the job is asked to run, 1 = not throttled.",
        readers.value_of(lambda job: job.duty),
    ),
    _job("checkpoint_seconds", "How long a save takes, seconds.", readers.value_of(lambda job: job.ckpt_s)),
    _job(
        "last_checkpoint_age_seconds",
        "Time since the last save was persisted, seconds.",
        readers.checkpoint_age,
        live=True,
    ),
    _source("up", "1 while the source answers and its readings are fresh.", readers.source_up, live=True),
    _source("age_seconds", "Time since the source last answered, seconds.", readers.source_age, live=True),
    _source(
        "duration_seconds",
        "How long the last answered read took, seconds.",
        readers.value_of(lambda source: source.duration_s),
        key=lambda source: source.duration_s,
    ),
    _source(
        "errors_total", "Reads that failed, by reason.", readers.errors, ("reason",), key=lambda source: source.errors
    ),
    _source(
        "rejected_total",
        "Values outside what physics allows, dropped, by field.",
        readers.rejected,
        ("field",),
        key=lambda source: source.rejected,
    ),
    _source(
        "skipped_total",
        "Reads skipped because the one before was late.",
        readers.value_of(lambda source: source.skipped),
        key=lambda source: source.skipped,
    ),
    _loop("age_seconds", "Time since the loop last finished a turn, seconds.", readers.loop_age, live=True),
    _node("build_info", "Version of the agent; always 1.", readers.build_info, ("version",)),
    _node("armed", "1 while automatic control is on.", readers.value_of(lambda view: int(view.armed))),
    _node(
        "ladder_level",
        "Rung of the ladder, 0 normal to 6 drain.",
        readers.value_of(lambda view: int(view.setpoints.level)),
    ),
    _node("problem", "1 for each problem that holds now.", readers.problems, ("code", "severity")),
    _node("gpus_expected", "GPUs that the configuration expects.", readers.value_of(lambda view: view.expected_gpus)),
    _node(
        "gpus_present", "GPUs that are on the bus.", readers.value_of(lambda view: readers.present_gpus(view.snapshot))
    ),
    _node("jobs", "Training jobs that are connected.", readers.value_of(lambda view: len(view.snapshot.jobs))),
    _node(
        "helper_up",
        "1 while the GPU helper answers.",
        readers.value_of(lambda view: int(view.snapshot.helper.state == "ok")),
    ),
    _node("driver_up", "1 while the GPU driver is usable, as the helper says.", readers.driver_up),
    _node(
        "control_available",
        "1 while caps can be set.",
        readers.value_of(lambda view: int(view.snapshot.helper.can_write)),
    ),
    _node(
        "node_limit_watts",
        "Configured limit on all GPUs together.",
        readers.value_of(lambda view: view.limits.node_power_w),
    ),
    _node(
        "job_duty_requested_ratio",
        "Duty that jobs are asked for now.",
        readers.value_of(lambda view: view.setpoints.job.duty),
    ),
)

# More lines than this are never on one page (a test tries); a full node of 8 GPUs and one PDU has about 1,600.
MAX_SERIES = 12_000
