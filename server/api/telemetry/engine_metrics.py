"""Metrics of an engine's steps. Counters grow at each turn; gauges are read at a scrape."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from ... import __version__
from ...link.client import EngineClient
from ...link.messages import EngineInfo, Tokens
from ...types import StepReport
from .instruments import Instruments

ACCEPTED_PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos"
Transfers = dict[str, tuple[int, float]]  # bytes and seconds of copies by direction


class Lookups:
    """Counters of what was looked up in a cache and found. Reports have sums since the start of their engine."""

    def __init__(self, instruments: Instruments, queries: str, hits: str) -> None:
        self._queries, self._hits, self._last = instruments.counter(queries), instruments.counter(hits), (0, 0)

    def add(self, queries: int, hits: int) -> None:
        """Count the growth of the sums; those of an engine's successor begin at 0."""
        if (queries, hits) != self._last:
            before = self._last if queries >= self._last[0] else (0, 0)
            self._queries.inc(queries - before[0])
            self._hits.inc(hits - before[1])
            self._last = queries, hits


class EngineMetrics:
    """Metrics of one engine; `record` observes its client. A dead engine has no sequences and no used blocks."""

    def __init__(self, instruments: Instruments, client: EngineClient, info: EngineInfo) -> None:
        self._instruments = instruments
        self._client = client
        self._prefixes = Lookups(instruments, "vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
        self._copies = Lookups(instruments, "vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits")
        self._encodings = Lookups(instruments, "vllm:mm_cache_queries", "vllm:mm_cache_hits")
        self._preemptions = instruments.counter("vllm:num_preemptions")
        self._generated = instruments.counter("vllm:generation_tokens")
        self._tier_usage, self._transfers = 0.0, Transfers()  # last reported
        counted = "drafts", "draft_tokens", "accepted_tokens"
        self._drafts = [instruments.counter(f"vllm:spec_decode_num_{each}") for each in counted]
        instruments.counter(ACCEPTED_PER_POS, position="0")  # exposed before the first draft
        self._step_tokens = instruments.histogram("vllm:iteration_tokens_total")
        self._step_seconds = instruments.histogram("neuronserve:engine_step_seconds")
        self._count_transfers({"GPU_to_CPU": (0, 0.0), "CPU_to_GPU": (0, 0.0)})
        self._show_state(info)
        self._show_info(info)
        self._show_memory(info)

    def record(self, tokens: Tokens) -> None:
        """Count one turn of the engine."""
        report = tokens.report
        if num_tokens := report.num_tokens:
            self._step_tokens.observe(num_tokens)
            self._step_seconds.observe(report.step_seconds)
        if tokens.num_generated:
            self._generated.inc(tokens.num_generated)
        if report.preempted:
            self._preemptions.inc(len(report.preempted))
        if report.drafts:
            self._count_drafts(report)
        self._prefixes.add(report.prefix_queries, report.prefix_hits)
        self._encodings.add(report.encoding_queries, report.encoding_hits)
        if report.tiers is not None:
            self._tier_usage, num_loaded, transfers = report.tiers
            self._copies.add(report.prefix_queries - report.prefix_hits, num_loaded)
            self._count_transfers(transfers)

    def _count_transfers(self, now: Transfers) -> None:
        """Add the growth of the bytes and seconds of copies; a successor's begin at 0."""
        for name, (num_bytes, seconds) in now.items():
            before = self._transfers.get(name, (0, 0.0))
            before = before if num_bytes >= before[0] else (0, 0.0)
            counter = partial(self._instruments.counter, transfer_type=name)
            counter("vllm:kv_offload_total_bytes").inc(num_bytes - before[0])
            counter("vllm:kv_offload_total_time").inc(max(0.0, seconds - before[1]))
        self._transfers = now

    def _count_drafts(self, report: StepReport) -> None:
        accepted = [count for _, count in report.drafts]
        for counter, count in zip(
            self._drafts, (len(accepted), sum(n for n, _ in report.drafts), sum(accepted)), strict=True
        ):
            counter.inc(count)
        for position in range(max(accepted)):
            counter = self._instruments.counter(ACCEPTED_PER_POS, position=str(position))
            counter.inc(sum(count > position for count in accepted))

    def _show_state(self, info: EngineInfo) -> None:
        num_usable = info.cache.num_blocks - 1  # block 0 is padding

        def num_free() -> int:
            return num_usable if (report := self._report()) is None else report.num_free_blocks

        def num_running() -> int:
            return 0 if (report := self._report()) is None else report.num_running

        def num_waiting() -> int:
            """Waiting sequences, including those sent during the current step, which its report lacks."""
            reported = 0 if (report := self._report()) is None else report.num_waiting
            return max(reported, self._client.num_open - num_running())

        self._read("neuronserve:engine_up", lambda: float(self._client.is_up))
        self._read("neuronserve:engine_stalled", lambda: float(self._client.state == "stalled"))
        self._read("vllm:num_requests_running", num_running)
        self._read("vllm:num_requests_waiting", num_waiting)
        self._read("vllm:num_requests_waiting_by_reason", num_waiting, reason="capacity")
        self._read("vllm:num_requests_waiting_by_reason", lambda: 0, reason="deferred")
        self._read("vllm:kv_offload_cpu_cache_usage_perc", lambda: self._tier_usage)
        if not info.cache.num_blocks:
            return  # it has no cache
        self._read("vllm:kv_cache_usage_perc", lambda: 1 - num_free() / num_usable)
        self._read("neuronserve:kv_cache_blocks", lambda: num_usable - num_free(), state="used")
        self._read("neuronserve:kv_cache_blocks", num_free, state="free")

    def _show_info(self, info: EngineInfo) -> None:
        self._instruments.gauge(
            "vllm:cache_config_info",
            block_size=str(info.cache.block_size),
            cache_dtype=info.kv_cache_dtype,
            enable_prefix_caching=str(info.cache.enable_prefix_caching),
            num_gpu_blocks=str(info.cache.num_blocks),
        ).set(1)
        self._instruments.gauge(
            "neuronserve:engine_info",
            device=info.device,
            tensor_parallel_size=str(info.tensor_parallel_size),
            dtype=info.dtype,
            version=__version__,
        ).set(1)

        self._instruments.gauge("neuronserve:process_pid").set(os.getpid())

    def _show_memory(self, info: EngineInfo) -> None:
        for core, memory in zip(info.core_ids or range(len(info.memory)), info.memory, strict=True):
            for use, num_bytes in memory.used.items():
                self._instruments.gauge("neuronserve:device_memory_bytes", core=str(core), use=use).set(num_bytes)
            self._instruments.gauge("neuronserve:device_memory_budget_bytes", core=str(core)).set(memory.budget)
            self._instruments.gauge("neuronserve:device_memory_capacity_bytes", core=str(core)).set(memory.capacity)
        for use, num_bytes in info.host_memory.items():
            self._instruments.gauge("neuronserve:host_memory_bytes", use=use).set(num_bytes)

    def _read(self, name: str, read: Callable[[], float], **labels: str) -> None:
        self._instruments.gauge(name, **labels).set_function(read)

    def _report(self) -> StepReport | None:
        """Last report of the engine; None before its first and after its end."""
        return self._client.report
