"""The forecast of a wait: what its formula says. How limits are kept: api/test_admission_in_virtual_time.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scheduler_harness import request

from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.scheduler.forecast import EngineLoad, Forecast, StepTimes
from neuronserve.server.scheduler.lengths import Lengths, Running
from neuronserve.server.types import StepReport

STEP_S, TOKEN_S = 0.01, 0.0005  # of the engines here
BUDGET = 16


def report(step_id: int, num_prefill: int, num_decode: int, begin: float = 0.0, **fields: int) -> StepReport:
    seconds = STEP_S + TOKEN_S * (num_prefill + num_decode)
    state = {"num_running": num_decode, "num_waiting": 0, "prefix_queries": 0, "prefix_hits": 0, **fields}
    return StepReport(
        step_id, begin, begin + seconds, num_prefill_tokens=num_prefill, num_decode_tokens=num_decode,
        admitted=(), preempted=(), num_free_blocks=9, num_blocks=10, step_seconds=seconds, **state,
    )  # fmt: skip


def taught(num_ended: int = 4, num_generated: int = 40) -> Forecast:
    """A forecast that has seen steps of both kinds, of sequences of about ten tokens."""
    forecast = Forecast(BUDGET)
    for number in range(8):
        forecast.record(report(20 * number, 8 + number, 2), 0, 0)
        forecast.record(report(20 * number + 10, 0, 1 + number % 4), num_generated, num_ended)
    return forecast


def found(num_running: int, num_free: int, num_ahead: int = 0, num_tokens: int = 0, num_prompts: int = 0) -> EngineLoad:
    """What a request finds where those that run have just begun, and end by their eleventh tokens."""
    ends = Lengths().ends(repeat(Running(0, 11, ""), num_running + num_free), 11.0)
    return EngineLoad(ends, num_running, num_free, num_ahead, num_tokens, num_prompts)


loads = st.builds(found, st.integers(0, 12), st.integers(0, 4), st.integers(0, 50), st.integers(0, 5000))


def test_before_the_first_step_a_flood_has_to_wait_and_who_finds_a_place_does_not() -> None:
    forecast = Forecast(BUDGET)
    assert forecast.delay_s(found(0, 4)) == 0
    assert forecast.delay_s(found(0, 4, 100)) > 60


@given(loads, st.integers(1, 500))
def test_who_finds_more_ahead_or_brings_more_waits_no_less(load: EngineLoad, num_prompt: int) -> None:
    forecast = taught()
    delay_s, first_s = forecast.delay_s(load), forecast.first_token_s(load, num_prompt)
    assert 0 <= delay_s <= first_s
    more = found(load.num_running, load.num_free_places, load.num_ahead + 1, load.num_tokens_ahead + 20)
    assert forecast.delay_s(more) >= delay_s
    assert forecast.first_token_s(more, num_prompt) >= first_s
    assert forecast.first_token_s(load, num_prompt + 1) >= first_s


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 500))
def test_with_a_free_place_and_nobody_ahead_there_is_no_delay(num_running: int, free: int, num_prompt: int) -> None:
    load = found(num_running, free)
    assert taught().delay_s(load) == 0
    assert taught().first_token_s(load, num_prompt) > 0


@given(st.lists(st.tuples(st.integers(1, 512), st.booleans()), min_size=2, max_size=200))
def test_the_time_of_steps_is_found_whatever_came(steps: list[tuple[int, bool]]) -> None:
    assume(max(n for n, _ in steps[-16:]) >= 2 * min(n for n, _ in steps[-16:]))
    times = StepTimes()
    for num_tokens, has_prompts in steps:
        times.add(num_tokens, STEP_S + TOKEN_S * num_tokens, has_prompts)
    assert times.line(has_prompts=True) == pytest.approx((STEP_S, TOKEN_S), rel=1e-3)


@example([(1, 0.0, False), (70, 3.5890061525862187, True)])
@given(st.lists(st.tuples(st.integers(1, 512), st.floats(0, 10), st.booleans()), min_size=1, max_size=50))
def test_no_step_makes_time_negative(steps: list[tuple[int, float, bool]]) -> None:
    times = StepTimes()
    for step in steps:
        times.add(*step)
    assert min(*times.line(has_prompts=True), *times.line(has_prompts=False)) >= 0


def test_a_long_time_of_decoding_does_not_forget_what_prompts_cost() -> None:
    times = StepTimes()
    for _ in range(4):
        times.add(500, STEP_S + 500 * TOKEN_S, True)
    for _ in range(10_000):
        times.add(4, STEP_S + 4 * TOKEN_S, False)
    assert times.line(has_prompts=True) == pytest.approx((STEP_S, TOKEN_S), rel=1e-3)


def test_tokens_that_the_prefix_cache_has_are_not_waited_for() -> None:
    load = found(0, 1, 0, 640)
    cold, warm = taught(), taught()
    warm.record(report(100, 8, 1, prefix_queries=1000, prefix_hits=750), 1, 0)
    assert warm.delay_s(load) == pytest.approx(cold.delay_s(load) / 4, rel=0.05)


def test_a_pause_of_the_engine_is_no_step() -> None:
    """Not the time in which it had nothing to do, nor that in which it was dead."""
    forecast = taught()
    before = forecast.first_token_s(found(0, 1), 16)
    forecast.record(report(200, 0, 4, begin=50.0, num_running=0), 4, 4)
    forecast.record(report(201, 4, 0, begin=900.0, num_running=1), 0, 0)
    forecast.record(report(1, 4, 0, begin=2000.0), 0, 0)
    assert forecast.first_token_s(found(0, 1), 16) == pytest.approx(before)


def test_between_two_steps_the_engine_is_at_work() -> None:
    """Sending events and taking commands is part of what a step takes."""
    forecast = Forecast(BUDGET)
    forecast.record(report(1, 0, 4, begin=0.0), 4, 0)
    forecast.record(report(2, 0, 4, begin=0.5), 4, 0)
    assert forecast.first_token_s(found(0, 1), 1) > 0.2


def test_where_prompts_have_steps_of_their_own_both_kinds_are_waited_for() -> None:
    apart = Forecast(BUDGET, POLICIES["neuron"])
    for number in range(8):
        apart.record(report(20 * number, 8, 0), 0, 0)  # 14 ms
        apart.record(report(20 * number + 10, 0, 4), 40, 4)  # 12 ms, of about ten for each sequence
    load = found(4, 0, 2, 16, 2)  # three ends, which nearly always have come after ten steps; two prompts, and its own
    own_s = STEP_S + 8 * TOKEN_S
    assert apart.delay_s(load) == pytest.approx(10 * (STEP_S + 4 * TOKEN_S) + 2 * own_s, rel=0.1)
    assert apart.first_token_s(load, 8) == pytest.approx(apart.delay_s(load) + own_s, rel=0.1)


@given(loads, st.floats(0, 0.99))
def test_the_more_urgent_come_the_longer_it_takes(load: EngineLoad, share: float) -> None:
    forecast, passed = taught(), replace(load, share_before=share)
    assert forecast.delay_s(passed) >= forecast.delay_s(load)
    assert forecast.first_token_s(passed, 9) >= forecast.first_token_s(load, 9)


def test_an_engine_that_has_died_meanwhile_says_nothing_of_a_forecast() -> None:
    forecast, newcomer = taught(), request("a", [1], arrival_time=0.0)
    forecast.expect(newcomer, 0.1)
    forecast.record(report(1, 4, 0, begin=2000.0), 1, 0, ["a"])
    assert forecast.most_s(newcomer, 0.1) == 0.1
    late = request("b", [1], arrival_time=2000.0)
    forecast.expect(late, 0.1)
    forecast.record(report(2, 4, 0, begin=2005.0), 1, 0, ["b"])
    assert forecast.most_s(newcomer, 0.1) == pytest.approx(5.0, abs=0.1)
