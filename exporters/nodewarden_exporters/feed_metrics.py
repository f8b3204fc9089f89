"""The metrics of power feeds. A series is missing while it is unknown; it is never a 0 for that."""

from collections.abc import Callable, Iterator

from nodewarden.api.view import View
from nodewarden.model.feeds import FeedSnapshot, Number
from nodewarden.model.readings import Reading
from nodewarden_exporters.metric import Metric, row
from nodewarden_exporters.readers import Sample

_STALE_S = 180.0  # three periods of the slowest usual polling


def _each(pick: Callable[[FeedSnapshot], Number]) -> Callable[[View, float], Iterator[Sample]]:
    def read(view: View, now_s: float) -> Iterator[Sample]:
        for name, feed in view.snapshot.feeds.items():
            number = pick(feed)
            if isinstance(number, Reading) and number.age_s(now_s) <= _STALE_S:
                yield (name,), number.value

    return read


def _lost(view: View, _now_s: float) -> Iterator[Sample]:
    for name, feed in view.snapshot.feeds.items():
        if feed.lost is not None:
            yield (name,), float(feed.lost)


def _rated(view: View, _now_s: float) -> Iterator[Sample]:
    for name, feed in view.snapshot.feeds.items():
        if feed.rated_w is not None:
            yield (name,), feed.rated_w


def _feed(name: str, help_text: str, read: Callable[[View, float], Iterator[Sample]]) -> Metric:
    return row("feed_", name, help_text, read, ("feed",), scope="node")


FEED_METRICS: tuple[Metric, ...] = (
    _feed("power_watts", "Real power of all PDUs of the feed together, watts.", _each(lambda feed: feed.power_w)),
    _feed("node_power_watts", "Real power of this node's outlets on the feed.", _each(lambda feed: feed.outlets_w)),
    _feed(
        "node_power_after_loss_watts",
        "What this node's outlets on the feed must carry when the other feed is lost.",
        _each(lambda feed: feed.after_loss_w),
    ),
    _feed(
        "power_after_loss_watts",
        "The most that the feed must carry when the other feed is lost.",
        _each(lambda feed: feed.total_after_loss_w),
    ),
    _feed("rated_watts", "Configured rating of all PDUs of the feed together.", _rated),
    _feed("lost", "1 when the feed has no power, 0 when it has; missing when nobody can tell.", _lost),
)
