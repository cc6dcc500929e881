"""Sweeps: the knee, points that prove nothing, and the cost curve."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuronserve.loadtests.errors import EndpointError, SpecError
from neuronserve.loadtests.scenario import load_scenario
from neuronserve.loadtests.specs import Scenario
from neuronserve.loadtests.sweep import SweepOptions, at_rate, cost_by_limit, sweep

SCENARIO = load_scenario(None, {"slo": {"ttft_ms": 100.0, "attainment": 0.95}})
OPTIONS = SweepOptions(start_rate=1.0, tolerance=0.1, max_points=30)


def point(rate: float, good: float, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_rate": rate,
        "good_fraction": good,
        "request_goodput": rate * good,
        "output_throughput": 10 * rate,
        "is_publishable": True,
        "is_interrupted": False,
        "cost_basis": None,
        "cost_per_million_input_tokens_usd": None,
        "cost_per_million_output_tokens_usd": 100 / rate,
    }
    latencies = {f"{p}_{name}_ms": rate for p in ("median", "p90", "p95", "p99") for name in ("ttft", "tpot")}
    return {**fields, **latencies, **changes}


class Server:
    """A server that holds its limits up to a rate, and records the tried rates."""

    def __init__(self, knee: float, **changes: Any) -> None:
        self.knee, self.changes = knee, changes
        self.asked: list[tuple[Scenario, int]] = []

    async def run_point(self, scenario: Scenario, seed: int) -> dict[str, Any]:
        self.asked.append((scenario, seed))
        rate = scenario.arrival.request_rate
        return point(rate, 1.0 if rate <= self.knee else 0.5, **self.changes)


async def test_the_knee_is_the_highest_rate_that_holds() -> None:
    server = Server(knee=7.3)
    result = await sweep(SCENARIO, OPTIONS, server.run_point)
    assert result["is_bracketed"]
    assert 7.3 / 1.1 <= result["knee"]["request_rate"] <= 7.3 < result["lowest_failed_rate"]
    rates = [p["request_rate"] for p in result["points"]]
    assert rates == sorted(rates)
    assert result["knee"]["cost_per_million_output_tokens_usd"] == pytest.approx(100 / result["knee"]["request_rate"])


async def test_the_attainment_decides_what_holds() -> None:
    async def mostly_good(scenario: Scenario, seed: int) -> dict[str, Any]:
        return point(scenario.arrival.request_rate, 0.96 if scenario.arrival.request_rate < 3 else 0.94)

    result = await sweep(SCENARIO, OPTIONS, mostly_good)
    assert 2.7 <= result["knee"]["request_rate"] < 3


async def test_every_point_has_prompts_of_its_own() -> None:
    server = Server(knee=5.0)
    await sweep(SCENARIO, OPTIONS, server.run_point)
    seeds = [seed for _, seed in server.asked]
    assert len(set(seeds)) == len(seeds)


async def test_a_late_generator_proves_no_rate() -> None:
    server = Server(knee=1e9, is_publishable=False)
    result = await sweep(SCENARIO, SweepOptions(max_points=3), server.run_point)
    assert result["knee"] is None
    assert result["rates_with_a_late_generator"] == [1.0, 0.5, 0.25]


async def test_an_interrupted_point_ends_the_sweep_and_is_kept() -> None:
    server = Server(knee=4.0, is_interrupted=True)
    result = await sweep(SCENARIO, OPTIONS, server.run_point)
    assert result["is_interrupted"]
    assert len(result["points"]) == len(server.asked) == 1


async def test_a_sweep_needs_limits() -> None:
    with pytest.raises(SpecError, match="a sweep needs limits"):
        await sweep(load_scenario(None, {}), OPTIONS, Server(1.0).run_point)


def test_a_point_lasts_long_enough_for_its_requests() -> None:
    options = SweepOptions(point_duration_s=10.0, min_prompts=50)
    assert at_rate(SCENARIO, 20.0, options).arrival.duration_s == 10.0
    assert at_rate(SCENARIO, 0.5, options).arrival.duration_s == 100.0
    longer = msgspec.structs.replace(SCENARIO, arrival=msgspec.structs.replace(SCENARIO.arrival, duration_s=600.0))
    assert at_rate(longer, 20.0, options).arrival.duration_s == 600.0


def test_the_cost_curve_falls_as_the_limit_rises() -> None:
    points = [point(1, 1.0), point(2, 1.0), point(3, 1.0, cost_per_million_output_tokens_usd=90.0), point(4, 0.9)]
    assert cost_by_limit(points, "ttft", 0.95) == [(1, 100), (2, 50), (4, 25)]


def test_the_cost_curve_reads_the_percentile_of_the_attainment() -> None:
    points = [point(1, 1.0, p90_ttft_ms=3.0, p99_ttft_ms=9.0)]
    assert cost_by_limit(points, "ttft", 0.9) == [(3.0, 100)]
    assert cost_by_limit(points, "ttft", 0.99) == [(9.0, 100)]
    assert cost_by_limit([point(1, 1.0, cost_per_million_output_tokens_usd=None)], "ttft", 0.9) == []


async def test_a_server_that_dies_during_a_sweep_leaves_the_points_before() -> None:
    server = Server(knee=100.0)

    async def run_point(scenario: Scenario, seed: int) -> dict[str, Any]:
        if len(server.asked) == 3:
            raise EndpointError("it is gone")
        return await server.run_point(scenario, seed)

    result = await sweep(SCENARIO, OPTIONS, run_point)
    assert (result["is_interrupted"], result["ended_by"], len(result["points"])) == (True, "it is gone", 3)
    assert result["knee"]["request_rate"] == 4.0
    with pytest.raises(EndpointError):
        await sweep(SCENARIO, OPTIONS, run_point)
