"""The search for the knee."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests.errors import SpecError
from neuronserve.loadtests.sweep import Bisection


def search(knee: float, start: float, tolerance: float, max_points: int = 60) -> Bisection:
    bisection = Bisection(start, tolerance, max_points)
    while (rate := bisection.next_rate()) is not None:
        bisection.note(rate, holds=rate <= knee)
    return bisection


@given(knee=st.floats(0.01, 1000), start=st.floats(0.01, 1000), tolerance=st.floats(0.01, 0.5))
def test_it_brackets_any_knee_within_the_tolerance(knee: float, start: float, tolerance: float) -> None:
    found = search(knee, start, tolerance)
    assert found.is_bracketed
    assert found.highest_held is not None
    assert found.lowest_failed is not None
    assert found.highest_held <= knee < found.lowest_failed
    assert found.lowest_failed / found.highest_held <= 1 + tolerance


def test_points_are_bounded_and_an_open_bracket_is_said() -> None:
    found = search(knee=1e9, start=1.0, tolerance=0.1, max_points=4)
    assert found.highest_held == 8.0
    assert found.lowest_failed is None
    assert not found.is_bracketed


def test_nothing_holds() -> None:
    found = search(knee=0.0, start=8.0, tolerance=0.1, max_points=3)
    assert found.highest_held is None
    assert found.lowest_failed == 2.0


def test_a_lower_rate_s_failure_outweighs_a_higher_rate_s_luck() -> None:
    bisection = Bisection(10.0, 0.1, 10)
    bisection.note(5.0, holds=False)
    bisection.note(10.0, holds=True)
    assert bisection.highest_held is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.1, 5), "start_rate is 0"),
        ((float("inf"), 0.1, 5), "start_rate is inf"),
        ((1.0, 0.0, 5), "tolerance is 0"),
        ((1.0, 0.1, 0), "max_points is 0"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: tuple[float, float, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Bisection(*arguments)
