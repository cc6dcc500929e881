"""A server as a scraper sees it."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one answer of /metrics, by name and labels."""

    def __init__(self, text: str) -> None:
        self.metrics: Mapping[str, Metric] = {metric.name: metric for metric in text_string_to_metric_families(text)}
        self.samples = [sample for metric in self.metrics.values() for sample in metric.samples]

    def value(self, name: str, **labels: str) -> float:
        """Sum over the samples of `name` that have these labels; at least one must."""
        values = [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert values, f"no sample {name} {labels}"
        return sum(values)

    def has(self, name: str, label: str | None = None) -> bool:
        return any(sample.name == name and (label is None or label in sample.labels) for sample in self.samples)

    def bounds(self, family: str) -> list[float]:
        """Finite upper bounds of a histogram's buckets."""
        bounds = {float(s.labels["le"]) for s in self.samples if s.name == f"{family}_bucket"}
        return sorted(bounds - {float("inf")})


def scrape(url: str) -> Scrape:
    response = httpx.get(url + "/metrics", timeout=30)
    assert response.status_code == 200
    return Scrape(response.text)


def encodings(url: str) -> tuple[float, float]:
    """Return the items that requests had for an encoder, and how many of them were encoded for an earlier request."""
    seen = scrape(url)
    return seen.value("vllm:mm_cache_queries_total"), seen.value("vllm:mm_cache_hits_total")
