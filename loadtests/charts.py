"""Charts of a run from its records, and of a sweep from its points. svg.py draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..workload.slo import Slo
from .records import RequestRecord
from .svg import Axis, Point, Series, chart
from .sweep import cost_by_limit

MAX_DOTS = 1500  # of a scatter chart; more would only make the page large
CDF_POINTS = 200
Chart = tuple[str, str]  # title, HTML


def run_charts(records: Sequence[RequestRecord], slo: Slo) -> list[Chart]:
    """Return distributions of the latencies, and charts over time."""
    done = [record for record in records if record.is_ok]
    return [
        _distribution("Time to first token", [r.ttft_s for r in done if r.ttft_s is not None], slo.ttft_ms),
        _distribution("Time per output token", [t for r in done if (t := r.tpot_s) is not None], slo.tpot_ms),
        _distribution("End-to-end latency", [r.latency_s for r in done], slo.e2el_ms),
        _ttft_over_time(records, slo),
        _load_over_time(records),
        _tokens_over_time(done),
    ]


def sweep_charts(result: dict[str, Any], slo: Slo) -> list[Chart]:
    """Return charts of latency by throughput, goodput by rate, and cost by limit."""
    points = result["points"]
    knee = (result["knee"] or {}).get("request_rate")
    return [
        ("Time to first token at each throughput", _latency_curve(points, "ttft", slo.ttft_ms)),
        ("Time per output token at each throughput", _latency_curve(points, "tpot", slo.tpot_ms)),
        ("Goodput at each offered rate (dashed: the knee)", _goodput_curve(points, knee)),
        ("Cost at each limit on time to first token", _cost_curve(points, "ttft", slo)),
        ("Cost at each limit on time per output token", _cost_curve(points, "tpot", slo)),
    ]


def _distribution(title: str, seconds: Sequence[float], limit_ms: float | None) -> Chart:
    """Return the share of requests at or below each latency."""
    shares = np.linspace(0, 1, CDF_POINTS)
    points: list[Point] = []
    if seconds:
        points = [(float(x), float(y)) for x, y in zip(np.quantile(seconds, shares) * 1e3, 100 * shares, strict=True)]
    x = Axis("milliseconds", is_log=True, limit=limit_ms)
    return f"{title}, % of requests within", chart(x, Axis("% of requests", low=0, high=100), [Series(title, points)])


def _ttft_over_time(records: Sequence[RequestRecord], slo: Slo) -> Chart:
    good = _thin([(r.intended_s, 1e3 * (r.ttft_s or 0)) for r in records if r.is_ok])
    failed = _thin([(r.intended_s, 1e3 * max(r.latency_s, 1e-4)) for r in records if not r.is_ok])
    series = [Series("time to first token", good, "dots"), Series("failed after", failed, "dots")]
    x = Axis("arrival, seconds from the start", low=0)
    return "Time to first token by arrival", chart(x, Axis("milliseconds", is_log=True, limit=slo.ttft_ms), series)


def _load_over_time(records: Sequence[RequestRecord]) -> Chart:
    """Return open requests, averaged over each interval."""
    edges = _intervals(records)
    # Up to time t, requests were open for sum(max(0, t - start)) - sum(max(0, t - end)) seconds in total.
    passed = sum(np.maximum(0, edges - r.sent_s) - np.maximum(0, edges - r.end_s) for r in records)
    points = (
        [(float(t), float(level)) for t, level in zip(edges[:-1], np.diff(passed) / np.diff(edges), strict=True)]
        if len(edges) > 1
        else []
    )
    return "Open requests", chart(Axis("seconds", low=0), Axis("requests", low=0), [Series("open", points, "step")])


def _tokens_over_time(done: Sequence[RequestRecord]) -> Chart:
    """Return output tokens a second; each response's tokens are spread over its chunks."""
    edges = _intervals(done)
    if len(edges) < 2:
        return "Output tokens a second", chart(Axis("seconds"), Axis("tokens/s"), [])
    times, weights = [], []
    for record in done:
        chunks = np.cumsum([record.sent_s + (record.ttft_s or 0), *record.itls_s])
        times.extend(chunks.tolist())
        weights.extend([record.output_tokens / len(chunks)] * len(chunks))
    counts, _ = np.histogram(times, edges, weights=weights)
    width = edges[1] - edges[0]
    points = [(float(t), float(n / width)) for t, n in zip(edges[:-1], counts, strict=True)]
    return "Output tokens a second", chart(
        Axis("seconds", low=0), Axis("tokens/s", low=0), [Series("output", points, "step")]
    )


def _intervals(records: Sequence[RequestRecord]) -> Any:
    """Return edges of about 120 equal intervals over the run, of at least 50 ms."""
    end = max((record.end_s for record in records), default=0.0)
    return np.linspace(0, end, max(2, min(120, int(end / 0.05)))) if end > 0 else np.zeros(0)


def _latency_curve(points: Sequence[dict[str, Any]], latency: str, limit_ms: float | None) -> str:
    series = []
    for percentile, key in (("p50", f"median_{latency}_ms"), ("p99", f"p99_{latency}_ms")):
        curve = [p for p in points if p[key] is not None]
        notes = [f"{p['request_rate']:.3g} req/s offered" for p in curve]
        series.append(Series(percentile, [(p["output_throughput"], p[key]) for p in curve], "line-dots", notes))
    return chart(Axis("output tokens/s"), Axis("milliseconds", is_log=True, limit=limit_ms), series)


def _goodput_curve(points: Sequence[dict[str, Any]], knee: float | None) -> str:
    rates = [float(p["request_rate"]) for p in points]
    notes = [f"{100 * (p['good_fraction'] or 0):.1f} % good" for p in points]
    good = [(rate, p["request_goodput"]) for rate, p in zip(rates, points, strict=True)]
    done = [(rate, p["request_throughput"]) for rate, p in zip(rates, points, strict=True)]
    series = [Series("goodput", good, "line-dots", notes), Series("completed", done, "line-dots")]
    return chart(Axis("offered requests/s", limit=knee, low=0), Axis("requests/s", low=0), series)


def _cost_curve(points: Sequence[dict[str, Any]], latency: str, slo: Slo) -> str:
    curve = cost_by_limit(list(points), latency, slo.attainment)
    limit = slo.ttft_ms if latency == "ttft" else slo.tpot_ms
    x = Axis(f"limit at {100 * slo.attainment:g} % of requests, milliseconds", is_log=True, limit=limit)
    return chart(x, Axis("$ per 1M output tokens", low=0), [Series("lowest cost", curve, "step-dots")])


def _thin(points: Sequence[Point]) -> list[Point]:
    """Choose at most MAX_DOTS of the points, evenly."""
    step = max(1, -(-len(points) // MAX_DOTS))
    return list(points[::step])
