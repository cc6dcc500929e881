"""The limiter of one key: admitted requests over any time, and that a refusal changes nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.api.keys.key import KeyLimits
from neuronserve.server.api.keys.limiter import Limiter, TokenBucket, duration
from neuronserve.server.clock import ManualClock
from neuronserve.server.errors import RateLimited

Acts = st.lists(st.tuples(st.floats(0, 90), st.integers(1, 40), st.integers(0, 20)), min_size=1, max_size=40)


def headers(limiter: Limiter, now: float) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in limiter.headers(now)}


@given(st.integers(1, 100), Acts)
def test_prompts_get_no_more_than_the_limit_over_any_time(limit: int, acts: list[tuple[float, int, int]]) -> None:
    clock, taken = ManualClock(), list[tuple[float, int]]()
    limiter = Limiter(KeyLimits(tokens_per_minute=limit), clock.now())
    for pause_s, num_prompt, num_generated in acts:
        clock.advance(pause_s)
        try:
            limiter.begin(num_prompt, clock.now())
        except RateLimited:
            continue
        limiter.generated(num_generated, clock.now())
        limiter.end()
        taken.append((clock.now(), num_prompt + num_generated))
    for i, (begin, _) in enumerate(taken):
        for j in range(i, len(taken)):
            before_last = sum(num for _, num in taken[i:j])  # only the last may overdraw it
            assert before_last <= limit * (1 + (taken[j][0] - begin) / 60) + 1e-3 or j == i


@given(st.integers(1, 100), Acts)
def test_who_waits_as_long_as_told_is_let_in(limit: int, acts: list[tuple[float, int, int]]) -> None:
    clock = ManualClock()
    limiter = Limiter(KeyLimits(tokens_per_minute=limit), clock.now())
    for pause_s, num_prompt, num_generated in acts:
        clock.advance(pause_s)
        try:
            limiter.begin(num_prompt, clock.now())
        except RateLimited as refusal:
            clock.advance(refusal.retry_after_s)
            limiter.begin(num_prompt, clock.now())
        limiter.generated(num_generated, clock.now())
        limiter.end()


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 3), Acts)
def test_a_refusal_changes_nothing(rpm: int, tpm: int, most: int, acts: list[tuple[float, int, int]]) -> None:
    clock = ManualClock()
    limiter = Limiter(KeyLimits(rpm, tpm, most), clock.now())
    for pause_s, num_prompt, num_generated in acts:
        clock.advance(pause_s)
        before = headers(limiter, clock.now()), limiter.num_running
        try:
            limiter.begin(num_prompt, clock.now())
        except RateLimited:
            assert (headers(limiter, clock.now()), limiter.num_running) == before
            limiter.num_running = 0  # those under way end
        else:
            assert limiter.num_running <= most
            limiter.generated(num_generated, clock.now())


def test_requests_come_back_evenly_over_a_minute() -> None:
    clock = ManualClock()
    limiter = Limiter(KeyLimits(requests_per_minute=3), clock.now())
    for left in (2, 1, 0):
        limiter.let_in(clock.now())
        assert headers(limiter, clock.now())["x-ratelimit-remaining-requests"] == str(left)
    assert headers(limiter, clock.now())["x-ratelimit-reset-requests"] == "1m0s"
    with pytest.raises(RateLimited, match=r"requests per minute: limit 3, left 0, requested 1\. .* in 20s\."):
        limiter.let_in(clock.now())
    clock.advance(20)
    limiter.let_in(clock.now())


def test_generated_tokens_are_a_debt_that_time_pays() -> None:
    clock = ManualClock()
    limiter = Limiter(KeyLimits(tokens_per_minute=60), clock.now())
    limiter.begin(60, clock.now())
    limiter.generated(30, clock.now())
    assert headers(limiter, clock.now())["x-ratelimit-remaining-tokens"] == "0"
    with pytest.raises(RateLimited) as refused:
        limiter.begin(10, clock.now())
    assert (refused.value.retry_after_s, refused.value.kind, refused.value.code) == (
        40,
        "tokens",
        "rate_limit_exceeded",
    )


def test_a_prompt_beyond_the_limit_is_let_in_when_nothing_was_used() -> None:
    limiter = Limiter(KeyLimits(tokens_per_minute=10), 0.0)
    limiter.begin(100, 0.0)
    with pytest.raises(RateLimited) as refused:
        limiter.begin(100, 0.0)
    assert refused.value.retry_after_s == 600


def test_without_limits_everything_is_let_in_and_there_are_no_headers() -> None:
    limiter = Limiter(KeyLimits(), 0.0)
    for _ in range(1000):
        limiter.let_in(0.0)
        limiter.begin(10**6, 0.0)
    assert headers(limiter, 0.0) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (-1, "0ms"), (0.0123, "13ms"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (372.5, "6m12.5s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.integers(1, 10**6), st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 10**6)), max_size=30))
def test_a_bucket_is_never_fuller_than_its_minute(limit: int, acts: list[tuple[float, int]]) -> None:
    now, bucket = 0.0, TokenBucket(limit, 0.0)
    for pause_s, amount in acts:
        now += pause_s
        bucket.take(amount, now)
        assert bucket.level(now) <= limit
        assert math.isclose(bucket.level(now + bucket.reset_s(now)), limit, rel_tol=1e-6, abs_tol=1e-6)
