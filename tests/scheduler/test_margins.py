"""What nearly all forecasts would have been right with."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.scheduler.margins import IN_TIME, MAX_KEPT, NUM_ERRORS_KEPT, Margins

FORESEEN_S = 5.0


def judged(errors: list[float], priority: int = 0) -> Margins:
    margins = Margins()
    for number, error_s in enumerate(errors):
        came = 1000.0 * number
        margins.expect(f"r{number}", priority, came, FORESEEN_S)
        margins.judge(f"r{number}", came + FORESEEN_S + error_s)
    return margins


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=300))
def test_nearly_all_of_the_latest_would_have_been_in_time(errors: list[float]) -> None:
    most_s = judged(errors).most_s(0, FORESEEN_S)
    latest = errors[-NUM_ERRORS_KEPT:]
    late = [error_s for error_s in latest if FORESEEN_S + error_s > most_s + 1e-9]
    assert len(late) <= (1 - IN_TIME) * len(latest)
    assert FORESEEN_S <= most_s <= FORESEEN_S + max(0.0, *latest) + 1e-9


def test_an_error_counts_for_less_of_a_short_wait() -> None:
    """So that a forecast that was far off leaves a queue from which the next ones are learned."""
    margins = judged([5.0] * NUM_ERRORS_KEPT)
    assert margins.most_s(0, FORESEEN_S) == pytest.approx(2 * FORESEEN_S)
    assert margins.most_s(0, 0.05) == pytest.approx(0.05 + 5.0 * sqrt(0.01))


def test_the_urgent_are_not_held_to_what_others_were_off() -> None:
    assert judged([5.0], priority=1).most_s(0, FORESEEN_S) == FORESEEN_S


def test_priorities_are_bounded() -> None:
    margins = Margins()
    for priority in range(3 * MAX_KEPT):
        margins.expect("r", priority, 0.0, 1.0)
        margins.judge("r", 3.0)
    assert len(margins._errors) == len(margins._margins) == MAX_KEPT
    assert margins.most_s(3 * MAX_KEPT - 1, 1.0) == 3.0


def test_of_whom_nothing_was_foreseen_nothing_is_learned() -> None:
    margins = Margins()
    margins.judge("unknown", 9.0)
    margins.expect("r", 0, 0.0, 1.0)
    margins.forget_expected()
    margins.judge("r", 9.0)
    assert margins.most_s(0, 1.0) == 1.0
