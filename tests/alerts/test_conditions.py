"""Each condition of the table: where it holds, what it says, and what it does not say."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from nodewarden.gpuhelper.wire import HelperEvent, LedgerEntry
from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.limits import Limits
from nodewarden.model.readings import Failed, Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, Forecast, Level, Protects, Setpoints
from nodewarden.model.snapshot import (
    GpuSnapshot,
    HelperStatus,
    JobSnapshot,
    LinkState,
    NodeSnapshot,
    PduSnapshot,
    SourceStatus,
)
from nodewarden.model.xids import GpuXids, Incident, SwitchErrors
from nodewarden.xid_table import load_table
from nodewarden_alerts import CONDITIONS, ConditionEngine, Facts, advice_of, exit_code_of, health_of
from nodewarden_alerts.conditions import BY_CODE, RECENT_S, Problem
from nodewarden_alerts.growth import Growth

NOW_S = 10_000.0
# 2026-11-30 12:00:00 UTC at NOW_S.
WALL_OFFSET_S = 1_796_040_000.0 - NOW_S
OK_HELPER = HelperStatus(state="ok", driver="ok", can_write=True, pid=7, uid=0)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def gpu(index: int, **changes: Any) -> GpuSnapshot:
    return GpuSnapshot(
        uuid=f"GPU-{index}",
        index=index,
        power_w=Reading(600.0, NOW_S - 0.4),
        cap_w=Reading(700.0, NOW_S - 0.4),
        **changes,
    )


def facts(**changes: Any) -> Facts:
    """A healthy armed node with 8 GPUs and one PDU."""
    snapshot = NodeSnapshot(
        taken_at_s=NOW_S,
        gpus={f"GPU-{i}": gpu(i) for i in range(8)},
        pdus={"a": PduSnapshot(name="a", up=True, limit_w=6000.0)},
        sources={f"gpu/GPU-{i}": SourceStatus(name=f"gpu/GPU-{i}", up=True, last_success_s=NOW_S) for i in range(8)},
        helper=OK_HELPER,
    )
    healthy = Facts(snapshot=snapshot, armed=True, expected_gpus=8, wall_offset_s=WALL_OFFSET_S)
    return replace(healthy, **changes)


def with_snapshot(**changes: Any) -> Facts:
    base = facts()
    return replace(base, snapshot=replace(base.snapshot, **changes))


def problems(given: Facts, now_s: float = NOW_S) -> list[Problem]:
    return ConditionEngine().evaluate(given, now_s)


def codes(given: Facts) -> list[str]:
    return [problem.code for problem in problems(given)]


def entry(index: int = 5, **changes: Any) -> LedgerEntry:
    cap = LedgerEntry(uuid=f"GPU-{index}", prior_w=700.0, w=540.0, cause="thermal", protects="gpu", since_s=NOW_S - 100)
    return replace(cap, **changes)


def test_a_healthy_armed_node_has_no_problem_and_exits_with_0() -> None:
    assert problems(facts()) == []
    assert exit_code_of(health_of([])) == 0


def test_the_capped_gpu_is_told_with_watts_cause_since_and_what_lifts_it() -> None:
    setpoints = Setpoints(
        caps={
            "GPU-5": CapSetpoint(
                w=540.0, cause=Cause.THERMAL, protects=Protects.GPU, lifts_when="margin > 4 degC for 60 s"
            )
        }
    )
    (problem,) = problems(facts(ledger=(entry(),), setpoints=setpoints))
    assert problem.text == (
        "GPU 5 capped at 540 W: cooling removes less heat since 11:58:20; lifts when margin > 4 degC for 60 s"
    )
    assert (problem.code, problem.uuid, problem.since_s) == ("gpu_capped", "GPU-5", NOW_S - 100)
    assert exit_code_of(health_of([problem])) == 1


def test_a_gpu_that_only_keeps_the_pace_is_not_said_to_be_cooled_badly() -> None:
    paced = CapSetpoint(w=540.0, cause=Cause.THERMAL, protects=Protects.GPU, lifts_when="it is", paced_by="GPU 3")
    (problem,) = problems(facts(ledger=(entry(),), setpoints=Setpoints(caps={"GPU-5": paced})))
    assert problem.text.startswith("GPU 5 capped at 540 W: kept at the pace of GPU 3 since ")


def test_a_persons_cap_is_a_persons_while_disarmed_whatever_would_be_decided() -> None:
    hot = CapSetpoint(w=300.0, cause=Cause.THERMAL, protects=Protects.GPU, manual_w=540.0, lifts_when="it is cooler")
    by_hand = entry(cause="manual", protects="none")
    texts = {
        armed: next(
            problem.text
            for problem in problems(facts(ledger=(by_hand,), setpoints=Setpoints(caps={"GPU-5": hot}), armed=armed))
            if problem.code == "gpu_capped"
        )
        for armed in (True, False)
    }
    assert "cooling removes less heat" in texts[True]
    assert "a person asked for it" in texts[False]
    assert texts[False].endswith("lifts when released")


def test_disarmed_is_told_but_is_not_degraded() -> None:
    found = problems(facts(armed=False, armed_since_s=NOW_S - 60))
    assert [(p.code, p.severity) for p in found] == [("disarmed", "info")]
    assert "since 11:59:00" in found[0].text
    assert health_of(found) == "ok"


def with_gpu(changed: GpuSnapshot) -> Facts:
    base = facts()
    return replace(base, snapshot=replace(base.snapshot, gpus={**base.snapshot.gpus, changed.uuid: changed}))


def with_xid(code: int, **changes: Any) -> Facts:
    row = load_table().row(code)
    over_s = None if row.over_after_s is None else NOW_S - 10 + row.over_after_s
    incident = Incident(code=code, row=row, count=1, first_s=NOW_S - 60, last_s=NOW_S - 10, over_s=over_s)
    return with_snapshot(xids={"GPU-5": GpuXids(total=1, incidents=(replace(incident, **changes),))})


def with_switch(text: str, *, age_s: float = 60.0) -> Facts:
    errors = SwitchErrors(by_code={"28006": 1}, last_code=28006, last_s=NOW_S - age_s, last_text=text)
    return with_snapshot(switches={"c1": errors})


def with_gpu_5(**changes: Any) -> Facts:
    base = facts()
    gpus = {**base.snapshot.gpus, "GPU-5": replace(base.snapshot.gpus["GPU-5"], **changes)}
    return replace(base, snapshot=replace(base.snapshot, gpus=gpus))


def with_series(quantity: str, values: dict[tuple[str, ...], float], **changes: Any) -> Facts:
    series = {labels: Reading(value, NOW_S) for labels, value in values.items()}
    return with_gpu_5(more={quantity: series}, **changes)


def with_more(**values: float) -> Facts:
    return with_gpu_5(more={name: {(): Reading(value, NOW_S)} for name, value in values.items()})


def with_links(*, down: tuple[int, ...] = (), absent: tuple[int, ...] = ()) -> Facts:
    links = [LinkState(n, active=n not in {*down, *absent}, present=n not in absent) for n in range(18)]
    return with_gpu_5(links=tuple(links), links_taken_at_s=NOW_S)


CASES: list[tuple[str, Facts, str, str]] = [
    ("helper_missing", with_snapshot(helper=HelperStatus(state="missing")), "critical", "neither read nor capped"),
    (
        "driver_missing",
        with_snapshot(helper=replace(OK_HELPER, driver="driver_not_loaded"), gpus={}),
        "critical",
        "no GPU driver, 8 GPUs expected: driver not loaded",
    ),
    (
        "driver_missing",
        with_snapshot(helper=replace(OK_HELPER, driver="version_mismatch", text="reload the module"), gpus={}),
        "critical",
        "8 GPUs expected: reload the module",
    ),
    ("driver_unresponsive", with_snapshot(helper=replace(OK_HELPER, state="unresponsive")), "critical", "unresponsive"),
    ("driver_unresponsive", with_gpu(gpu(2, health="unresponsive")), "critical", "GPU 2 does not answer"),
    (
        "gpu_lost",
        with_gpu(gpu(3, health="lost", health_since_s=NOW_S - 60)),
        "critical",
        "GPU 3 (GPU-3) fell off the bus",
    ),
    (
        "gpu_lost",
        with_gpu(gpu(3, health="lost", health_text="it needs a reset (NVML 16)", pci_bus_id="00000000:61:00.0")),
        "critical",
        "GPU 3 (GPU-3, 00000000:61:00.0) is lost: it needs a reset (NVML 16)",
    ),
    (
        "gpu_released",
        with_gpu(gpu(3, health="released", health_since_s=NOW_S - 60, released_until_s=NOW_S + 60)),
        "warning",
        "GPU 3 released until 12:01:00, so that it can be reset or set up anew since 11:59:00",
    ),
    ("gpu_lost", with_snapshot(gpus={"GPU-0": gpu(0)}), "critical", "only 1 of 8 expected GPUs found"),
    ("ladder_high", facts(setpoints=Setpoints(level=Level.CHECKPOINT)), "critical", "the job was asked to save"),
    (
        "cap_kept",
        facts(ledger=(entry(state="kept", protects="breaker", cause="outlets"),)),
        "warning",
        "protects the breaker",
    ),
    (
        "restore_pending",
        facts(ledger=(entry(pending="timeout"),)),
        "warning",
        "could not be restored to 700 W (timeout)",
    ),
    ("cap_vanished", facts(ledger=(entry(state="vanished"),)), "warning", "lost its cap of 540 W"),
    ("foreign_cap", facts(ledger=(entry(state="foreign"),)), "warning", "GPU 5 has 700 W that somebody else set"),
    ("helper_foreign", with_snapshot(helper=replace(OK_HELPER, state="foreign")), "warning", "pid 7, uid 0"),
    (
        "control_unavailable",
        with_snapshot(helper=replace(OK_HELPER, can_write=False, write_reason="no_permission")),
        "warning",
        "caps cannot be set (no permission)",
    ),
    (
        "cap_not_written",
        facts(refusals={"GPU-3": ("the driver takes 300 W and ignores it: the board shows 700 W", NOW_S - 60)}),
        "warning",
        "the cap of GPU 3 is not in force: the driver takes 300 W and ignores it: the board shows 700 W since 11:59:00",
    ),
    (
        "ledger_failed",
        with_snapshot(helper=replace(OK_HELPER, ledger_problem="ledger gpu-ledger: Is a directory")),
        "warning",
        "caps cannot be kept on file (ledger gpu-ledger: Is a directory)",
    ),
    (
        "pdu_stale",
        with_snapshot(pdus={"a": PduSnapshot(name="a", reason="timeout", since_s=NOW_S - 60, limit_w=6000.0)}),
        "warning",
        "PDU a not read (timeout) since 11:59:00; its outlets count as at their worst",
    ),
    (
        "feed_lost",
        with_snapshot(
            feeds={"A": FeedSnapshot(name="A", lost=True, since_s=NOW_S - 5, evidence="its outlets are off")}
        ),
        "critical",
        "feed A without power (its outlets are off) since 11:59:55; nothing is redundant any longer",
    ),
    (
        "pdu_suspect",
        with_snapshot(pdus={"a": PduSnapshot(name="a", up=True, suspect=("power_w",))}),
        "warning",
        "power_w",
    ),
    ("journal_degraded", facts(journal_problem="disk full"), "warning", "journal does not record (disk full)"),
    ("http_unavailable", facts(http_problem="port 10048 in use"), "warning", "port 10048 in use"),
    ("config_reload_failed", facts(config_problem="2 mistakes"), "warning", "the old one stays in force"),
    ("loop_stalled", facts(stalled={"pdu/a": NOW_S - 60}), "warning", "loop pdu/a makes no progress since 11:59:00"),
    ("clock_stepped", facts(clock_stepped_at_s=NOW_S - 60, clock_step_s=-3600.0), "warning", "jumped 3600.0 s back"),
    ("gpu_capped", facts(ledger=(entry(),)), "warning", "GPU 5 capped at 540 W"),
    ("xid_critical", with_xid(95, count=3), "critical", "GPU 5: Xid 95, uncontained memory error, 3 times, last at"),
    ("xid_warning", with_xid(63), "warning", "GPU 5: Xid 63, row remap recorded since 11:59:00; over when"),
    ("xid_warning", with_xid(4711), "warning", "GPU 5: Xid 4711, not in the table since 11:59:00; over at 12:59:50"),
    ("xid_application", with_xid(31, pid=9, process="python"), "info", "memory page fault, pid 9 python since"),
    ("nvswitch_error", with_switch("Non-fatal, Link 46"), "warning", "NVSwitch c1: SXid 28006: Non-fatal, Link 46"),
    ("recovery_wanted", with_more(recovery_action=2.0), "critical", "GPU 5 needs a reboot of the node, says the"),
    ("recovery_planned", with_more(recovery_action=4.0), "warning", "GPU 5 needs to be drained, then reset"),
    ("row_remap_failure", with_more(row_remap_failure=1.0), "critical", "GPU 5: a faulty row of its memory could not"),
    ("row_remap_pending", with_more(row_remap_pending=1.0), "warning", "is replaced at the next reset"),
    ("sram_threshold", with_more(sram_threshold_exceeded=1.0), "warning", "uncorrected SRAM errors"),
    ("ecc_uncorrected", with_series("ecc_errors", {("volatile", "uncorrected"): 3.0}), "warning", "3 memory errors"),
    ("nvlink_down", with_links(down=(9,)), "critical", "GPU 5: NVLink 9 is down, 17 are up"),
    (
        "nvlink_errors",
        facts(growth={("GPU-5", "nvlink_total_errors", "recovery"): 2.0}),
        "warning",
        "2 recovery in the",
    ),
    (
        "pcie_replays",
        facts(growth={("GPU-5", "pcie_replays", ""): 90.0}),
        "warning",
        "90 PCIe replays in the last hour",
    ),
]


@pytest.mark.parametrize(("code", "given", "severity", "text"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_each_condition_is_told_alone_and_in_words(code: str, given: Facts, severity: str, text: str) -> None:
    (problem,) = problems(given)
    assert (problem.code, problem.severity) == (code, severity)
    assert text in problem.text
    assert advice_of(code)


def test_every_code_of_the_table_is_covered_and_unique() -> None:
    assert len(BY_CODE) == len(CONDITIONS)
    told_after_a_while = {"limit_exceeded", "collective_stalled", "mqtt_unavailable"}
    told_after_a_while |= {"pdu_over_80", "pdu_over_rating", "feed_overcommitted"}
    told_after_a_while |= {"fabric_not_ready", "pcie_degraded"}
    with_another = {"persistence_off"}
    of_the_host = {
        "host_sensor_critical",
        "cpu_throttled",
        "ib_port_down",
        "ib_port_errors",
        "nvme_hot",
    }  # their own file
    of_the_server = {"leak_detected", "leak_detection_lost", "coolant_flow_low", "psu_failed", "psu_redundancy_lost"}
    of_the_server |= {"fan_failed", "inlet_hot", "bmc_unreachable"}
    told_after_a_while |= of_the_server | of_the_host | {"memory_pressure", "host_file_hung"}
    assert {case[0] for case in CASES} | {"disarmed"} | told_after_a_while | with_another == set(BY_CODE)


def test_a_broker_that_is_away_for_longer_than_its_restart_takes_is_told() -> None:
    engine = ConditionEngine()
    away = facts(mqtt_problem="no answer")
    assert "mqtt_unavailable" not in [p.code for p in engine.evaluate(away, NOW_S)]
    (told,) = [p for p in engine.evaluate(away, NOW_S + 31) if p.code == "mqtt_unavailable"]
    assert (told.severity, "no answer" in told.text) == ("warning", True)
    assert advice_of("mqtt_unavailable")


def test_no_driver_is_no_problem_where_no_gpu_is_expected() -> None:
    bare = replace(facts().snapshot, gpus={}, sources={}, helper=replace(OK_HELPER, driver="library_not_found"))
    assert problems(facts(snapshot=bare, expected_gpus=0)) == []


def test_a_missing_helper_hides_what_follows_from_it() -> None:
    gone = HelperStatus(state="missing", driver="driver_not_loaded", can_write=False)
    assert codes(with_snapshot(helper=gone)) == ["helper_missing"]


@pytest.mark.parametrize(("mode", "told"), [(0.0, ["gpu_capped", "persistence_off"]), (1.0, ["gpu_capped"])])
def test_a_cap_under_persistence_mode_off_is_told_to_end_with_the_last_client(mode: float, told: list[str]) -> None:
    """F28."""
    gpus = facts().snapshot.gpus | {"GPU-5": gpu(5, more={"persistence_mode": {(): Reading(mode, NOW_S)}})}
    found = problems(replace(with_snapshot(gpus=gpus), ledger=(entry(),)))
    assert sorted(problem.code for problem in found) == told
    assert found[-1].uuid == "GPU-5"


def test_a_cap_at_the_prior_limit_is_no_cap() -> None:
    assert problems(facts(ledger=(entry(w=700.0),))) == []


def test_a_vanished_cap_is_told_for_ten_minutes_after_the_event() -> None:
    event = HelperEvent(code="cap_vanished", uuid="GPU-1", text="GPU 1: cap of 500 W is gone", at_s=NOW_S)
    given = facts(events=(event,))
    assert [p.code for p in problems(given, NOW_S + RECENT_S)] == ["cap_vanished"]
    assert problems(given, NOW_S + RECENT_S + 1) == []


def test_one_event_and_one_ledger_entry_for_the_same_gpu_are_one_problem() -> None:
    event = HelperEvent(code="cap_vanished", uuid="GPU-5", text="gone", at_s=NOW_S)
    assert codes(facts(events=(event,), ledger=(entry(state="vanished"),))) == ["cap_vanished"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"limits": Limits(node_power_w=4000.0)}, "GPUs together at 4800 W, limit 4000 W"),
        (
            {"setpoints": Setpoints(forecast={"GPU-2": Forecast(margin_to_slowdown_c=0.0)})},
            "GPU 2 at its slowdown temperature",
        ),
    ],
)
def test_a_limit_is_exceeded_only_after_the_caps_had_time(changes: dict[str, Any], text: str) -> None:
    engine = ConditionEngine()
    assert engine.evaluate(facts(**changes), NOW_S) == []
    assert engine.evaluate(facts(**changes), NOW_S + 2) == []
    late = facts(**changes)
    fresh = {name: replace(source, last_success_s=NOW_S + 10) for name, source in late.snapshot.sources.items()}
    late = replace(late, snapshot=replace(late.snapshot, sources=fresh))
    (problem,) = engine.evaluate(late, NOW_S + 10)
    assert problem.code == "limit_exceeded"
    assert text in problem.text
    assert exit_code_of(health_of([problem])) == 2


def test_outlets_over_their_limit_count_only_while_their_reading_is_fresh() -> None:
    source = SourceStatus(name="pdu/a", up=True, last_success_s=NOW_S, stale_after_s=15.0)
    base = with_snapshot(outlets={"a": Reading(6100.0, NOW_S)})
    sources = {**base.snapshot.sources, "pdu/a": source}
    over = replace(base, limits=Limits(outlets={"a": 6000.0}), snapshot=replace(base.snapshot, sources=sources))
    engine = ConditionEngine()
    engine.evaluate(over, NOW_S)
    told = [p for p in engine.evaluate(over, NOW_S + 12) if p.code == "limit_exceeded"]
    assert [p.text for p in told] == ["outlets of PDU a at 6100 W, limit 6000 W since 12:00:00"]
    assert "limit_exceeded" not in [p.code for p in engine.evaluate(over, NOW_S + 20)]


def test_a_missing_power_reading_is_not_taken_as_over_or_under_the_limit() -> None:
    base = facts(limits=Limits(node_power_w=100.0))
    silent = {uuid: replace(g, power_w=Failed("timeout", NOW_S)) for uuid, g in base.snapshot.gpus.items()}
    engine = ConditionEngine()
    given = replace(base, snapshot=replace(base.snapshot, gpus=silent))
    engine.evaluate(given, NOW_S)
    assert "limit_exceeded" not in [p.code for p in engine.evaluate(given, NOW_S + 60)]


def test_what_is_well_or_missing_is_no_condition() -> None:
    """F19: a link that never was is not down; unknown is neither well nor ill."""
    assert problems(with_links(absent=(9, 10))) == []
    assert problems(with_more(recovery_action=0.0, row_remap_pending=0.0)) == []
    gone = {name: {(): Failed("timeout", NOW_S)} for name in ("recovery_action", "row_remap_failure", "fabric_state")}
    assert problems(with_gpu_5(more=gone)) == []
    assert problems(with_switch("Fatal", age_s=7200.0)) == []
    assert problems(facts(growth={("GPU-5", "nvlink_total_errors", "crc_flit"): 50.0})) == []


def test_a_link_that_is_lost_is_one_problem_and_its_return_one_end() -> None:
    """F19: link 9 goes and comes back."""
    engine = ConditionEngine()
    told = []
    for step, down in enumerate([(), (9,), (9,), (), ()]):
        engine.evaluate(with_links(down=down), NOW_S + step)
        told += [(change.what, change.problem.code) for change in engine.changes]
    assert told == [("firing", "nvlink_down"), ("resolved", "nvlink_down")]


def test_an_xid_names_the_job_whose_process_it_hit() -> None:
    base = with_xid(31, pid=77, process="python")
    jobs = (JobSnapshot(id="a", gpus=("GPU-5",), pids=(5,)), JobSnapshot(id="b", gpus=("GPU-1",), pids=(77,)))
    (problem,) = problems(replace(base, snapshot=replace(base.snapshot, jobs=jobs)))
    assert "job b, pid 77 python" in problem.text


def test_an_xid_is_no_longer_told_when_its_time_is_over() -> None:
    given = with_xid(31)
    assert [p.code for p in problems(given, NOW_S + 589)] == ["xid_application"]
    assert problems(given, NOW_S + 591) == []


def test_a_slow_pcie_link_is_told_under_load_only_and_after_a_while() -> None:
    slow = {("current",): 3.0, ("max",): 5.0}
    busy = with_series("pcie_generation", slow, utilisation=Reading(0.99, NOW_S))
    engine = ConditionEngine()
    assert engine.evaluate(busy, NOW_S) == []
    (problem,) = engine.evaluate(busy, NOW_S + 61)
    assert "PCIe link at generation 3 of 5 under load" in problem.text
    idle = with_series("pcie_generation", slow, utilisation=Reading(0.0, NOW_S))
    assert engine.evaluate(idle, NOW_S + 62) == []


def test_a_gpu_outside_its_fabric_is_told_after_two_minutes() -> None:
    engine = ConditionEngine()
    given = with_more(fabric_state=2.0)
    assert engine.evaluate(given, NOW_S) == []
    (problem,) = engine.evaluate(given, NOW_S + 121)
    assert (problem.code, problem.uuid) == ("fabric_not_ready", "GPU-5")


def test_growth_is_of_the_last_hour_and_survives_a_counter_that_begins_anew() -> None:
    growth = Growth()

    def after(at_s: float, value: float) -> float:
        replays = {"pcie_replays": {(): Reading(value, at_s)}}
        growth.observe(NodeSnapshot(gpus={"GPU-5": replace(gpu(5), more=replays)}))
        return growth.within_window(at_s).get(("GPU-5", "pcie_replays", ""), 0.0)

    assert after(0.0, 9.0) == 0.0  # what a healthy GPU starts with
    assert after(10.0, 9.0) == 0.0
    assert after(20.0, 19.0) == 10.0
    assert after(1000.0, 29.0) == 20.0
    assert after(1010.0, 4.0) == 24.0  # reset: four since
    assert after(3700.0, 4.0) == 14.0
    assert after(9000.0, 4.0) == 0.0
