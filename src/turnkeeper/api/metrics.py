"""What operators measure, in Prometheus' text format.

The HTTP side's numbers are in a registry of their own, so that two applications in one process (tests) do not mix; those
of the store, and of the process itself, are in the library's default one. `/metrics` shows both.
"""

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_REQUEST_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class _Once:
    """Numbers that were read for one rendering."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Metrics:
    """The numbers of one control-plane process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "turnkeeper_http_request_seconds",
            "Time to answer a request, by the template of its route; streams are left out",
            ("method", "route", "status"),
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.claims = Counter("turnkeeper_claims_total", "Answers to claims", ("answer",), registry=self.registry)
        self.stream_readers = Gauge(
            "turnkeeper_stream_readers", "Open event streams", ("stream",), registry=self.registry
        )
        self.stream_feeds = Gauge(
            "turnkeeper_stream_feeds", "Conversations with at least one reader", registry=self.registry
        )
        self.stream_reads = Counter(
            "turnkeeper_stream_reads_total", "Database reads for event streams", ("why",), registry=self.registry
        )
        self.stream_frames = Counter(
            "turnkeeper_stream_frames_total", "Events written to readers", registry=self.registry
        )
        self.internal_errors = Counter(
            "turnkeeper_internal_errors_total", "Requests answered with code internal", registry=self.registry
        )

    def render(self, families: Iterable[Metric]) -> bytes:
        """Everything as text: this process's numbers, and `families`, which were read from the database just now."""
        read = CollectorRegistry()
        read.register(_Once(families))
        return generate_latest(self.registry) + generate_latest(REGISTRY) + generate_latest(read)
