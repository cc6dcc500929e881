"""Metrics of a router, in Prometheus's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from .fleet import Fleet
from .replica import Replica

PREFIX = "neuronserve_route_"


class Metrics(Collector):
    """Counts of requests, and the state of each replica."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self._fleet = fleet
        own, labels = self.registry, ("replica",)
        self._asked = Counter(f"{PREFIX}requests", "requests sent to a replica", labels, registry=own)
        self._lost = Counter(f"{PREFIX}lost_requests", "requests that lost their replica", labels, registry=own)
        self._pause = Histogram(
            f"{PREFIX}resume_seconds",
            "time from a stream's loss of its replica to its next event",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.registry.register(self)

    def asked(self, replica: Replica) -> None:
        """Count a request to a replica."""
        self._asked.labels(replica.address.name).inc()

    def lost(self, replica: Replica) -> None:
        """Count a request that lost its replica."""
        self._lost.labels(replica.address.name).inc()

    def resumed(self, pause_s: float) -> None:
        """Count a stream that goes on."""
        self._pause.observe(pause_s)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the state of each replica."""
        up = GaugeMetricFamily(f"{PREFIX}replica_up", "1 while a replica takes requests", labels=["replica"])
        tokens = GaugeMetricFamily(f"{PREFIX}open_tokens", "estimated tokens of open requests", labels=["replica"])
        for replica in self._fleet.replicas:
            up.add_metric([replica.address.name], replica.is_up)
            tokens.add_metric([replica.address.name], self._fleet.ledger.num_open_tokens(replica.number))
        yield from (up, tokens)


class Gathered(Collector):
    """The router's metrics and those that its replicas expose, with the replica as a label."""

    def __init__(self, own: Collector, texts: Mapping[str, str]) -> None:
        """`texts`: what each replica exposes, by its name."""
        self._own, self._texts = own, texts

    def collect(self) -> Iterator[Metric]:
        """Yield each family once."""
        families: dict[str, Metric] = {}
        for name, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples += [each._replace(labels={"replica": name, **each.labels}) for each in family.samples]
        yield from self._own.collect()
        yield from families.values()
