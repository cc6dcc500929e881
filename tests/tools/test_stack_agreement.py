"""The tool that holds plan and simulation against each other says the errors of both."""

from __future__ import annotations

import pytest

from neuronserve.planner.plan.check import simulate_candidate
from tools.stack_agreement import SHAPES, errors, quantiles_s


def test_errors_are_of_the_plan_relative_to_the_simulation() -> None:
    shape = SHAPES[1]
    report, row = shape.planned("ideal", 0.3)
    assert row.load == pytest.approx(0.3)
    found, simulated = errors(shape, "ideal", 0.3), quantiles_s(simulate_candidate(report, row))
    assert set(found) == {"tpot_s", "ttft_s", "output_tokens_s", *row.quantiles_s}
    assert row.quantiles_s["TTFT p95"] == pytest.approx((1 + found["TTFT p95"]) * simulated["TTFT p95"])
    assert abs(found["output_tokens_s"]) < 0.05
