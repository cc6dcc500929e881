"""Published pairs with and without a feature: predictions beside them, and the bands that follow."""

from __future__ import annotations

import re
from itertools import pairwise
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.plan.pairs import (
    PricedPair,
    SpeculativeBands,
    left_out,
    pairs,
    priced_pairs,
    series_errors,
)
from neuronserve.server.cost.evidence import Band, Phase
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.cost.shape import CoreShape
from neuronserve.server.cost.speculation import METHODS, head_of
from neuronserve.server.cost.spread import interval
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.instances import INSTANCES
from neuronserve.server.models.public import known_model
from neuronserve.server.models.spec import ModelSpec

PLAIN = Band(0.9, 1.2, "measured", 5, "a step")


def known(name: str) -> ModelSpec:
    spec = known_model(name)
    assert spec is not None
    return spec


def priced(feature: str, model: str) -> PricedPair:
    return next(row for row in priced_pairs() if (row.pair.feature, row.pair.model) == (feature, model))


def test_each_row_has_a_source_at_a_commit_and_a_date() -> None:
    for pair in pairs():
        assert re.search(r"github\.com/\S+/[0-9a-f]{40}/", pair.source), pair
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", pair.date), pair
        assert pair.guesses > 0 if pair.feature in METHODS else pair.guesses == 0


def test_a_draft_model_on_the_default_accelerator_is_predicted() -> None:
    """32.1 to 13.1 ms a token, from a source whose plain row took part in no fit of speculation."""
    assert priced("draft_model", "Llama-3.1-8B-Instruct").error("tpot_ms") == pytest.approx(1, abs=0.15)


def test_tokens_per_step_that_are_not_published_give_no_error() -> None:
    row = priced("draft_model", "Llama-3.3-70B-Instruct")
    assert row.error("tpot_ms") is None
    assert row.error("ttft_ms") is not None


def test_a_parallel_head_costs_one_run_and_others_one_for_each_guess() -> None:
    assert [METHODS[name].runs(4) for name in ("draft_model", "eagle3", "p_eagle")] == [5, 4, 1]
    assert METHODS["p_eagle"].tokens_per_run(4) == 4


def test_a_head_has_the_weights_of_its_layer_and_of_what_joins_states() -> None:
    """One layer of Llama-3.1-8B, q, k and v with the embedding beside the state, and a matrix of three states."""
    target = known("Llama-3.1-8B")
    head, layer = (CoreShape.of(model, 1) for model in (head_of(target, METHODS["eagle3"]), target))
    own = (layer.attention_weights + layer.ffn_weights) / target.num_layers
    more = 4096 * (4096 + 2 * 1024) + 3 * 4096 * 4096
    assert head.attention_weights + head.ffn_weights == pytest.approx(own + more, rel=1e-3)
    assert head.head_weights == layer.head_weights


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_an_interval_contains_no_error_at_all_and_the_mean(errors: list[float]) -> None:
    low, high = interval(errors)
    assert low <= min(0.0, sum(errors) / len(errors))
    assert high >= max(0.0, sum(errors) / len(errors))


def test_few_series_give_a_wide_interval() -> None:
    wide = [interval([0.1, -0.1] * count) for count in (1, 2, 4)]
    assert all(before[1] > after[1] > 0.1 for before, after in pairwise(wide))
    assert interval([0.0]) == (-log(2), log(2))


def test_the_band_of_a_gain_joins_that_of_the_step_and_is_wider_on_a_chip_without_a_pair() -> None:
    bands = SpeculativeBands("eagle3")
    near, far = (bands.widened(PLAIN, "decode", chip) for chip in ("Trainium2", "Trainium1"))
    assert far.low < near.low < PLAIN.low
    assert far.high > near.high > PLAIN.high
    assert near.provenance == "formula"
    assert near.nearest == "Llama-3.1-8B-Instruct TP8 on trn2.48xlarge with and without eagle3"


def test_figures_under_load_follow_the_steps_they_are_made_of() -> None:
    bands, even = SpeculativeBands("eagle3"), Band(1 / 1.2, 1.2, "measured", 5, "a step")
    phases: tuple[Phase, ...] = ("decode", "prefill", "itl", "ttft", "throughput")
    decode, prefill, itl, ttft, tokens = (bands.widened(even, phase, "Trainium2") for phase in phases)
    assert (itl, ttft) == (decode, prefill)
    assert (tokens.low, tokens.high) == pytest.approx((1 / decode.high, 1 / decode.low)), "more in shorter steps"


def test_published_gains_lie_within_the_band() -> None:
    low, high = interval(series_errors("tpot_ms", priced_pairs()).values())
    errors = [error for row in priced_pairs() if (error := row.error("tpot_ms")) is not None]
    assert len(errors) >= 6
    assert all(exp(low) <= error <= exp(high) for error in errors)


def test_most_series_lie_within_the_band_of_the_others() -> None:
    for figure in ("tpot_ms", "ttft_ms"):
        held = left_out(figure, priced_pairs())  # type: ignore[arg-type]
        assert len(held) >= 4
        assert sum(held.values()) >= len(held) - 1


def test_the_published_gain_of_an_8_bit_cache_lies_between_the_formula_and_none() -> None:
    row = priced("fp8_kv", "Llama-3.1-8B-Instruct")
    published = row.pair.gain("tpot_ms")
    assert published is not None
    assert row.gain("tpot_ms") < published < 1
    part = next(each for each in INSTANCES if each.name == "inf2.xlarge")
    wide, narrow = (
        PipelineModel.of(known("Llama-3.1-8B"), part, 2, 1, Runtime(kv_bytes=kv_bytes)) for kv_bytes in (2, 1)
    )
    band, plain = narrow.band("decode", 8, 2048), wide.band("decode", 8, 2048)
    no_gain = wide.decode(8, 2048).elapsed_s / narrow.decode(8, 2048).elapsed_s
    assert band.high == pytest.approx(plain.high * no_gain)
    assert band.provenance == "formula"
