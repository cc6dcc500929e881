"""The statistics of a comparison: exact on small cases, honest on random ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ratios import CONFIDENCE, coverage, outer_rank, ratio_of


def test_the_ratio_is_that_of_each_round() -> None:
    ratio = ratio_of([10.0, 20.0, 40.0], [5.0, 10.0, 10.0])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 4.0)
    assert (ratio.ours, ratio.theirs, ratio.spread) == (20.0, 10.0, 1.0)


def test_drift_that_hits_both_sides_cancels() -> None:
    drift = [1.0, 0.8, 1.3, 0.6, 1.1]
    ratio = ratio_of([3.0 * d for d in drift], [2.0 * d for d in drift])
    assert ratio.low == pytest.approx(1.5)
    assert ratio.high == pytest.approx(1.5)


@pytest.mark.parametrize(("n", "wanted"), [(1, 0.0), (5, 0.9375), (6, 0.96875), (9, 0.9609375), (10, 0.978515625)])
def test_coverage_is_that_of_coin_tosses(n: int, wanted: float) -> None:
    assert coverage(n, outer_rank(n)) == pytest.approx(wanted)
    assert wanted >= CONFIDENCE or outer_rank(n) == 0


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    words, rounds, trials = random.Random(1), 9, 4000
    held = 0
    for _ in range(trials):
        skewed = [words.lognormvariate(0.0, 0.5) for _ in range(rounds)]
        ratio = ratio_of(skewed, [1.0] * rounds)
        held += ratio.low <= 1.0 <= ratio.high
    assert held / trials == pytest.approx(coverage(rounds, outer_rank(rounds)), abs=0.015)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30))
def test_the_median_lies_in_its_interval(values: list[float]) -> None:
    ratio = ratio_of(values, [1.0] * len(values))
    assert min(values) <= ratio.low <= ratio.median <= ratio.high <= max(values)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_what_has_no_ratio_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"paired|above 0"):
        ratio_of(ours, theirs)
