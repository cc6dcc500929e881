"""Every metric of this server: the table that the registry and docs/reference/metrics.md are made from.

Names, labels and buckets of `vllm:` are those of vLLM 0.33, so that tools for its metrics read these. Families of vLLM
that this server cannot measure are absent. `http_` follows the names of prometheus-fastapi-instrumentator.
"""

from __future__ import annotations

from dataclasses import replace

from .device_families import DEVICE_FAMILIES
from .instruments import MetricFamily
from .key_metrics import KEY_FAMILIES
from .overload import OVERLOAD_FAMILIES
from .recovery import RECOVERY_FAMILIES
from .tier_families import TIER_FAMILIES

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, *(2**i for i in range(3, 15)))
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

RUNNING = MetricFamily("vllm:num_requests_running", "gauge", "sequences", "Sequences in the engine's batch")
WAITING = MetricFamily(
    "vllm:num_requests_waiting", "gauge", "sequences", "Sequences that wait for a place in the batch"
)
WAITING_BY_REASON = MetricFamily(
    "vllm:num_requests_waiting_by_reason",
    "gauge",
    "sequences",
    "The same by reason: `capacity` for all of them, because nothing here is ever `deferred`",
    ("model_name", "engine", "reason"),
)
KV_USAGE = MetricFamily(
    "vllm:kv_cache_usage_perc", "gauge", "0 to 1", "Share of the KV cache's blocks that sequences hold"
)
CACHE_CONFIG = MetricFamily(
    "vllm:cache_config_info",
    "gauge",
    "1",
    "The KV cache's configuration, as labels",
    ("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "engine"),
)
PREFIX_QUERIES = MetricFamily(
    "vllm:prefix_cache_queries", "counter", "tokens", "Prompt tokens of admitted sequences, looked up in the cache"
)
PREFIX_HITS = MetricFamily("vllm:prefix_cache_hits", "counter", "tokens", "Of those, tokens found in the cache")
ENCODING_QUERIES = MetricFamily(
    "vllm:mm_cache_queries", "counter", "items", "Pictures, texts and windows of sound that requests had for an encoder"
)
ENCODING_HITS = MetricFamily("vllm:mm_cache_hits", "counter", "items", "Of those, encoded for an earlier request")
PREEMPTIONS = MetricFamily(
    "vllm:num_preemptions", "counter", "preemptions", "Times that a sequence lost its blocks and was recomputed"
)
SPEC_DRAFTS = MetricFamily("vllm:spec_decode_num_drafts", "counter", "drafts", "Drafts that steps verified")
SPEC_DRAFT_TOKENS = MetricFamily("vllm:spec_decode_num_draft_tokens", "counter", "tokens", "Tokens of these drafts")
SPEC_ACCEPTED = MetricFamily("vllm:spec_decode_num_accepted_tokens", "counter", "tokens", "Of these, accepted tokens")
SPEC_ACCEPTED_PER_POS = MetricFamily(
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "counter",
    "tokens",
    "The same by position in the draft, from 0",
    ("model_name", "engine", "position"),
)
GENERATION_TOKENS = MetricFamily("vllm:generation_tokens", "counter", "tokens", "Tokens the engine has generated")
STEP_TOKENS_TOTAL = MetricFamily(
    "vllm:iteration_tokens_total",
    "histogram",
    "tokens",
    "Tokens computed in one engine step, prefill and decode",
    buckets=STEP_TOKENS,
)

PROMPT_TOKENS = MetricFamily(
    "vllm:prompt_tokens", "counter", "tokens", "Prompt tokens of sequences whose prompt is done, cached ones included"
)
PROMPT_TOKENS_CACHED = MetricFamily(
    "vllm:prompt_tokens_cached", "counter", "tokens", "Of those, tokens taken from the prefix cache"
)
PROMPT_TOKENS_BY_SOURCE = MetricFamily(
    "vllm:prompt_tokens_by_source",
    "counter",
    "tokens",
    "The same by source: `local_compute` or `local_cache_hit`",
    ("model_name", "engine", "source"),
)
SUCCESS = MetricFamily(
    "vllm:request_success",
    "counter",
    "sequences",
    "Sequences that ended, by reason: `stop`, `length`, `abort` (client left, shutdown) or `error`",
    ("model_name", "engine", "finished_reason"),
)
REJECTIONS = MetricFamily(
    "vllm:admission_rejections",
    "counter",
    "requests",
    "HTTP requests refused with 429, by the limit they exceeded: max_num_queued_reqs, max_queue_delay, ttft_slo_ms, "
    "host_memory_gib, or max_connections (open files)",
    ("model_name", "reason"),
)
INJECTED_FAULTS = MetricFamily(
    "neuronserve:injected_faults",
    "counter",
    "requests",
    "Requests that got a fault on purpose (`--inject-faults`, `--allow-fault-header`), by the fault and the rule's "
    "name or place; `header` stands for faults that a request asked for",
    ("model_name", "fault", "rule"),
)
# Limits that an HTTP request can exceed.
LIMITS = ("max_num_queued_reqs", "max_queue_delay", "ttft_slo_ms", "host_memory_gib")
REQUEST_PROMPT_TOKENS = MetricFamily("vllm:request_prompt_tokens", "histogram", "tokens", "Prompt tokens of a sequence")
REQUEST_GENERATION_TOKENS = MetricFamily(
    "vllm:request_generation_tokens", "histogram", "tokens", "Tokens generated for a sequence"
)
REQUEST_MAX_GENERATION_TOKENS = MetricFamily(
    "vllm:request_max_num_generation_tokens",
    "histogram",
    "tokens",
    "Tokens of the longest of the `n` choices of a prompt",
)
REQUEST_COMPUTED_TOKENS = MetricFamily(
    "vllm:request_prefill_kv_computed_tokens", "histogram", "tokens", "Prompt tokens not found in the cache"
)
PARAMS_N = MetricFamily(
    "vllm:request_params_n", "histogram", "choices", "`n` of each prompt of a request", buckets=(1, 2, 5, 10, 20)
)
PARAMS_MAX_TOKENS = MetricFamily(
    "vllm:request_params_max_tokens",
    "histogram",
    "tokens",
    "Room for tokens of a sequence: `max_tokens`, or what the context leaves",
)
TTFT = MetricFamily(
    "vllm:time_to_first_token_seconds",
    "histogram",
    "seconds",
    "From the HTTP request's arrival to a sequence's first token in the API process",
    buckets=FIRST_TOKEN,
)
ITL = MetricFamily(
    "vllm:inter_token_latency_seconds",
    "histogram",
    "seconds",
    "Between two tokens of a sequence, by the engine's clock",
    buckets=BETWEEN_TOKENS,
)
TPOT = MetricFamily(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "seconds",
    "Decode time over tokens after the first, of a sequence with at least 2",
    buckets=BETWEEN_TOKENS,
)
E2E = MetricFamily(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "seconds",
    "From the HTTP request's arrival to a sequence's end in the API process",
    buckets=LATENCY,
)
QUEUE_TIME = MetricFamily(
    "vllm:request_queue_time_seconds",
    "histogram",
    "seconds",
    "From submission to the engine to the first step with a place for the sequence",
    buckets=LATENCY,
)
PREFILL_TIME = MetricFamily(
    "vllm:request_prefill_time_seconds", "histogram", "seconds", "From that step to the first token", buckets=LATENCY
)
DECODE_TIME = MetricFamily(
    "vllm:request_decode_time_seconds", "histogram", "seconds", "From the first token to the last", buckets=LATENCY
)
INFERENCE_TIME = MetricFamily(
    "vllm:request_inference_time_seconds",
    "histogram",
    "seconds",
    "From the first step to the last token: prefill and decode",
    buckets=LATENCY,
)
REQUEST_PREEMPTIONS = MetricFamily(
    "vllm:request_num_preemptions",
    "histogram",
    "preemptions",
    "Preemptions of a sequence",
    buckets=(1, 2, 3, 4, 5, 10, 20),
)

ENGINE_INFO = MetricFamily(
    "neuronserve:engine_info",
    "gauge",
    "1",
    "Model and engine, as labels",
    ("model_name", "engine", "device", "tensor_parallel_size", "dtype", "version"),
)
PROCESS_PID = MetricFamily(
    "neuronserve:process_pid", "gauge", "pid", "Process id of the server, on its host", ("model_name",)
)
ENGINE_UP = MetricFamily("neuronserve:engine_up", "gauge", "0 or 1", "Whether the engine's process lives and answers")
ENGINE_STALLED = MetricFamily(
    "neuronserve:engine_stalled", "gauge", "0 or 1", "Whether the engine is late with its report"
)
STEP_TIME = MetricFamily(
    "neuronserve:engine_step_seconds",
    "histogram",
    "seconds",
    "Host time of one engine step with tokens to compute",
    buckets=STEP_SECONDS,
)
KV_BLOCKS = MetricFamily(
    "neuronserve:kv_cache_blocks",
    "gauge",
    "blocks",
    "Blocks of the KV cache: `used` by sequences, or `free` (which may hold cached prefixes)",
    ("model_name", "engine", "state"),
)
DEVICE_MEMORY = MetricFamily(
    "neuronserve:device_memory_bytes",
    "gauge",
    "bytes",
    "Memory that the accelerator would hold on a NeuronCore: `weights`, `kv`, `scratchpad`, `collectives`, "
    "`dma_rings`, `code` or `runtime`",
    ("model_name", "engine", "core", "use"),
)
DEVICE_MEMORY_BUDGET = MetricFamily(
    "neuronserve:device_memory_budget_bytes",
    "gauge",
    "bytes",
    "Device memory of a NeuronCore that may be reserved (`--device-memory-utilization`)",
    ("model_name", "engine", "core"),
)
DEVICE_MEMORY_CAPACITY = MetricFamily(
    "neuronserve:device_memory_capacity_bytes",
    "gauge",
    "bytes",
    "Device memory of a NeuronCore",
    ("model_name", "engine", "core"),
)
HOST_MEMORY = MetricFamily(
    "neuronserve:host_memory_bytes",
    "gauge",
    "bytes",
    "Host memory that the emulation of an engine's cores has mapped, which is real where written: `weights`, `kv`, "
    "`activations`, `partial_sums`, `workers`, `tables` or `adapters`",
    ("model_name", "engine", "use"),
)

HTTP_REQUESTS = MetricFamily(
    "http_requests",
    "counter",
    "requests",
    "Answers by route (`none` for unknown paths), method and status class such as `2xx`",
    ("handler", "method", "status"),
)
HTTP_DURATION = MetricFamily(
    "http_request_duration_seconds",
    "histogram",
    "seconds",
    "From a request's arrival to the end of its answer",
    ("handler", "method"),
    (0.1, 0.5, 1),
)
HTTP_DURATION_HIGHR = MetricFamily(
    "http_request_duration_highr_seconds",
    "histogram",
    "seconds",
    "The same with fine buckets and no labels",
    (),
    (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),),
)

_OWN = [value for value in list(globals().values()) if isinstance(value, MetricFamily)]
FAMILIES = (*_OWN, *TIER_FAMILIES, *RECOVERY_FAMILIES, *OVERLOAD_FAMILIES, *KEY_FAMILIES, *DEVICE_FAMILIES)
# Older names of vLLM that routers and dashboards still read.
ALIASES: dict[str, MetricFamily] = {
    "vllm:gpu_cache_usage_perc": KV_USAGE,
    "vllm:gpu_prefix_cache_queries": PREFIX_QUERIES,
    "vllm:gpu_prefix_cache_hits": PREFIX_HITS,
    "vllm:time_per_output_token_seconds": ITL,
}


def one_two_five(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to `most`: the bounds of token counts."""
    bounds = [mantissa * 10**exponent for exponent in range(len(str(most))) for mantissa in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= most)


def of_tokens(family: MetricFamily, max_model_len: int) -> MetricFamily:
    """Return a family of token counts, with bounds up to this model's context length."""
    return replace(family, buckets=one_two_five(max_model_len))
