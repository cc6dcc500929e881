"""Pipeline stages: where they lie, what passes between them, and the bubbles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pipeline import PIPELINE_REASON, PipelineModel, stage_layers
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import DeviceError
from neuronserve.server.models.layer import ExpertsSpec, NetworkSpec
from neuronserve.server.models.sizes import DecoderSizes
from tests.model_specs import network_of

SHAPE = DecoderSizes(80, 8192, 28_672, 64, 8, 128, 128_256).spec()
BIG = instance("inf2.48xlarge")


def model(tp: int, stages: int) -> PipelineModel:
    return PipelineModel.of(SHAPE, BIG, tp, stages)


def test_layers_are_spread_evenly_and_the_first_stage_has_no_more_than_others() -> None:
    assert stage_layers(80, 4) == (20, 20, 20, 20)
    assert stage_layers(10, 4) == (2, 2, 3, 3)
    for stages in (0, 11):
        with pytest.raises(DeviceError, match=f"pipeline_parallel_size is {stages}: from 1 to the model's 10 layers"):
            stage_layers(10, stages)


def test_one_stage_is_the_cost_model_itself() -> None:
    plain, piped = CostModel.of(SHAPE, BIG, 8), model(8, 1)
    assert piped.decode(16, 4096).elapsed_s == plain.decode(16, 4096).elapsed_s
    assert piped.prefill(1000, 1024).elapsed_s == piped.prefill(1000, 1024).interval_s
    assert piped.prefill(1000, 1024).elapsed_s == plain.prefill(1000, 1024).elapsed_s
    assert piped.decode(16, 4096).bubble == piped.prefill(1000, 1024).bubble == 0.0
    assert piped.decode(16, 4096).extrapolated == ""


def test_stages_are_always_marked_as_extrapolated() -> None:
    assert model(8, 2).decode(16, 4096).extrapolated == PIPELINE_REASON
    assert model(8, 3).prefill(100, 128).extrapolated == PIPELINE_REASON


def test_stages_do_the_work_of_the_whole_model_once() -> None:
    whole, parts = CostModel.of(SHAPE, BIG, 8).prefill(1024, 1024), model(8, 2).prefill(1024, 1024)
    assert sum(stage.flops for stage in parts.stages) == pytest.approx(whole.flops)
    assert parts.stages[0].flops > parts.stages[1].flops  # the output layer is the first stage's
    assert parts.elapsed_s > whole.elapsed_s  # the same work, one part after the other, and what passes between
    assert parts.interval_s < 0.6 * whole.elapsed_s  # but the next prompt follows half as far behind


def test_steps_follow_each_other_after_the_slowest_stage() -> None:
    piped, whole = model(8, 2), CostModel.of(SHAPE, BIG, 8)
    steps = piped.steps()
    decode, behind = steps.decode(16, 4096), steps.prefill(512, 512, 1024, True)
    assert decode.elapsed_s >= max(stage.decode(16, 4096).elapsed_s for stage in piped.stages)
    assert 0.5 < decode.elapsed_s / whole.decode(16, 4096).elapsed_s < 0.65
    assert decode.extrapolated == behind.extrapolated == PIPELINE_REASON
    assert behind.flops == pytest.approx(whole.prefill(512, 512, 1024, True).flops)
    assert steps.prompt_s(512) == steps.prefill(512, 512).elapsed_s < behind.elapsed_s


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("flags", [(False, *[True] * 11), (True, False) * 6, (False,) * 6 + (True,) * 6])
def test_layers_with_experts_stay_where_they_are(flags: tuple[bool, ...], stages: int) -> None:
    layer = SHAPE.layers[0]
    experts, dense = ExpertsSpec(8, 2, network_of(SHAPE)), NetworkSpec(9000)
    mixed = SHAPE.with_layers(tuple(replace(layer, feed_forward=experts if flag else dense) for flag in flags))
    whole = CostModel.of(mixed, BIG, 4).prefill(1024, 1024)
    parts = PipelineModel.of(mixed, BIG, 4, stages).prefill(1024, 1024).stages
    assert sum(stage.flops for stage in parts) == pytest.approx(whole.flops)
    assert sum(stage.hbm_bytes for stage in parts) == pytest.approx(whole.hbm_bytes)


def test_a_step_is_a_passage_of_every_micro_batch() -> None:
    piped = model(8, 2)
    step = piped.decode(32, 4096)
    stages = [stage.decode(16, 4096).elapsed_s for stage in piped.stages]
    assert step.elapsed_s >= 2 * max(stages)
    assert step.elapsed_s == pytest.approx(2 * max(stages), rel=0.05)
    assert 0 < step.bubble < 0.05  # the other stage waits for the output layer


def test_fewer_slots_than_stages_leave_them_idle() -> None:
    bubbles = [model(8, 3).decode(batch, 2048).bubble for batch in (1, 2, 3)]
    assert bubbles[0] == pytest.approx(2 / 3, abs=0.02)
    assert bubbles[1] == pytest.approx(1 / 3, abs=0.03)
    assert bubbles[2] < 0.05


def test_what_passes_between_stages_takes_time_on_the_links() -> None:
    slow = replace(BIG, link=replace(BIG.link, gib_s_per_chip=1.0))  # type: ignore[type-var]
    assert PipelineModel.of(SHAPE, slow, 2, 4).prefill(4096, 4096).elapsed_s > model(2, 4).prefill(4096, 4096).elapsed_s


def test_more_cores_than_there_are_is_refused() -> None:
    with pytest.raises(DeviceError, match="tensor_parallel_size 8 x pipeline_parallel_size 4 needs 32 NeuronCores"):
        model(8, 4)
