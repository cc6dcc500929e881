"""The forecast of a wait: what its formula says. How limits are kept: api/test_admission_in_virtual_time.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import request

from neuronserve.server.scheduler.forecast import (
    FIRST_LENGTH,
    MAX_KEPT,
    MAX_RETRY_S,
    MEMORY_S,
    NUM_ENDS_KNOWN,
    NUM_RATIOS_KEPT,
    RETURN_GAP,
    EngineLoad,
    Forecast,
)
from neuronserve.server.scheduler.step_rates import FIRST_STEP_S
from neuronserve.server.types import Request, StepReport

STEP_S = 0.1  # of a step without prompts
PROMPT_TOKEN_S = 0.005
LENGTH = 10  # tokens of each sequence


def report(step_id: int, begin: float | None = None, num_prefill: int = 0, **fields: Any) -> StepReport:
    begin = float(step_id) if begin is None else begin
    state: dict[str, Any] = {"num_running": 0, "num_waiting": 0, "prefix_queries": 0, "prefix_hits": 0, **fields}
    seconds = num_prefill * PROMPT_TOKEN_S + STEP_S * (not num_prefill or "num_running" in fields)
    return StepReport(
        step_id, begin, begin + seconds, num_prefill_tokens=num_prefill,
        num_decode_tokens=state["num_running"] if num_prefill else 1,
        admitted=(), preempted=(), num_free_blocks=9, num_blocks=10, step_seconds=seconds, **state,
    )  # fmt: skip


def taught() -> Forecast:
    """A forecast that has measured both kinds of steps, and sequences of ten tokens."""
    forecast = Forecast()
    for step_id in range(1, 400):
        forecast.record(report(step_id, num_prefill=20 if step_id % 4 else 0), 2 * LENGTH, 2)
    return forecast


def arriving(at: float, priority: int = 0, tenant: str = "", name: str = "a") -> Request:
    return request(name, [1], arrival_time=at, priority=priority, tenant=tenant)


def test_tokens_ahead_over_the_measured_rates() -> None:
    load = EngineLoad(3, num_free_places=1, num_ahead=4, num_prompt_tokens=60)  # four places, and four ends
    decodes_s, prompts_s = LENGTH * STEP_S, 60 * PROMPT_TOKEN_S
    forecast = taught()
    assert forecast.delay_s(load) == pytest.approx(decodes_s + prompts_s, rel=0.02)
    assert forecast.first_token_s(2.0, 50) == pytest.approx(2.0 + 50 * PROMPT_TOKEN_S + STEP_S, rel=0.02)
    assert forecast.service_s(load, 4, 60) == pytest.approx(decodes_s + prompts_s, rel=0.02)


def test_where_prompts_share_steps_with_decodes_only_their_part_of_the_time_counts() -> None:
    forecast = taught()
    seconds = STEP_S + 40 * PROMPT_TOKEN_S
    for i in range(400):
        forecast.record(report(400 + i, 400 + i * seconds, num_prefill=40, num_running=4), 2 * LENGTH, 2)
    assert forecast.rates.prompt_token_s == pytest.approx(PROMPT_TOKEN_S, rel=0.02)


def test_before_the_first_step_rates_are_assumed() -> None:
    assert Forecast().delay_s(EngineLoad(0, 4)) == 0
    assert Forecast().delay_s(EngineLoad(4, 0, 7)) == 2 * FIRST_LENGTH * FIRST_STEP_S


loads = st.builds(EngineLoad, st.integers(0, 8), st.integers(0, 4), st.integers(0, 50), st.integers(0, 5000))


@given(loads, st.integers(1, 500))
def test_more_work_ahead_never_shortens_the_wait(load: EngineLoad, num_prompt: int) -> None:
    forecast = Forecast()
    more = EngineLoad(load.num_running, load.num_free_places, load.num_ahead + 1, load.num_prompt_tokens + 20)
    delay_s = forecast.delay_s(load)
    assert 0 <= delay_s < forecast.first_token_s(delay_s, num_prompt) < forecast.first_token_s(delay_s, num_prompt + 1)
    assert forecast.delay_s(more) > delay_s


def test_tokens_that_the_prefix_cache_holds_are_not_waited_for() -> None:
    cold, warm = taught(), taught()
    warm.record(report(400, num_prefill=20, prefix_queries=1000, prefix_hits=750), 2 * LENGTH, 2)
    load = EngineLoad(0, 1, 0, 640)
    assert warm.delay_s(load) == pytest.approx(cold.delay_s(load) / 4, rel=0.02)


def test_a_pause_of_the_engine_is_no_part_of_a_step_and_the_time_between_steps_is() -> None:
    idle, busy = taught(), taught()
    before = idle.rates.step_s
    idle.record(report(401, begin=900.0), 2 * LENGTH, 2)  # nothing was left to do before it
    idle.record(report(1, begin=2000.0), 2 * LENGTH, 2)  # a restarted engine
    assert idle.rates.step_s == pytest.approx(before)
    busy.record(report(400, num_running=1), 2 * LENGTH, 2)
    busy.record(report(401, begin=900.0), 2 * LENGTH, 2)
    assert busy.rates.step_s > 10 * before


def test_the_margin_is_the_ratio_that_nearly_all_waits_of_the_priority_kept() -> None:
    forecast = taught()
    for number in range(2 * NUM_RATIOS_KEPT):
        name = f"r{number}"
        forecast.admit(arriving(50.0, name=name), 0.5, 0.0, waits=True)
        forecast.record(report(500 + number, begin=51.4), 0, 0, [name])  # 1.5 s
    assert forecast.corrected_s(arriving(60.0), 2.0) == pytest.approx(6.0)
    assert forecast.corrected_s(arriving(60.0, priority=1), 2.0) == 2.0
    for number in range(NUM_RATIOS_KEPT):  # older ones are forgotten; waits shorter than foreseen shorten nothing
        forecast.admit(arriving(70.0, name="early"), 5.0, 0.0, waits=True)
        forecast.record(report(700 + number, begin=70.0), 0, 0, ["early"])
    assert forecast.corrected_s(arriving(80.0), 2.0) == 2.0


def test_an_engine_that_stood_still_is_trusted_again_after_requests_that_need_not_wait() -> None:
    forecast = taught()
    forecast.admit(arriving(400.0), 0.1, 0.0, waits=True)
    forecast.record(report(400, begin=460.0), 0, 0, ["a"])  # a minute late
    assert forecast.corrected_s(arriving(461.0), 0.1) > 50
    for number in range(NUM_RATIOS_KEPT):
        forecast.admit(arriving(500.0 + number), 0.1, 0.0, waits=False)
        forecast.record(report(401 + number, begin=500.0 + number), 0, 0, ["a"])
    assert forecast.corrected_s(arriving(600.0), 0.1) == pytest.approx(0.1)


def test_the_first_tokens_of_a_restarted_engine_are_not_compared() -> None:
    forecast = taught()
    forecast.admit(arriving(0.0), 0.1, 0.0, waits=True)
    forecast.record(report(1, begin=2000.0), 1, 0, ["a"])
    assert forecast.corrected_s(arriving(0.0), 1.0) == 1.0


def test_later_requests_that_are_served_first_lengthen_the_wait() -> None:
    forecast = taught()
    for number in range(200):  # half of the engine's time for urgent requests, a quarter for tenant b
        forecast.admit(arriving(number / 10, priority=-1, name="u"), 1.0, 0.05, waits=True)
        forecast.admit(arriving(number / 10, tenant="b", name="b"), 1.0, 0.025, waits=True)
        forecast.admit(arriving(number / 10, tenant="c", name="c"), 1.0, 0.01, waits=True)
    assert forecast.lengthened_s(arriving(20.0, priority=-1), 1.0) == 1.0
    assert forecast.lengthened_s(arriving(20.0, tenant="c"), 1.0) == pytest.approx(2.0, rel=0.1)
    assert forecast.lengthened_s(arriving(20.0, tenant="b"), 1.0) == pytest.approx(1 / (1 - 0.6), rel=0.1)
    assert forecast.lengthened_s(arriving(20.0 + 20 * MEMORY_S, tenant="b"), 1.0) == pytest.approx(1.0)


def test_returns_are_spaced_within_a_tenant_and_a_priority() -> None:
    forecast = taught()
    first, second = (forecast.retry_after_s(arriving(0.0), 1.0, 2.0) for _ in range(2))
    assert first == 1.0
    assert second == pytest.approx(1.0 + RETURN_GAP * 2.0)
    assert forecast.retry_after_s(arriving(0.0, tenant="b"), 1.0, 2.0) == 1.0
    assert forecast.retry_after_s(arriving(0.0, priority=-1), 1.0, 2.0) == 1.0
    assert max(forecast.retry_after_s(arriving(0.0), 1.0, 2.0) for _ in range(99)) == MAX_RETRY_S
    forecast.admit(arriving(5.0), 0.1, 1.0, waits=False)  # finds nothing ahead: nobody returned
    assert forecast.retry_after_s(arriving(5.0), 1.0, 2.0) == 1.0


def test_returns_are_not_spaced_by_lengths_that_were_only_assumed() -> None:
    forecast = Forecast()
    forecast.record(report(1), 5 * LENGTH, NUM_ENDS_KNOWN - 2)
    assert {forecast.retry_after_s(arriving(0.0), 1.0, 2.0) for _ in range(9)} == {1.0}


def test_what_is_kept_of_clients_is_bounded() -> None:
    forecast = taught()
    for number in range(2 * MAX_KEPT):
        newcomer = arriving(0.0, priority=number, tenant=f"t{number}", name=f"r{number}")
        forecast.admit(newcomer, 1.0, 1.0, waits=True)
        forecast.record(report(500 + number), 0, 0, [newcomer.request_id])
        forecast.retry_after_s(newcomer, 1.0, 1.0)
    assert len(forecast._booked) == len(forecast._shares._taken) == len(forecast._margins._ratios) == MAX_KEPT
    assert not forecast._margins._expected
