"""The metrics that describe the node: one table of name, help with unit, where the value comes from, labels.

Names are `nodewarden_<subject>_<quantity>_<unit>` in base units; labels are identities only (uuid, pdu, outlet, job_id)
and never what a workload can make unbounded; names, models and indexes are on `*_info` series to join with.
Unknown is never 0. Rendering and expiry are in `prometheus.py`.
"""

from functools import partial

from nodewarden_exporters import readers
from nodewarden_exporters.bmc_metrics import BMC_METRICS
from nodewarden_exporters.feed_metrics import FEED_METRICS
from nodewarden_exporters.gpu_metrics import GPU_METRICS
from nodewarden_exporters.host_metrics import HOST_METRICS
from nodewarden_exporters.metric import Metric, row
from nodewarden_exporters.readers import Part
from nodewarden_exporters.xid_metrics import XID_METRICS

_node = partial(row, "", scope="node")
_pdu = partial(row, "pdu_", scope="pdu")
_job = partial(row, "job_", scope="job")
_source = partial(row, "source_", scope="source")
_loop = partial(row, "loop_", scope="loop")


def _part(part: Part, name: str, help_text: str, field: str, scale: float = 1.0) -> Metric:
    """A row of phases, banks or outlets: parts that were not polled since are not rendered again."""
    parts = f"{part}s"
    read = readers.per_part(part, field, scale)
    return _pdu(f"{part}_{name}", help_text, read, (part,), key=lambda pdu: getattr(pdu, parts))


METRICS: tuple[Metric, ...] = (
    *GPU_METRICS,
    *XID_METRICS,
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
        "Energy through the PDU, joules; goes on over restarts, resets and wraps of its counter.",
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
    *HOST_METRICS,
    *BMC_METRICS,
    *FEED_METRICS,
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

# More lines than this are never on one page (a test tries); a full node of 8 GPUs and one PDU has about 3,000.
MAX_SERIES = 24_000
