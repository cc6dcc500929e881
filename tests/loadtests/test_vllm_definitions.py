"""Records give the same figures as the definitions of `vllm bench serve`, written here in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests.metrics import summarize
from neuronserve.loadtests.records import RequestRecord
from neuronserve.workload.slo import Slo

DURATION_S = 7.0


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """A request of any length. The last chunk has the last token; some chunks have several tokens."""
    ttft_s = draw(st.floats(0.001, 5))
    gaps = draw(st.lists(st.floats(0, 2), max_size=6))
    sent_s = draw(st.floats(0, 5))
    return RequestRecord(
        request_id="r",
        session=0,
        turn=0,
        intended_s=sent_s,
        sent_s=sent_s,
        end_s=sent_s + ttft_s + sum(gaps),
        ttft_s=ttft_s,
        itls_s=gaps,
        prompt_tokens=draw(st.integers(1, 500)),
        output_tokens=draw(st.integers(1, 3)) + len(gaps) if gaps else 1,
        failure=draw(st.sampled_from([None, None, None, "timeout"])),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def latency_figures(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {
        f"mean_{name}_ms": statistics.fmean(seconds) * 1e3,
        f"median_{name}_ms": statistics.median(seconds) * 1e3,
        f"std_{name}_ms": statistics.pstdev(seconds) * 1e3,
        f"p99_{name}_ms": percentile(seconds, 0.99) * 1e3,
    }


def by_definition(done: Sequence[RequestRecord], slo: Slo) -> dict[str, float]:
    """Return the figures of `vllm bench serve` (0.32) for these completed requests."""
    ttfts: list[float] = []
    tpots: list[float] = []
    gaps: list[float] = []
    latencies: list[float] = []
    num_good = 0
    for record in done:
        ttft = record.ttft_s or 0.0
        latency = record.end_s - record.sent_s
        tpot = 0.0  # of one token; counted for goodput, in no percentile
        if record.output_tokens > 1:
            tpot = (latency - ttft) / (record.output_tokens - 1)
            tpots.append(tpot)
        ttfts.append(ttft)
        gaps += record.itls_s
        latencies.append(latency)
        num_good += (
            ttft * 1e3 <= (slo.ttft_ms or math.inf)
            and tpot * 1e3 <= (slo.tpot_ms or math.inf)
            and latency * 1e3 <= (slo.e2el_ms or math.inf)
        )
    num_input, num_output = sum(r.prompt_tokens for r in done), sum(r.output_tokens for r in done)
    figures = {
        "completed": float(len(done)),
        "total_input_tokens": float(num_input),
        "total_output_tokens": float(num_output),
        "request_throughput": len(done) / DURATION_S,
        "request_goodput": num_good / DURATION_S,
        "output_throughput": num_output / DURATION_S,
        "total_token_throughput": (num_input + num_output) / DURATION_S,
    }
    for name, seconds in (("ttft", ttfts), ("tpot", tpots), ("itl", gaps), ("e2el", latencies)):
        if seconds:
            figures |= latency_figures(name, seconds)
    return figures


@given(
    st.lists(records(), min_size=1, max_size=12),
    st.builds(Slo, ttft_ms=st.just(1500.0), tpot_ms=st.sampled_from([None, 400.0]), e2el_ms=st.just(4000.0)),
)
def test_every_figure_is_the_one_that_vllm_would_report(run: list[RequestRecord], slo: Slo) -> None:
    expected = by_definition([record for record in run if record.failure is None], slo)
    figures = summarize(run, DURATION_S, slo)
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)
