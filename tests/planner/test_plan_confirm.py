"""The first row of a plan is simulated before it is recommended, and one that misses its limits is replaced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from neuronserve.planner.command import View, run_plan
from neuronserve.planner.plan import confirm
from neuronserve.planner.plan.check import simulate_candidate
from neuronserve.planner.plan.confirm import confirmed, simulated
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.recommendation import first_lines
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.search import plan, resized
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.stacks import STACK_NAMES

ASKED = PlanOptions("llama-8b", 1000, 200, 5.0, devices=("inf2.xlarge", "inf2.48xlarge"), ttft_p95_s=2.0, tpot_s=0.05)


@pytest.fixture(scope="module")
def planned() -> PlanReport:
    return plan(ASKED)


def test_the_first_row_is_simulated_and_shows_its_percentiles_and_verdict(planned: PlanReport) -> None:
    report = confirmed(planned)
    assert report.best is not None
    found = report.best.simulated
    assert found is not None
    assert found.misses == ()
    assert found.ttft_s.p50 <= found.ttft_s.p95 <= min(2.0, found.ttft_s.p99)
    assert found.used.keys() == {"TTFT p95", "TPOT"}
    assert "holds the limits, " in " ".join(first_lines(report))
    assert f"{found.ttft_s.p95 * 1e3:.0f}"[:3] in " ".join(first_lines(report))
    assert all(row.simulated is None for row in report.candidates[1:])


def test_the_same_plan_gives_the_same_simulation(planned: PlanReport) -> None:
    assert simulated(planned, planned.candidates[0]) == simulated(planned, planned.candidates[0])


def test_a_row_that_misses_gets_more_instances_and_then_its_place_is_that_of_its_cost() -> None:
    report = plan(replace(ASKED, devices=("inf2.xlarge",), stack="nxd-static", max_batch=1, dtypes=("bfloat16",)))
    first = report.candidates[0]
    assert first.meets_slo
    few = resized(report, first, 1)
    assert few == first  # never fewer than the formulas need
    tight = 0.9 * simulated(report, first).ttft_s.p99
    asked = replace(report.options, ttft_p95_s=None, ttft_p99_s=tight, tpot_s=None)
    missing = replace(report, options=asked, candidates=(first,))  # planned for another limit
    assert simulated(missing, first).misses[0].startswith("TTFT p99 misses its limit by ")
    found = confirmed(missing).candidates[0]
    assert found.instances > first.instances
    assert found.simulated is not None
    assert found.simulated.misses == ()


def test_a_row_that_no_number_of_instances_saves_goes_behind_the_others(planned: PlanReport) -> None:
    first, second = planned.candidates[:2]
    rows = tuple(replace(row, misses=()) for row in (first, second))
    impossible = replace(planned, options=replace(ASKED, ttft_p95_s=None, tpot_s=1e-6), candidates=rows)
    found = confirmed(impossible)
    assert found.best is None
    assert all(row.misses for row in found.candidates)


def test_a_row_that_cannot_be_simulated_says_why() -> None:
    options = replace(ASKED, devices=("inf2.48xlarge",), tensor_parallel_sizes=(4,), pipeline_parallel_sizes=(2,))
    report = confirmed(plan(options))
    assert report.best is not None
    assert report.best.simulated is None
    assert "Not simulated: pipeline_parallel_size is 2: a simulation has one stage." in " ".join(first_lines(report))


def test_a_large_deployment_is_simulated_in_part() -> None:
    report = plan(replace(ASKED, request_rate=500.0))
    best = confirmed(report).best
    assert best is not None
    assert best.simulated is not None
    assert 0 < best.simulated.instances < best.instances
    slots = best.simulated.instances * best.dp * best.batch
    assert slots <= max(confirm.MOST_SLOTS, best.dp * best.batch)
    assert f"on {best.simulated.instances} of {best.instances} instances" in " ".join(first_lines(confirmed(report)))


def test_the_command_prints_and_writes_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.json"
    run_plan(replace(ASKED, chip_watts=150.0, grid_g_per_kwh=380.0), target, None, View(wide=True))
    shown = " ".join(capsys.readouterr().out.split())
    assert "p50/p95/p99: TTFT " in shown
    assert "gCO2e" in shown
    row = json.loads(target.read_text())["candidates"][0]
    assert row["simulated"]["ttft_s"].keys() == {"mean", "p50", "p95", "p99"}
    assert row["simulated"]["used"]["TTFT p95"] <= 1
    assert row["grams_per_million_tokens"] > 0


QUESTIONS = 15


@pytest.mark.thorough
@pytest.mark.parametrize("stack", STACK_NAMES)
def test_fourteen_of_fifteen_recommendations_hold_in_a_longer_simulation_of_other_arrivals(stack: StackName) -> None:
    random, held, asked = Random(f"{stack} confirmed"), 0, 0
    while asked < QUESTIONS:
        options = PlanOptions(
            random.choice(("llama-8b", "qwen-7b", "llama-70b")),
            int(2 ** random.uniform(5, 11)),
            int(2 ** random.uniform(4, 9)),
            2 ** random.uniform(-1, 5),
            stack=stack,
            ttft_p95_s=2 ** random.uniform(-1, 3),
            tpot_p95_s=2 ** random.uniform(-5.5, -3.5),
        )
        report = confirmed(plan(options))
        best = report.best
        if best is None or best.instances * best.dp * best.batch > 4_000:
            continue
        asked += 1
        found = simulate_candidate(report, best, seed=1)
        ttft_ms, tpot_ms = (times[len(times) // 5 :] for times in (found.ttft_ms, found.tpot_ms))
        assert options.ttft_p95_s is not None
        assert options.tpot_p95_s is not None
        is_held = sorted(ttft_ms)[int(0.95 * len(ttft_ms))] <= options.ttft_p95_s * 1e3
        held += is_held and sorted(tpot_ms)[int(0.95 * len(tpot_ms))] <= options.tpot_p95_s * 1e3
    assert held >= QUESTIONS - 1
