"""Renders the metric table as Prometheus text 0.0.4: from cached line prefixes, at most once per view, shared by all.

Every line carries the time until which its reading may be shown, and that time is checked at the scrape: series of a
frozen sampler vanish although nobody renders anew. Nothing here reads a device.
"""

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from nodewarden.api.view import View
from nodewarden.model.quantity import Labels
from nodewarden.model.readings import Absent, Failed, Reading, value_or_none
from nodewarden.model.snapshot import FAST_QUANTITIES, GpuSnapshot, Number
from nodewarden_exporters.metric import IDENTITY, Metric, Scope
from nodewarden_exporters.metrics import METRICS
from nodewarden_exporters.own import OwnMetrics
from nodewarden_exporters.readers import (
    MAX_GPUS,
    MAX_JOBS,
    MAX_LOOPS,
    MAX_PDUS,
    MAX_SOURCES,
    VIEW_STALE_S,
    GpuFacts,
    Sample,
)
from nodewarden_exporters.windows import Windows

# Scrapers within this time share one page: the ages on it are at most this much behind.
SHARED_S = 0.5

_NEVER = math.inf
_EMPTY: dict[Labels, Number] = {}
_MAX_ID_CHARS = 128
_GPU_STALE_S = 3.0
_PDU_STALE_S = 15.0
_HOST_STALE_S = 30.0
_SLOW_STALE_S = 30.0
_RARE_STALE_S = 180.0
_BMC_STALE_S = 600.0  # single sensors of a slow BMC come in turn; its totals leave the snapshot sooner


class _Subject:
    """One thing that has lines: a GPU, a PDU, a job."""

    __slots__ = ("expires_s", "identity", "item", "same", "stale_after_s")

    def __init__(self, identity: str, item: Any, same: object, expires_s: float, stale_after_s: float = _NEVER) -> None:
        self.identity = identity
        self.item = item
        self.same = same  # lines of the same object are not rendered again
        self.expires_s = expires_s
        self.stale_after_s = stale_after_s


class _Chunk:
    """The lines of one metric of one subject."""

    __slots__ = ("expires_s", "oldest_s", "prefixes", "same", "text")

    def __init__(self) -> None:
        self.prefixes: dict[tuple[str, ...], str] = {}
        self.same: object = self
        self.text = ""
        self.oldest_s = _NEVER
        self.expires_s = _NEVER


class Renderer:
    """Renders views.

    Trailing windows are fed by `observe`, once per snapshot, whether or not anybody scrapes.

    Attributes:
        own: the agent's metrics about itself, put at the end of the page.
        renders: how many views were rendered.
    """

    def __init__(self, own: OwnMetrics | None = None) -> None:
        self.own = own or OwnMetrics()
        self._windows = Windows()
        self._chunks: list[dict[str, _Chunk]] = [{} for _ in METRICS]
        self._headers = [f"# HELP {m.name} {m.help}\n# TYPE {m.name} {m.kind}\n" for m in METRICS]
        self._view: View | None = None
        self._subjects: dict[Scope, list[_Subject]] = {}
        self._built_s = -_NEVER
        self._valid_until_s = -_NEVER
        self._page = b""
        self._packed: bytes | None = None
        self.renders = 0

    def observe_quick(self, uuid: str, quantity: str, at_s: float, value: float) -> None:
        """Take note of one reading from between two views, likewise."""
        self._windows.add(uuid, quantity, at_s, value)

    def observe(self, view: View) -> None:
        """Take note of the readings of a view for the trailing windows."""
        self._windows.observe(view.snapshot)

    def render(self, view: View, now_s: float | None = None) -> bytes:
        """The page at `now_s` (CLOCK_BOOTTIME seconds; the view's own time when not given)."""
        now_s = view.now_s if now_s is None else now_s
        fresh = view is not self._view
        if fresh:
            self._view = view
            self.observe(view)
            self._subjects = _subjects(view, self._windows)
            self._refresh(view)
        if fresh or now_s >= self._valid_until_s or not 0.0 <= now_s - self._built_s < SHARED_S:
            self._assemble(now_s)
        return self._page

    def render_gzip(self, view: View, now_s: float | None = None) -> bytes:
        """The same page, compressed once for all who want it so."""
        page = self.render(view, now_s)
        if self._packed is None:
            self._packed = gzip.compress(page, compresslevel=1, mtime=0)
        return self._packed

    def _refresh(self, view: View) -> None:
        """Render what changed since the last view."""
        self.renders += 1
        for metric, chunks in zip(METRICS, self._chunks, strict=True):
            subjects = self._subjects[metric.scope]
            for subject in subjects:
                chunk = chunks.get(subject.identity)
                if chunk is None:
                    chunk = chunks[subject.identity] = _Chunk()
                if metric.field in FAST_QUANTITIES:
                    _fill_one(chunk, metric, subject, getattr(subject.item.gpu, metric.field))
                elif metric.field and not metric.labels:
                    _fill_one(chunk, metric, subject, subject.item.gpu.more.get(metric.field, _EMPTY).get(()))
                elif metric.field:
                    _fill_series(chunk, metric, subject)
                elif not metric.live:
                    same = subject.same if metric.key is None else metric.key(subject.item)
                    if chunk.same is not same and (metric.key is None or chunk.same != same):
                        chunk.same = same
                        _fill(chunk, metric, subject, view.now_s)
                    chunk.expires_s = min(subject.expires_s, chunk.oldest_s + subject.stale_after_s)
            if len(chunks) > len(subjects):
                here = {subject.identity for subject in subjects}
                for identity in chunks.keys() - here:
                    del chunks[identity]

    def _assemble(self, now_s: float) -> None:
        """Put together what may still be shown at `now_s`."""
        parts: list[str] = []
        valid_until_s = _NEVER
        for metric, header, chunks in zip(METRICS, self._headers, self._chunks, strict=True):
            subjects = self._subjects[metric.scope]
            parts.append(header)
            empty = len(parts)
            for subject in subjects:
                chunk = chunks[subject.identity]
                if metric.live:
                    _fill(chunk, metric, subject, now_s)
                    chunk.expires_s = subject.expires_s
                if chunk.text and now_s < chunk.expires_s:
                    parts.append(chunk.text)
                    valid_until_s = min(valid_until_s, chunk.expires_s)
            if len(parts) == empty:
                parts.pop()
        self._page = "".join(parts).encode() + self.own.page(now_s)
        self._packed = None
        self._built_s, self._valid_until_s = now_s, valid_until_s


def _fill_one(chunk: _Chunk, metric: Metric, subject: _Subject, quantity: Number | None) -> None:
    """The one line of a plain quantity; made again only when the value changed."""
    if type(quantity) is not Reading or not math.isfinite(quantity.value):
        chunk.text, chunk.same = "", None
        return
    if quantity.value != chunk.same:
        chunk.same = quantity.value
        prefix = chunk.prefixes.get(())
        if prefix is None:
            prefix = chunk.prefixes[()] = _prefix(metric, subject.identity, ())
        chunk.text = f"{prefix}{quantity.value!r}\n"
    chunk.expires_s = quantity.taken_at_s + subject.stale_after_s


def _fill_series(chunk: _Chunk, metric: Metric, subject: _Subject) -> None:
    """The lines of a labelled quantity; made again only when it was read again."""
    series = subject.item.gpu.more.get(metric.field)
    if series is not chunk.same:
        chunk.same = series
        samples = () if series is None else series.items()
        if metric.nonzero:
            samples = [(labels, number) for labels, number in samples if value_or_none(number)]
        _write(chunk, metric, subject.identity, samples)
    chunk.expires_s = chunk.oldest_s + subject.stale_after_s


def _fill(chunk: _Chunk, metric: Metric, subject: _Subject, now_s: float) -> None:
    _write(chunk, metric, subject.identity, metric.read(subject.item, now_s))


def _write(chunk: _Chunk, metric: Metric, identity: str, samples: Iterable[Sample]) -> None:
    lines: list[str] = []
    oldest_s = _NEVER
    prefixes = chunk.prefixes
    for labels, given in samples:
        if isinstance(given, Reading):
            value = given.value
            oldest_s = min(oldest_s, given.taken_at_s)
        elif isinstance(given, Absent | Failed):
            continue
        else:
            value = given
        if not math.isfinite(value):
            continue
        prefix = prefixes.get(labels)
        if prefix is None:
            prefix = prefixes[labels] = _prefix(metric, identity, labels)
        lines.append(f"{prefix}{value!r}\n")
    chunk.text = "".join(lines)
    chunk.oldest_s = oldest_s
    if len(prefixes) > 2 * len(lines) + 64:
        prefixes.clear()  # labels that came and went; the next page makes those that are left


def _prefix(metric: Metric, identity: str, labels: tuple[str, ...]) -> str:
    names = metric.all_labels
    values = (identity, *labels) if IDENTITY[metric.scope] else labels
    inside = ",".join(f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{metric.name}{{{inside}}} " if inside else f"{metric.name} "


def escape(value: str) -> str:
    """A label value as text 0.0.4 wants it; what is no valid text is replaced."""
    valid = value.encode("utf-8", "replace").decode()
    return valid.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _subjects(view: View, windows: Windows) -> dict[Scope, list[_Subject]]:
    view_expires_s = view.now_s + VIEW_STALE_S
    snapshot = view.snapshot
    gpus = list(_gpus(view, windows))
    return {
        "node": [_Subject("", view, view, view_expires_s)],
        "gpu": gpus,
        "fast": [
            _Subject(gpu.identity, gpu.item, gpu.item, _newest_s(gpu.item.gpu) + gpu.stale_after_s) for gpu in gpus
        ],
        "slow": [_lasting(view, gpu, _SLOW_STALE_S) for gpu in gpus],
        "rare": [_lasting(view, gpu, _RARE_STALE_S) for gpu in gpus],
        "links": list(_links(view)),
        "pdu": list(_pdus(view)),
        "host": [_host(view)],
        "bmc": [_bmc(view)],
        "job": [
            _Subject(identity, job, job, view_expires_s)
            for identity, job in {_short(job.id): job for job in snapshot.jobs[:MAX_JOBS]}.items()
        ],
        "source": [
            _Subject(name, source, source, _NEVER) for name, source in islice(snapshot.sources.items(), MAX_SOURCES)
        ],
        "loop": [_Subject(name, loop, loop, _NEVER) for name, loop in islice(view.loops.items(), MAX_LOOPS)],
    }


def _gpus(view: View, windows: Windows) -> Iterator[_Subject]:
    snapshot = view.snapshot
    entries = {entry.uuid: entry for entry in view.ledger}
    for uuid, gpu in islice(snapshot.gpus.items(), MAX_GPUS):
        source = snapshot.sources.get(f"gpu/{uuid}")
        facts = GpuFacts(
            gpu,
            view.limits.gpus.get(uuid),
            view.setpoints.caps.get(uuid),
            entries.get(uuid),
            windows,
            view.now_s,
            snapshot.xids.get(uuid),
            view.wall_s - view.now_s,
            snapshot.workloads[uuid].jobs if uuid in snapshot.workloads else (),
        )
        stale_after_s = _GPU_STALE_S if source is None else source.stale_after_s
        yield _Subject(uuid, facts, facts, view.now_s + VIEW_STALE_S, stale_after_s)


def _lasting(view: View, gpu: _Subject, least_s: float) -> _Subject:
    """The same GPU for what is read slowly, and stays as long as that may take."""
    source = view.snapshot.sources.get(f"gpu_slow/{gpu.identity}")
    stale_after_s = max(least_s, source.stale_after_s) if source is not None else least_s
    return _Subject(gpu.identity, gpu.item, gpu.same, gpu.expires_s, stale_after_s)


def _newest_s(gpu: GpuSnapshot) -> float:
    """When the driver last told anything of a GPU."""
    quantities = (gpu.slow, gpu.junction_c, gpu.power_w, gpu.cap_w, gpu.utilisation)
    return max((each.taken_at_s for each in quantities if isinstance(each, Reading)), default=-_NEVER)


def _links(view: View) -> Iterator[_Subject]:
    for uuid, gpu in islice(view.snapshot.gpus.items(), MAX_GPUS):
        if gpu.links and gpu.health == "ok" and gpu.links_taken_at_s is not None:
            source = view.snapshot.sources.get(f"gpu_slow/{uuid}")
            stale_after_s = VIEW_STALE_S if source is None else source.stale_after_s
            yield _Subject(uuid, gpu, gpu.links, gpu.links_taken_at_s + stale_after_s)


def _pdus(view: View) -> Iterator[_Subject]:
    for name, pdu in islice(view.snapshot.pdus.items(), MAX_PDUS):
        source = view.snapshot.sources.get(f"pdu/{name}")
        if source is None:
            yield _Subject(name, pdu, pdu, view.now_s + _PDU_STALE_S)
        elif source.last_success_s is not None:
            yield _Subject(name, pdu, pdu, source.last_success_s + source.stale_after_s)


def _bmc(view: View) -> _Subject:
    """Its lines are as old as their readings, so a BMC that is silent leaves the page."""
    bmc = view.snapshot.bmc
    return _Subject("", bmc, bmc, _NEVER, _BMC_STALE_S)


def _host(view: View) -> _Subject:
    source = view.snapshot.sources.get("host")
    stale_after_s = _HOST_STALE_S if source is None else source.stale_after_s
    host = view.snapshot.host
    return _Subject("", host, host, _NEVER, stale_after_s)


def _short(name: str) -> str:
    """A job may call itself anything; a very long name is cut and told apart by its checksum."""
    return name if len(name) <= _MAX_ID_CHARS else f"{name[:_MAX_ID_CHARS]}~{zlib.crc32(name.encode()):08x}"
