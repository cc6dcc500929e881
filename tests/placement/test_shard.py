"""Sharding: nothing of the model is lost or computed twice, and KV heads are copied only where they must be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neuronserve.server.errors import DeviceError
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.shard import INTERMEDIATE_MULTIPLE, PAD, VOCAB_MULTIPLE, HeadShard, ShardSpec
from tests.model_specs import with_attention, with_depth

DEGREES = (1, 2, 4, 8, 12, 24)
ODD_HEADS = ((14, 2), (40, 8), (9, 3), (28, 4), (71, 1))


def model(heads: int = 32, kv_heads: int = 8, ffn: int = 14_336, vocab: int = 128_256) -> ModelSpec:
    return DecoderSizes(1, 64 * heads, ffn, heads, kv_heads, 64, vocab).spec("LlamaForCausalLM", 8192)


@st.composite
def head_counts(draw: st.DrawFn) -> tuple[int, int]:
    kv_heads = draw(st.integers(1, 48))
    return kv_heads * draw(st.integers(1, 16)), kv_heads


def every_layout(test: Callable[..., None]) -> Callable[..., None]:
    """Any head counts on any degree, and always the odd counts of real models on the degrees of the parts."""
    for counts in ODD_HEADS:
        for tp in DEGREES:
            test = example(counts, tp)(test)
    return given(head_counts(), st.sampled_from(DEGREES) | st.integers(1, 64))(test)


def layout(counts: tuple[int, int], tp: int) -> HeadShard:
    [heads] = ShardSpec.of(model(*counts), tp).heads
    return heads


@every_layout
def test_every_query_head_is_computed_by_exactly_one_core(counts: tuple[int, int], tp: int) -> None:
    shard = layout(counts, tp)
    placed = [h for core in range(tp) for h in shard.q_heads(core) if h != PAD]
    assert sorted(placed) == list(range(counts[0]))


@every_layout
def test_every_query_head_finds_its_kv_head_on_its_own_core(counts: tuple[int, int], tp: int) -> None:
    (heads, kv_heads), shard = counts, layout(counts, tp)
    for core in range(tp):
        served = {
            slot: kv
            for kv, (begin, end) in zip(shard.kv_heads(core), shard.q_per_kv(core), strict=True)
            for slot in range(begin, end)
        }
        for slot, head in enumerate(shard.q_heads(core)):
            assert served.get(slot, PAD) == (PAD if head == PAD else head // (heads // kv_heads))


@every_layout
def test_query_slots_of_the_kv_slots_are_neighbours_and_disjoint(counts: tuple[int, int], tp: int) -> None:
    """The attention kernel takes a half-open range of slots for each kv slot, one after another."""
    shard = layout(counts, tp)
    for core in range(tp):
        kv, ranges = shard.kv_heads(core), shard.q_per_kv(core)
        used = [r for r, head in zip(ranges, kv, strict=True) if head != PAD]
        assert all(begin < end for begin, end in used)
        assert [0, *(end for _, end in used)] == [
            *(begin for begin, _ in used),
            sum(h != PAD for h in shard.q_heads(core)),
        ]
        assert all(begin == end for (begin, end), head in zip(ranges, kv, strict=True) if head == PAD)


@every_layout
def test_every_core_has_the_same_number_of_slots(counts: tuple[int, int], tp: int) -> None:
    shard = layout(counts, tp)
    assert len(shard.query_slots) == len(shard.kv_slots) == len(shard.groups) == tp
    assert {len(shard.q_heads(core)) for core in range(tp)} == {shard.heads_per_core}
    assert {len(shard.kv_heads(core)) for core in range(tp)} == {shard.kv_heads_per_core}


@every_layout
def test_padding_comes_after_the_heads(counts: tuple[int, int], tp: int) -> None:
    shard = layout(counts, tp)
    for slots in (*shard.query_slots, *shard.kv_slots):
        held = [head for head in slots if head != PAD]
        assert list(slots) == sorted(held) + [PAD] * (len(slots) - len(held))


@every_layout
def test_a_core_holds_each_kv_head_once_and_only_those_it_reads(counts: tuple[int, int], tp: int) -> None:
    (heads, kv_heads), shard = counts, layout(counts, tp)
    for core in range(tp):
        held = [head for head in shard.kv_heads(core) if head != PAD]
        assert held == sorted({head // (heads // kv_heads) for head in shard.q_heads(core) if head != PAD})


@every_layout
def test_kv_heads_are_copied_only_beyond_what_can_be_split(counts: tuple[int, int], tp: int) -> None:
    (_, kv_heads), shard = counts, layout(counts, tp)
    if kv_heads % tp == 0:
        assert shard.kv_heads_per_core == kv_heads // tp
    elif tp % kv_heads == 0:
        assert shard.kv_heads_per_core == 1
    else:  # whole heads in order: a core's run of query heads can straddle one kv head at either end
        assert shard.kv_heads_per_core <= math.ceil(kv_heads / tp) + 1


@every_layout
def test_no_core_has_more_query_heads_than_an_even_split_within_groups_needs(counts: tuple[int, int], tp: int) -> None:
    (heads, kv_heads), shard = counts, layout(counts, tp)
    even = math.ceil(heads / tp)
    in_groups = math.ceil((heads // kv_heads) / max(1, tp // kv_heads))
    assert even <= shard.heads_per_core <= max(even, in_groups)


@given(st.integers(1, 40_000), st.integers(1, 300_000), st.sampled_from(DEGREES))
@example(ffn=11_008, vocab=32_000, tp=24)
@example(ffn=4864, vocab=151_936, tp=12)
def test_padded_sizes_cover_the_model_in_whole_tiles_and_waste_less_than_one(ffn: int, vocab: int, tp: int) -> None:
    shard = ShardSpec.of(model(ffn=ffn, vocab=vocab), tp)
    for total, share, tile in (
        (ffn, shard.intermediate_per_core, INTERMEDIATE_MULTIPLE),
        (vocab, shard.vocab_per_core, VOCAB_MULTIPLE),
    ):
        assert share % tile == 0
        assert (share - tile) * tp < total <= share * tp


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "heads_per_core", "kv_heads_per_core"),
    [
        (32, 8, 1, 32, 8),
        (32, 8, 2, 16, 4),
        (32, 8, 8, 4, 1),
        (32, 8, 24, 2, 1),  # three cores for each kv head, whose 4 query heads lie as 2 + 2 + 0
        (32, 8, 12, 3, 2),  # 12 is no multiple of 8: query heads run on in order and straddle kv heads
        (32, 32, 24, 2, 2),
        (14, 2, 4, 4, 1),  # 7 query heads of a group as 4 + 3
        (71, 1, 24, 3, 1),
    ],
)
def test_shares_of_known_models(
    heads: int, kv_heads: int, tp: int, heads_per_core: int, kv_heads_per_core: int
) -> None:
    shard = layout((heads, kv_heads), tp)
    assert (shard.heads_per_core, shard.kv_heads_per_core) == (heads_per_core, kv_heads_per_core)


def test_one_kv_head_on_two_cores_is_read_by_half_of_its_group_each() -> None:
    shard = layout((14, 2), 4)
    assert shard.query_slots == ((0, 1, 2, 3), (4, 5, 6, PAD), (7, 8, 9, 10), (11, 12, 13, PAD))
    assert shard.kv_slots == ((0,), (0,), (1,), (1,))
    assert shard.groups == (((0, 4),), ((0, 3),), ((0, 4),), ((0, 3),))


def test_cores_beyond_the_heads_hold_padding_alone() -> None:
    shard = layout((2, 2), 4)
    assert [shard.q_heads(core) for core in range(4)] == [(0,), (PAD,), (1,), (PAD,)]
    assert [shard.kv_heads(core) for core in range(4)] == [(0,), (PAD,), (1,), (PAD,)]
    assert shard.q_per_kv(1) == ((0, 0),)


def test_the_layout_depends_on_nothing_but_sizes() -> None:
    deep = with_depth(with_attention(model(), has_qkv_bias=True), 80)
    assert ShardSpec.of(deep, 8) == ShardSpec.of(model(), 8)


@pytest.mark.parametrize("tp", [0, -1])
def test_a_degree_below_one_is_refused_by_value(tp: int) -> None:
    with pytest.raises(DeviceError, match=f"tensor_parallel_size is {tp}: at least 1"):
        ShardSpec.of(model(), tp)
