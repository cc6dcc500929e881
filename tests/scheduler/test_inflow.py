"""The share of an engine's time that more urgent requests take."""

from __future__ import annotations

import pytest

from server.scheduler.inflow import MAX_KEPT, MEMORY_S, MOST, Inflow


def steady(priority: int, share: float, inflow: Inflow) -> float:
    """Requests of a tenth of a second, for a minute; when the last came."""
    gap_s, now = 0.1 / share, 0.0
    while now < 6 * MEMORY_S:
        inflow.add(priority, now, 0.1)
        now += gap_s
    return now


def test_the_share_is_that_of_the_more_urgent() -> None:
    inflow = Inflow()
    now = steady(0, 0.4, inflow)
    assert inflow.share_before(1, now) == pytest.approx(0.4, abs=0.02)
    assert inflow.share_before(0, now) == inflow.share_before(-1, now) == 0
    assert inflow.share_before(1, now + MEMORY_S) == pytest.approx(0.4 / 2.718, abs=0.02)


def test_it_is_never_all() -> None:
    inflow = Inflow()
    now = steady(0, 3.0, inflow)
    assert inflow.share_before(1, now) == MOST


def test_priorities_are_bounded() -> None:
    inflow = Inflow()
    for priority in range(3 * MAX_KEPT):
        inflow.add(priority, 0.0, 0.001)
    assert len(inflow._taken) == MAX_KEPT
