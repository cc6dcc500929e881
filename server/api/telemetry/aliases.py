"""Older names of vLLM's that routers and dashboards still read: the same values, renamed when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from server.api.telemetry import families as f
from server.api.telemetry.family import Family

ALIASES: dict[str, Family] = {
    "vllm:gpu_cache_usage_perc": f.KV_USAGE,
    "vllm:gpu_prefix_cache_queries": f.PREFIX_QUERIES,
    "vllm:gpu_prefix_cache_hits": f.PREFIX_HITS,
    "vllm:time_per_output_token_seconds": f.ITL,
}


class Aliases(Collector):
    """Collects what the registry holds under the new names, once more under the old."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: the registry would otherwise collect to find out."""
        return []

    def collect(self) -> Iterator[Metric]:
        for old, family in ALIASES.items():
            source = self._registry.restricted_registry(_sample_names(family))
            for metric in source.collect():
                renamed = Metric(old, f"Older name of {family.exposed}", metric.type, metric.unit)
                renamed.samples = [
                    sample._replace(name=old + sample.name.removeprefix(family.name)) for sample in metric.samples
                ]
                yield renamed


def _sample_names(family: Family) -> list[str]:
    if family.kind == "histogram":
        return [f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
    return [family.exposed]
