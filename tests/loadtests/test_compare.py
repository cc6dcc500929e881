"""Comparisons: interleaving, pairing, and intervals that are wide enough and no wider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuronserve.loadtests.compare import bootstrap_ratio, compare, ratio_of
from neuronserve.loadtests.errors import EndpointError, SpecError
from neuronserve.loadtests.pages import verdict
from neuronserve.loadtests.scenario import load_scenario
from neuronserve.loadtests.specs import Scenario
from tests.depth import thorough

A, B = (load_scenario(None, {"endpoint": {"base_url": f"http://{name}:1"}, "run": {"label": name}}) for name in "ab")


def result(scenario: Scenario, seed: int, **changes: Any) -> dict[str, Any]:
    factor = 1.0 if scenario is A else 2.0
    fields = {"output_throughput": factor * (10 + seed), "median_ttft_ms": 50.0, "is_interrupted": False}
    return {**fields, "is_publishable": True, "not_publishable_because": None, **changes}


async def test_rounds_are_interleaved_and_share_their_prompts() -> None:
    asked: list[tuple[str | None, int, str]] = []

    async def run_side(scenario: Scenario, seed: int, name: str) -> dict[str, Any]:
        asked.append((scenario.run.label, seed, name))
        return result(scenario, seed)

    await compare((A, B), 3, run_side)
    assert [(label, seed) for label, seed, _ in asked] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert len({name for _, _, name in asked}) == 6


async def test_a_constant_ratio_has_a_narrow_interval_though_rounds_differ() -> None:
    async def run_side(scenario: Scenario, seed: int, name: str) -> dict[str, Any]:
        return result(scenario, seed)

    found = await compare((A, B), 5, run_side)
    ratio = found["ratios"]["output_throughput"]
    assert (ratio["ratio"], ratio["low"], ratio["high"]) == pytest.approx((2.0, 2.0, 2.0))
    assert verdict(ratio) == "B better"
    assert verdict(found["ratios"]["median_ttft_ms"]) == "no difference shown"
    assert "request_goodput" not in found["ratios"]


async def test_an_interrupted_round_does_not_count() -> None:
    async def run_side(scenario: Scenario, seed: int, name: str) -> dict[str, Any]:
        return result(scenario, seed, is_interrupted=seed == 2)

    found = await compare((A, B), 5, run_side)
    assert (found["num_rounds"], found["is_interrupted"]) == (2, True)


async def test_one_late_run_spoils_the_comparison() -> None:
    async def run_side(scenario: Scenario, seed: int, name: str) -> dict[str, Any]:
        late = {"is_publishable": False, "not_publishable_because": "late"} if name == "b1" else {}
        return result(scenario, seed, **late)

    found = await compare((A, B), 2, run_side)
    assert (found["is_publishable"], found["not_publishable_because"]) == (False, "late")


async def test_an_interval_needs_two_rounds() -> None:
    async def run_side(scenario: Scenario, seed: int, name: str) -> dict[str, Any]:
        return result(scenario, seed)

    with pytest.raises(SpecError, match="rounds is 1: an interval needs at least 2"):
        await compare((A, B), 1, run_side)


def test_lower_is_better_for_latency() -> None:
    assert verdict({"low": 0.5, "high": 0.9, "more_is_better": False}) == "B better"
    assert verdict({"low": 0.5, "high": 0.9, "more_is_better": True}) == "A better"
    assert verdict({"low": 0.9, "high": 1.1, "more_is_better": True}) == "no difference shown"


@pytest.mark.parametrize("rounds", [4, thorough(5), thorough(10), thorough(30)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(rounds: int) -> None:
    """Coverage in 300 random comparisons with the true ratio 1.3. A bootstrap of few rounds is a little narrow."""
    generator = np.random.default_rng(rounds)
    covered = 0
    for seed in range(300):
        _, low, high = bootstrap_ratio(1.3 * np.exp(generator.normal(0, 0.1, rounds)), seed)
        covered += low <= 1.3 <= high
    assert 0.86 <= covered / 300 <= 0.99


def test_an_interval_of_more_rounds_is_narrower() -> None:
    generator = np.random.default_rng(1)
    widths = []
    for rounds in (5, 20, 80):
        _, low, high = bootstrap_ratio(np.exp(generator.normal(0, 0.1, rounds)))
        widths.append(high / low)
    assert widths == sorted(widths, reverse=True)


def test_a_metric_that_one_run_lacks_is_left_out() -> None:
    pairs = [({"x": 1.0}, {"x": 2.0}), ({"x": 1.0}, {"x": None})]
    assert ratio_of("x", pairs) is None
    assert ratio_of("x", []) is None


async def test_a_server_that_dies_leaves_the_rounds_before() -> None:
    async def run_side(scenario: Scenario, seed: int, name: str) -> dict[str, Any]:
        if name == "b2":
            raise EndpointError("it is gone")
        return result(scenario, seed)

    found = await compare((A, B), 5, run_side)
    assert (found["num_rounds"], found["is_interrupted"], found["ended_by"]) == (2, True, "it is gone")
