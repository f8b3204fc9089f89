"""CPU time of one rendered page: ours against prometheus_client on the same series and values, in one run."""

import statistics
import time
from collections.abc import Callable

import prometheus_client
from msgspec import structs
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from table import Row

from nodewarden.api.view import View
from nodewarden.model.gpu_quantities import FAST_READ
from nodewarden_exporters.prometheus import Renderer
from support.views import a_gpu, a_pdu, a_view, gpu_uuid, some_links

SAMPLES = 60
Values = dict[tuple[str, tuple[str, ...]], float]


def views() -> list[View]:
    """A minute of a node at default periods: GPUs every second, PDU every 5 s, NVLink every 10 s."""
    made = []
    for second in range(SAMPLES):
        now_s = 10_000.0 + second
        view = a_view(now_s, pdu=made[-1].snapshot.pdus["rack12-a"] if second % 5 else a_pdu(now_s))
        if second % 10:
            before = made[-1].snapshot.gpus
            for n in range(8):
                gpu = a_gpu(n, now_s, links=before[gpu_uuid(n)].links)
                kept = {name: values for name, values in before[gpu.uuid].more.items() if name not in FAST_READ}
                view.snapshot.gpus[gpu.uuid] = structs.replace(gpu, more=gpu.more | kept)
        else:
            for n in range(8):
                view.snapshot.gpus[gpu_uuid(n)] = a_gpu(n, now_s, links=some_links(now_s))
        made.append(view)
    return made


def median_ms(work: Callable[[int], object], times: int = SAMPLES, repeat: int = 5) -> float:
    """Median over repeats of the mean CPU time of one call."""
    results = []
    for _ in range(repeat):
        began_s = time.process_time()
        for number in range(times):
            work(number)
        results.append((time.process_time() - began_s) / times * 1000)
    return statistics.median(results)


class Objects:
    """Gauge and Counter objects with cached children, set on every sample."""

    def __init__(self, page: str) -> None:
        prometheus_client.disable_created_metrics()
        self.registry = CollectorRegistry()
        self.children: list[Gauge | Counter] = []
        self.values: list[float] = []
        for family in text_string_to_metric_families(page):
            labels = sorted(family.samples[0].labels)
            kind = Counter if family.type == "counter" else Gauge
            parent = kind(family.name, family.documentation, labels, registry=self.registry)
            for sample in family.samples:
                self.children.append(parent.labels(*(sample.labels[name] for name in labels)) if labels else parent)
                self.values.append(sample.value)

    def sample(self, number: int) -> None:
        for child, value in zip(self.children, self.values, strict=True):
            if isinstance(child, Counter):
                child._value.set(value + number)  # noqa: SLF001 - the driver's counters are absolute
            else:
                child.set(value + number)


class Families(Collector):
    """A collector that builds families from the newest values at every scrape."""

    def __init__(self, page: str) -> None:
        self.families = [
            (f.name, f.documentation, f.type, sorted(f.samples[0].labels), f.samples)
            for f in text_string_to_metric_families(page)
        ]

    def collect(self) -> list[Metric]:
        out: list[Metric] = []
        for name, text, kind, labels, samples in self.families:
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = make(name, text, labels=labels)
            for sample in samples:
                family.add_metric([sample.labels[label] for label in labels], sample.value)
            out.append(family)
        return out


def measure() -> list[Row]:
    minute = views()
    renderer = Renderer()
    page = renderer.render(minute[0])
    device = page[: page.index(b"# HELP process_")].decode()
    objects, families = Objects(device), Families(device)
    registry = CollectorRegistry()
    registry.register(families)

    ours_sample = median_ms(lambda n: renderer.render(minute[n]))
    ours_own = median_ms(lambda n: renderer.own.page(n * 10.0))
    ours_scrape = median_ms(lambda n: renderer.render(minute[-1], minute[-1].now_s + n * 1e-4))
    ours_gzip = median_ms(lambda n: renderer.render_gzip(minute[n])) - ours_sample
    theirs_set = median_ms(objects.sample)
    theirs_page = median_ms(lambda _: prometheus_client.generate_latest(objects.registry), times=10)
    theirs_families = median_ms(lambda _: prometheus_client.generate_latest(registry), times=10)
    series = device.count("\n") - device.count("# ")
    theirs = theirs_set + theirs_page
    return [
        Row("series, bytes", f"{series}, {len(device)}"),
        Row("ours, first scrape of a sample", f"{ours_sample:.2f} ms", f"of it own metrics: {ours_own:.2f} ms"),
        Row("ours, every further scrape of it", f"{ours_scrape:.4f} ms"),
        Row("ours, gzip (once per page)", f"{ours_gzip:.2f} ms"),
        Row("prometheus_client objects, set + page", f"{theirs:.2f} ms", f"{theirs / ours_sample:.1f} x ours"),
        Row(
            "prometheus_client collector, page",
            f"{theirs_families:.2f} ms",
            f"{theirs_families / ours_sample:.1f} x ours",
        ),
        Row("10 scrapers, per sample: theirs / ours", f"{10 * theirs_page / (ours_sample + 9 * ours_scrape):.0f} x"),
    ]
