"""Replicas over several instances: when they are considered, their cost, and their notes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronserve.planner.model_names import resolve_decoder
from neuronserve.planner.plan.check import check_plan
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.search import plan
from neuronserve.server.cost.links import HOP_S, LINK_SHARE
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.device.catalog import instance
from neuronserve.server.device.groups import GROUP_REASON, instance_group
from neuronserve.server.errors import DeviceError, DeviceMemoryError, SettingsError

LARGE = PlanOptions("llama-3.1-405b", devices=("trn1.32xlarge",), dtypes=("bfloat16",))
SMALL = PlanOptions("llama-3.1-8b", 1000, 200, 2.0, devices=("trn1.32xlarge",), dtypes=("bfloat16",), max_batch=8)


def test_a_model_that_no_single_instance_holds_gets_as_few_as_hold_it() -> None:
    report = plan(LARGE)
    assert {row.instances_per_replica for row in report.candidates} == {4}
    assert any(entry.device == "2 x trn1.32xlarge" and entry.lacks_bytes for entry in report.excluded)
    for row in report.candidates:
        assert row.pp == 4
        assert row.instances % 4 == 0
        assert row.extrapolated == GROUP_REASON
        assert row.known.provenance == "formula"
        price = row.at_rate["on_demand"]
        assert price is not None
        assert price.hourly_usd == pytest.approx(row.instances * 21.5)


def test_one_instance_unless_it_is_needed_or_asked_for() -> None:
    assert {row.instances_per_replica for row in plan(SMALL).candidates} == {1}
    both = plan(replace(SMALL, instances_per_replica=(1, 2)))
    assert {row.instances_per_replica for row in both.candidates} == {1, 2}
    assert [row for row in both.candidates if row.instances_per_replica == 1] == list(plan(SMALL).candidates)


def test_two_instances_carry_each_no_more_than_one_alone_and_hold_half_the_weights() -> None:
    rows = {
        (row.instances_per_replica, row.batch): row
        for row in plan(replace(SMALL, instances_per_replica=(1, 2), tensor_parallel_sizes=(8,))).candidates
    }
    for batch in (1, 8):
        alone, two = rows[1, batch], rows[2, batch]
        assert two.dp == alone.dp
        assert two.saturated_output_tokens_s < 1.05 * alone.saturated_output_tokens_s
        assert two.memory_bytes < alone.memory_bytes
        assert two.known.decode.high > alone.known.decode.high
        low, high = two.known.saturated_output_tokens_s
        assert low <= two.saturated_output_tokens_s <= high
        assert two.known.instances[0] is not None
        assert two.known.instances[0] <= two.instances


def test_a_part_without_a_network_for_it_is_left_out_with_the_reason() -> None:
    report = plan(replace(LARGE, devices=("inf2.48xlarge", "trn1.32xlarge")))
    left_out = [entry for entry in report.excluded if entry.tp is None]
    assert [entry.device for entry in left_out] == ["2 x inf2.48xlarge", "4 x inf2.48xlarge"]
    assert all("has no Elastic Fabric Adapter" in entry.reason for entry in left_out)
    with pytest.raises(DeviceMemoryError, match=r"inf2.48xlarge has no Elastic Fabric Adapter$"):
        plan(replace(LARGE, devices=("inf2.48xlarge",)))


def test_the_first_stage_of_another_instance_waits_for_the_groups_link() -> None:
    model, group = resolve_decoder("llama-3.1-8b"), instance_group(instance("trn2.48xlarge"), 2)
    near, far = (PipelineModel.of(model, place, 8, 4).decode(1, 2048) for place in (group.instance, group))
    row = model.hidden_size * 2
    link = group.instance.link
    assert link is not None
    over_efa = 15e-6 + row / (
        400e9 * 8 / 64 * LINK_SHARE
    )  # the peak of 3,200 Gbps, of which 8 of 64 cores have a share
    over_neuronlink = HOP_S + row / (link.gib_s_per_chip * 2**30 * LINK_SHARE)
    assert far.elapsed_s - near.elapsed_s == pytest.approx(over_efa - over_neuronlink)  # at one of three boundaries


def test_an_ultraserver_link_is_faster_than_the_network() -> None:
    model = resolve_decoder("llama-3.1-405b")
    groups = (instance_group(instance(name), 2) for name in ("trn2.48xlarge", "trn2u.48xlarge"))
    efa, neuronlink = (PipelineModel.of(model, group, 64, 2).prefill(4096, 4096).elapsed_s for group in groups)
    assert neuronlink < efa


@pytest.mark.parametrize(("tp", "stages"), [(32, 3), (32, 4), (16, 6)])
def test_stages_that_do_not_lie_evenly_on_the_instances_are_refused(tp: int, stages: int) -> None:
    group = instance_group(instance("trn1.32xlarge"), 2)
    with pytest.raises(
        DeviceError, match=rf"{tp} x pipeline_parallel_size {stages} needs|as many stages of {tp} cores"
    ):
        PipelineModel.of(resolve_decoder("llama-3.1-8b"), group, tp, stages)


def test_groups_are_not_simulated_and_no_number_of_instances_is_refused() -> None:
    assert check_plan(plan(LARGE)) == ()
    with pytest.raises(SettingsError, match=r"instances_per_replica is \(0,\)"):
        replace(LARGE, instances_per_replica=(0,))
