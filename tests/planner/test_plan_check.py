"""The plan and the simulation of a deployment agree, over models, lengths, rates and limits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from neuronserve.planner.command import View, run_plan
from neuronserve.planner.plan.check import Agreement, agreement, check_plan, simulate_candidate, simulation_of
from neuronserve.planner.plan.confirm import simulated
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.search import plan
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.stacks import STACK_NAMES
from tests.depth import representative

GRID = list(product(("llama-1b", "qwen-7b", "llama-70b"), ((200, 50), (1000, 250), (100, 600)), (0.5, 8.0)))
LIMIT = 0.10


def errors(check: tuple[Agreement, ...]) -> dict[str, float]:
    return {one.name: one.error for one in check}


@pytest.mark.parametrize(("model", "lengths", "rate"), representative(GRID, GRID[0], GRID[7]))
def test_the_chosen_configuration_does_in_a_simulation_what_was_planned(
    model: str, lengths: tuple[int, int], rate: float
) -> None:
    found = errors(check_plan(plan(PlanOptions(model, *lengths, rate, ttft_s=3.0, tpot_s=0.1))))
    for name in ("tpot_s", "output_tokens_s", "usd_per_million_tokens"):
        assert abs(found[name]) <= LIMIT, (name, found)
    assert -0.4 <= found["ttft_s"] <= 0.4, found


def test_so_does_one_with_drafts_from_the_text() -> None:
    drafts = {"speculative_method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.8}
    found = errors(check_plan(plan(PlanOptions("llama-1b", 200, 400, 0.5, ttft_s=3.0, tpot_s=0.1, **drafts))))  # type: ignore[arg-type]
    assert abs(found["tpot_s"]) <= LIMIT, found


STACKED = list(product(STACK_NAMES, ((1000, 250), (100, 600))))


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "lengths"), representative(STACKED, *STACKED[1::2]))
def test_so_does_one_of_each_stack(stack: StackName, lengths: tuple[int, int]) -> None:
    report = plan(PlanOptions("llama-8b", *lengths, 1.0, ttft_s=3.0, tpot_s=0.1, stack=stack))
    assert report.best is not None
    options = simulation_of(report, report.best)
    assert (options.stack, options.decode_buckets) == (stack, None)
    found = errors(check_plan(report))
    assert all(abs(error) <= LIMIT for name, error in found.items() if name != "ttft_s"), found
    assert abs(found["ttft_s"]) <= (0.5 if stack == "nxd-static" else 0.4), (
        found
    )  # a lone static replica begins at once


@pytest.mark.parametrize("stack", STACK_NAMES)
def test_every_stack_does_in_a_simulation_what_was_planned(stack: StackName) -> None:
    """The load is 60 % of one instance with three groups of 16 slots."""
    asked = PlanOptions("llama-8b", 700, 200, 1.0, devices=("inf2.48xlarge",), tensor_parallel_sizes=(8,), stack=stack)
    one = replace(asked, dtypes=("bfloat16",), max_batch=16)
    (most,) = (row.saturated_output_tokens_s / 200 for row in plan(one).candidates if row.batch == 16)
    report = plan(replace(one, request_rate=0.6 * most))
    (row,) = (row for row in report.candidates if row.batch == 16)
    found = errors(agreement(report, row, simulate_candidate(report, row)))
    assert all(abs(error) <= LIMIT for name, error in found.items() if name != "ttft_s"), found
    assert abs(found["ttft_s"]) <= 0.25, found


@pytest.mark.parametrize("dtype", representative(["bfloat16", "int8"], "int8"))
def test_so_do_others_than_the_chosen_one(dtype: str) -> None:
    report = plan(PlanOptions("llama-8b", 700, 200, 4.0, 2.0, 0.06, devices=("inf2.48xlarge", "trn1.32xlarge")))
    for candidate in [c for c in report.candidates if c.meets_slo and c.dtype == dtype][:3]:
        found = errors(agreement(report, candidate, simulate_candidate(report, candidate)))
        assert all(abs(error) <= LIMIT for name, error in found.items() if name != "ttft_s"), (candidate, found)


def test_one_replica_waits_as_planned() -> None:
    report = plan(PlanOptions("llama-8b", 700, 200, 0.3, devices=("inf2.xlarge",), max_batch=4))
    one = next(c for c in report.candidates if c.instances == c.dp == 1 and c.batch == 4 and c.load < 0.6)
    assert abs(errors(agreement(report, one, simulate_candidate(report, one)))["ttft_s"]) <= 0.25


def test_the_simulated_deployment_is_the_planned_one() -> None:
    report = plan(PlanOptions("llama-8b", 1000, 200, 5.0, 2.0, 0.05))
    best = report.best
    assert best is not None
    options = simulation_of(report, best)
    assert (options.instance, options.tensor_parallel_size, options.data_parallel_size) == (
        best.device,
        best.tp,
        best.dp,
    )
    assert (options.replicas, options.max_num_seqs) == (best.instances, best.batch)
    assert options.max_model_len == report.buckets.decode
    assert simulate_candidate(report, best).failed == 0


def test_a_recommendation_is_simulated_with_all_of_its_slots() -> None:
    report = plan(PlanOptions("llama-8b", 900, 256, devices=("inf2.xlarge",), dtypes=("bfloat16",)))
    row = report.candidates[0]
    found, whole = simulated(report, row), simulate_candidate(report, row)
    assert row.batch == 32
    assert found.ttft_s.p50 == pytest.approx(float(np.median(whole.ttft_ms)) / 1e3, rel=0.05)


def test_nothing_within_the_limits_is_nothing_to_simulate() -> None:
    assert check_plan(plan(PlanOptions("llama-70b", 1000, 200, 1.0, 1e-6, 1e-6))) == ()


def test_the_command_prints_and_writes_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.json"
    options = PlanOptions("llama-1b", 200, 100, 1.0, devices=("inf2.xlarge",))
    run_plan(options, target, None, View(check=True))
    assert "simulated" in capsys.readouterr().out
    check = {entry["name"]: entry for entry in json.loads(target.read_text())["check"]}
    assert check["tpot_s"].keys() == {"name", "planned", "simulated", "error"}
    assert abs(check["output_tokens_s"]["error"]) <= LIMIT
