"""The figures of a simulation: what a load test prints, and what it cost. Computes from the records; decides nothing.

Definitions are those of `vllm bench serve`: TTFT from sending to first token; TPOT = (latency - TTFT) / (tokens - 1) of
each request with two tokens or more; ITL pooled over all gaps; goodput = requests that met every limit a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from server.clock import NS
from server.cost.calibration import default_calibration
from server.planner.simulate.options import SimulationOptions
from server.planner.simulate.records import SHARES, EngineTotals, Records
from server.planner.simulate.statistics import Spread
from server.workload.workload import FloatArray, IntArray

MS = 1e-6  # of a nanosecond
HOUR_S = 3600
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars of the whole run. attributed = prefill + decode, worked out from the requests; idle from the engines."""

    total_usd: float  # instances x hours x price
    prefill_usd: float
    decode_usd: float
    idle_usd: float  # instances, or parts of them, with no request to work on

    @property
    def attributed_usd(self) -> float:
        return self.prefill_usd + self.decode_usd

    @property
    def conservation_error(self) -> float:
        """|attributed + idle - total| / total; 0 when nothing was spent."""
        spent = self.attributed_usd + self.idle_usd
        return abs(spent - self.total_usd) / self.total_usd if self.total_usd else 0.0


class SimulationReport:
    """Figures of one finished simulation. Milliseconds, tokens, dollars as the names say."""

    def __init__(
        self,
        options: SimulationOptions,
        num_blocks: int,
        records: Records,
        engines: Sequence[EngineTotals],
        extrapolated: tuple[str, ...],
    ) -> None:
        self.options, self.num_blocks, self.records = options, num_blocks, records
        self.engines, self.extrapolated = tuple(engines), extrapolated
        finish = np.array(records.finish_ns, dtype=np.int64)
        self._done = np.flatnonzero(finish >= 0)
        self._sent = np.array(records.sent_ns, dtype=np.int64)[self._done]
        self._finish = finish[self._done]
        self._first = np.array(records.first_token_ns, dtype=np.int64)[self._done]
        self._outputs = np.array(records.num_output, dtype=np.int64)[self._done]

    @property
    def completed(self) -> int:
        return len(self._done)

    @property
    def failed(self) -> int:
        """Refused: too long, or the queue was full."""
        return self.records.refused.total()

    @cached_property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return (int(self._finish.max()) - int(self.options.workload.arrival_ns[0])) / NS if self.completed else 0.0

    @cached_property
    def total_input_tokens(self) -> int:
        return int(self.options.workload.input_len[self._done].sum())

    @cached_property
    def total_output_tokens(self) -> int:
        return int(self._outputs.sum())

    @cached_property
    def ttft_ms(self) -> FloatArray:
        """Of each completed request, in order of arrival; so are the next three."""
        return _ms(self._first - self._sent)

    @cached_property
    def e2el_ms(self) -> FloatArray:
        return _ms(self._finish - self._sent)

    @cached_property
    def tpot_ms(self) -> FloatArray:
        """0 of an answer with one token."""
        return _ms(self._finish - self._first) / np.maximum(self._outputs - 1, 1)

    @cached_property
    def queue_ms(self) -> FloatArray:
        """From sending to the first step."""
        return _ms(np.array(self.records.scheduled_ns, dtype=np.int64)[self._done] - self._sent)

    @cached_property
    def request_goodput(self) -> float | None:
        """Requests a second that met every limit; None without limits."""
        slo = self.options.slo
        if not slo.is_set:
            return None
        return self._per_second(int(slo.are_met(self.ttft_ms, self.tpot_ms, self.e2el_ms).sum()))

    @cached_property
    def cost(self) -> Cost:
        """An engine is its even part of an instance: cores that no group uses are paid by the groups that there are."""
        options = self.options
        usd_per_ns = options.hourly_usd / HOUR_S / NS / options.data_parallel_size
        lifetime_ns = round(self.duration_s * NS)
        idle_ns = sum(lifetime_ns - engine.busy_ns for engine in self.engines)
        return Cost(
            total_usd=options.replicas * options.hourly_usd * self.duration_s / HOUR_S,
            prefill_usd=sum(self.records.prefill_shares) / SHARES * usd_per_ns,
            decode_usd=sum(self.records.decode_shares) / SHARES * usd_per_ns,
            idle_usd=idle_ns * usd_per_ns,
        )

    @cached_property
    def utilization(self) -> float:
        """Share of the engines' time with a step under way, 0 to 1."""
        lifetime_ns = round(self.duration_s * NS) * len(self.engines)
        return sum(engine.busy_ns for engine in self.engines) / lifetime_ns if lifetime_ns else 0.0

    @cached_property
    def mean_decode_batch(self) -> float:
        """Busy slots of a decode step; the rest of max_num_seqs is padding that is paid for."""
        steps = sum(engine.num_decode_steps for engine in self.engines)
        return sum(engine.num_decode_tokens for engine in self.engines) / steps if steps else 0.0

    def request_usd(self) -> FloatArray:
        """What each request of the workload used, in order of arrival; 0 of one that was refused."""
        shares = np.array(self.records.prefill_shares, dtype=np.float64)
        shares += np.array(self.records.decode_shares, dtype=np.float64)
        return shares * (self.options.hourly_usd / HOUR_S / NS / SHARES / self.options.data_parallel_size)

    def spreads(self) -> dict[str, Spread]:
        """Of the times that a load test prints, and of the wait for the first step."""
        return {
            "ttft": Spread.of(self.ttft_ms),
            "tpot": Spread.of(self.tpot_ms[self._outputs > 1]),
            "itl": Spread.of_counts(self.records.gaps, MS),
            "e2el": Spread.of(self.e2el_ms),
            "queue": Spread.of(self.queue_ms),
        }

    def as_json(self) -> dict[str, Any]:
        """The keys of `vllm bench serve`, then those of cost and deployment."""
        latencies: dict[str, float] = {}
        for name, spread in self.spreads().items():
            latencies |= spread.as_json(name)
        return self._load_json() | latencies | self._cost_json() | self._deployment_json()

    def _load_json(self) -> dict[str, Any]:
        return {
            "duration": self.duration_s,
            "completed": self.completed,
            "failed": self.failed,
            "refused": dict(self.records.refused),
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "total_cached_tokens": sum(self.records.num_cached),
            "request_throughput": self._per_second(self.completed),
            "request_goodput": self.request_goodput,
            "output_throughput": self._per_second(self.total_output_tokens),
            "total_token_throughput": self._per_second(self.total_input_tokens + self.total_output_tokens),
            "num_preemptions": sum(engine.num_preemptions for engine in self.engines),
        }

    def _cost_json(self) -> dict[str, Any]:
        cost = self.cost
        return {
            "usd_per_hour": self.options.hourly_usd,
            "price_basis": "given" if self.options.usd_per_hour is not None else self.options.price_basis,
            "total_usd": cost.total_usd,
            "attributed_usd": cost.attributed_usd,
            "idle_usd": cost.idle_usd,
            "conservation_error": cost.conservation_error,
            "usd_per_million_input_tokens": _per_million(cost.prefill_usd, self.total_input_tokens),
            "usd_per_million_output_tokens": _per_million(cost.decode_usd, self.total_output_tokens),
            "usd_per_million_output_tokens_all_in": _per_million(cost.total_usd, self.total_output_tokens),
            "usd_per_million_tokens": _per_million(cost.total_usd, self.total_input_tokens + self.total_output_tokens),
            "utilization": self.utilization,
            "mean_decode_batch": self.mean_decode_batch,
        }

    def _deployment_json(self) -> dict[str, Any]:
        options = self.options
        return {
            "workload": options.workload.name,
            "model": options.model.architecture,
            "instance": options.instance,
            "replicas": options.replicas,
            "routing": options.routing,
            "max_concurrency": options.max_concurrency,
            "data_parallel_size": options.data_parallel_size,
            "tensor_parallel_size": options.tensor_parallel_size,
            "max_model_len": options.max_model_len,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.scheduler.max_num_batched_tokens,
            "num_blocks": self.num_blocks,
            "block_size": options.block_size,
            "prefill_buckets": list(options.buckets(options.prefill_buckets)),
            "decode_buckets": list(options.buckets(options.decode_buckets)),
            "calibration": default_calibration().version,
            "is_extrapolated": bool(self.extrapolated),
            "extrapolated": list(self.extrapolated),
        }

    def _per_second(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0


def _per_million(usd: float, tokens: int) -> float | None:
    return usd / tokens * MILLION if tokens else None


def _ms(nanoseconds: IntArray) -> FloatArray:
    return nanoseconds.astype(np.float64) * MS
