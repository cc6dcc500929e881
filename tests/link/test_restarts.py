"""When an engine that has died gets a successor: at once, after a pause, or never."""

from __future__ import annotations

import pytest

from neuronserve.server.link.restarts import FIRST_BACKOFF_S, MAX_BACKOFF_S, Healing, RestartBreaker


def test_engines_that_have_served_are_followed_at_once_however_often_they_die() -> None:
    breaker = RestartBreaker(Healing(max_restarts=100))
    assert [breaker.delay_s(float(i), is_fault=i % 2 == 0, has_served=True) for i in range(20)] == [0.0] * 20
    assert breaker.restarts == {"fault": 10, "outside": 10}


def test_pauses_grow_while_engines_die_that_have_served_nothing() -> None:
    breaker = RestartBreaker(Healing(max_restarts=100))
    first, *more = [breaker.delay_s(float(i), is_fault=True, has_served=False) for i in range(20)]
    assert first == FIRST_BACKOFF_S
    assert more[:3] == [2 * FIRST_BACKOFF_S, 4 * FIRST_BACKOFF_S, 8 * FIRST_BACKOFF_S]
    assert more[-1] == MAX_BACKOFF_S
    assert breaker.delay_s(20.0, is_fault=True, has_served=True) == 0
    assert breaker.delay_s(21.0, is_fault=True, has_served=False) == FIRST_BACKOFF_S


@pytest.mark.parametrize("has_served", [True, False])
def test_too_many_deaths_in_a_window_are_the_last(has_served: bool) -> None:
    breaker = RestartBreaker(Healing(max_restarts=2, window_s=60))
    assert breaker.delay_s(0.0, True, has_served) is not None
    assert breaker.delay_s(50.0, True, has_served) is not None
    assert breaker.delay_s(100.0, True, has_served) is not None  # the first is out of the window
    assert breaker.delay_s(101.0, True, has_served) is None
    assert breaker.restarts == {"fault": 3, "outside": 0}
