"""The agent's metrics about itself, through prometheus_client: loops, scrapes, journal, process. Not about the node."""

import math

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

JOURNAL_STATES = ("ok", "degraded", "off")
# Making this page costs as much as a quarter of the page about the node, and nobody acts on it within a second.
SHARED_S = 2.0

_LAG_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)
_TICK_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)


class OwnMetrics:
    """One registry per agent. All methods are cheap and meant for the event loop's thread.

    Attributes:
        registry: for anything else that the agent counts about itself.
    """

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._lag = Histogram(
            "nodewarden_agent_loop_lag_seconds",
            "How late the event loop wakes up, seconds.",
            buckets=_LAG_BUCKETS_S,
            registry=self.registry,
        )
        self._ticks = Histogram(
            "nodewarden_agent_tick_seconds",
            "How long a turn of a loop takes, seconds.",
            ["loop"],
            buckets=_TICK_BUCKETS_S,
            registry=self.registry,
        )
        self._skipped = Counter(
            "nodewarden_agent_ticks_skipped",
            "Turns of a loop that an overrun has cost.",
            ["loop"],
            registry=self.registry,
        )
        self._scrapes = Counter(
            "nodewarden_agent_scrapes",
            "Requests on the HTTP port by path and status.",
            ["path", "status"],
            registry=self.registry,
        )
        self._dropped = Counter(
            "nodewarden_agent_connections_dropped",
            "HTTP connections closed by us, by reason (idle, slow, full).",
            ["reason"],
            registry=self.registry,
        )
        self._connections = Gauge(
            "nodewarden_agent_connections", "HTTP connections that are open.", registry=self.registry
        )
        self._journal = Gauge(
            "nodewarden_agent_journal_state",
            "1 for the state of the journal, 0 for the others.",
            ["state"],
            registry=self.registry,
        )
        self._config_taken = Gauge(
            "nodewarden_agent_config_reload_successful",
            "1 while the configuration as last read is the one in force, 0 after a refused reload.",
            registry=self.registry,
        )
        self._config_at = Gauge(
            "nodewarden_agent_config_success_timestamp_seconds",
            "When the configuration in force was read, Unix seconds.",
            registry=self.registry,
        )
        self._page = b""
        self._made_s = -math.inf
        for reason in ("idle", "slow", "full"):
            self._dropped.labels(reason)

    def lagged(self, lag_s: float) -> None:
        """The event loop woke up this late."""
        self._lag.observe(lag_s)

    def ticked(self, loop: str, took_s: float) -> None:
        """A loop has finished a turn."""
        self._ticks.labels(loop).observe(took_s)

    def skipped(self, loop: str, turns: int = 1) -> None:
        """A loop has lost turns to an overrun."""
        self._skipped.labels(loop).inc(turns)

    def answered(self, path: str, status: int) -> None:
        """A request was answered; `path` is one of ours or "other"."""
        self._scrapes.labels(path, str(status)).inc()

    def dropped(self, reason: str) -> None:
        """A connection was closed by us."""
        self._dropped.labels(reason).inc()

    def connections(self, count: int) -> None:
        """So many connections are open."""
        self._connections.set(count)

    def journal(self, state: str) -> None:
        """The journal is "ok", "degraded" or "off"."""
        for each in JOURNAL_STATES:
            self._journal.labels(each).set(int(each == state))

    def config_read(self, *, taken: bool, unix_s: float) -> None:
        """The configuration was read, and taken over or refused."""
        self._config_taken.set(int(taken))
        if taken:
            self._config_at.set(unix_s)

    def page(self, now_s: float) -> bytes:
        """The exposition text of all of them, made at most every `SHARED_S`."""
        if not 0.0 <= now_s - self._made_s < SHARED_S:
            self._page, self._made_s = prometheus_client.generate_latest(self.registry), now_s
        return self._page
