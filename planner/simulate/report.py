"""Figures of a simulation: those of a load test, and the cost. Computed from the records.

Definitions are those of `vllm bench serve`: TTFT from sending to first token; TPOT = (latency - TTFT) / (tokens - 1) of
each request with two tokens or more; ITL pooled over all gaps; goodput = requests a second that met every limit.
The cost of replicas is in bill.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from ...server.clock import NS
from ...server.cost.calibration import default_calibration
from ...server.cost.evidence import Band
from ...server.device.prices import usd_per_million
from ...workload.workload import BoolArray, FloatArray, IntArray
from .bill import Bill, Cost
from .failing_fleet import FailingFleet
from .fleet import Fleet
from .load_bands import LoadFigure
from .options import SimulationOptions
from .overload import Overload, overload_of
from .records import HOUR_S, SHARES, Records
from .scaling import Scaling
from .statistics import Spread

MS = 1e-6  # of a nanosecond


class SimulationReport:
    """Figures of one finished simulation. Milliseconds, tokens, dollars as the names say."""

    def __init__(
        self,
        options: SimulationOptions,
        num_blocks: int,
        records: Records,
        fleet: Fleet[Any],
        extrapolated: tuple[str, ...],
        bands: Mapping[LoadFigure, Band],
    ) -> None:
        self.factors = bands
        self.options, self.num_blocks, self.records = options, num_blocks, records
        self.fleet, self.extrapolated = fleet, extrapolated
        self.engines = tuple(totals for replica in fleet.replicas for totals in replica.totals)
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
        """Number of refused requests: too long, or the queue was full."""
        return self.records.refused.total()

    @cached_property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last token."""
        return (int(self._finish.max()) - int(self.options.workload.arrival_ns[0])) / NS if self.completed else 0.0

    @cached_property
    def overload(self) -> Overload | None:
        """Arrivals that the deployment could not keep up with; None if it did, or if clients wait for answers."""
        is_open = self.options.max_concurrency is None and self.completed
        return overload_of(self._sent, self._finish, self.options.max_num_seqs * len(self.engines)) if is_open else None

    @cached_property
    def total_input_tokens(self) -> int:
        return int(self.options.workload.input_len[self._done].sum())

    @cached_property
    def total_output_tokens(self) -> int:
        return int(self._outputs.sum())

    @cached_property
    def ttft_ms(self) -> FloatArray:
        """TTFT of each completed request, in order of arrival; the next three have the same order."""
        return _ms(self._first - self._sent)

    @cached_property
    def e2el_ms(self) -> FloatArray:
        return _ms(self._finish - self._sent)

    @cached_property
    def tpot_ms(self) -> FloatArray:
        """Time per token; 0 for an answer with one token."""
        return _ms(self._finish - self._first) / np.maximum(self._outputs - 1, 1)

    @cached_property
    def queue_ms(self) -> FloatArray:
        """Time from sending to the first step."""
        return _ms(np.array(self.records.scheduled_ns, dtype=np.int64)[self._done] - self._sent)

    @cached_property
    def is_good(self) -> BoolArray:
        """Whether each completed request, in order of arrival, met every limit."""
        return self.options.slo.are_met(self.ttft_ms, self.tpot_ms, self.e2el_ms)

    @cached_property
    def request_goodput(self) -> float | None:
        """Requests a second that met every limit; None without limits."""
        return self._per_second(int(self.is_good.sum())) if self.options.slo.is_set else None

    @cached_property
    def bill(self) -> Bill:
        """Bill of the replicas from the first arrival to the last token."""
        return Bill(self.options, self.fleet.replicas, int(self.options.workload.arrival_ns[0]), self.duration_s)

    @cached_property
    def cost(self) -> Cost:
        """Cost of the run. Engines pay equal shares of their instance, so they share the cost of unused cores."""
        return self.bill.cost(self.records)

    @cached_property
    def utilization(self) -> float:
        """Share of the engines' billed time with a step under way, 0 to 1."""
        return self.bill.utilization

    @cached_property
    def scaling(self) -> Scaling | None:
        """Actions of the autoscaler; None without one."""
        start_ns = int(self.options.workload.arrival_ns[0])
        end_ns = start_ns + round(self.duration_s * NS)
        return None if self.options.autoscaling.is_fixed else Scaling(self.fleet, start_ns, end_ns)

    @property
    def num_missed_while_starting(self) -> int:
        """Requests that missed a limit and arrived while a replica was starting."""
        return (
            0 if self.scaling is None else int((~self.is_good & self.scaling.arrived_while_starting(self._sent)).sum())
        )

    @cached_property
    def mean_decode_batch(self) -> float:
        """Mean busy slots of a decode step. The rest of max_num_seqs is padding, which also costs."""
        steps = sum(engine.num_decode_steps for engine in self.engines)
        return sum(engine.num_decode_tokens for engine in self.engines) / steps if steps else 0.0

    def request_usd(self) -> FloatArray:
        """Return the dollars that each request of the workload used, in order of arrival; 0 for a refused one."""
        shares = np.array(self.records.prefill_shares, dtype=np.float64)
        shares += np.array(self.records.decode_shares, dtype=np.float64)
        return shares * (self.bill.usd_per_ns / SHARES)

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Spread of each time that a load test prints, and of the wait for the first step."""
        return {
            "ttft": Spread.of(self.ttft_ms),
            "tpot": Spread.of(self.tpot_ms[self._outputs > 1]),
            "itl": Spread.of_counts(self.records.gaps, MS),
            "e2el": Spread.of(self.e2el_ms),
            "queue": Spread.of(self.queue_ms),
        }

    def as_json(self) -> dict[str, Any]:
        """Return the keys of `vllm bench serve`, then those of cost and deployment."""
        latencies: dict[str, float] = {}
        for name, spread in self.spreads.items():
            latencies |= spread.as_json(name)
        scaling = {
            "slo": self.limits(),
            "autoscaling": self._scaling_json(),
            "failures": self.failures_json(),
        }
        known = {name: dict(zip(("p10", "p90"), ends, strict=True)) for name, ends in self.bands.items()}
        evidence = {"bands": known, "band_factors": {name: band.as_json() for name, band in self.factors.items()}}
        return self._load_json() | latencies | self._cost_json() | self._deployment_json() | evidence | scaling

    @cached_property
    def bands(self) -> dict[str, tuple[float, float]]:
        """P10 and P90 of the output tokens a second, and of the mean TTFT and TPOT in ms.

        Answers to an open workload do not outrun its arrivals, so neither do their tokens.
        """
        figures: dict[LoadFigure, tuple[str, float]] = {
            "throughput": ("output_throughput", self._per_second(self.total_output_tokens)),
            "ttft": ("mean_ttft_ms", self.spreads["ttft"].mean),
            "itl": ("mean_tpot_ms", self.spreads["tpot"].mean),
        }
        found = {
            key: (value * self.factors[figure].low, value * self.factors[figure].high)
            for figure, (key, value) in figures.items()
        }
        if self.options.max_concurrency is None:
            low, high = found["output_throughput"]
            found["output_throughput"] = low, max(figures["throughput"][1], min(high, self._offered_tokens_s))
        return found

    @property
    def _offered_tokens_s(self) -> float:
        arrivals_s = float(np.ptp(self.options.workload.arrival_ns)) / NS
        return self.total_output_tokens / arrivals_s if arrivals_s else inf

    def limits(self) -> dict[str, dict[str, Any]]:
        """Return for each limit its value, whether mean and percentiles keep it, and the share of requests that do."""
        slo, times = self.options.slo, {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2el": self.e2el_ms}
        found: dict[str, dict[str, Any]] = {}
        for name, values in times.items():
            limit = getattr(slo, f"{name}_ms")
            if limit is not None:
                share = float(np.mean(values <= limit)) if self.completed else 0.0
                found[name] = {"limit_ms": limit, "attainment": share} | self.spreads[name].within(limit)
        return found

    def _load_json(self) -> dict[str, Any]:
        return {
            "duration": self.duration_s,
            "completed": self.completed,
            "failed": self.failed,
            "refused": dict(self.records.refused),
            "num_cut": self.options.workload.num_cut,
            "num_dropped": self.options.workload.num_dropped,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "total_cached_tokens": sum(self.records.num_cached),
            "request_throughput": self._per_second(self.completed),
            "request_goodput": self.request_goodput,
            "overload": None if self.overload is None else asdict(self.overload),
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
            "usd_per_million_input_tokens": usd_per_million(cost.prefill_usd, self.total_input_tokens),
            "usd_per_million_output_tokens": usd_per_million(cost.decode_usd, self.total_output_tokens),
            "usd_per_million_output_tokens_all_in": usd_per_million(cost.total_usd, self.total_output_tokens),
            "usd_per_million_tokens": usd_per_million(
                cost.total_usd, self.total_input_tokens + self.total_output_tokens
            ),
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
            "prefill_buckets": list(options.compiled_prompts),
            "decode_buckets": list(options.compiled_contexts),
            "calibration": default_calibration().version,
            "is_extrapolated": bool(self.extrapolated),
            "extrapolated": list(self.extrapolated),
        }

    def _scaling_json(self) -> dict[str, Any] | None:
        if self.scaling is None:
            return None
        misses = {"slo_misses": int((~self.is_good).sum()), "slo_misses_while_starting": self.num_missed_while_starting}
        limits = asdict(self.options.autoscaling) | {"replica_hours": self.bill.replica_hours}
        return limits | misses | self.scaling.as_json()

    def failures_json(self) -> dict[str, Any] | None:
        """Return what failed; None if no failures are simulated. A request that lost two engines has moved twice."""
        if not isinstance(self.fleet, FailingFleet):
            return None
        found = self.fleet.as_json(self.records)
        found |= {"spot_hours": self.bill.spot_ns / NS / HOUR_S, "replica_hours": self.bill.replica_hours}
        return asdict(self.options.failures) | found

    def _per_second(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0


def _ms(nanoseconds: IntArray) -> FloatArray:
    return nanoseconds.astype(np.float64) * MS
