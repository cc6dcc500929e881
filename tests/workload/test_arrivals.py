"""The arrival process: its rate, its shape, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.clock import NS
from neuronserve.server.errors import SettingsError
from neuronserve.workload.arrivals import Arrivals, Ramp
from neuronserve.workload.workload import FloatArray, IntArray


def times(arrivals: Arrivals, size: int, seed: int = 3) -> IntArray:
    return arrivals.times_ns(np.random.default_rng(seed), size)


def gaps_s(arrivals: Arrivals, size: int) -> FloatArray:
    return np.diff(times(arrivals, size)) / NS


@given(size=st.integers(0, 300), rate=st.floats(0.01, 1000), burstiness=st.floats(0.1, 10), seed=st.integers(0, 99))
def test_times_ascend_from_zero_and_more_of_them_begin_alike(
    size: int, rate: float, burstiness: float, seed: int
) -> None:
    found = times(Arrivals(rate, burstiness), size, seed)
    assert len(found) == size
    assert not found[:1].any()
    assert (np.diff(found) >= 0).all()
    assert np.array_equal(times(Arrivals(rate, burstiness), size + 7, seed)[:size], found)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_keep_the_mean_rate_and_have_the_spread_of_their_burstiness(burstiness: float) -> None:
    gaps = gaps_s(Arrivals(50.0, burstiness), 20_000)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.06)


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(Arrivals(50.0), 20_000)
    assert (gaps > 3 / 50).mean() == pytest.approx(np.exp(-3), rel=0.1)
    expected = np.rint(np.cumsum(np.random.default_rng(3).exponential(1 / 50, 20_000)) * NS)
    assert np.abs(np.diff(expected) / NS - gaps).max() <= 2 / NS


def test_poisson_does_not_end_exactly_at_n_over_rate() -> None:
    assert len({times(Arrivals(10.0), 100, seed)[-1] for seed in range(5)}) == 5


def test_a_day_begins_at_its_quietest_and_keeps_the_mean_rate() -> None:
    day_s, size = 86_400, 200_000
    found = times(Arrivals(size / day_s, day=0.6), size) / NS
    counts, edges = np.histogram(found, 24, (0, day_s))
    expected = [
        size
        / day_s
        * (
            end
            - begin
            - 0.6 * day_s / 2 / np.pi * (np.sin(2 * np.pi * end / day_s) - np.sin(2 * np.pi * begin / day_s))
        )
        for begin, end in pairwise(edges)
    ]
    assert np.abs(counts - expected).max() < 5 * np.sqrt(max(expected))  # of Poisson counts
    assert counts.argmin() in (0, 23)
    assert times(Arrivals(size / day_s, day=0.6), 2 * size)[-1] / NS == pytest.approx(2 * day_s, rel=0.01)


def test_infinite_burstiness_spaces_evenly() -> None:
    assert times(Arrivals(2.0, burstiness=inf), 4).tolist() == [0, NS // 2, NS, 3 * NS // 2]
    assert set(np.diff(times(Arrivals(50.0, inf), 20_000))) == {NS // 50}


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert times(Arrivals(inf), 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("ramp", ["linear", "exponential"])
def test_a_ramp_goes_from_the_first_rate_to_the_last(ramp: Ramp) -> None:
    gaps = gaps_s(Arrivals(2.0, end_rate=20.0, ramp=ramp), 40_000)
    assert 1 / gaps[:2000].mean() == pytest.approx(2.0, rel=0.3)
    assert 1 / gaps[-2000:].mean() == pytest.approx(20.0, rel=0.2)


@pytest.mark.parametrize(("ramp", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_a_ramp_is_at_the_mean_half_way(ramp: Ramp, middle: float) -> None:
    gaps = gaps_s(Arrivals(1.0, end_rate=100.0, ramp=ramp), 40_000)
    assert 1 / gaps[19_000:21_000].mean() == pytest.approx(middle, rel=0.1)


def test_arrivals_are_named_by_what_they_are() -> None:
    named = {Arrivals(4.0): "poisson, 4 requests/s", Arrivals(4.0, 0.5): "gamma, 4 requests/s"}
    named |= {Arrivals(4.0, inf): "constant, 4 requests/s", Arrivals(inf): "all at once"}
    named |= {Arrivals(1.0, end_rate=9.0): "poisson, 1 to 9 requests/s"}
    named |= {Arrivals(4.0, day=0.25): "poisson, 4 requests/s, by day 0.75 to 1.25 times"}
    assert [str(arrivals) for arrivals in named] == list(named.values())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate": 0.0}, "request_rate is 0: it must be above 0"),
        ({"rate": -1.0}, "request_rate is -1"),
        ({"rate": nan}, "request_rate is nan"),
        ({"rate": 1.0, "burstiness": 0.0}, "burstiness is 0"),
        ({"rate": 1.0, "burstiness": nan}, "burstiness is nan"),
        ({"rate": 1.0, "end_rate": 0.0}, "a ramp from 1 to 0: both"),
        ({"rate": 1.0, "end_rate": inf}, "a ramp from 1 to inf: both"),
        ({"rate": inf, "end_rate": 1.0}, "a ramp from inf to 1: both"),
        ({"rate": 1.0, "day": 1.0}, "day is 1 at 1 requests/s: it is 0 to below 1"),
        ({"rate": inf, "day": 0.5}, "day is 0.5 at inf requests/s"),
    ],
)
def test_numbers_that_are_no_process_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Arrivals(**fields)


def test_times_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(SettingsError, match="9 requests at 1e-09 a second take over 1000000000 seconds"):
        times(Arrivals(1e-9), 9)
