"""Arrival processes: their rate, their shape, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests import arrivals
from loadtests.errors import SpecError


def gaps(offsets: list[float]) -> np.ndarray:
    return np.diff([0.0, *offsets])


def variation(offsets: list[float]) -> float:
    """Coefficient of variation of the gaps: 1 for a Poisson process."""
    return float(gaps(offsets).std() / gaps(offsets).mean())


@given(n=st.integers(1, 300), rate=st.floats(0.01, 1000), burstiness=st.floats(0.1, 10), seed=st.integers(0, 99))
def test_offsets_ascend_from_the_start_and_repeat_with_the_seed(
    n: int, rate: float, burstiness: float, seed: int
) -> None:
    offsets = arrivals.gamma(n, rate, burstiness, seed)
    assert len(offsets) == n
    assert (gaps(offsets) >= 0).all()
    assert offsets == arrivals.gamma(n, rate, burstiness, seed)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_keeps_the_mean_rate_and_has_the_spread_of_its_burstiness(burstiness: float) -> None:
    offsets = arrivals.gamma(20_000, 50.0, burstiness, seed=1)
    assert gaps(offsets).mean() == pytest.approx(1 / 50, rel=0.05)
    assert variation(offsets) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_is_gamma_of_burstiness_one() -> None:
    assert arrivals.poisson(100, 3.0, seed=5) == arrivals.gamma(100, 3.0, 1.0, seed=5)


def test_poisson_does_not_end_exactly_at_n_over_rate() -> None:
    ends = {round(arrivals.poisson(100, 10.0, seed)[-1], 6) for seed in range(5)}
    assert len(ends) == 5


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert arrivals.constant(4, 2.0) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_goes_from_the_first_rate_to_the_last(strategy: arrivals.RampStrategy) -> None:
    found = gaps(arrivals.ramp(40_000, (2.0, 20.0), strategy, seed=3))
    assert 1 / found[:2000].mean() == pytest.approx(2.0, rel=0.3)
    assert 1 / found[-2000:].mean() == pytest.approx(20.0, rel=0.2)


def test_an_exponential_ramp_is_at_the_geometric_mean_half_way() -> None:
    found = gaps(arrivals.ramp(40_000, (1.0, 100.0), "exponential", seed=3))
    assert 1 / found[19_000:21_000].mean() == pytest.approx(10.0, rel=0.2)


def test_a_trace_starts_at_zero_and_runs_at_its_speed() -> None:
    assert arrivals.trace([100.0, 101.0, 104.0], speed=2.0) == [0.0, 0.5, 2.0]
    assert arrivals.trace([], speed=1.0) == []


def test_all_at_once_has_every_arrival_at_the_start() -> None:
    assert arrivals.all_at_once(3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_that_cannot_be_are_refused_with_name_and_value(bad: float) -> None:
    for make, name in (
        (lambda: arrivals.constant(3, bad), "request_rate"),
        (lambda: arrivals.gamma(3, 1.0, bad, 0), "burstiness"),
        (lambda: arrivals.ramp(3, (bad, 1.0), "linear", 0), "ramp_up_start_rps"),
        (lambda: arrivals.ramp(3, (1.0, bad), "linear", 0), "ramp_up_end_rps"),
        (lambda: arrivals.trace([0.0, 1.0], bad), "trace_speed"),
    ):
        with pytest.raises(SpecError, match=f"{name} is {bad}"):
            make()
