"""Metrics of KV copies in memory and on a disk, under vLLM's names."""

from .instruments import MetricFamily

TIER_QUERIES = MetricFamily(
    "vllm:external_prefix_cache_queries", "counter", "tokens", "Prompt tokens looked up in tiers below the device"
)
TIER_HITS = MetricFamily("vllm:external_prefix_cache_hits", "counter", "tokens", "Of those, tokens loaded from a tier")
TIER_USAGE = MetricFamily(
    "vllm:kv_offload_cpu_cache_usage_perc", "gauge", "0 to 1", "Share of the host memory tier's slots in use"
)
TRANSFER = ("model_name", "engine", "transfer_type")
TRANSFER_BYTES = MetricFamily(
    "vllm:kv_offload_total_bytes", "counter", "bytes", "Bytes of KV copied between device, memory and disk", TRANSFER
)
TRANSFER_TIME = MetricFamily(
    "vllm:kv_offload_total_time", "counter", "seconds", "Seconds that these copies took", TRANSFER
)
TIER_FAMILIES = (TIER_QUERIES, TIER_HITS, TIER_USAGE, TRANSFER_BYTES, TRANSFER_TIME)
