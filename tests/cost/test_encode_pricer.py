"""Time of encoder steps on the accelerator: batches of a compiled length, shared by their texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.calibrate.encoder_decoder import CrossAttention
from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.clock import NS
from neuronserve.server.cost.encode_pricer import EncodePricer
from neuronserve.server.cost.meter import Meter
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import instance
from neuronserve.server.types import (
    Encoding,
    MediaItem,
    PoolingParams,
    SamplingParams,
    ScheduledSeq,
    StepPlan,
    TokenEvent,
)
from tests.cost.pricing import small_pricer

MODEL = resolve_shape("bge-base-en-v1.5")
COST = CostModel.of(MODEL, instance("inf2.xlarge"), 1, Runtime("bf16"))
BUCKETS = (128, 256, 512)


def plan_of(lengths: list[int]) -> StepPlan:
    seqs = tuple(
        ScheduledSeq(str(i), (1,) * n, 0, (), False, SamplingParams(0), (), n, pooling=PoolingParams())
        for i, n in enumerate(lengths)
    )
    return StepPlan(1, seqs, (), admitted=tuple(seq.request_id for seq in seqs), is_pooled=True)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=16))
def test_the_shares_of_a_step_are_its_graphs(lengths: list[int]) -> None:
    charge = EncodePricer(COST, 16, BUCKETS).charge(plan_of(lengths))
    want_ns = want_cells = 0
    for low, bucket in zip((0, *BUCKETS), BUCKETS, strict=False):
        if count := sum(low < length <= bucket for length in lengths):
            batch = 1 << (count - 1).bit_length()
            want_ns += round(COST.encode(batch, bucket).elapsed_s * NS)
            want_cells += batch * bucket
    assert sum(charge.shares_ns) == charge.ns == want_ns
    assert sum(run.num_tokens + run.num_padding for run in charge.runs) == want_cells
    assert [run.num_tokens for run in charge.runs] == lengths


def test_a_batch_is_cheaper_than_its_texts_one_by_one() -> None:
    pricer = EncodePricer(COST, 16, BUCKETS)
    assert pricer.charge(plan_of([100] * 8)).ns < 8 * pricer.charge(plan_of([100])).ns


def test_batches_end_at_the_compiled_one() -> None:
    charge = EncodePricer(COST, 6, BUCKETS).charge(plan_of([100] * 6))
    assert charge.ns == round(COST.encode(6, 128).elapsed_s * NS)


def test_a_classifier_returns_scores_in_place_of_vectors() -> None:
    plan = plan_of([100] * 4)
    vectors, scores = (
        EncodePricer(COST, 16, BUCKETS, is_labelled=labelled).charge(plan).ns for labelled in (False, True)
    )
    assert scores == round(COST.encode(4, 128, is_labelled=True).elapsed_s * NS) < vectors


def test_passes_that_sequences_wait_for_are_charged_to_who_came_first() -> None:
    pricer, encoder, meter = small_pricer(), EncodePricer(COST, 1, BUCKETS), Meter()
    pricer.encode = encoder.run
    items = [MediaItem(bytes([n]), 0, n, b"", (n,)) for n in (100, 200, 90)]
    plan = StepPlan(1, (), (), encodings=tuple(Encoding(each.digest, each, (), str(i)) for i, each in enumerate(items)))
    charge = pricer.charge(plan)
    meter.add(plan, charge)
    expected = [round(COST.encode(1, bucket).elapsed_s * NS) for bucket in (128, 256, 128)]
    found = meter.read([TokenEvent(str(i), None, 0, 0.0, "abort") for i in range(3)])
    assert [each.device_ns for each in found] == expected
    assert charge.ns == sum(expected)


T5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 32128, "d_model": 768}
T5_SIZES = {"d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64, "decoder_start_token_id": 0}


@pytest.mark.parametrize("tp", [1, 2])
def test_the_encoders_pass_makes_keys_and_values_and_the_decoders_step_reads_them(tmp_path: Path, tp: int) -> None:
    """The pass is that of published rows; a decode step of the decoder computes with the other projections alone."""
    (tmp_path / "config.json").write_text(json.dumps(T5 | T5_SIZES))
    spec, part = read_model_spec(tmp_path), instance("inf2.xlarge")
    encoder, decoder = CostModel.of_source(spec, part, tp, Runtime()), CostModel.of(spec, part, tp)
    found, expected = encoder.step_work.encode(512, 1, 0), CrossAttention(encoder.step_work, 512)
    alone = CostModel.of(spec.source, part, tp).step_work
    assert found == pytest.approx(CrossAttention(alone, 512).encode())
    assert decoder.step_work.core.attention_weights == 12 * (4 + 2) * 768 * 768 // tp
    assert decoder.step_work.core.attention_weights * 2 == 6 * expected.projection
    near, far = (decoder.step_work.decode(1, bucket)["kv"] for bucket in (512, 1024))
    assert near == pytest.approx(far - decoder.step_work.kv_bytes(512) * decoder.step_work.byte_s)
    assert near == pytest.approx(2 * decoder.step_work.kv_bytes(512) * decoder.step_work.byte_s)
