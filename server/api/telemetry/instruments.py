"""Prometheus instruments of metric families, by the names of these. No metric is named here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .families import MetricFamily, family_of

Values = Callable[[], Mapping[str, float]]  # by the value of the family's last label


class Histogram:
    """Counts of values up to each bound. Used in one thread: every token is a value, so no lock is taken."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, metric: HistogramMetricFamily, labels: list[str]) -> None:
        """Add the counts as one child of `metric`."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        metric.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class Histograms(Collector):
    """All histograms of one family, by the values of its labels."""

    def __init__(self, family: MetricFamily, bounds: tuple[float, ...]) -> None:
        self._family, self._bounds, self._children = family, bounds, dict[tuple[str, ...], Histogram]()

    def labels(self, *values: str) -> Histogram:
        """Return the histogram of these values."""
        if values not in self._children:
            self._children[values] = Histogram(self._bounds)
        return self._children[values]

    def describe(self) -> list[Metric]:
        """Return the names of its samples, for the registry."""
        return [self._shown()]

    def collect(self) -> Iterator[Metric]:
        metric = self._shown()
        for values, child in self._children.items():
            child.add_to(metric, list(values))
        yield metric

    def _shown(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._family.name, self._family.meaning, labels=self._family.labels)


class Instruments:
    """Instruments of a registry. Shared labels are filled in here; the caller passes the others."""

    def __init__(self, registry: CollectorRegistry, common: Mapping[str, str]) -> None:
        self._registry = registry
        self._common = dict(common)
        self._parents: dict[str, Any] = {}

    def of(self, **common: str) -> Instruments:
        """Return the same instruments with other values of shared labels."""
        others = Instruments(self._registry, {**self._common, **common})
        others._parents = self._parents
        return others

    @property
    def common(self) -> dict[str, str]:
        """Shared labels."""
        return dict(self._common)

    def gauge(self, name: str, **labels: str) -> Gauge:
        """Return the gauge of these labels."""
        child = self._child(name, labels)
        assert isinstance(child, Gauge)
        return child

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter of these labels."""
        child = self._child(name, labels)
        assert isinstance(child, Counter)
        return child

    def histogram(self, name: str, bounds: tuple[float, ...] = (), **labels: str) -> Histogram:
        """Return the histogram of these labels, with `bounds` for the whole family where the table has none."""
        child = self._child(name, labels, bounds)
        assert isinstance(child, Histogram)
        return child

    def _child(self, name: str, labels: Mapping[str, str], bounds: tuple[float, ...] = ()) -> Any:
        family, parent = family_of(name), self._parents.get(name)
        if parent is None:
            parent = self._parents[name] = self._new(family, bounds)
        values = {**self._common, **labels}
        has_children = family.labels or family.kind == "histogram"
        return parent.labels(*(values[name] for name in family.labels)) if has_children else parent

    def _new(self, family: MetricFamily, bounds: tuple[float, ...]) -> Gauge | Counter | Histograms:
        name, meaning, labels, registry = family.name, family.meaning, family.labels, self._registry
        if family.kind == "gauge":
            return Gauge(name, meaning, labels, registry=registry)
        if family.kind == "counter":
            return Counter(name, meaning, labels, registry=registry)
        histograms = Histograms(family, family.bounds or bounds)
        registry.register(histograms)
        return histograms


class ReadCounters(Collector):
    """Counters whose values are read at a scrape, so that they can be exact sums of whole numbers.

    A family has one label of its own, the last one, after the shared labels.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sources: dict[MetricFamily, list[tuple[list[str], Values]]] = {}
        registry.register(self)

    def add(self, name: str, values: Values, **shared: str) -> None:
        """Expose a family with these shared labels; `values` is called at every scrape, and no value ever decreases."""
        family = family_of(name)
        self._sources.setdefault(family, []).append(([shared[label] for label in family.labels[:-1]], values))

    def describe(self) -> list[Metric]:
        """Return nothing: otherwise the registry would collect to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        for family, sources in self._sources.items():
            metric = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
            for shared, values in sources:
                for own, value in values().items():
                    metric.add_metric([*shared, own], value)
            yield metric


class Aliases(Collector):
    """Collects families of the registry again, under their older `names`."""

    def __init__(self, registry: CollectorRegistry, names: Mapping[str, MetricFamily]) -> None:
        self._registry = registry
        self._names = names
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return nothing: otherwise the registry would collect to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        for old, family in self._names.items():
            source = self._registry.restricted_registry(_sample_names(family))
            for metric in source.collect():
                renamed = Metric(old, f"Older name of {family.exposed}", metric.type, metric.unit)
                renamed.samples = [
                    sample._replace(name=old + sample.name.removeprefix(family.name)) for sample in metric.samples
                ]
                yield renamed


def _sample_names(family: MetricFamily) -> list[str]:
    if family.kind == "histogram":
        return [f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
    return [family.exposed]
