"""The rule of compile times is the fit of its rows, and its band is theirs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from neuronserve.server.cost.compile_time import ROWS, compile_time, rule
from neuronserve.server.models.sizes import DecoderSizes
from tests.cost.pricing import SMALL

DENSE = [row for row in ROWS if not row.is_mixture]
SIZES = DecoderSizes(32, 4096, 14336, 32, 8, 128, 128256)
LLAMA_8B = SIZES.spec("LlamaForCausalLM", 4096)


def test_the_rule_is_the_least_squares_fit_of_the_dense_rows() -> None:
    design = np.array([[1, np.log(row.billions / row.cores)] for row in DENSE])
    values = np.array([np.log(row.seconds / row.layers) for row in DENSE])
    (start, power), *_ = np.linalg.lstsq(design, values, rcond=None)
    assert (rule().rate, rule().power) == pytest.approx((np.exp(start), power))


def test_the_band_is_what_rows_are_off_when_they_are_left_out() -> None:
    ratios = []
    for left_out in DENSE:
        others = [row for row in DENSE if row is not left_out]
        xs, ys = np.log([row.per_core for row in others]), np.log([row.seconds / row.layers for row in others])
        power, start = np.polyfit(xs, ys, 1)
        predicted = np.exp(start + power * np.log(left_out.per_core)) * left_out.layers
        ratios.append(np.log(left_out.seconds / predicted))
    assert rule().dense == pytest.approx(tuple(np.exp(np.quantile(ratios, [0.1, 0.9]))))
    low, high = rule().dense
    assert sum(low <= np.exp(ratio) <= high for ratio in ratios) / len(DENSE) == pytest.approx(0.8, abs=0.05)


def test_the_figure_of_a_model_that_was_measured_and_how_graphs_and_cores_change_it() -> None:
    two, many = compile_time(LLAMA_8B, 2, 2), compile_time(LLAMA_8B, 2, 14)
    assert all(two.low_s < seconds < two.high_s for seconds in (275, 426))  # of models of its size at its degree
    assert two.nearest.layers * two.nearest.per_core > 50
    assert two.low_s < two.seconds < two.high_s
    assert (many.low_s, many.high_s) == pytest.approx((two.low_s, 7 * two.high_s))
    assert many.seconds == pytest.approx(two.seconds * 7**0.5)
    assert compile_time(LLAMA_8B, 8, 2).seconds < two.seconds


def test_mixtures_have_their_own_rows_and_what_is_beyond_all_rows_says_so() -> None:
    mixture = dataclasses.replace(SIZES, num_experts=8, experts_per_token=2).spec()
    assert "mixtures" in compile_time(mixture, 8, 2).basis
    assert compile_time(mixture, 8, 2).nearest.is_mixture
    assert compile_time(SMALL, 1, 2).basis.startswith("outside of the measured range")
    assert compile_time(LLAMA_8B, 2, 2).basis.startswith("rough")
