"""The conditions that a person may be told about: one table. No I/O, no clock, no state.

A condition is a row here and its function in `predicates.py`; status, metrics and exit codes follow from the table.
"""

from collections.abc import Callable, Iterator

import msgspec

from nodewarden_alerts import gpu_hardware, host, power_feeds, predicates, server, stalled, xids
from nodewarden_alerts.facts import RECENT_S, Facts, Finding, Problem, Severity

__all__ = ["BY_CODE", "CONDITIONS", "RECENT_S", "Condition", "Facts", "Finding", "Problem", "Severity"]

# The sum of the GPUs or of the outlets may pass its limit while caps take effect; this long is not "exceeded" yet.
OVER_LIMIT_S = 10.0
# A broker that restarts is back by then, with full jitter over 5 s and one doubling.
MQTT_DOWN_S = 30.0


Predicate = Callable[[Facts, float], Iterator[Finding]]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        title: a few words, for lists and alert names.
        find: yields where it holds at `now_s`.
        hold_s: how long it must hold before it is told; the readings' own stale limits come before this.
        advice: what a person can do.
    """

    code: str
    title: str
    severity: Severity
    find: Predicate
    hold_s: float = 0.0
    advice: str


# In the order in which a person should read them.
CONDITIONS: tuple[Condition, ...] = (
    Condition(
        code="helper_missing",
        title="GPU helper missing",
        severity="critical",
        find=predicates.helper_missing,
        advice="systemctl status nodewarden-gpu; start it, or look for why it stopped in its journal",
    ),
    Condition(
        code="driver_missing",
        title="GPU driver missing",
        severity="critical",
        find=predicates.driver_missing,
        advice="nvidia-smi; load the driver, or finish its installation (a version mismatch needs a reload or reboot)",
    ),
    Condition(
        code="driver_unresponsive",
        title="GPU driver unresponsive",
        severity="critical",
        find=predicates.driver_unresponsive,
        advice="look at dmesg for Xid lines; let the job save, then drain and reboot the node",
    ),
    Condition(
        code="gpu_lost",
        title="GPU lost",
        severity="critical",
        find=predicates.gpu_lost,
        advice="look at dmesg for Xid 79; drain the node, then reset the GPU (nodectl gpus release GPU) or power-cycle "
        "the node",
    ),
    Condition(
        code="xid_critical",
        title="Xid that condemns the GPU",
        severity="critical",
        find=xids.xids("critical"),
        advice="nodectl xid CODE explains it; reset the GPU (nodectl gpus release GPU), or nodectl xid clear GPU",
    ),
    Condition(
        code="recovery_wanted",
        title="GPU needs a reset or reboot",
        severity="critical",
        find=gpu_hardware.recovery_wanted(planned=False),
        advice="let the job save and drain the node; reset: nodectl gpus release GPU, then nvidia-smi --gpu-reset",
    ),
    Condition(
        code="row_remap_failure",
        title="Row of GPU memory could not be replaced",
        severity="critical",
        find=gpu_hardware.flag("row_remap_failure", "a faulty row of its memory could not be replaced by a spare"),
        advice="drain the node; reset the GPU (nodectl gpus release GPU), and have it replaced if this stays",
    ),
    Condition(
        code="nvlink_down",
        title="NVLink down",
        severity="critical",
        find=gpu_hardware.nvlink_down,
        advice="look at Xid 74 and SXid lines in nodectl events; drain the node and reset its GPUs",
    ),
    Condition(
        code="feed_lost",
        title="Power feed lost",
        severity="critical",
        find=power_feeds.feed_lost,
        advice="look at the feed's breaker, its PDUs and this node's cords; save work: the other feed is alone",
    ),
    Condition(
        code="pdu_over_rating",
        title="PDU over its rating",
        severity="critical",
        find=power_feeds.pdu_over_rating,
        hold_s=10.0,
        advice="nodectl pdus; take load away before its breaker does",
    ),
    Condition(
        code="limit_exceeded",
        title="Limit exceeded",
        severity="critical",
        find=predicates.limit_exceeded,
        hold_s=OVER_LIMIT_S,
        advice="nodectl explain; arm the node if it is disarmed, look at cooling and at what else hangs on the breaker",
    ),
    Condition(
        code="ladder_high",
        title="Ladder at checkpoint or above",
        severity="critical",
        find=predicates.ladder_high,
        advice="nodectl explain; caps were not enough: look at fans, inlet temperature, coolant flow",
    ),
    Condition(
        code="xid_warning",
        title="Xid to look at",
        severity="warning",
        find=xids.xids("warning"),
        advice="nodectl xid CODE explains it; nodectl xid clear GPU when it was looked at",
    ),
    Condition(
        code="nvswitch_error",
        title="NVSwitch reported an error",
        severity="warning",
        find=xids.nvswitch_error,
        advice="look at nodectl events and the log of nvidia-fabricmanager; if links are down, drain the node",
    ),
    Condition(
        code="recovery_planned",
        title="GPU wants a reset when it is free",
        severity="warning",
        find=gpu_hardware.recovery_wanted(planned=True),
        advice="start no new job on it; when it is free: nodectl gpus release GPU, then nvidia-smi --gpu-reset",
    ),
    Condition(
        code="ecc_uncorrected",
        title="Uncorrected memory errors",
        severity="warning",
        find=gpu_hardware.ecc_uncorrected,
        advice="reset the GPU when it is free (nodectl gpus release GPU); have it replaced if they come again",
    ),
    Condition(
        code="row_remap_pending",
        title="Row of GPU memory waits for its replacement",
        severity="warning",
        find=gpu_hardware.flag("row_remap_pending", "a faulty row of its memory is replaced at the next reset"),
        advice="reset the GPU when it is free: nodectl gpus release GPU; jobs may go on until then",
    ),
    Condition(
        code="sram_threshold",
        title="Too many errors inside the GPU",
        severity="warning",
        find=gpu_hardware.flag("sram_threshold_exceeded", "uncorrected SRAM errors have passed the board's threshold"),
        advice="have the GPU replaced",
    ),
    Condition(
        code="nvlink_errors",
        title="NVLink errors grow",
        severity="warning",
        find=gpu_hardware.nvlink_errors,
        advice="look at nodewarden_nvlink_errors_total for the link; reset the node's GPUs when they are free",
    ),
    Condition(
        code="fabric_not_ready",
        title="GPU not in the NVLink fabric",
        severity="warning",
        find=gpu_hardware.fabric_not_ready,
        hold_s=120.0,
        advice="systemctl status nvidia-fabricmanager",
    ),
    Condition(
        code="pcie_degraded",
        title="PCIe link slower than it can be",
        severity="warning",
        find=gpu_hardware.pcie_degraded,
        hold_s=60.0,
        advice="reseat the board or its riser, look at the PCIe replays; a cold start may bring it back",
    ),
    Condition(
        code="pcie_replays",
        title="PCIe replays grow",
        severity="warning",
        find=gpu_hardware.pcie_replays,
        advice="reseat the board or its riser; watch for a falling width or generation",
    ),
    Condition(
        code="gpu_capped",
        title="GPU capped",
        severity="warning",
        find=predicates.gpu_capped,
        advice="nodectl explain GPU; thermal: look at cooling; manual: nodectl release GPU",
    ),
    Condition(
        code="gpu_released",
        title="GPU released",
        severity="warning",
        find=predicates.gpu_released,
        advice="it is taken up again by itself; nodectl gpus resume GPU does it now",
    ),
    Condition(
        code="cap_kept",
        title="Cap kept without an agent",
        severity="warning",
        find=predicates.cap_kept,
        advice="start the agent, or lift it yourself: nodectl restore --force",
    ),
    Condition(
        code="restore_pending",
        title="Restore pending",
        severity="warning",
        find=predicates.restore_pending,
        advice="it is tried again by itself; when the driver hangs, the cap ends with the reboot",
    ),
    Condition(
        code="cap_vanished",
        title="Cap vanished",
        severity="warning",
        find=predicates.cap_vanished,
        advice="the driver was reloaded or the GPU reset; enable persistence mode so that caps stay",
    ),
    Condition(
        code="persistence_off",
        title="Persistence mode off under a cap",
        severity="warning",
        find=predicates.persistence_off,
        advice="nvidia-smi -pm 1, or run nvidia-persistenced",
    ),
    Condition(
        code="foreign_cap",
        title="Cap set by somebody else",
        severity="warning",
        find=predicates.foreign_cap,
        advice="find who else sets power limits (nvidia-smi -pl, a boot script, DCGM) and let only one do it",
    ),
    Condition(
        code="helper_foreign",
        title="GPU helper of another owner",
        severity="warning",
        find=predicates.helper_foreign,
        advice="stop the other agent or its helper, or start this one with its own --runtime-dir",
    ),
    Condition(
        code="control_unavailable",
        title="Caps cannot be set",
        severity="warning",
        find=predicates.control_unavailable,
        advice="run the helper as its systemd unit does (root with CAP_SYS_ADMIN); nodectl doctor says what is missing",
    ),
    Condition(
        code="collective_stalled",
        title="Collective stalled",
        severity="warning",
        find=stalled.stalled_collective,
        hold_s=stalled.HOLD_S,
        advice="look at the process of the GPU that is named (py-spy dump --pid PID); nodectl jobs shows who reports",
    ),
    Condition(
        code="pdu_over_80",
        title="PDU over 80 % of its rating",
        severity="warning",
        find=power_feeds.pdu_over_80,
        hold_s=30.0,
        advice="nodectl pdus; move load to another PDU, or limit this node with limits.node_power_w or limit_w",
    ),
    Condition(
        code="feed_overcommitted",
        title="Feed could not carry the other one's load",
        severity="warning",
        find=power_feeds.feed_overcommitted,
        hold_s=30.0,
        advice="nodectl pdus; less load on both feeds together, or the loss of one trips the other",
    ),
    Condition(
        code="cap_not_written",
        title="Cap not in force",
        severity="warning",
        find=predicates.cap_not_written,
        advice="nodectl explain GPU; try nodectl cap, or nvidia-smi -pl, by hand; a driver that ignores limits needs a "
        "reload or another version",
    ),
    Condition(
        code="ledger_failed",
        title="Ledger of caps not written",
        severity="warning",
        find=predicates.ledger_failed,
        advice="look at the file that is named and at the space in its directory; what is in its way must go",
    ),
    Condition(
        code="pdu_stale",
        title="PDU not read",
        severity="warning",
        find=predicates.pdu_stale,
        advice="nodectl pdu discover HOST:PORT; check network, community or user, and the PDU's access list",
    ),
    Condition(
        code="pdu_suspect",
        title="PDU contradicts itself",
        severity="warning",
        find=predicates.pdu_suspect,
        advice="compare with the PDU's own display; its firmware or its scale may be wrong",
    ),
    Condition(
        code="host_sensor_critical",
        title="Host sensor at its critical threshold",
        severity="warning",
        find=host.sensor_critical,
        hold_s=10.0,
        advice="nodectl host; look at the node's fans, its inlet and what is in the way of the air",
    ),
    Condition(
        code="cpu_throttled",
        title="CPU throttled for heat",
        severity="warning",
        find=host.cpu_throttled,
        hold_s=host.THROTTLED_S,
        advice="nodectl host; look at the node's fans and heat sinks: GPUs wait for a processor that is slow",
    ),
    Condition(
        code="ib_port_down",
        title="InfiniBand or RoCE port down",
        severity="warning",
        find=host.port_down,
        hold_s=host.PORT_DOWN_S,
        advice="ibstat or ip link; cable, transceiver, switch port. Jobs over several nodes hang or fail without it",
    ),
    Condition(
        code="ib_port_errors",
        title="InfiniBand or RoCE port counts errors",
        severity="warning",
        find=host.port_errors,
        advice="clean or change cable and transceiver; ibdiagnet, or ethtool -S, says which end counts",
    ),
    Condition(
        code="nvme_hot",
        title="NVMe drive hot",
        severity="warning",
        find=host.drive_hot,
        hold_s=host.HOT_S,
        advice="nvme smart-log DRIVE (as root) says for how long it was throttled; look at the air through its bay",
    ),
    Condition(
        code="leak_detected",
        title="Coolant leak",
        severity="critical",
        find=server.leak_detected,
        advice="drain the node and close its coolant; look below the cold plates before it is powered again",
    ),
    Condition(
        code="coolant_flow_low",
        title="Coolant flow low",
        severity="critical",
        find=server.flow_low,
        hold_s=server.UNSETTLED_S,
        advice="look at the pump, the filter and the valves of this loop; drain the node if it goes on falling",
    ),
    Condition(
        code="psu_redundancy_lost",
        title="Power supplies not redundant",
        severity="warning",
        find=server.redundancy_lost,
        hold_s=server.UNSETTLED_S,
        advice="nodectl bmc show names the supply; look at its cord and its feed first, then exchange it",
    ),
    Condition(
        code="psu_failed",
        title="Power supply failed",
        severity="warning",
        find=server.supply_failed,
        hold_s=server.UNSETTLED_S,
        advice="look at its cord and its feed (nodectl pdus); with power at its input it is to be exchanged",
    ),
    Condition(
        code="fan_failed",
        title="Fan failed",
        severity="warning",
        find=server.fan_failed,
        hold_s=server.UNSETTLED_S,
        advice="exchange the fan; until then the GPUs behind it are the ones to watch (nodectl gpus)",
    ),
    Condition(
        code="inlet_hot",
        title="Inlet air hot",
        severity="warning",
        find=server.inlet_hot,
        hold_s=server.UNSETTLED_S,
        advice="look at the cooling of the room and at blanking panels: warm air comes round to the front",
    ),
    Condition(
        code="leak_detection_lost",
        title="Leak detector not watching",
        severity="warning",
        find=server.leak_detection_lost,
        hold_s=300.0,
        advice="look at the detector's cable; until it watches again a leak would not be seen",
    ),
    Condition(
        code="bmc_unreachable",
        title="BMC does not answer",
        severity="warning",
        find=server.unreachable,
        hold_s=60.0,
        advice="nodectl bmc discover https://HOST says why; a BMC that hangs may be restarted while the server runs",
    ),
    Condition(
        code="journal_degraded",
        title="Journal degraded",
        severity="warning",
        find=predicates.journal_degraded,
        advice="free space in the state directory; what is decided meanwhile is only in the log",
    ),
    Condition(
        code="http_unavailable",
        title="Metrics port unavailable",
        severity="warning",
        find=predicates.http_unavailable,
        advice="ss -ltnp names who holds the port; stop it or change http.listen",
    ),
    Condition(
        code="mqtt_unavailable",
        title="MQTT unavailable",
        severity="warning",
        find=predicates.mqtt_unavailable,
        hold_s=MQTT_DOWN_S,
        advice="check [mqtt] and the broker's log; a taken client id: give this agent a state directory of its own",
    ),
    Condition(
        code="config_reload_failed",
        title="Configuration refused",
        severity="warning",
        find=predicates.config_reload_failed,
        advice="nodectl config check names every mistake; reload again when it is clean",
    ),
    Condition(
        code="loop_stalled",
        title="Loop stalled",
        severity="warning",
        find=predicates.loop_stalled,
        advice="curl localhost:10048/healthz; a critical loop restarts the agent by itself, else report it",
    ),
    Condition(
        code="clock_stepped",
        title="Wall clock jumped",
        severity="warning",
        find=predicates.clock_stepped,
        advice="check chronyc tracking or timedatectl",
    ),
    Condition(
        code="xid_application",
        title="Xid of a job",
        severity="info",
        find=xids.xids("application"),
        advice="nodectl xid CODE explains it; the GPU is well unless different jobs have it on this GPU only",
    ),
    Condition(
        code="memory_pressure",
        title="Memory short",
        severity="info",
        find=host.memory_pressure,
        hold_s=host.MEMORY_S,
        advice="free -h, systemd-cgtop; data loaders with fewer workers or less prefetch take less",
    ),
    Condition(
        code="host_file_hung",
        title="A file of /sys hangs",
        severity="info",
        find=host.file_hung,
        advice="the driver of that chip or card hangs; dmesg may say why, a reboot ends it",
    ),
    Condition(
        code="disarmed",
        title="Disarmed",
        severity="info",
        find=predicates.disarmed,
        advice="nodectl arm",
    ),
)

BY_CODE = {condition.code: condition for condition in CONDITIONS}
