"""Errors, coverage and their intervals, by hand on a few figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.calibrate.accuracy import Outcome, accuracy_of, coverage_of
from neuronserve.server.cost.evidence import Band

NARROW, WIDE = (Band(1 / high, high, "measured", 1, "") for high in (1.1, 2.0))


def outcome(series: str, error: float, setup: int = 0, rows: int = 1, band: Band | None = NARROW) -> Outcome:
    return Outcome(series, setup, error, band, rows)


# Two series: of three rows that are right in two setups, and of one row that is 50 % too slow.
FOUND = [outcome("a", 0.0), outcome("a", 0.05), outcome("a", -0.02, setup=1), outcome("b", 0.5)]


def test_statistics_by_row_configuration_and_series() -> None:
    found = accuracy_of(FOUND)
    assert found is not None
    assert (found.rows, found.configurations, found.series) == (4, 3, 2)
    assert found.by_row.mean == pytest.approx((0.0 + 0.05 + 0.02 + 0.5) / 4)
    assert found.by_configuration.mean == pytest.approx((0.025 + 0.02 + 0.5) / 3)
    assert found.by_series.mean == pytest.approx((0.07 / 3 + 0.5) / 2)
    assert found.by_row.bias == pytest.approx(0.025)


def test_coverage_by_hand() -> None:
    found = coverage_of(FOUND)
    assert found is not None
    assert found.rows == pytest.approx(3 / 4)
    assert found.configurations == pytest.approx(2 / 3)
    assert found.series == pytest.approx(1 / 2)
    wide = coverage_of([outcome("a", 0.5, band=WIDE), outcome("a", -0.6, band=WIDE)])
    assert wide is not None
    assert wide.rows == 0.5, "0.4 of the measured time is below half of it"


def test_figures_without_bands_are_not_covered() -> None:
    bare = outcome("a", 3.0, band=None)
    assert coverage_of([bare]) is None
    both = coverage_of([bare, outcome("b", 0.0)])
    assert both is not None
    assert both.rows == 1
    assert accuracy_of([]) is None


def test_a_sample_counts_as_its_rows() -> None:
    alone = accuracy_of([outcome("a", 0.1, rows=3), outcome("b", 0.5)])
    assert alone is not None
    assert alone.rows == 4
    assert alone.by_row.mean == pytest.approx(0.2)
    assert alone.by_series.mean == pytest.approx(0.3)


def test_an_interval_resamples_series_and_one_series_has_none() -> None:
    one = accuracy_of([outcome("a", error / 100) for error in range(50)])
    assert one is not None
    assert one.row_interval is None
    assert one.series_interval is None
    two = accuracy_of(FOUND)
    assert two is not None
    assert two.series_interval == pytest.approx((0.07 / 3, 0.5)), "a quarter of the resamples has either series alone"
    assert two.row_interval == pytest.approx((0.07 / 3, 0.5))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(-0.9, 3), st.integers(1, 5)), min_size=1, max_size=30))
def test_intervals_are_deterministic_and_hold_the_extremes_of_series(rows: list[tuple[str, float, int]]) -> None:
    found = [outcome(series, error, rows=number) for series, error, number in rows]
    accuracy = accuracy_of(found)
    assert accuracy is not None
    assert accuracy == accuracy_of(found)
    if accuracy.series_interval is not None and accuracy.row_interval is not None:
        for low, high in (accuracy.series_interval, accuracy.row_interval):
            assert 0 <= low <= high <= max(abs(error) for _, error, _ in rows) + 1e-9
