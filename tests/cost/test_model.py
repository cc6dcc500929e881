"""Cost of a step: a sum of priced work, laws of any accelerator, and marks of extrapolation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.cost.calibration import Calibration, default_calibration
from neuronserve.server.cost.model import CostModel, StepCost
from neuronserve.server.cost.terms import TERMS
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from tests.cost.pricing import LLAMA2_7B, LLAMA3_8B, MIXTRAL, shapes
from tests.model_specs import network_of, with_depth, with_layer_options

INF2 = instance("inf2.48xlarge")
# Every peak is reached and nothing else takes time: what remains is the data sheet.
IDEAL = Calibration(
    {name: 1.0 for name, term in TERMS.items() if term.unit == "1" and not name.endswith("_link")},
    date="2026-01-01",
    data_sha256="0",
    num_rows=0,
    errors={},
)
# All terms have a price, each its own.
FULL = replace(IDEAL, coefficients={name: term.start for name, term in TERMS.items()})

degrees = st.sampled_from([1, 2, 4, 8, 12, 24])
runtimes = st.builds(
    Runtime,
    weight_dtype=st.sampled_from(["bf16", "int8", "fp32"]),
    is_continuous=st.booleans(),
    sdk=st.integers(10, 28),
)
batches = st.integers(1, 64)
buckets = st.sampled_from([128, 512, 2048, 4096, 16384])


def model(
    shape: ModelSpec = LLAMA3_8B, tp: int = 8, runtime: Runtime | None = None, name: str = "inf2.48xlarge"
) -> CostModel:
    return CostModel.of(shape, instance(name), tp, runtime)


@given(shapes, degrees, runtimes, batches, buckets)
def test_a_step_is_the_sum_of_its_work_times_the_prices(
    shape: ModelSpec, tp: int, runtime: Runtime, batch: int, bucket: int
) -> None:
    priced = CostModel.of(shape, INF2, tp, runtime, FULL)
    steps = priced.step_work
    pairs = (
        (priced.decode(batch, bucket), steps.decode(batch, bucket)),
        (priced.prefill(bucket, bucket), steps.prefill(bucket)),
    )
    for cost, work in pairs:
        assert cost.elapsed_s == pytest.approx(sum(units * TERMS[name].start for name, units in work.items()))
        parts = cost.compute_s + cost.memory_s + cost.activation_s + cost.overhead_s
        assert cost.elapsed_s == pytest.approx(parts, rel=1e-12)
        assert min(cost.compute_s, cost.memory_s, cost.flops, cost.hbm_bytes) > 0
        assert (cost.link_bytes > 0) == (tp > 1)


@given(shapes, st.sampled_from(list(TERMS)), st.floats(1.0, 10.0))
def test_a_step_is_linear_in_each_price(shape: ModelSpec, name: str, factor: float) -> None:
    prices = {**FULL.coefficients, name: FULL.coefficients[name] * factor}
    plain, dearer = (CostModel.of(shape, INF2, 8, None, c) for c in (FULL, replace(FULL, coefficients=prices)))
    units = plain.step_work.decode(4, 512).get(name, 0.0)
    more = units * TERMS[name].start * (factor - 1)
    assert dearer.decode(4, 512).elapsed_s == pytest.approx(plain.decode(4, 512).elapsed_s + more)


@given(shapes, degrees, runtimes, batches, buckets)
def test_more_slots_more_context_and_more_layers_take_longer(
    shape: ModelSpec, tp: int, runtime: Runtime, batch: int, bucket: int
) -> None:
    def step(layers: int, batch: int, bucket: int) -> float:
        return model(with_depth(shape, layers), tp, runtime).decode(batch, bucket).elapsed_s

    least = step(shape.num_layers, batch, bucket)
    assert step(shape.num_layers, batch + 1, bucket) > least
    assert step(shape.num_layers, batch, bucket + 128) > least
    assert step(shape.num_layers + 1, batch, bucket) > least


@given(shapes, degrees, runtimes, st.integers(1, 2047))
def test_a_prompt_costs_its_bucket_whatever_it_fills(shape: ModelSpec, tp: int, runtime: Runtime, tokens: int) -> None:
    part, full = (model(shape, tp, runtime).prefill(n, 2048) for n in (tokens, 2048))
    assert part == full


def test_a_graph_of_one_slot_reads_one_slot() -> None:
    graph = model()
    assert graph.decode(1, 4096).elapsed_s < 0.6 * graph.decode(32, 4096).elapsed_s


def test_bytes_of_a_decode_step_by_hand() -> None:
    cost = model(LLAMA2_7B, 8, Runtime(is_continuous=False)).decode(2, 4096)
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    weights = 32 * layer + 4096 * 32000
    kv = 2 * 4096 * 32 * 2 * 32 * 128  # slots, positions, layers, K and V, heads, dimension
    assert cost.hbm_bytes == pytest.approx(2 * weights + 2 * kv, rel=1e-9)
    assert cost.flops == pytest.approx(2 * 2 * weights, rel=1e-9)
    assert cost.link_bytes == pytest.approx(8 * 2 * 32 * 2 * 4096 * 2 * (2 * 7 / 8), rel=1e-9)


def test_seconds_of_an_ideal_part_are_those_of_its_data_sheet() -> None:
    ideal = CostModel.of(LLAMA2_7B, INF2, 2, None, IDEAL)
    decode, prefill = ideal.decode(1, 128), ideal.prefill(2048, 2048)
    assert decode.memory_s == pytest.approx(decode.hbm_bytes / 820e9)
    assert prefill.compute_s == pytest.approx(prefill.flops / 190e12)
    assert decode.memory_s > decode.compute_s
    assert prefill.compute_s > prefill.memory_s
    assert decode.overhead_s == prefill.overhead_s == decode.activation_s == 0


def test_older_releases_are_never_faster() -> None:
    times = [model(LLAMA3_8B, 24, Runtime(sdk=sdk)).decode(8, 4096).elapsed_s for sdk in range(10, 25)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_mixture_of_experts_does_more_than_the_dense_model_of_one_of_them() -> None:
    dense = with_layer_options(MIXTRAL, feed_forward=network_of(MIXTRAL))
    one, many = (model(shape).decode(1, 128) for shape in (dense, MIXTRAL))
    assert many.flops > one.flops
    assert many.hbm_bytes > 1.5 * one.hbm_bytes


def test_the_phases_of_the_shipped_calibration_are_within_the_data_sheet() -> None:
    for name in ("inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"):
        priced = model(name=name)
        decode, prefill, tp = priced.decode(1, 4096), priced.prefill(4096, 4096), priced.step_work.core.tp
        assert decode.elapsed_s > decode.hbm_bytes * priced.step_work.byte_s / tp
        assert prefill.elapsed_s > prefill.flops * priced.step_work.flop_s / tp


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (model(name="inf1.24xlarge").decode(1, 128), "no decode of an LLM on Inferentia1"),
        (model(with_depth(LLAMA3_8B, 4)).decode(1, 128), "1.92 B parameters: measured are"),
        (model().decode(4000, 128), "4,000 slots: measured are"),
        (model().prefill(1, 1 << 20), "1,048,576 positions: measured are"),
        (model(runtime=Runtime("fp32")).decode(1, 128), "no decode with 32-bit weights was measured there"),
    ],
    ids=["Inf1", "small", "batch", "context", "weights"],
)
def test_what_was_never_measured_says_so(cost: StepCost, reason: str) -> None:
    assert cost.is_extrapolated
    assert reason in cost.extrapolated


def test_an_instance_of_the_users_own_says_so_whatever_was_measured() -> None:
    own = replace(INF2, name="mine", is_user_given=True)
    cost = CostModel.of(LLAMA3_8B, own, 8).decode(8, 4096)
    assert cost.extrapolated == "figures of mine are from a catalogue file, not from the accelerator that was measured"
    assert cost.elapsed_s == model().decode(8, 4096).elapsed_s


@pytest.mark.parametrize("name", ["inf2.48xlarge", "trn1.32xlarge"])
def test_what_was_measured_is_not_extrapolated(name: str) -> None:
    assert not model(name=name).decode(8, 4096).is_extrapolated


def test_a_served_model_has_the_cost_of_its_dimensions() -> None:
    spec = DecoderSizes(32, 4096, 14336, 32, 8, 128, 128256).spec("LlamaForCausalLM", 8192)
    assert CostModel.of(spec, INF2, 8).decode(4, 2048) == model().decode(4, 2048)
    assert CostModel.of(spec, INF2, 8).calibration is default_calibration()


def test_impossible_questions_are_refused() -> None:
    for ask in (
        lambda: model().decode(0, 128),
        lambda: model().decode(1, 0),
        lambda: model().prefill(129, 128),
        lambda: model().prefill(0, 128),
    ):
        with pytest.raises(ValueError, match="cannot"):
            ask()
