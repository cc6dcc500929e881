"""Events become lives and metrics, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.telemetry.families import one_two_five
from neuronserve.server.api.telemetry.instruments import Instruments
from neuronserve.server.api.telemetry.lifecycle import RequestLife, SequenceLife
from neuronserve.server.api.telemetry.request_metrics import RequestMetrics
from neuronserve.server.api.telemetry.request_observer import RequestObserver, RequestWatch
from neuronserve.server.clock import ManualClock
from neuronserve.server.errors import EngineDead, Unavailable
from neuronserve.server.link.messages import Tokens
from neuronserve.server.types import FinishReason, Request, SamplingParams, StepReport, TokenEvent
from tests.api.telemetry.scraping import Scrape


class Bench:
    """An observer with its registry; requests of ids "a", "b", ... with prompts of 4 tokens, submitted at 10."""

    def __init__(self, num_engines: int = 1) -> None:
        self.registry = CollectorRegistry()
        self.clock = ManualClock(10.0)
        instruments = Instruments(self.registry, {"model_name": "m"})
        metrics = [RequestMetrics(instruments.of(engine=str(i)), 1000) for i in range(num_engines)]
        self.observer = RequestObserver(metrics, (), self.clock)

    def watch(self, ids: str, n: int = 1) -> RequestWatch:
        requests = [Request(name, (1, 2, 3, 4), SamplingParams(50), 10.0) for name in ids]
        return self.observer.watch(Origin("http", 9.0), n, requests)

    def turn(self, start: float, admitted: Iterable[str] = (), preempted: Iterable[str] = ()) -> None:
        self.observer.record(Tokens([], report(start_time=start, admitted=tuple(admitted), preempted=tuple(preempted))))

    @property
    def seen(self) -> Scrape:
        return Scrape(generate_latest(self.registry).decode())


def report(**changes: object) -> StepReport:
    values: dict[str, object] = {
        "step_id": 1,
        "start_time": 0.0,
        "time": 0.0,
        "num_running": 1,
        "num_waiting": 0,
        "num_prefill_tokens": 0,
        "num_decode_tokens": 1,
        "admitted": (),
        "preempted": (),
        "num_free_blocks": 6,
        "num_blocks": 11,
        "prefix_queries": 0,
        "prefix_hits": 0,
        "step_seconds": 0.5,
    }
    return StepReport(**{**values, **changes})  # type: ignore[arg-type]


def token(name: str, index: int, time: float, finish: FinishReason | None = None, cached: int = 0) -> TokenEvent:
    return TokenEvent(name, 7, index, time, finish, num_cached_tokens=cached)


def test_each_phase_is_from_the_right_moment_to_the_right_moment() -> None:
    b = Bench()
    with b.watch("a") as watch:
        b.turn(12.0, admitted="a")
        b.clock.advance(6.5)  # the first token is handled at 16.5, was made at 16
        watch.take(token("a", 0, 16.0, cached=3))
        for index, time in ((1, 17.0), (2, 20.0)):
            watch.take(token("a", index, time))
        b.clock.advance(4.0)
        watch.end("a", "length")
    expected = {
        "time_to_first_token": 7.5,  # since the arrival at 9
        "request_queue_time": 2.0,  # since the submission at 10
        "request_prefill_time": 4.0,
        "request_decode_time": 4.0,
        "request_inference_time": 8.0,
        "request_time_per_output_token": 2.0,
        "e2e_request_latency": 11.5,
        "inter_token_latency": 4.0,
    }
    assert {name: b.seen.value(f"vllm:{name}_seconds_sum") for name in expected} == expected
    assert b.seen.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 1


def test_one_that_ends_without_a_token_has_no_phases() -> None:
    b = Bench()
    with b.watch("a") as watch:
        watch.take(TokenEvent("a", None, 0, 11.0, "length"))
        watch.end("a", "length")
    assert b.seen.value("vllm:e2e_request_latency_seconds_count") == 1
    assert b.seen.value("vllm:request_generation_tokens_sum") == 0
    for phase in ("queue", "prefill", "decode", "inference"):
        assert b.seen.value(f"vllm:request_{phase}_time_seconds_count") == 0


def test_a_failed_sequence_is_an_error_and_its_sisters_are_aborted() -> None:
    b = Bench()
    with b.watch("abc", n=3) as watch:
        watch.take(token("a", 0, 11.0))
        watch.end("a", "stop")
        watch.take(TokenEvent("b", None, 0, 11.0, "error", error="not finite"))
    counts = {r: b.seen.value("vllm:request_success_total", finished_reason=r) for r in ("stop", "error", "abort")}
    assert counts == {"stop": 1, "error": 1, "abort": 1}
    assert b.seen.value("vllm:request_params_n_count") == 0
    assert b.observer.open == {}


@pytest.mark.parametrize(("error", "reason"), [(EngineDead("x"), "error"), (Unavailable("x"), "abort")])
def test_what_ends_a_request_early_names_the_reason(error: Exception, reason: str) -> None:
    b = Bench()
    with pytest.raises(type(error)), b.watch("a"):
        raise error
    assert b.seen.value("vllm:request_success_total", finished_reason=reason) == 1
    assert b.seen.value("vllm:request_success_total") == 1


def test_only_the_first_admission_is_the_schedule_and_each_preemption_counts() -> None:
    b = Bench()
    with b.watch("a") as watch:
        b.turn(11.0, admitted=("a", "someone else"))
        b.turn(12.0, preempted=("someone else", "a"))
        b.turn(13.0, preempted="a")
        watch.take(token("a", 0, 15.0))
        watch.end("a", "stop")
    assert b.seen.value("vllm:request_num_preemptions_sum") == 2
    assert b.seen.value("vllm:request_queue_time_seconds_sum") == 1


def test_n_and_the_longest_choice_are_told_once_for_each_prompt() -> None:
    b = Bench()
    with b.watch("abcd", n=2) as watch:
        for name, count in zip("abcd", (3, 1, 2, 5), strict=True):
            for index in range(count):
                watch.take(token(name, index, 11.0 + index))
            watch.end(name, "length")
    assert (b.seen.value("vllm:request_params_n_count"), b.seen.value("vllm:request_params_n_sum")) == (2, 4)
    assert b.seen.value("vllm:request_max_num_generation_tokens_sum") == 3 + 5
    assert b.seen.value("vllm:request_generation_tokens_sum") == 11


def test_each_sequence_is_counted_at_its_engine() -> None:
    b = Bench(num_engines=2)
    with b.watch("abcd", n=2) as watch:
        watch.placed({"a": 1, "b": 0, "c": 0, "d": 1})
        for name, count in zip("abcd", (3, 1, 2, 5), strict=True):
            for index in range(count):
                watch.take(token(name, index, 11.0 + index))
            watch.end(name, "stop")
    b.observer.rejected("max_num_queued_reqs")
    generated = [b.seen.value("vllm:request_generation_tokens_sum", engine=engine) for engine in "01"]
    gaps = [b.seen.value("vllm:inter_token_latency_seconds_count", engine=engine) for engine in "01"]
    prompts = [b.seen.value("vllm:request_params_n_count", engine=engine) for engine in "01"]
    assert (generated, gaps, prompts) == ([1 + 2, 3 + 5], [0 + 1, 2 + 4], [1, 1])
    assert b.seen.value("vllm:admission_rejections_total") == 1


times = st.floats(0, 1e6)


@given(st.lists(st.tuples(times, times, times, times).map(sorted), min_size=1, max_size=5))
def test_the_whole_of_several_sequences_spans_them_all(lives: list[list[float]]) -> None:
    sequences = {
        str(i): SequenceLife(4, 8, a, scheduled_time=b, first_token_time=c, last_token_time=d, num_tokens=2)
        for i, (a, b, c, d) in enumerate(lives)
    }
    whole = RequestLife(Origin("x", 0.0), 1, SamplingParams(8), sequences).whole
    assert whole.inference_s == max(life[3] for life in lives) - min(life[1] for life in lives)
    for life in sequences.values():
        for phase in ("queue_s", "prefill_s", "decode_s", "inference_s"):
            assert getattr(life, phase) >= 0
        assert (life.inference_s or 0) <= (whole.inference_s or 0)
    assert (whole.num_prompt_tokens, whole.num_tokens) == (4 * len(lives), 2 * len(lives))


@given(st.integers(1, 10**7))
def test_token_bounds_are_1_2_5_up_to_the_context(most: int) -> None:
    bounds = one_two_five(most)
    assert bounds[0] == 1
    assert most / 2.5 < bounds[-1] <= most
    assert all(b / a in {2, 2.5} for a, b in pairwise(bounds))
