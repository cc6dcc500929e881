"""Metric families, and Prometheus instruments made from them. No metric is named here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Kind = Literal["gauge", "counter", "histogram"]
Values = Callable[[], Mapping[str, float]]  # by the value of the family's last label


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric as it is documented and exposed. A counter's name is written without its `_total`."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ("model_name", "engine")
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, without +Inf

    @property
    def exposed(self) -> str:
        """The name at a scrape; a histogram's is followed by `_bucket`, `_sum` or `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


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

    def __init__(self, family: MetricFamily) -> None:
        self._family, self._children = family, dict[tuple[str, ...], Histogram]()

    def labels(self, *values: str) -> Histogram:
        """Return the histogram of these values."""
        if values not in self._children:
            self._children[values] = Histogram(self._family.buckets)
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

    def gauge(self, family: MetricFamily, **labels: str) -> Gauge:
        """Return the gauge of these labels."""
        child = self._child(family, labels)
        assert isinstance(child, Gauge)
        return child

    def counter(self, family: MetricFamily, **labels: str) -> Counter:
        """Return the counter of these labels."""
        child = self._child(family, labels)
        assert isinstance(child, Counter)
        return child

    def histogram(self, family: MetricFamily, **labels: str) -> Histogram:
        """Return the histogram of these labels."""
        child = self._child(family, labels)
        assert isinstance(child, Histogram)
        return child

    def _child(self, family: MetricFamily, labels: Mapping[str, str]) -> Any:
        parent = self._parents.get(family.name)
        if parent is None:
            parent = self._parents[family.name] = self._new(family)
        values = {**self._common, **labels}
        has_children = family.labels or family.kind == "histogram"
        return parent.labels(*(values[name] for name in family.labels)) if has_children else parent

    def _new(self, family: MetricFamily) -> Gauge | Counter | Histograms:
        name, meaning, labels, registry = family.name, family.meaning, family.labels, self._registry
        if family.kind == "gauge":
            return Gauge(name, meaning, labels, registry=registry)
        if family.kind == "counter":
            return Counter(name, meaning, labels, registry=registry)
        histograms = Histograms(family)
        registry.register(histograms)
        return histograms


class ReadCounters(Collector):
    """Counters whose values are read at a scrape, so that they can be exact sums of whole numbers.

    A family has one label of its own, the last one, after the shared labels.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sources: dict[MetricFamily, list[tuple[list[str], Values]]] = {}
        registry.register(self)

    def add(self, family: MetricFamily, values: Values, **shared: str) -> None:
        """Expose `family` with these shared labels; `values` is called at every scrape, and no value ever decreases."""
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
