"""Counters whose values are read when somebody scrapes, so that they can be exact sums of whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from server.api.telemetry.family import Family

Values = Callable[[], Mapping[str, float]]  # by the value of the family's last label


class ReadCounters(Collector):
    """Families of counters with one label of their own, the last, beside those that are shared."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sources: dict[Family, list[tuple[list[str], Values]]] = {}
        registry.register(self)

    def add(self, family: Family, values: Values, **shared: str) -> None:
        """Show `family` with these shared labels; `values` is asked at every scrape, and none of them ever falls."""
        self._sources.setdefault(family, []).append(([shared[label] for label in family.labels[:-1]], values))

    def describe(self) -> list[Metric]:
        """Nothing: the registry would otherwise collect to find out."""
        return []

    def collect(self) -> Iterator[Metric]:
        for family, sources in self._sources.items():
            metric = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
            for shared, values in sources:
                for own, value in values().items():
                    metric.add_metric([*shared, own], value)
            yield metric
