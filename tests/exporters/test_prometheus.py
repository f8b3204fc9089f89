"""The exposition page: right, complete, nothing on it that is not known, and nothing that is too old."""

import gzip
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from nodewarden.api.view import View
from nodewarden.devices.rapl import MAX_ZONES
from nodewarden.model.feeds import FeedSnapshot
from nodewarden.model.readings import Failed, Reading
from nodewarden.model.snapshot import LinkState, NodeSnapshot, OutletSnapshot, PduSnapshot, SourceStatus
from nodewarden.sources.host.hwmon import MAX_DRIVE_SENSORS, MAX_DRIVES, MAX_SENSORS
from nodewarden.sources.host.infiniband import MAX_ERRORS, MAX_PORTS
from nodewarden_alerts import CONDITIONS
from nodewarden_exporters import readers
from nodewarden_exporters.metrics import MAX_SERIES, METRICS
from nodewarden_exporters.prometheus import SHARED_S, Renderer, escape
from support.gpu_values import some_values
from support.host_values import a_host
from support.servers import check_metrics
from support.views import NOTHING, NOW_S, a_gpu, a_job, a_pdu, a_view, gpu_uuid, some_links

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.prom"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(page: bytes) -> Series:
    """The page as prometheus_client reads it; fails on a series that is there twice."""
    found: Series = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def names(series: Series, **labels: str) -> set[str]:
    """Names of the series that carry these labels."""
    return {name for name, pairs in series if set(labels.items()) <= pairs}


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


def rendered(view: View, now_s: float | None = None) -> Series:
    return parsed(device_part(Renderer().render(view, now_s)))


def with_gpu(view: View, index: int, **changes: object) -> View:
    gpus = dict(view.snapshot.gpus)
    gpus[gpu_uuid(index)] = replace(gpus[gpu_uuid(index)], **changes)
    return replace(view, snapshot=replace(view.snapshot, gpus=gpus))


def golden_page() -> bytes:
    """Two GPUs and a PDU with three outlets, so that a change is readable."""
    view = a_view(gpus=2, pdu=a_pdu(outlets=3))
    gpus = {
        uuid: replace(gpu, links=gpu.links[:2], more=some_values(NOW_S - 4.0, links=2))
        for uuid, gpu in view.snapshot.gpus.items()
    }
    view = replace(view, snapshot=replace(view.snapshot, gpus=gpus))
    return device_part(Renderer().render(view))


def device_part(page: bytes) -> bytes:
    """The page without the agent's metrics about itself."""
    return page[: page.index(b"# HELP process_")]


def test_the_page_is_the_golden_one() -> None:
    page = golden_page()
    if os.environ.get("NODEWARDEN_UPDATE_GOLDEN") == "1":
        GOLDEN.write_bytes(page)
    assert page.decode() == GOLDEN.read_text(), "run with NODEWARDEN_UPDATE_GOLDEN=1 and look at the difference"


@pytest.mark.real
def test_promtool_has_no_complaint_about_the_whole_page() -> None:
    view = a_view()
    renderer = Renderer()
    renderer.own.answered("/metrics", 200)
    renderer.own.journal("ok")
    renderer.own.ticked("control", 0.01)
    assert check_metrics(renderer.render(view)) == ""


def test_every_value_is_read_back_as_it_was_measured() -> None:
    series = rendered(a_view())
    gpu = a_gpu(3)
    for name, quantity in [
        ("junction_celsius", gpu.junction_c),
        ("power_watts", gpu.power_w),
        ("energy_joules_total", gpu.energy_j),
        ("memory_total_bytes", gpu.memory_total_bytes),
        ("sm_clock_hertz", gpu.sm_clock_hz),
        ("utilisation_ratio", gpu.utilisation),
    ]:
        assert value(series, f"nodewarden_gpu_{name}", uuid=gpu.uuid) == quantity.value
    sent = value(series, "nodewarden_nvlink_transmit_bytes_total", uuid=gpu.uuid, link="17")
    assert sent == some_links(NOW_S)[17].tx_bytes
    assert value(series, "nodewarden_pdu_outlet_power_watts", pdu="rack12-a", outlet="7") == 347.0
    assert value(series, "nodewarden_pdu_energy_joules_total", pdu="rack12-a") == 1_234_500 * 3600
    assert value(series, "nodewarden_gpu_power_cap_requested_watts", uuid=gpu_uuid(5)) == 540.0
    assert value(series, "nodewarden_gpu_power_cap_prior_watts", uuid=gpu_uuid(5)) == 700.0
    assert value(series, "nodewarden_job_duty_ratio", job_id="slurm-4711") == 0.85
    assert value(series, "nodewarden_job_last_checkpoint_age_seconds", job_id="slurm-4711") == 812.0
    assert value(series, "nodewarden_ladder_level") == 3
    assert value(series, "nodewarden_problem", code="gpu_capped", severity="warning") == 1


def test_names_that_others_rely_on_are_there_with_their_labels() -> None:
    expected = {
        "nodewarden_gpu_junction_celsius": ("uuid",),
        "nodewarden_gpu_hbm_celsius": ("uuid",),
        "nodewarden_gpu_margin_to_slowdown_celsius": ("uuid",),
        "nodewarden_gpu_power_watts": ("uuid",),
        "nodewarden_gpu_power_cap_watts": ("uuid",),
        "nodewarden_gpu_energy_joules_total": ("uuid",),
        "nodewarden_gpu_utilisation_ratio": ("uuid",),
        "nodewarden_gpu_slow_seconds_total": ("uuid", "reason"),
        "nodewarden_nvlink_transmit_bytes_total": ("uuid", "link"),
        "nodewarden_nvlink_receive_bytes_total": ("uuid", "link"),
        "nodewarden_pdu_power_watts": ("pdu",),
        "nodewarden_pdu_outlet_power_watts": ("pdu", "outlet"),
        "nodewarden_source_up": ("source",),
        "nodewarden_source_age_seconds": ("source",),
        "nodewarden_ladder_level": (),
        "nodewarden_armed": (),
        "nodewarden_job_duty_ratio": ("job_id",),
    }
    table = {metric.name: metric.all_labels for metric in METRICS}
    assert {name: table.get(name) for name in expected} == expected
    assert set(expected) <= {name for name, _ in rendered(a_view())}


def test_every_row_of_the_table_is_on_the_page_of_a_full_node() -> None:
    view = a_view()
    pdu = view.snapshot.pdus["rack12-a"]
    outlet = OutletSnapshot(index=1, voltage_v=230.0, apparent_va=300.0, power_factor=0.9, power_w=270.0, state="off")
    phase = replace(pdu.phases[0], apparent_va=3300.0, power_factor=0.97)
    pdu = replace(pdu, outlets=(outlet, *pdu.outlets[1:]), phases=(phase,))
    gpus = {uuid: replace(gpu, more=some_values(NOW_S, whole=True)) for uuid, gpu in view.snapshot.gpus.items()}
    watts = Reading(5000.0, NOW_S)
    feed = FeedSnapshot(name="A", lost=False, rated_w=7000.0, power_w=watts, outlets_w=watts)
    feed = replace(feed, after_loss_w=watts, total_after_loss_w=watts)
    snapshot = replace(view.snapshot, pdus={"rack12-a": pdu}, gpus=gpus, feeds={"A": feed})
    series = rendered(replace(view, snapshot=snapshot))
    assert {metric.name for metric in METRICS} - {name for name, _ in series} == set()
    assert value(series, "nodewarden_pdu_outlet_on", pdu="rack12-a", outlet="1") == 0


def test_names_follow_the_rules() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("nodewarden_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name


def test_one_gpu_without_power_reading_costs_its_power_and_nothing_else() -> None:  # F01
    whole = rendered(a_view())
    series = rendered(with_gpu(a_view(), 3, power_w=NOTHING))
    gone = whole.keys() - series.keys()
    assert {name for name, _ in gone} == {
        "nodewarden_gpu_power_watts",
        "nodewarden_gpu_power_min_watts",
        "nodewarden_gpu_power_max_watts",
    }
    assert all(dict(pairs)["uuid"] == gpu_uuid(3) for _, pairs in gone)


def test_a_lost_gpu_keeps_its_identity_and_state_and_nothing_that_was_measured() -> None:
    gpu = a_gpu(3)
    measured = [name for name in gpu.__struct_fields__ if isinstance(getattr(gpu, name), Reading)]
    lost = dict.fromkeys(measured, Failed("lost", NOW_S - 5))
    series = rendered(with_gpu(a_view(), 3, health="lost", slow_s={}, more={}, **lost))
    assert value(series, "nodewarden_gpu_state", uuid=gpu.uuid, state="lost") == 1
    assert value(series, "nodewarden_gpu_state", uuid=gpu.uuid, state="ok") == 0
    assert value(series, "nodewarden_gpus_present") == 7
    assert names(series, uuid=gpu.uuid) == {
        "nodewarden_gpu_info",
        "nodewarden_gpu_state",
        "nodewarden_gpu_xid_events_total",
        "nodewarden_gpu_xid_source_events_total",
    }


def test_xids_are_counted_from_zero_and_never_added_twice() -> None:
    """F12."""
    series = rendered(a_view())
    assert value(series, "nodewarden_gpu_xid_events_total", uuid=gpu_uuid(0)) == 0
    assert value(series, "nodewarden_gpu_xid_events_total", uuid=gpu_uuid(5)) == 2
    assert value(series, "nodewarden_gpu_xid_total", uuid=gpu_uuid(5), xid="31") == 2
    assert sum(number for (name, _), number in series.items() if name == "nodewarden_gpu_xid_total") == 2
    assert value(series, "nodewarden_gpu_xid_last_timestamp_seconds", uuid=gpu_uuid(5)) == pytest.approx(
        a_view().wall_s - 10
    )
    assert "nodewarden_gpu_xid_last_timestamp_seconds" not in names(series, uuid=gpu_uuid(0))
    assert value(series, "nodewarden_gpu_xid_open", uuid=gpu_uuid(5), xid="31", severity="application") == 1
    assert value(series, "nodewarden_nvswitch_sxid_total", switch="0000:c1:00.0", sxid="28006") == 2


def test_readings_of_a_frozen_sampler_vanish_though_nobody_renders_anew() -> None:  # F03
    view, renderer = a_view(), Renderer()
    renderer.observe(view)
    uuid = gpu_uuid(2)
    assert "nodewarden_gpu_junction_celsius" in names(parsed(renderer.render(view, NOW_S + 0.1)), uuid=uuid)
    late = parsed(renderer.render(view, NOW_S + 2.76))
    assert "nodewarden_gpu_junction_celsius" not in names(late, uuid=uuid)
    assert "nodewarden_gpu_junction_max_celsius" not in names(late, uuid=uuid)
    assert "nodewarden_nvlink_up" in names(late, uuid=uuid)
    assert "nodewarden_pdu_power_watts" in names(late)
    assert value(late, "nodewarden_source_up", source=f"gpu/{uuid}") == 0
    assert value(late, "nodewarden_source_age_seconds", source=f"gpu/{uuid}") == pytest.approx(3.01)
    assert renderer.renders == 1


def test_a_page_of_ten_minutes_ago_shows_only_ages_and_counts() -> None:  # F03
    late = rendered(a_view(), NOW_S + 600)
    assert {name.split("_")[1] for name, _ in late} == {"source", "loop"}
    assert value(late, "nodewarden_source_age_seconds", source="pdu/rack12-a") == 603.0
    assert all(up == 0 for (name, _), up in late.items() if name == "nodewarden_source_up")


def test_the_silent_pdu_vanishes_and_the_gpus_stay() -> None:
    view = a_view()
    stale = replace(view.snapshot.sources["pdu/rack12-a"], up=False, last_success_s=NOW_S - 16)
    sources = {**view.snapshot.sources, "pdu/rack12-a": stale}
    series = rendered(replace(view, snapshot=replace(view.snapshot, sources=sources)))
    assert names(series, pdu="rack12-a") == set()
    assert value(series, "nodewarden_source_up", source="pdu/rack12-a") == 0
    assert len(names(series, uuid=gpu_uuid(0))) > 20


def test_a_source_that_never_answered_has_no_age_and_is_down() -> None:
    view = a_view()
    never = {"pdu/b": SourceStatus(name="pdu/b")}
    pdus = {"b": PduSnapshot(name="b", limit_w=100.0)}
    series = rendered(replace(view, snapshot=replace(view.snapshot, sources=never, pdus=pdus)))
    assert value(series, "nodewarden_source_up", source="pdu/b") == 0
    assert "nodewarden_source_age_seconds" not in names(series)
    assert names(series, pdu="b") == set()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_on_the_page(bad: float) -> None:
    series = rendered(with_gpu(a_view(), 3, junction_c=Reading(bad, NOW_S)))
    assert "nodewarden_gpu_junction_celsius" not in names(series, uuid=gpu_uuid(3))
    assert all(math.isfinite(number) for number in series.values())


def test_one_render_serves_all_scrapers_of_a_view() -> None:  # F50
    view, renderer = a_view(), Renderer()
    pages = {id(renderer.render(view, NOW_S + i * SHARED_S / 20)) for i in range(10)}
    assert (renderer.renders, len(pages)) == (1, 1)
    renderer.render(a_view(NOW_S + 1), NOW_S + 1)
    assert renderer.renders == 2


def test_the_packed_page_is_the_page_and_is_packed_once() -> None:
    view, renderer = a_view(), Renderer()
    packed = renderer.render_gzip(view)
    assert gzip.decompress(packed) == renderer.render(view)
    assert renderer.render_gzip(view) is packed
    assert len(packed) < len(renderer.render(view)) / 4


def test_what_was_polled_anew_is_rendered_anew() -> None:
    pdu, renderer = a_pdu(), Renderer()
    first = names(parsed(renderer.render(a_view(NOW_S, pdu=pdu))), pdu="rack12-a")
    assert names(parsed(renderer.render(a_view(NOW_S + 1, pdu=pdu))), pdu="rack12-a") == first
    polled = replace(pdu, power_w=Reading(9999.0, NOW_S + 2))
    third = parsed(renderer.render(a_view(NOW_S + 2, pdu=polled)))
    assert value(third, "nodewarden_pdu_power_watts", pdu="rack12-a") == 9999.0


def test_series_of_gone_jobs_vanish_and_leave_nothing_behind() -> None:  # F48
    renderer, view = Renderer(), a_view()
    baseline = parsed(renderer.render(view)).keys()
    for number in range(500):
        renderer.render(replace(view, snapshot=replace(view.snapshot, jobs=(a_job(f"job-{number}"),))))
    assert parsed(renderer.render(a_view())).keys() == baseline
    assert max(len(chunks) for chunks in renderer._chunks) <= len(view.snapshot.sources)


def test_labels_that_change_all_the_time_leave_nothing_behind() -> None:  # F49
    renderer, view = Renderer(), a_view()
    for number in range(300):
        source = SourceStatus(name="pdu/rack12-a", up=True, last_success_s=NOW_S, errors={f"reason {number}": 1})
        sources = {**view.snapshot.sources, source.name: source}
        renderer.render(replace(view, snapshot=replace(view.snapshot, sources=sources)))
    assert max(len(chunk.prefixes) for chunks in renderer._chunks for chunk in chunks.values()) <= 150


def test_the_number_of_series_has_a_bound_whatever_devices_and_jobs_do() -> None:  # F49
    view = a_view(gpus=40)
    links = tuple(LinkState(n, True, 1.0, 1.0) for n in range(500))
    full = dict.fromkeys(("current_a", "voltage_v", "power_w", "apparent_va", "energy_wh", "power_factor"), 1.0)
    pdu = replace(a_pdu(), outlets=tuple(OutletSnapshot(index=n, state="on", **full) for n in range(2000)))
    many = {f"why {n}": 1 for n in range(1000)}
    endless = {f"s{n}": SourceStatus(name=f"s{n}", errors=many, rejected=many) for n in range(200)}
    host = a_host(NOW_S)
    counters = {f"counter_{n}": Reading(1.0, NOW_S) for n in range(2 * MAX_ERRORS)}
    host = replace(
        host,
        sensors=tuple(replace(host.sensors[0], name=f"temp{n}") for n in range(MAX_SENSORS)),
        drives=tuple(
            replace(
                host.drives[0],
                name=f"nvme{n}",
                sensors=dict.fromkeys(map(str, range(MAX_DRIVE_SENSORS)), Reading(40.0, NOW_S)),
            )
            for n in range(MAX_DRIVES)
        ),
        ports=tuple(replace(host.ports[0], device=f"mlx5_{n}", errors=counters) for n in range(MAX_PORTS)),
        zones=tuple(replace(host.zones[0], name=f"z{n}") for n in range(MAX_ZONES)),
    )
    snapshot = NodeSnapshot(
        taken_at_s=NOW_S,
        host=host,
        gpus={uuid: replace(gpu, links=links) for uuid, gpu in view.snapshot.gpus.items()},
        pdus={f"p{n}": replace(pdu, name=f"p{n}") for n in range(50)},
        jobs=tuple(a_job(f"{'x' * 500}{n}") for n in range(1000)),
        sources={**view.snapshot.sources, **endless},
    )
    page = Renderer().render(replace(view, snapshot=snapshot))
    series = parsed(page)
    assert 5_000 < len(series) <= MAX_SERIES
    assert len({pairs for name, pairs in series if name == "nodewarden_job_ranks"}) == readers.MAX_JOBS
    assert max(len(line) for line in page.splitlines()) < 300


def test_problem_codes_on_the_page_come_from_the_table() -> None:
    codes = {dict(pairs)["code"] for name, pairs in rendered(a_view()) if name == "nodewarden_problem"}
    assert codes == {"gpu_capped"}
    assert codes <= {condition.code for condition in CONDITIONS}


@given(text=st.text(max_size=40))
def test_any_label_value_is_read_back_as_it_was(text: str) -> None:
    (family,) = text_string_to_metric_families(f'x{{a="{escape(text)}"}} 1\n')
    assert family.samples[0].labels["a"] == text.encode("utf-8", "replace").decode()


def test_a_job_may_call_itself_anything() -> None:
    view = a_view()
    nasty = 'x"} 1\nnodewarden_armed 0\n\\'
    series = rendered(replace(view, snapshot=replace(view.snapshot, jobs=(a_job(nasty),))))
    assert value(series, "nodewarden_armed") == 1
    assert value(series, "nodewarden_job_ranks", job_id=nasty) == 8


def test_an_empty_node_has_a_page() -> None:
    series = rendered(View(node_name="n", now_s=5.0, wall_s=6.0, started_s=1.0, version="0"))
    assert value(series, "nodewarden_helper_up") == 0
    assert value(series, "nodewarden_gpus_present") == 0
    assert "nodewarden_driver_up" not in names(series)
    assert "nodewarden_gpus_expected" not in names(series)
