"""Models with stand-in layers: published times that no fit saw, beside predictions and their bands."""

from __future__ import annotations

import re
from math import exp
from statistics import median

import pytest

from neuronserve.server.cost.calibration import shipped_calibration
from neuronserve.server.cost.evidence import Phase
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.cost.shape import cached_positions
from neuronserve.server.cost.spread import interval
from neuronserve.server.cost.stand_ins import series_errors, steps, steps_of
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.public import candidates
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.stand_in import DeltaNetConfig, GlobalHeadsConfig

CALIBRATION = shipped_calibration()
DELTA_NET = DeltaNetConfig.reason


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
    errors = series_errors(DELTA_NET, phase, CALIBRATION)
    assert len(errors) == 9
    held = 0
    for own, error in errors.items():
        low, high = interval(value for series, value in errors.items() if series != own)
        held += low <= error <= high
    assert held >= least


def test_a_planned_step_has_the_band_of_these_rows_and_says_why() -> None:
    model = PipelineModel.of(of("Qwen3.5-27B"), instance("trn2.48xlarge"), 8, 1, Runtime())
    band = model.band("decode", 1, 512)
    low, high = map(exp, interval(series_errors(DELTA_NET, "decode", CALIBRATION).values()))
    assert band.low < low
    assert band.high > high
    assert (band.provenance, band.num_rows) == ("formula", 10)
    assert "gated DeltaNet is priced as attention" in model.decode(1, 512).extrapolated


def test_global_heads_of_one_series_have_a_factor_of_two_on_both_sides() -> None:
    """Three rows of Gemma 4 31B: decode is within a quarter, and a prompt of 8,192 takes ten times the formula's."""
    rows = steps_of(GlobalHeadsConfig.reason)
    assert {row.model for row in rows} == {"gemma-4-31b-it"}
    assert all(0.75 < row.error("decode", CALIBRATION) < 1.25 for row in rows)
    band = PipelineModel.of(of("gemma-4-31b-it"), instance("trn2.3xlarge"), 4, 1, Runtime()).band("decode", 1, 4096)
    assert band.low < 0.5
    assert band.high >= 2
    assert band.num_rows == 3


def test_only_layers_that_attend_have_a_cache_that_grows() -> None:
    model = of("Qwen3.5-27B")
    assert cached_positions(model, 4096) == 16 * 4096 + 48
    cost = CostModel.of(model, instance("trn2.48xlarge"), 8, Runtime(is_continuous=False))
    growth = cost.step_work.decode(1, 8192)["kv"] - cost.step_work.decode(1, 4096)["kv"]
    assert growth == pytest.approx(16 * 4096 * 2 * 1 * 256 * 2 * cost.step_work.byte_s)  # of one KV head on a core


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
