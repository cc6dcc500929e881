"""Time of encoder steps on the accelerator: batches of a compiled length, shared by their texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.clock import NS
from neuronserve.server.cost.encode_pricer import EncodePricer
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import instance
from neuronserve.server.types import PoolingParams, SamplingParams, ScheduledSeq, StepPlan

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
