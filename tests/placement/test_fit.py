"""Does it fit: the arithmetic against figures worked out by hand, and refusals with the smallest part that would do.

Hand figures: bfloat16, 8192 tokens of context in blocks of 32, steps of 512 tokens and 64 samples, 2 workers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.device.catalog import INSTANCES, instance
from neuronserve.server.device.ledger import MIB, USES
from neuronserve.server.errors import DeviceError, DeviceMemoryError
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params
from neuronserve.server.placement.fit import alternatives, budget_bytes, require_fit
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits
from tests.depth import representative
from tests.model_specs import with_attention, with_depth

LLAMA_1B = DecoderSizes(16, 2048, 8192, 32, 8, 64, 32_000).spec("LlamaForCausalLM", 131_072, is_tied=True)
LLAMA_8B = DecoderSizes(32, 4096, 14_336, 32, 8, 128, 128_256).spec("LlamaForCausalLM", 8192)
LLAMA_70B = DecoderSizes(80, 8192, 28_672, 64, 8, 128, 128_256).spec("LlamaForCausalLM", 131_072)
LLAMA_405B = DecoderSizes(126, 16_384, 53_248, 128, 8, 128, 128_256).spec("LlamaForCausalLM", 131_072)
SHAPE = ServingShape("bfloat16", 8192, 32, StepLimits(num_tokens=512, num_samples=64, num_workers=2))
CORE_BYTES = 16 * GIB


def names(model: ModelSpec, shape: ServingShape = SHAPE, utilization: float = 1.0) -> list[tuple[str, int]]:
    return [(part.name, tp) for part, tp in alternatives(model, shape, utilization)]


@pytest.mark.parametrize(
    ("model", "tp", "weights"),
    [
        # layers x (hidden x (q + k + v, o, gate + up + down) + two norms), last norm, and of tied ones both ends; x 2
        (LLAMA_1B, 1, 2 * (16 * (2048 * (3072 + 2048 + 24_576) + 4096) + 2048 + 2 * 32_000 * 2048)),
        (LLAMA_1B, 2, 2 * (16 * (2048 * (1536 + 1024 + 12_288) + 4096) + 2048 + 2 * 16_000 * 2048)),
        (LLAMA_8B, 1, 2 * (32 * (4096 * (6144 + 4096 + 43_008) + 8192) + 4096 + 2 * 128_256 * 4096)),
        (LLAMA_8B, 2, 2 * (32 * (4096 * (3072 + 2048 + 21_504) + 8192) + 4096 + 2 * 64_128 * 4096)),
        # 8 kv heads on 24 cores: 2 query heads and 1 kv head each; ffn 14336 / 24 = 598; the embedding has 171 of 4096
        # columns, the output layer 5344 of 128256 rows
        (
            LLAMA_8B,
            24,
            2 * (32 * (4096 * (512 + 256 + 3 * 598) + 8192) + 4096 + 128_256 * 171 + 5344 * 4096),
        ),
    ],
    ids=["1b-tp1", "1b-tp2", "8b-tp1", "8b-tp2", "8b-tp24"],
)
def test_weights_of_one_core(model: ModelSpec, tp: int, weights: int) -> None:
    assert Footprint.of(model, tp, SHAPE).fixed["weights"] == weights


@pytest.mark.parametrize(
    ("model", "tp", "kv_block"),
    [  # K and V x layers x kv heads of the core x head_dim x 2 bytes x 32 tokens
        (LLAMA_1B, 1, 2 * 16 * 8 * 64 * 2 * 32),
        (LLAMA_1B, 2, 2 * 16 * 4 * 64 * 2 * 32),
        (LLAMA_8B, 1, 2 * 32 * 8 * 128 * 2 * 32),
        (LLAMA_8B, 2, 2 * 32 * 4 * 128 * 2 * 32),
        (LLAMA_8B, 24, 2 * 32 * 1 * 128 * 2 * 32),  # replicated: no less than one head, however many cores
    ],
    ids=["1b-tp1", "1b-tp2", "8b-tp1", "8b-tp2", "8b-tp24"],
)
def test_a_kv_block_of_one_core(model: ModelSpec, tp: int, kv_block: int) -> None:
    assert Footprint.of(model, tp, SHAPE).kv_block == kv_block


@pytest.mark.parametrize(
    ("tokens", "scores", "activations"),
    [
        # of 32 heads x tokens^2, and 3 x hidden + 2 x (32 + 8) heads of 64 + 2 x ffn for each token, both x 2 bytes;
        # 7.8 MiB of float32 logits of 64 samples; in pages of 512 MiB, one of them for the several samples
        (512, 16 * MIB, 1008 * MIB),
        (1024, 64 * MIB, 960 * MIB),
        (3584, 784 * MIB, 752 * MIB),
        (4096, 0, 1024 * MIB),  # flash attention
    ],
)
def test_scratchpad_of_llama_1b(tokens: int, scores: int, activations: int) -> None:
    shape = dataclasses.replace(SHAPE, limits=StepLimits(tokens, 64, 2))
    lines = {line.name: line.num_bytes for line in Footprint.of(LLAMA_1B, 1, shape).lines}
    assert (lines["attention scores"], lines["activations"]) == (scores, activations)


@pytest.mark.parametrize(("tp", "collectives"), [(1, 0), (2, 36), (8, 63), (64, 70.875)])
def test_memory_of_the_graphs(tp: int, collectives: float) -> None:
    """Two graphs of 16 layers; collectives grow as (tp - 1) / tp, DMA rings with the weights."""
    fixed = Footprint.of(LLAMA_1B, tp, SHAPE).fixed
    assert fixed["collectives"] / MIB == collectives
    assert (fixed["code"] / MIB, fixed["runtime"] / MIB) == (96 + 2 * 16 * 2.0625, 8)
    assert fixed["dma_rings"] == int(220 / 1948 * fixed["weights"])


@pytest.mark.parametrize(
    ("model", "tp", "blocks"),
    [
        (LLAMA_1B, 1, 12_846),  # 16 GiB - 2.057 weights - 1 scratchpad - 0.398 of graphs, in blocks of 1 MiB
        (LLAMA_1B, 2, 27_963),  # twice and a little more: half a block each, and half the weights
        (LLAMA_8B, 1, -481),  # 15 GiB of weights leave too little for the rest
        (LLAMA_8B, 2, 3264),
    ],
    ids=["1b-tp1", "1b-tp2", "8b-tp1", "8b-tp2"],
)
def test_blocks_that_a_core_of_inf2_has_left(model: ModelSpec, tp: int, blocks: int) -> None:
    assert Footprint.of(model, tp, SHAPE).max_blocks(CORE_BYTES) == blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 2), (32, 2), (33, 3), (8192, 257)])
def test_the_least_is_one_full_sequence_and_the_null_block(tokens: int, blocks: int) -> None:
    shape = dataclasses.replace(SHAPE, max_model_len=tokens)
    assert Footprint.of(LLAMA_8B, 2, shape).min_blocks == blocks


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    kv_heads = draw(st.integers(1, 8))
    sizes = DecoderSizes(
        num_layers=draw(st.integers(1, 4)),
        hidden_size=draw(st.integers(1, 300)),
        intermediate_size=draw(st.integers(1, 700)),
        num_heads=kv_heads * draw(st.integers(1, 8)),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 64)),
        vocab_size=draw(st.integers(1, 2000)),
    )
    return with_attention(
        sizes.spec("Qwen3ForCausalLM", 512, is_tied=draw(st.booleans())),
        has_qkv_bias=draw(st.booleans()),
        has_o_bias=draw(st.booleans()),
        qk_norm=draw(st.sampled_from(["none", "head"])),
    )


@given(models(), st.sampled_from((1, 2, 4, 8, 12, 24)))
def test_the_cores_together_hold_at_least_the_whole_model(model: ModelSpec, tp: int) -> None:
    small = dataclasses.replace(SHAPE, max_model_len=100)
    footprint = Footprint.of(model, tp, small)
    assert tp * footprint.fixed["weights"] >= 2 * num_params(model)
    assert tp * footprint.kv_block >= 32 * 2 * model.num_layers * 2 * model.num_kv_heads * model.head_dim


@given(models(), st.sampled_from((1, 2, 8)))
def test_the_verdict_turns_at_the_exact_byte(model: ModelSpec, tp: int) -> None:
    footprint = Footprint.of(model, tp, SHAPE)
    exact = sum(footprint.with_kv(footprint.min_blocks).values())
    assert footprint.fits(exact)
    assert not footprint.fits(exact - 1)
    assert footprint.max_blocks(exact) == footprint.min_blocks


def test_float32_takes_twice_the_cells() -> None:
    wide = Footprint.of(LLAMA_1B, 1, dataclasses.replace(SHAPE, dtype="float32"))
    narrow = Footprint.of(LLAMA_1B, 1, SHAPE)
    assert wide.kv_block == 2 * narrow.kv_block
    assert wide.fixed["weights"] == 2 * narrow.fixed["weights"]


def test_eight_bit_weights_have_a_scale_for_each_output() -> None:
    eight = Footprint.of(LLAMA_1B, 1, dataclasses.replace(SHAPE, quantization="int8-weight-only"))
    matrices = 16 * 2048 * (3072 + 2048 + 24_576) + 32_000 * 2048
    scales = 16 * (3072 + 2048 + 2 * 8192 + 2048) + 32_000
    assert Footprint.of(LLAMA_1B, 1, SHAPE).fixed["weights"] - eight.fixed["weights"] == matrices - 4 * scales


@pytest.mark.parametrize(("model", "tp"), [(LLAMA_1B, 1), (LLAMA_1B, 2), (LLAMA_8B, 2)])
def test_what_fits_gives_its_footprint(model: ModelSpec, tp: int) -> None:
    assert require_fit(model, instance("inf2.xlarge"), tp, SHAPE, 1.0) == Footprint.of(model, tp, SHAPE)


def refusal(model: ModelSpec, name: str, tp: int, utilization: float = 1.0, dp: int = 1) -> list[str]:
    with pytest.raises(DeviceMemoryError) as refused:
        require_fit(model, instance(name), tp, SHAPE, utilization, dp)
    assert refused.value.exit_code == 2
    return str(refused.value).splitlines()


def test_a_refusal_says_what_lacks_who_needs_it_and_the_smallest_part_that_would_do() -> None:
    first, head, core, advice = refusal(LLAMA_8B, "inf2.xlarge", 1)
    assert first == (
        "NRT_RESOURCE (4): LlamaForCausalLM with 8.03B parameters in bfloat16 does not fit on inf2.xlarge with "
        "tensor_parallel_size 1: each core lacks 2.88 GiB "
        "(kv is the least that one sequence of max_model_len 8192 needs)"
    )
    assert head.split() == ["core", *USES, "budget", "free", "(MiB)"]
    assert core.split() == [
        *("ND", "0:NC", "0", "15,316.5", "1,028.0", "1,024.0", "0.0", "1,729.8", "228.0", "8.0"),
        *("16,384.0", "-2,950.3"),
    ]
    assert advice == "the smallest that holds it: --device inf2.xlarge --tensor-parallel-size 2"


def test_a_refusal_names_the_format_of_the_weights() -> None:
    with pytest.raises(DeviceMemoryError, match=r"70\.55B parameters in int4 does not fit on inf2\.xlarge"):
        require_fit(LLAMA_70B, instance("inf2.xlarge"), 1, replace(SHAPE, quantization="int4"), 1.0, 1)


def test_the_account_has_a_line_for_every_core() -> None:
    rows = refusal(LLAMA_70B, "inf2.24xlarge", 4)[2:-1]
    assert [row[:9] for row in rows] == ["ND 0:NC 0", "ND 0:NC 1", "ND 1:NC 0", "ND 1:NC 1"]


def test_the_account_of_many_cores_fits_in_the_message_that_kubernetes_keeps() -> None:
    lines = refusal(LLAMA_405B, "trn2.48xlarge", 64, utilization=0.5)
    assert len("\n".join(["neuronserve: error: ", *lines])) < 2048
    assert [line.split()[:3] for line in lines[2:11]] == [
        *(["ND", f"{core // 4}:NC", f"{core % 4}"] for core in range(8)),
        ["and", "56", "more"],
    ]


@pytest.mark.parametrize(
    ("model", "name", "tp", "advice"),
    [
        (LLAMA_70B, "inf2.xlarge", 2, "--device inf2.48xlarge --tensor-parallel-size 24"),
        (LLAMA_70B, "trn1.2xlarge", 2, "--device trn1.32xlarge --tensor-parallel-size 16"),  # of the same family
        (LLAMA_70B, "inf1.24xlarge", 24, "--device inf2.48xlarge --tensor-parallel-size 24"),  # 24 x 2 GiB: too small
    ],
)
def test_the_advice_stays_in_the_family_while_that_can_hold_it(
    model: ModelSpec, name: str, tp: int, advice: str
) -> None:
    assert refusal(model, name, tp)[-1] == f"the smallest that holds it: {advice}"


def test_several_groups_need_an_instance_with_cores_for_all_of_them() -> None:
    advice = "the smallest that holds it: --device inf2.24xlarge --tensor-parallel-size 2 --data-parallel-size 2"
    assert refusal(LLAMA_8B, "inf2.xlarge", 1, dp=2)[-1] == advice
    require_fit(LLAMA_8B, instance("inf2.48xlarge"), 8, SHAPE, 0.9, dp=3)
    with pytest.raises(DeviceError, match=r"tensor_parallel_size 8 x data_parallel_size 4 needs 32 NeuronCores: .* 24"):
        require_fit(LLAMA_8B, instance("inf2.48xlarge"), 8, SHAPE, 0.9, dp=4)


def test_llama_405b_needs_a_whole_trainium2_instance() -> None:
    """The Neuron documentation serves it so (trn2-llama3.1-405b-tutorial.rst): bfloat16, TP64 of logical cores."""
    assert names(LLAMA_405B, utilization=0.9)[:1] == [("trn2.48xlarge", 64)]
    assert not any(name.startswith(("inf", "trn1")) for name, _ in names(LLAMA_405B, utilization=0.9))


def test_what_nothing_holds_is_said_so() -> None:
    thrice = with_depth(LLAMA_405B, 378)
    assert names(thrice) == []
    assert refusal(thrice, "inf2.48xlarge", 24)[-1] == (
        "no instance of the catalogue holds it; a shorter max_model_len or a smaller model may"
    )


@pytest.mark.parametrize("model", representative([LLAMA_1B, LLAMA_8B, LLAMA_70B], LLAMA_8B))
def test_alternatives_are_exactly_what_would_be_accepted_and_the_cheapest_comes_first(model: ModelSpec) -> None:
    accepted = set()
    for part in INSTANCES:
        for tp in part.allowed_tp:
            try:
                require_fit(model, part, tp, SHAPE, 0.9)
                accepted.add((part.name, tp))
            except DeviceMemoryError:
                continue
    listed = names(model, utilization=0.9)
    assert set(listed) == accepted
    assert len(listed) == len(accepted)
    prices = [instance(name).on_demand_usd or float("inf") for name, _ in listed]
    assert prices == sorted(prices)


def test_a_share_of_the_memory_is_a_share_of_the_budget() -> None:
    part = instance("inf2.xlarge")
    assert budget_bytes(part, 0.5) == 8 * GIB
    require_fit(LLAMA_8B, part, 2, SHAPE, 0.7)
    first, *_ = refusal(LLAMA_8B, "inf2.xlarge", 2, utilization=0.5)
    assert "lacks 2.13" in first


def test_a_shorter_context_can_make_it_fit() -> None:
    long, short = (dataclasses.replace(SHAPE, max_model_len=length) for length in (131_072, 65_536))
    with pytest.raises(DeviceMemoryError, match="max_model_len 131072"):
        require_fit(LLAMA_8B, instance("inf2.xlarge"), 2, long, 0.9)
    assert require_fit(LLAMA_8B, instance("inf2.xlarge"), 2, short, 0.9).min_blocks == 2049


def test_a_degree_the_part_does_not_allow_is_refused_before_memory_is_asked_about() -> None:
    with pytest.raises(DeviceError, match=r"tensor_parallel_size is 4: inf2\.xlarge has 2 NeuronCores") as refused:
        require_fit(LLAMA_405B, instance("inf2.xlarge"), 4, SHAPE, 1.0)
    assert not isinstance(refused.value, DeviceMemoryError)
