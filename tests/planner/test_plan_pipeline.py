"""Pipeline stages in a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronserve.planner.plan.check import check_plan, simulation_of
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.queueing import Replica
from neuronserve.planner.plan.search import plan
from neuronserve.server.cost.pipeline import PIPELINE_REASON
from neuronserve.server.errors import DeviceError, SettingsError

BASE = PlanOptions("llama-8b", 1000, 200, 2.0, devices=("inf2.xlarge", "inf2.48xlarge"), max_batch=16)
PIPED = replace(BASE, pipeline_parallel_sizes=(1, 2, 4))


def test_one_stage_unless_asked() -> None:
    assert {row.pp for row in plan(BASE).candidates} == {1}
    assert {row.bubble for row in plan(BASE).candidates} == {0.0}


def test_stages_share_the_instance_and_the_weights() -> None:
    report = plan(PIPED)
    rows = {(row.device, row.tp, row.pp, row.dtype, row.batch): row for row in report.candidates}
    one, two = (rows["inf2.48xlarge", 4, stages, "bfloat16", 8] for stages in (1, 2))
    assert (one.dp, two.dp) == (6, 3)
    assert two.memory_bytes < 0.75 * one.memory_bytes
    assert PIPELINE_REASON in two.extrapolated
    assert PIPELINE_REASON not in one.extrapolated
    assert two.ttft_s > 0
    assert 0 < two.bubble < 0.2


def test_a_model_too_large_for_its_group_fits_on_two() -> None:
    small = replace(PIPED, devices=("inf2.xlarge",), dtypes=("bfloat16",), tensor_parallel_sizes=(1,))
    report = plan(small)
    assert {row.pp for row in report.candidates} == {2}
    assert {(entry.pp, entry.lacks_bytes is None) for entry in report.excluded} == {(1, False), (4, True)}
    assert "4 stages of 1 NeuronCores are more than its 2" in {entry.reason for entry in report.excluded}


def test_rows_without_stages_are_what_they_were() -> None:
    assert [row for row in plan(PIPED).candidates if row.pp == 1] == list(plan(BASE).candidates)


def test_prompts_follow_each_other_through_the_stages() -> None:
    whole, piped = Replica(0.2, 0.02, 8, 101), Replica(0.1, 0.02, 8, 101, later_stages_s=0.1)
    assert piped.at(0).ttft_s == whole.at(0).ttft_s == pytest.approx(0.2)
    assert piped.saturation > whole.saturation
    rate = 0.8 * whole.saturation
    assert piped.at(rate).ttft_s < whole.at(rate).ttft_s


def test_stages_are_not_simulated() -> None:
    report = plan(PIPED)
    two = next(row for row in report.candidates if row.pp == 2)
    with pytest.raises(DeviceError, match="pipeline_parallel_size is 2: a simulation has one stage"):
        simulation_of(report, two)
    only = plan(replace(BASE, pipeline_parallel_sizes=(2,)))
    assert only.best is not None
    assert check_plan(only) == ()


def test_no_number_of_stages_is_refused() -> None:
    for sizes in ((), (0,), (2, -1)):
        with pytest.raises(SettingsError, match="pipeline_parallel_sizes is"):
            replace(BASE, pipeline_parallel_sizes=sizes)
    with pytest.raises(DeviceError, match="pipeline_parallel_size is 64: from 1 to the model's 32 layers"):
        plan(replace(BASE, pipeline_parallel_sizes=(64,), devices=("inf2.xlarge",), tensor_parallel_sizes=(1,)))
