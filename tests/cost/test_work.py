"""The work of a step: formulas held against sums by hand, and against the table of terms that prices them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.cost.shape import STORED_BYTES, CoreShape
from neuronserve.server.cost.terms import TERMS
from neuronserve.server.cost.work import CURRENT_SDK, OLD_GATHER_SDK, OLD_LAUNCH_SDK, Runtime, StepWork
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.models.spec import ModelSpec
from tests.cost.pricing import LLAMA2_7B, LLAMA3_8B, MIXTRAL, shapes
from tests.model_specs import with_attention

STATIC = Runtime(is_continuous=False)


def work(
    shape: ModelSpec = LLAMA3_8B, tp: int = 8, runtime: Runtime | None = None, name: str = "inf2.48xlarge"
) -> StepWork:
    return StepWork(shape, instance(name), tp, runtime or Runtime())


def test_every_term_is_of_some_step_and_every_work_has_its_term() -> None:
    steps = work(MIXTRAL, 8, Runtime("int8", is_continuous=True, sdk=10, is_tnx_other=True))
    named = steps.decode(3, 1024) | steps.prefill(1024, behind=128) | steps.encode(128, 1, 2)
    assert set(named) == set(TERMS)
    assert all(units > 0 for units in named.values()), "a step that does all kinds of work"


@pytest.mark.parametrize("name", TERMS)
def test_a_term_starts_where_physics_allows_it(name: str) -> None:
    term = TERMS[name]
    assert term.start > 0
    assert term.start >= term.least >= 0
    assert term.unit in ("1", "s", "share")
    assert (term.least >= 1.0) == (term.unit == "1"), "what is a multiple of a peak is at least that peak's time"
    assert term.meaning


def test_work_of_a_decode_step_by_hand() -> None:
    steps = work(LLAMA2_7B, 8, STATIC).decode(2, 4096)
    layer = (4 * 4096 * 4096 + 3 * 4096 * 11008) // 8
    weights = 32 * layer + 4096 * 32000 // 8
    kv = 2 * 4096 * 32 * 2 * 4 * 128  # slots, positions, layers, K and V, heads of one core, dimension
    assert steps["weights"] == pytest.approx(2 * weights / 410e9)
    assert steps["kv"] == pytest.approx(2 * kv / 410e9)
    assert steps["decode_matmul"] == pytest.approx(2 * 2 * weights / 95e12)
    assert steps["layer_launch"] == 32
    assert steps["slot_layer"] == 2 * 32
    assert steps["collectives"] == steps["ring_collectives"] == 32
    assert {name for name, units in steps.items() if not units} == {
        "kv_gather", "dequant", "expert_load", "old_launch", "old_kv_gather",
    }  # fmt: skip


def test_work_of_a_prompt_by_hand() -> None:
    prompt = work(LLAMA2_7B, 2, STATIC).prefill(1024, prompts=3)
    layer = (4 * 4096 * 4096 + 3 * 4096 * 11008) // 2
    pairs = 3 * 1024 * 1024
    assert prompt["prefill_matmul"] == pytest.approx(2 * (3 * 1024 * 32 * layer + 3 * 4096 * 16000) / 95e12)
    assert prompt["attention"] == pytest.approx(4 * pairs * 32 * 16 * 128 / 95e12)
    assert prompt["activation"] == 3 * 1024 * 32
    assert prompt["prefill_call"] == 1.0
    assert prompt["kv"] == 0.0
    assert prompt["prefill_link"] == pytest.approx(2 * 32 * 3 * 1024 * 4096 * 2 * (2 / 2) / (192 * 2**30))


def test_what_lies_behind_a_prompt_is_read_and_attended_to() -> None:
    alone, behind = (work().prefill(512, behind=n) for n in (0, 1024))
    assert behind["attention"] == pytest.approx(3 * alone["attention"])
    assert behind["kv"] == pytest.approx(work(runtime=STATIC).decode(1, 1024)["kv"])
    rest = set(alone) - {"attention", "kv"}
    assert {name: alone[name] for name in rest} == {name: behind[name] for name in rest}


@pytest.mark.parametrize(
    ("shape", "tp", "heads", "kv_heads"),
    [
        (LLAMA3_8B, 8, 4, 1),
        (LLAMA3_8B, 4, 8, 2),
        (LLAMA3_8B, 32, 1, 1),  # each of 8 KV heads copied to 4 cores
        (LLAMA3_8B, 24, 2, 1),  # 8 divides 24
        (LLAMA3_8B, 12, 3, 3),  # 8 neither divides 12 nor is divided by it: a KV head for each query head
        (LLAMA2_7B, 24, 2, 2),  # has one for each already; 32 heads pad to 48
        (with_attention(LLAMA3_8B, num_kv_heads=2), 8, 4, 1),
        (with_attention(LLAMA3_8B, num_kv_heads=4), 6, 6, 6),
    ],
)
def test_kv_heads_that_do_not_fit_the_cores_become_one_for_each_query_head(
    shape: ModelSpec, tp: int, heads: int, kv_heads: int
) -> None:
    core = CoreShape.of(shape, tp)
    assert (core.query_heads, core.kv_heads) == (heads, kv_heads)


def test_kv_heads_made_for_query_heads_are_weights_too() -> None:
    as_made, as_if = CoreShape.of(LLAMA3_8B, 12), CoreShape.of(with_attention(LLAMA3_8B, num_kv_heads=32), 12)
    assert as_made.attention_weights == as_if.attention_weights
    assert as_made.attention_weights > CoreShape.of(LLAMA3_8B, 8).attention_weights * 8 / 12


def test_experts_are_fetched_for_each_token_until_all_are() -> None:
    fetched = [work(MIXTRAL).decode(tokens, 128)["expert_load"] / MIXTRAL.num_layers for tokens in (1, 2, 3, 4, 64)]
    assert fetched == [2, 4, 6, 0, 0], "a graph that runs through all fetches none"
    one, all_of_them = (work(MIXTRAL).weights_read(tokens) for tokens in (1, 4))
    expert = 3 * 4096 * 14336 // 8
    assert all_of_them - one == 32 * (8 - 2) * expert
    flops = [work(MIXTRAL).matmul_flops(tokens, 0) for tokens in (1, 64)]
    assert flops[1] == 64 * flops[0], "a token goes through its own two, however many are fetched"


def test_a_logical_core_of_two_has_twice_the_vector_and_copy_engines() -> None:
    halves = ("slot_layer", "kv_gather", "dequant")
    one, two = (
        work(runtime=Runtime("int8"), name=name).decode(16, 4096) for name in ("inf2.48xlarge", "trn2.48xlarge")
    )
    assert instance("trn2.48xlarge").chip.lnc == 2
    assert all(two[name] == one[name] / 2 for name in halves)
    prompts = [work(name=name).prefill(1024)["activation"] for name in ("inf2.48xlarge", "trn2.48xlarge")]
    assert prompts[1] == prompts[0] / 2


def test_eight_bit_weights_are_half_the_bytes_and_are_widened() -> None:
    half, full = (work(runtime=Runtime(dtype, is_continuous=False)) for dtype in ("int8", "bf16"))
    assert half.decode(1, 128)["weights"] == full.decode(1, 128)["weights"] / 2
    assert half.decode(1, 128)["dequant"] == half.weights_read(1)
    assert full.decode(1, 128)["dequant"] == full.prefill(128)["dequant"] == 0
    assert half.decode(1, 128)["decode_matmul"] == full.decode(1, 128)["decode_matmul"]


@pytest.mark.parametrize("dtype", ["int4", "mxfp4"])
def test_four_bit_weights_are_read_beside_an_output_layer_of_eight(dtype: str) -> None:
    four, full = (work(runtime=Runtime(each, is_continuous=False)) for each in (dtype, "bf16"))
    head = four.core.head_weights
    expected = (four.weights_read(1) - head) * STORED_BYTES[dtype] + head * STORED_BYTES["int8-groups"]
    assert four.decode(1, 128)["weights"] == pytest.approx(expected * four.byte_s)
    assert four.prefill(128)["prefill_weights"] == pytest.approx(expected * four.byte_s)
    assert full.decode(1, 128)["weights"] == pytest.approx(full.weights_read(1) * 2 * full.byte_s)


def test_slots_that_come_and_go_are_found_where_there_are_several() -> None:
    assert work().decode(16, 4096)["kv_gather"] == 16 * 4096 * 32
    assert work().decode(1, 4096)["kv_gather"] == work(runtime=STATIC).decode(16, 4096)["kv_gather"] == 0


def test_older_releases_do_more() -> None:
    def extra(sdk: int, name: str) -> float:
        return work(tp=24, runtime=Runtime(sdk=sdk)).decode(8, 4096)[name]

    assert [extra(sdk, "old_launch") for sdk in (10, 15, OLD_LAUNCH_SDK, CURRENT_SDK)] == [6 * 32, 32, 0, 0]
    assert extra(OLD_GATHER_SDK - 1, "old_kv_gather") == 8 * 4096 * 32 * 8
    assert extra(OLD_GATHER_SDK, "old_kv_gather") == 0


@given(shapes, st.sampled_from([1, 2, 4]))
def test_twice_the_cores_never_stream_more_weights_each(shape: ModelSpec, tp: int) -> None:
    assert work(shape, 2 * tp).weights_read(1) <= work(shape, tp).weights_read(1)


def test_all_experts_compute_a_prompt_in_whole_tiles() -> None:
    for tp, width in ((8, 1792), (32, 512)):  # 14,336 in 8 parts: 14 tiles; in 32 parts of 448: 4 tiles
        prompt = work(MIXTRAL, tp, name="trn1.32xlarge").prefill(1024)
        flops = 2 * 1024 * 32 * 8 * 3 * 4096 * width
        assert prompt["expert_matmul"] == pytest.approx(flops / 95e12)


def test_cores_of_one_chip_need_no_ring() -> None:
    assert work(tp=2).decode(1, 128)["ring_collectives"] == 0
    assert work(tp=4).decode(1, 128)["ring_collectives"] == 32
    assert work(tp=4, name="trn2.48xlarge").decode(1, 128)["ring_collectives"] == 0, "one chip of four logical cores"
    assert work(tp=1).decode(1, 128)["collectives"] == 0


def test_models_other_than_llama_took_longer_prompts_on_transformers_neuronx() -> None:
    other = work(runtime=Runtime(sdk=18, is_tnx_other=True)).prefill(1024)
    assert other["tnx_activation"] == other["activation"]
    assert work().prefill(1024)["tnx_activation"] == 0


def test_groups_that_cannot_be_formed_and_unknown_dtypes_are_refused() -> None:
    for tp in (0, 3):
        with pytest.raises(DeviceError, match=rf"tensor_parallel_size is {tp}: inf2\.xlarge has 2"):
            work(tp=tp, name="inf2.xlarge")
    with pytest.raises(SettingsError, match="weight dtype 'int3'"):
        work(runtime=Runtime("int3"))
