"""The share of an engine's time that those take who come later and are served before."""

from __future__ import annotations

import pytest

from neuronserve.server.scheduler.inflow import FORGOTTEN_S, LEAST_S, MAX_KEPT, MEMORY_S, MOST, Inflow


def steady(
    share: float, inflow: Inflow, priority: int = 0, tenant: str = "", begin: float = 0.0, s: float = 6 * MEMORY_S
) -> float:
    """Requests of twenty milliseconds, for some time; when the last came."""
    now = begin
    while now < begin + s:
        inflow.add(priority, tenant, now, 0.02)
        now += 0.02 / share
    return now


def test_the_share_is_that_of_the_more_urgent() -> None:
    inflow = Inflow()
    now = steady(0.4, inflow)
    assert inflow.share_before(1, "", now) == pytest.approx(0.4, abs=0.02)
    assert inflow.share_before(0, "", now) == inflow.share_before(-1, "", now) == 0
    assert inflow.share_before(1, "", now + MEMORY_S) == pytest.approx(0.4 / 2.718, abs=0.02)


def test_of_tenants_who_takes_less_passes_who_takes_more() -> None:
    inflow = Inflow()
    steady(0.6, inflow, tenant="many")
    now = steady(0.2, inflow, tenant="few")
    assert inflow.share_before(0, "many", now) == pytest.approx(0.2, abs=0.02)
    assert inflow.share_before(0, "few", now) == inflow.share_before(0, "new", now) == 0
    assert inflow.share_before(1, "new", now) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("idle_s", [0.0, 1.1 * FORGOTTEN_S])
def test_a_flood_is_known_soon_after_it_began(idle_s: float) -> None:
    """At a server's start, and after a long time of nothing."""
    inflow = Inflow()
    if idle_s:
        idle_s += steady(0.1, inflow)
    now = steady(0.8, inflow, begin=idle_s, s=2 * LEAST_S)
    assert inflow.share_before(1, "", now) == pytest.approx(0.8, abs=0.05)


def test_one_request_is_no_flood() -> None:
    inflow = Inflow()
    inflow.add(0, "", 0.0, 0.02)
    assert inflow.share_before(1, "", 0.001) == pytest.approx(0.02 / LEAST_S, abs=0.01)


def test_it_is_never_all() -> None:
    inflow = Inflow()
    now = steady(3.0, inflow)
    assert inflow.share_before(1, "", now) == MOST


def test_what_is_kept_is_bounded() -> None:
    inflow = Inflow()
    for priority in range(3 * MAX_KEPT):
        inflow.add(priority, "", 0.0, 0.001)
    assert len(inflow._taken) == MAX_KEPT
