"""Metrics of an engine's steps. Counters grow at each turn; gauges are read at a scrape."""

from __future__ import annotations

import os
from collections.abc import Callable

from ... import __version__
from ...link.client import EngineClient
from ...link.messages import EngineInfo, Tokens
from ...types import StepReport
from . import families as f
from . import tier_families as tiers
from .instruments import Instruments, MetricFamily

Transfers = dict[str, tuple[int, float]]  # bytes and seconds of copies by direction


class Lookups:
    """Counters of what was looked up in a cache and found. Reports have sums since the start of their engine."""

    def __init__(self, instruments: Instruments, queries: MetricFamily, hits: MetricFamily) -> None:
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
        self._prefixes = Lookups(instruments, f.PREFIX_QUERIES, f.PREFIX_HITS)
        self._copies = Lookups(instruments, tiers.TIER_QUERIES, tiers.TIER_HITS)
        self._encodings = Lookups(instruments, f.ENCODING_QUERIES, f.ENCODING_HITS)
        self._preemptions = instruments.counter(f.PREEMPTIONS)
        self._generated = instruments.counter(f.GENERATION_TOKENS)
        self._tier_usage, self._transfers = 0.0, Transfers()  # last reported
        self._drafts = [instruments.counter(each) for each in (f.SPEC_DRAFTS, f.SPEC_DRAFT_TOKENS, f.SPEC_ACCEPTED)]
        instruments.counter(f.SPEC_ACCEPTED_PER_POS, position="0")  # exposed before the first draft
        self._step_tokens = instruments.histogram(f.STEP_TOKENS_TOTAL)
        self._step_seconds = instruments.histogram(f.STEP_TIME)
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
            self._instruments.counter(tiers.TRANSFER_BYTES, transfer_type=name).inc(num_bytes - before[0])
            self._instruments.counter(tiers.TRANSFER_TIME, transfer_type=name).inc(max(0.0, seconds - before[1]))
        self._transfers = now

    def _count_drafts(self, report: StepReport) -> None:
        accepted = [count for _, count in report.drafts]
        for counter, count in zip(
            self._drafts, (len(accepted), sum(n for n, _ in report.drafts), sum(accepted)), strict=True
        ):
            counter.inc(count)
        for position in range(max(accepted)):
            counter = self._instruments.counter(f.SPEC_ACCEPTED_PER_POS, position=str(position))
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

        self._read(f.ENGINE_UP, lambda: float(self._client.is_up))
        self._read(f.ENGINE_STALLED, lambda: float(self._client.state == "stalled"))
        self._read(f.RUNNING, num_running)
        self._read(f.WAITING, num_waiting)
        self._read(f.WAITING_BY_REASON, num_waiting, reason="capacity")
        self._read(f.WAITING_BY_REASON, lambda: 0, reason="deferred")
        self._read(tiers.TIER_USAGE, lambda: self._tier_usage)
        if not info.cache.num_blocks:
            return  # it has no cache
        self._read(f.KV_USAGE, lambda: 1 - num_free() / num_usable)
        self._read(f.KV_BLOCKS, lambda: num_usable - num_free(), state="used")
        self._read(f.KV_BLOCKS, num_free, state="free")

    def _show_info(self, info: EngineInfo) -> None:
        self._instruments.gauge(
            f.CACHE_CONFIG,
            block_size=str(info.cache.block_size),
            cache_dtype=info.kv_cache_dtype,
            enable_prefix_caching=str(info.cache.enable_prefix_caching),
            num_gpu_blocks=str(info.cache.num_blocks),
        ).set(1)
        self._instruments.gauge(
            f.ENGINE_INFO,
            device=info.device,
            tensor_parallel_size=str(info.tensor_parallel_size),
            dtype=info.dtype,
            version=__version__,
        ).set(1)

        self._instruments.gauge(f.PROCESS_PID).set(os.getpid())

    def _show_memory(self, info: EngineInfo) -> None:
        for core, memory in zip(info.core_ids or range(len(info.memory)), info.memory, strict=True):
            for use, num_bytes in memory.used.items():
                self._instruments.gauge(f.DEVICE_MEMORY, core=str(core), use=use).set(num_bytes)
            self._instruments.gauge(f.DEVICE_MEMORY_BUDGET, core=str(core)).set(memory.budget)
            self._instruments.gauge(f.DEVICE_MEMORY_CAPACITY, core=str(core)).set(memory.capacity)
        for use, num_bytes in info.host_memory.items():
            self._instruments.gauge(f.HOST_MEMORY, use=use).set(num_bytes)

    def _read(self, family: MetricFamily, read: Callable[[], float], **labels: str) -> None:
        self._instruments.gauge(family, **labels).set_function(read)

    def _report(self) -> StepReport | None:
        """Last report of the engine; None before its first and after its end."""
        return self._client.report
