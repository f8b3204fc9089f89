"""The agent's metrics about its MQTT connection, read from the publisher's status at the time of the scrape."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodewarden_exporters.mqtt import MqttStatus


class MqttCollector(Collector):
    """For `OwnMetrics.registry`; only registered where a broker is configured."""

    def __init__(self, status: Callable[[], MqttStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All of them, from one status."""
        status = self._status()
        yield GaugeMetricFamily(
            "nodewarden_agent_mqtt_connected",
            "1 while the MQTT broker is connected, else 0.",
            value=float(status.state == "connected"),
        )
        yield CounterMetricFamily(
            "nodewarden_agent_mqtt_connects", "Connections to the MQTT broker since the start.", value=status.connects
        )
        yield CounterMetricFamily(
            "nodewarden_agent_mqtt_published", "MQTT messages that the broker has taken.", value=status.published
        )
        dropped = CounterMetricFamily(
            "nodewarden_agent_mqtt_dropped",
            "MQTT messages lost to the bound of the queue, by kind (event, state).",
            labels=["kind"],
        )
        dropped.add_metric(["event"], status.dropped_events)
        dropped.add_metric(["state"], status.dropped_states)
        yield dropped
        if status.certificate_ends_unix_s is not None:
            yield GaugeMetricFamily(
                "nodewarden_agent_mqtt_certificate_expiry_timestamp_seconds",
                "End of validity of the client certificate for the MQTT broker, Unix seconds.",
                value=status.certificate_ends_unix_s,
            )
