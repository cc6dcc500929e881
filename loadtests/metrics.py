"""Figures of a run from its records, by the definitions and names of `vllm bench serve`. Pure.

TTFT: first chunk that carries output - sent. E2EL: last token (not [DONE]) - sent. TPOT: (E2EL - TTFT) / (n - 1), one
value a request of two tokens or more. ITL: gaps between chunks, pooled over all requests. Throughputs are of completed
requests, divided by the whole run's duration. Goodput: completed requests that meet every limit, by duration; the TPOT
of a one-token output counts as 0. `*_intended_*`: the same from the time that the arrival process set for the request,
so that waits of the generator or of a concurrency limit are visible (no coordinated omission).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ..workload.slo import Slo
from .records import RequestRecord

PERCENTILES = (50, 90, 95, 99)
Figures = dict[str, float | None]


def summarize(records: Sequence[RequestRecord], duration_s: float, slo: Slo) -> Figures:
    """Return all figures of a run. Latencies of a run without a completed request are None, never 0."""
    done = [record for record in records if record.is_ok]
    input_tokens = sum(record.prompt_tokens for record in done)
    output_tokens = sum(record.output_tokens for record in done)
    good = [record for record in done if is_good(record, slo)]
    figures: Figures = {
        "duration": duration_s,
        "num_requests": len(records),
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": input_tokens,
        "total_cached_input_tokens": sum(record.cached_tokens for record in done),
        "total_output_tokens": output_tokens,
        "request_throughput": len(done) / duration_s,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / duration_s,
        "request_goodput": len(good) / duration_s if slo.is_set else None,
        "good_fraction": len(good) / max(len(records), 1) if slo.is_set else None,
        "good_output_tokens": sum(record.output_tokens for record in good) if slo.is_set else None,
        "mean_concurrency": sum(record.end_s - record.sent_s for record in records) / duration_s,
        "max_concurrent_requests": max_concurrent(records),
    }
    return figures | latencies(done)


def latencies(done: Sequence[RequestRecord]) -> Figures:
    """Return mean, median, standard deviation and percentiles of each latency, in milliseconds."""
    return {
        **describe("ttft", [r.ttft_s for r in done if r.ttft_s is not None]),
        **describe("tpot", [tpot for r in done if (tpot := r.tpot_s) is not None]),
        **describe("itl", [gap for r in done for gap in r.itls_s]),
        **describe("e2el", [r.latency_s for r in done]),
        **describe("intended_ttft", [r.ttft_s + r.delay_s for r in done if r.ttft_s is not None]),
        **describe("intended_e2el", [r.latency_s + r.delay_s for r in done]),
    }


def describe(name: str, seconds: Sequence[float]) -> Figures:
    """Return `mean_<name>_ms` and the other statistics; all None without values."""
    keys = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", *(f"p{p}_{name}_ms" for p in PERCENTILES)]
    if not seconds:
        return dict.fromkeys(keys)
    values = np.array(seconds) * 1e3
    percentiles = np.percentile(values, PERCENTILES)
    return dict(zip(keys, map(float, [values.mean(), percentiles[0], values.std(), *percentiles]), strict=True))


def is_good(record: RequestRecord, slo: Slo) -> bool:
    """Return whether the request completed and met every limit that is set."""
    if not record.is_ok:
        return False
    ttft_s = math.inf if record.ttft_s is None else record.ttft_s
    return bool(slo.are_met(ttft_s * 1e3, (record.tpot_s or 0.0) * 1e3, record.latency_s * 1e3))


def failures(records: Iterable[RequestRecord]) -> dict[str, int]:
    """Return the number of failed requests by kind, the most frequent first."""
    return dict(Counter(record.failure for record in records if record.failure is not None).most_common())


def max_concurrent(records: Sequence[RequestRecord]) -> int:
    """Return the largest number of requests that were open at one time."""
    changes = sorted([(r.sent_s, 1) for r in records] + [(r.end_s, -1) for r in records])
    levels = np.cumsum([change for _, change in changes])
    return int(levels.max()) if len(levels) else 0
