"""What a step costs: the laws that any part obeys, numbers worked out by hand, and what is marked as extrapolated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cost.calibration import Calibration, Coefficients
from server.cost.model import CostModel, StepCost
from server.cost.shape import CoreShape, experts_read
from server.cost.work import Runtime, mean_hops
from server.device.catalog import instance
from server.device.parts import Topology
from server.errors import DeviceError, SettingsError
from server.models.spec import ModelSpec

INF2 = instance("inf2.48xlarge")
LLAMA2_7B = ModelSpec("", 32, 4096, 11008, 32, 32, 128, 32000, 0)
LLAMA3_8B = ModelSpec("", 32, 4096, 14336, 32, 8, 128, 128256, 0)
MIXTRAL = ModelSpec("", 32, 4096, 14336, 32, 8, 128, 32000, 0, num_experts=8, experts_per_token=2)
# Every peak is reached and nothing has a latency: what remains is the data sheet.
IDEAL = Calibration(
    Coefficients(1, 1, 1, 1, *([1e-30] * 10)), date="2026-01-01", data_sha256="0", num_rows=0, errors={}
)

shapes = st.builds(
    ModelSpec,
    num_layers=st.integers(1, 8),
    hidden_size=st.sampled_from([256, 768, 4096]),
    num_heads=st.just(32),
    num_kv_heads=st.sampled_from([1, 4, 8, 32]),
    head_dim=st.sampled_from([64, 128]),
    intermediate_size=st.integers(64, 20_000),
    vocab_size=st.integers(100, 200_000),
    is_gated=st.booleans(),
    architecture=st.just(""),
    max_position=st.just(0),
)
degrees = st.sampled_from([1, 2, 4, 8, 12, 24])
runtimes = st.builds(
    Runtime,
    weight_dtype=st.sampled_from(["bf16", "int8", "fp32"]),
    is_continuous=st.booleans(),
    sdk=st.integers(10, 24),
)
batches = st.integers(1, 64)
buckets = st.sampled_from([128, 512, 2048, 4096, 16384])


def model(
    shape: ModelSpec = LLAMA3_8B, tp: int = 8, runtime: Runtime | None = None, name: str = "inf2.48xlarge"
) -> CostModel:
    return CostModel.of(shape, instance(name), tp, runtime)


def ideal(shape: ModelSpec, tp: int, runtime: Runtime | None = None) -> CostModel:
    return CostModel.of(shape, INF2, tp, runtime, IDEAL)


@given(shapes, degrees, runtimes, batches, buckets)
def test_elapsed_is_the_sum_of_what_cannot_overlap(
    shape: ModelSpec, tp: int, runtime: Runtime, batch: int, bucket: int
) -> None:
    priced = model(shape, tp, runtime)
    for cost in (priced.decode(batch, bucket), priced.prefill(bucket, bucket)):
        parts = max(cost.compute_s, cost.memory_s) + cost.link_s + cost.overhead_s
        assert cost.elapsed_s == pytest.approx(parts, rel=1e-12)
        assert min(cost.compute_s, cost.memory_s, cost.flops, cost.hbm_bytes) > 0
        assert (cost.link_bytes > 0) == (tp > 1)


@given(shapes, degrees, runtimes, batches, buckets)
def test_more_slots_more_context_and_more_layers_take_longer(
    shape: ModelSpec, tp: int, runtime: Runtime, batch: int, bucket: int
) -> None:
    def step(layers: int, batch: int, bucket: int) -> float:
        return model(replace(shape, num_layers=layers), tp, runtime).decode(batch, bucket).elapsed_s

    least = step(shape.num_layers, batch, bucket)
    assert step(shape.num_layers, batch + 1, bucket) > least
    assert step(shape.num_layers, batch, bucket + 128) > least
    assert step(shape.num_layers + 1, batch, bucket) > least


@given(shapes, st.sampled_from([1, 2, 4]))
def test_twice_the_cores_never_stream_more_weights_each(shape: ModelSpec, tp: int) -> None:
    def weights(tp: int) -> float:
        core = CoreShape.of(shape, tp)
        return shape.num_layers * (core.attention_weights + core.ffn_weights) + core.head_weights

    assert weights(2 * tp) <= weights(tp)


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
    assert cost.flops == pytest.approx(2 * 2 * weights + 2 * 4096 * 32 * 4 * 4096, rel=1e-9)
    assert cost.link_bytes == pytest.approx(8 * 2 * 32 * 2 * 4096 * 2 * (2 * 7 / 8), rel=1e-9)


def test_seconds_of_an_ideal_part_are_those_of_its_data_sheet() -> None:
    decode, prefill = (
        step(ideal(LLAMA2_7B, 2)) for step in (lambda m: m.decode(1, 128), lambda m: m.prefill(2048, 2048))
    )
    assert decode.memory_s == pytest.approx(decode.hbm_bytes / 820e9)
    assert prefill.compute_s == pytest.approx(prefill.flops / 190e12)
    assert decode.memory_s > decode.compute_s
    assert prefill.compute_s > prefill.memory_s


def test_a_kv_head_fewer_than_cores_is_streamed_once_for_each_query_head() -> None:
    core = CoreShape.of(LLAMA3_8B, 24)
    assert (core.query_heads, core.kv_heads, core.kv_streams) == (2, 1, 2)
    assert CoreShape.of(LLAMA3_8B, 8).kv_streams == 1
    assert CoreShape.of(LLAMA2_7B, 24).kv_streams == 2  # 32 heads pad to 48


def test_int8_halves_the_weight_bytes_and_pays_for_widening() -> None:
    half = model(runtime=Runtime("int8", is_continuous=False)).decode(1, 128)
    full = model(runtime=Runtime("bf16", is_continuous=False)).decode(1, 128)
    assert half.hbm_bytes == pytest.approx(full.hbm_bytes / 2, rel=0.01)
    assert 0.5 * full.memory_s < half.memory_s < full.memory_s
    assert half.compute_s == full.compute_s


def test_continuous_batching_pays_for_addressing_slots() -> None:
    static, continuous = (model(runtime=Runtime(is_continuous=c)).decode(16, 4096) for c in (False, True))
    assert continuous.memory_s > static.memory_s
    assert continuous.hbm_bytes == static.hbm_bytes
    assert model(runtime=Runtime(is_continuous=True)).decode(1, 4096) == model(
        runtime=Runtime(is_continuous=False)
    ).decode(1, 4096)


def test_older_releases_are_never_faster() -> None:
    times = [model(LLAMA3_8B, 24, Runtime(sdk=sdk)).decode(8, 4096).elapsed_s for sdk in range(10, 25)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_experts_read_grow_with_tokens_up_to_all_of_them() -> None:
    counts = [experts_read(MIXTRAL, tokens) for tokens in (1, 2, 8, 1000)]
    assert counts[0] == pytest.approx(2)
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(8)
    assert experts_read(LLAMA3_8B, 5) == 1
    dense = replace(MIXTRAL, num_experts=0, experts_per_token=0)
    assert model(MIXTRAL).decode(1, 128).flops > model(dense).decode(1, 128).flops


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (model(name="inf1.24xlarge").decode(1, 128), "Inferentia1"),
        (model(name="trn2.48xlarge").decode(1, 128), "Trainium2"),
        (model(MIXTRAL).decode(1, 128), "mixture-of-experts"),
        (model(replace(LLAMA3_8B, num_layers=16)).decode(1, 128), "4.54B parameters are outside of the 6.7B to 70.6B"),
        (model(replace(LLAMA3_8B, hidden_size=3584)).decode(1, 128), "hidden size 3584 is outside of the 4096 to 8192"),
        (model().decode(300, 128), "batch 300 is above the measured 256"),
        (model().prefill(1, 32768), "bucket 32768 is above the measured 16512"),
        (model(tp=64, name="trn2.48xlarge").decode(1, 128), "tensor parallelism 64"),
    ],
    ids=["Inf1", "Trn2", "MoE", "small", "narrow", "batch", "context", "tp"],
)
def test_what_was_never_measured_says_so(cost: StepCost, reason: str) -> None:
    assert cost.is_extrapolated
    assert reason in cost.extrapolated


@pytest.mark.parametrize("name", ["inf2.48xlarge", "trn1.32xlarge"])
def test_what_was_measured_is_not_extrapolated(name: str) -> None:
    assert not model(name=name).decode(8, 4096).is_extrapolated


@pytest.mark.parametrize(
    ("topology", "chips", "hops"),
    [("ring", 1, 0), ("ring", 4, 1), ("ring", 12, 3), ("torus", 16, 2), ("switch", 8, 1)],
)
def test_mean_distance_of_chips(topology: Topology, chips: int, hops: float) -> None:
    assert mean_hops(topology, chips) == hops


def test_a_served_model_has_the_cost_of_its_dimensions() -> None:
    spec = ModelSpec("LlamaForCausalLM", 32, 4096, 14336, 32, 8, 128, 128256, 8192)
    assert CostModel.of(spec, INF2, 8).decode(4, 2048) == model().decode(4, 2048)


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"tensor_parallel_size is 3: inf2\.xlarge has 2"):
        CostModel.of(LLAMA3_8B, instance("inf2.xlarge"), 3)
    with pytest.raises(SettingsError, match="weight dtype 'int3'"):
        model(runtime=Runtime("int3"))
    for ask in (
        lambda: model().decode(0, 128),
        lambda: model().prefill(129, 128),
        lambda: model().prefill(0, 128),
    ):
        with pytest.raises(ValueError, match="cannot"):
            ask()
