"""Metrics of hand-made records: each definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests.metrics import describe, failures, is_good, max_concurrent, summarize
from neuronserve.loadtests.records import RequestRecord
from neuronserve.workload.slo import Slo

NO_SLO = Slo()


def record(**changes: object) -> RequestRecord:
    """10 tokens in, 5 out: sent at 1 s, first token at 1.2 s, last at 1.6 s; wanted at 0.9 s."""
    fields: dict[str, object] = {
        "request_id": "r",
        "session": 0,
        "turn": 0,
        "intended_s": 0.9,
        "sent_s": 1.0,
        "end_s": 1.6,
        "ttft_s": 0.2,
        "itls_s": [0.1, 0.1, 0.1, 0.1],
        "prompt_tokens": 10,
        "output_tokens": 5,
    }
    return RequestRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_definitions_of_one_request() -> None:
    figures = summarize([record()], duration_s=2.0, slo=NO_SLO)
    assert figures["median_ttft_ms"] == pytest.approx(200)
    assert figures["median_e2el_ms"] == pytest.approx(600)
    assert figures["median_tpot_ms"] == pytest.approx(400 / 4)
    assert figures["median_itl_ms"] == pytest.approx(100)
    assert figures["median_intended_ttft_ms"] == pytest.approx(300)
    assert figures["median_intended_e2el_ms"] == pytest.approx(700)
    assert figures["request_throughput"] == 0.5
    assert figures["output_throughput"] == 2.5
    assert figures["total_token_throughput"] == 7.5


def test_tpot_is_of_tokens_and_itl_of_chunks() -> None:
    """Each chunk has two tokens, so a gap between chunks is twice a token's time."""
    figures = summarize([record(output_tokens=9)], 1.0, NO_SLO)
    assert figures["median_tpot_ms"] == pytest.approx(50)
    assert figures["median_itl_ms"] == pytest.approx(100)


def test_tpot_needs_two_tokens() -> None:
    figures = summarize([record(output_tokens=1, itls_s=[], end_s=1.2)], 1.0, NO_SLO)
    assert figures["median_tpot_ms"] is None
    assert figures["median_itl_ms"] is None
    assert figures["median_ttft_ms"] == pytest.approx(200)


def test_failures_count_in_no_latency_and_no_throughput() -> None:
    broken = record(failure="disconnected", output_tokens=400, ttft_s=9.0)
    figures = summarize([record(), broken, broken], 1.0, NO_SLO)
    assert (figures["completed"], figures["failed"]) == (1, 2)
    assert figures["output_throughput"] == 5
    assert figures["p99_ttft_ms"] == pytest.approx(200)
    assert failures([record(), broken, broken, record(failure="http_429")]) == {"disconnected": 2, "http_429": 1}


def test_a_run_without_an_answer_has_no_latency_rather_than_zero() -> None:
    figures = summarize([record(failure="connect")], 1.0, Slo(ttft_ms=1.0))
    assert figures["median_ttft_ms"] is None
    assert figures["request_throughput"] == 0
    assert figures["request_goodput"] == 0
    assert figures["good_fraction"] == 0


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_ms=201.0), True),
        (Slo(ttft_ms=199.0), False),
        (Slo(tpot_ms=101.0), True),
        (Slo(tpot_ms=99.0), False),
        (Slo(e2el_ms=601.0), True),
        (Slo(e2el_ms=599.0), False),
        (Slo(ttft_ms=201.0, tpot_ms=99.0), False),
    ],
)
def test_goodput_counts_requests_that_meet_every_limit(slo: Slo, good: bool) -> None:
    assert is_good(record(), slo) is good
    assert summarize([record()], 2.0, slo)["request_goodput"] == (0.5 if good else 0)


def test_the_tpot_of_a_one_token_answer_meets_any_limit() -> None:
    assert is_good(record(output_tokens=1), Slo(tpot_ms=0.001))


def test_a_failed_request_is_never_good() -> None:
    assert not is_good(record(failure="timeout"), Slo(ttft_ms=1e6))


def test_without_limits_there_is_no_goodput() -> None:
    assert summarize([record()], 1.0, NO_SLO)["request_goodput"] is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_percentiles_are_numpy_s(values: list[float]) -> None:
    figures = describe("x", values)
    for percentile in (90, 99):
        assert figures[f"p{percentile}_x_ms"] == pytest.approx(float(np.percentile(values, percentile)) * 1e3)
    assert figures["median_x_ms"] == figures["p50_x_ms"]


def test_concurrency_counts_overlaps() -> None:
    spans = [(0.0, 2.0), (1.0, 3.0), (1.5, 1.6), (3.0, 4.0)]
    records = [record(sent_s=a, end_s=b) for a, b in spans]
    assert max_concurrent(records) == 3
    assert summarize(records, 4.0, NO_SLO)["mean_concurrency"] == pytest.approx(5.1 / 4)
    assert max_concurrent([]) == 0
