"""The page under dcgm-exporter's names: its names, the native values, nothing that is not known."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from nodewarden.api.view import View
from nodewarden.model.readings import Failed
from nodewarden.model.xids import GpuXids
from nodewarden_exporters.dcgm import DCGM_ROWS, DcgmPage
from support.views import NOW_S, a_view, gpu_uuid

SHARED = Path(__file__).parents[2].parent / "shared"


def page(view: View, now_s: float = NOW_S, label: str = "hostname") -> dict[str, dict[str, float]]:
    """Values by name, then by uuid; fails on a series that is there twice."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(DcgmPage().render(view, now_s, label).decode()):
        for sample in family.samples:
            values = found.setdefault(sample.name.removesuffix("_total"), {})
            assert sample.labels["UUID"] not in values
            assert sample.labels[label] == view.node_name
            values[sample.labels["UUID"]] = sample.value
    return found


def with_gpu(view: View, index: int, **changes: object) -> View:
    gpus = dict(view.snapshot.gpus)
    gpus[gpu_uuid(index)] = replace(gpus[gpu_uuid(index)], **changes)
    return replace(view, snapshot=replace(view.snapshot, gpus=gpus))


def test_values_are_the_native_ones_in_the_units_of_the_peer() -> None:
    view = a_view()
    gpu, uuid = view.snapshot.gpus[gpu_uuid(3)], gpu_uuid(3)
    found = page(view)
    assert found["DCGM_FI_DEV_GPU_TEMP"][uuid] == gpu.junction_c.value
    assert found["DCGM_FI_DEV_SM_CLOCK"][uuid] == 1755
    assert found["DCGM_FI_DEV_GPU_UTIL"][uuid] == 99
    assert found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"][uuid] == pytest.approx(gpu.energy_j.value * 1000)
    assert found["DCGM_FI_DEV_FB_USED"][uuid] == pytest.approx(70e9 / 2**20)
    assert found["DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"][uuid] == 3e9


def test_nvlink_bandwidth_is_the_rate_that_the_peer_exports() -> None:
    """F16: typed a counter by the peer, in fact MB/s of all links."""
    rates = {("transmit",): 3e9, ("receive",): 1e9}
    view = a_view()
    gpu = view.snapshot.gpus[gpu_uuid(0)]
    at_s = gpu.more["nvlink_rate"]["transmit",]
    more = gpu.more | {"nvlink_rate": {key: replace(at_s, value=value) for key, value in rates.items()}}
    found = page(with_gpu(view, 0, more=more))
    assert found["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"][gpu_uuid(0)] == 4000


def test_a_reading_that_failed_or_grew_old_has_no_series() -> None:
    """F03, F10: neither the last value nor a marker stands for what is not known."""
    found = page(with_gpu(a_view(), 2, junction_c=Failed("timeout", NOW_S)))
    assert gpu_uuid(2) not in found["DCGM_FI_DEV_GPU_TEMP"]
    assert len(found["DCGM_FI_DEV_GPU_TEMP"]) == 7
    assert page(a_view(), NOW_S + 3600) == {}


def test_a_lost_gpu_has_no_series() -> None:
    found = page(with_gpu(a_view(), 2, health="lost"))
    assert all(gpu_uuid(2) not in values for values in found.values())


def test_no_xid_is_0_only_where_errors_are_listened_to() -> None:
    """F12: the page says 0 when none ever came, and nothing when the last is over."""
    view = a_view()
    snapshot = replace(view.snapshot, xids={gpu_uuid(0): GpuXids(), gpu_uuid(1): GpuXids(total=2, by_code={"31": 2})})
    assert page(replace(view, snapshot=snapshot))["DCGM_FI_DEV_XID_ERRORS"] == {gpu_uuid(0): 0}


def test_the_hostname_label_can_be_the_old_one_and_is_never_both() -> None:
    text = DcgmPage().render(a_view(), NOW_S, "Hostname").decode()
    assert 'Hostname="' in text
    assert "hostname=" not in text


def test_every_default_counter_is_there_but_the_licence_of_vgpus() -> None:
    listed = SHARED / "captures" / "dcgm-default-counters.csv"
    if not listed.exists():
        pytest.skip("the list of default counters is not here")
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.read_text().splitlines()]
    wanted = {(row[0], row[1]) for row in rows if row[0].startswith("DCGM_") and row[1] != "label"}
    ours = {(row.name, row.kind) for row in DCGM_ROWS}
    assert wanted - ours == {("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge")}


def test_every_name_that_dashboard_12239_asks_for_is_on_the_page() -> None:
    dashboard = SHARED / "dashboards" / "12239.json"
    if not dashboard.exists():
        pytest.skip("the dashboard is not here")
    asked = set(re.findall(r"DCGM_\w+", json.dumps(json.loads(dashboard.read_text()))))
    assert asked
    assert asked <= set(page(a_view()))
