"""Models with layers that no fit saw: published times beside predictions and their bands."""

from __future__ import annotations

import re
from math import exp
from statistics import median

import pytest

from neuronserve.server.cost.calibration import shipped_calibration
from neuronserve.server.cost.evidence import Phase
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.cost.shape import HEADS_REASON, STATE_REASON, cached_positions, state_bytes, state_flops
from neuronserve.server.cost.spread import interval
from neuronserve.server.cost.stand_ins import series_errors, steps, steps_of
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.public import candidates
from neuronserve.server.models.spec import ModelSpec

CALIBRATION = shipped_calibration()


def of(name: str) -> ModelSpec:
    [row] = candidates(name)
    return row.spec


def test_each_row_has_a_source_at_a_commit() -> None:
    assert len(steps()) == 13
    assert all(re.search(r"github\.com/\S+/[0-9a-f]{40}/", step.source) for step in steps())


def test_decode_steps_whose_projections_are_divided_are_predicted() -> None:
    """Source of 2026-07: six deployments of five models. The older source has these projections whole on each core."""
    errors = [step.error("decode", CALIBRATION) for step in steps() if step.sdk == "2.31"]
    assert len(errors) == 6
    assert min(errors) > 0.7
    assert max(errors) < 1.5
    assert median(errors) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("phase", "least"), [("decode", 7), ("prefill", 6)])
def test_the_band_of_the_other_series_holds_most_of_them(phase: Phase, least: int) -> None:
    errors = series_errors(STATE_REASON, phase, CALIBRATION)
    assert len(errors) == 9
    held = 0
    for own, error in errors.items():
        low, high = interval(value for series, value in errors.items() if series != own)
        held += low <= error <= high
    assert held >= least


def test_a_planned_step_has_the_band_of_these_rows_and_says_why() -> None:
    model = PipelineModel.of(of("Qwen3.5-27B"), instance("trn2.48xlarge"), 8, 1, Runtime())
    band = model.band("decode", 1, 512)
    low, high = map(exp, interval(series_errors(STATE_REASON, "decode", CALIBRATION).values()))
    assert band.low < low
    assert band.high > high
    assert (band.provenance, band.num_rows) == ("formula", 10)
    assert STATE_REASON in model.decode(1, 512).extrapolated


def test_global_heads_of_one_series_have_a_factor_of_two_on_both_sides() -> None:
    """Three rows of Gemma 4 31B: decode is within a quarter, and a prompt of 8,192 takes ten times the formula's."""
    rows = steps_of(HEADS_REASON)
    assert {row.model for row in rows} == {"gemma-4-31b-it"}
    assert all(0.75 < row.error("decode", CALIBRATION) < 1.25 for row in rows)
    band = PipelineModel.of(of("gemma-4-31b-it"), instance("trn2.3xlarge"), 4, 1, Runtime()).band("decode", 1, 4096)
    assert band.low < 0.5
    assert band.high >= 2
    assert band.num_rows == 3


def test_only_layers_that_attend_have_a_cache_that_grows() -> None:
    model = of("Qwen3.5-27B")
    assert cached_positions(model, 4096) == 16 * 4096
    cost = CostModel.of(model, instance("trn2.48xlarge"), 8, Runtime(is_continuous=False))
    growth = cost.step_work.decode(1, 8192)["kv"] - cost.step_work.decode(1, 4096)["kv"]
    assert growth == pytest.approx(16 * 4096 * 2 * 1 * 256 * 2 * cost.step_work.byte_s)  # of one KV head on a core


def test_each_step_reads_and_writes_the_states_of_its_sequences() -> None:
    """Qwen3.5-27B on 8 cores: 48 layers with 6 of 48 value heads, 2 of 16 key heads, all of 128, and a window of 4."""
    model = of("Qwen3.5-27B")
    states = 48 * (6 * 128 * 128 * 4 + (6 + 2 + 2) * 128 * 3 * 2)
    assert state_bytes(model, 8) == states
    work = CostModel.of(model, instance("trn2.48xlarge"), 8, Runtime(is_continuous=False)).step_work
    keys = 16 * 4096 * 2 * 256 * 2
    assert work.decode(3, 4096)["kv"] == pytest.approx(3 * (keys + 2 * states) * work.byte_s)
    assert work.prefill(512)["kv"] == pytest.approx(2 * states * work.byte_s)
    per_token = 48 * (6 * 7 * 128 * 128 + 2 * 4 * (6 + 2 + 2) * 128)
    assert state_flops(model, 8) == per_token
    assert state_flops(model, 8, chunk=64) == per_token + 48 * 6 * 2 * 64 * 5 * 128
    assert state_bytes(of("Qwen3-32B"), 8) == state_flops(of("Qwen3-32B"), 8) == 0


def test_stages_without_attention_are_priced() -> None:
    model, part = of("Qwen3.5-27B"), instance("trn2.48xlarge")
    whole = PipelineModel.of(model, part, 1, 1, Runtime()).decode(1, 4096)
    stages = PipelineModel.of(model, part, 1, 64, Runtime()).decode(1, 4096)
    assert len(stages.stages) == 64
    assert sum(each.flops for each in stages.stages) == pytest.approx(
        sum(each.flops for each in whole.stages), rel=0.01
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-oss-20b", 12 * 4096 + 12 * 128),  # NxD Inference caches the window of every second layer
        ("Mistral-7B-v0.1", 32 * 4096),
        ("gemma-3-27b-it", 62 * 4096),  # its windows are masks there
        ("llama-3.1-8b", 32 * 4096),
    ],
)
def test_a_window_shortens_the_cache_where_the_software_keeps_only_the_window(name: str, expected: int) -> None:
    assert cached_positions(of(name), 4096) == expected


def test_a_longer_graph_reads_no_more_of_a_window() -> None:
    model = of("Mistral-7B-v0.1")
    assert cached_positions(model, 16_384) == cached_positions(model, 4096) == 32 * 4096
