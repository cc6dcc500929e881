"""How layers share KV blocks: figures worked out by hand for public models, and what a long sequence then holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import AttentionSpan
from neuronserve.server.host.memory import GIB
from neuronserve.server.kv_cache.blocks import NULL_BLOCK
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.models.layer import AttentionSpec
from neuronserve.server.models.public import known_model
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.cache_layout import layers_per_slot
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits
from neuronserve.server.placement.kv_groups import MAX_GROUPS, KVGroups, KVPlace
from neuronserve.server.placement.shard import ShardSpec
from tests.model_specs import with_attention, with_windows

FULL = AttentionSpan()
CHUNK, BLOCK_SIZE = 512, 32


def known(name: str) -> ModelSpec:
    model = known_model(name)
    assert model is not None
    return model


@pytest.mark.parametrize(
    ("name", "block_layers", "num_full", "num_windowed"),
    [
        ("google/gemma-3-270m", 3, 1, 5),  # 18 layers, every sixth sees all
        ("google/gemma-3-1b-it", 4, 1, 6),  # 4 of 26: the 22 others in groups of 4, 4, 4, 4, 4 and 2
        ("google/gemma-3-12b-it", 8, 1, 5),
        ("openai/gpt-oss-20b", 12, 1, 1),  # in turns
        ("meta-llama/Llama-3.1-8B", 32, 1, 0),
        ("mistralai/Mistral-7B-v0.1", 32, 0, 1),
    ],
)
def test_groups_of_public_models(name: str, block_layers: int, num_full: int, num_windowed: int) -> None:
    model = known(name)
    groups = KVGroups.of(model, 8192, BLOCK_SIZE, CHUNK)
    assert groups.block_layers == block_layers
    assert [span.window == 0 for span in groups.spans] == [True] * num_full + [False] * num_windowed
    for layer, place in enumerate(groups.places):
        assert groups.spans[place.group] == model.layers[layer].mixer.span


def test_chunks_are_a_group_of_their_own() -> None:
    llama4 = with_windows(known("meta-llama/Llama-3.1-8B"), *(64, 64, 64, 0) * 8, is_chunked=True)
    groups = KVGroups.of(llama4, 4096, BLOCK_SIZE, 64)
    assert groups.spans == (FULL, *[AttentionSpan(64, is_chunked=True)] * 3)
    assert groups.places[:4] == (KVPlace(1, 0), KVPlace(1, 1), KVPlace(1, 2), KVPlace(0, 0))


@pytest.mark.parametrize("length", [1, 300, 512])
def test_a_window_that_no_sequence_leaves_is_none(length: int) -> None:
    assert KVGroups.of(known("google/gemma-3-1b-it"), length, BLOCK_SIZE, CHUNK).spans == (FULL,)


def test_layers_stay_together_where_little_would_be_saved() -> None:
    """A window of 4,096 and a chunk leave a sequence of 4,800 tokens next to nothing to give back."""
    assert KVGroups.of(known("google/gemma-2-9b-it"), 4800, BLOCK_SIZE, CHUNK).spans == (FULL,)
    assert len(KVGroups.of(known("google/gemma-2-9b-it"), 8192, BLOCK_SIZE, CHUNK).spans) == 2


@given(
    windows=st.lists(st.sampled_from([0, 100, 700, 4000]), min_size=1, max_size=40),
    max_model_len=st.integers(1, 20_000),
    chunk=st.integers(1, 3000),
    is_chunked=st.booleans(),
)
def test_every_layer_has_a_place_of_its_own_and_no_sequence_holds_more_than_with_one_table(
    windows: list[int], max_model_len: int, chunk: int, is_chunked: bool
) -> None:
    model = with_windows(known("meta-llama/Llama-3.1-8B"), *windows, is_chunked=is_chunked)
    groups = KVGroups.of(model, max_model_len, BLOCK_SIZE, chunk)
    assert 1 <= len(groups.spans) <= MAX_GROUPS
    assert len(set(groups.places)) == len(windows)
    assert all(place.slot < groups.block_layers for place in groups.places)
    for layer, place in enumerate(groups.places):
        seen, kept = model.layers[layer].mixer.span, groups.spans[place.group]
        assert all(kept.num_behind(at) <= seen.num_behind(at) for at in range(0, max_model_len, 97))
    whole = -(-max_model_len // BLOCK_SIZE) * len(windows)
    assert groups.blocks_of(max_model_len) * groups.block_layers <= whole


def test_a_long_generation_of_an_alternating_model_holds_a_fifth_of_what_it_did() -> None:
    """Gemma 3 12B: 8 of 48 layers see 16,384 tokens, the others a window of 1,024."""
    length = 16_384
    groups = KVGroups.of(known("google/gemma-3-12b-it"), length, BLOCK_SIZE, CHUNK)
    cache = KVCacheManager(groups.cache(2000, enable_prefix_caching=False))
    blocks = cache.open("")
    most = 0
    for start in (*range(0, 8192, CHUNK), *range(8192, length)):
        assert cache.allocate(blocks, max(start + 1, 8192))
        held = sum(block != NULL_BLOCK for table in blocks.tables for block in table)
        assert held <= groups.blocks_of(length)
        most = max(most, held)
        cache.drop(blocks, start + (CHUNK if start < 8192 else 1))
    before = length // BLOCK_SIZE * 48  # blocks of one layer
    window = 1024 // BLOCK_SIZE + 1
    after = sum(block != NULL_BLOCK for table in blocks.tables for block in table) * groups.block_layers
    assert after <= before / 6 + 40 * window
    assert after < 0.22 * before
    assert most * groups.block_layers < 0.25 * before


@pytest.mark.parametrize(("name", "least"), [("google/gemma-3-4b-it", 3.5), ("openai/gpt-oss-20b", 1.8)])
def test_more_sequences_fit_in_the_same_memory(name: str, least: float) -> None:
    model = known(name)
    shape = ServingShape("bfloat16", 16_384, BLOCK_SIZE, StepLimits(CHUNK, 8, 1))
    alternating, full = (Footprint.of(each, 8, shape) for each in (model, with_attention(model, window=0)))
    assert alternating.fixed == full.fixed
    sequences = [(each.max_blocks(16 * GIB) - 1) / (each.min_blocks - 1) for each in (alternating, full)]
    assert sequences[0] >= least * sequences[1]


def test_small_layers_share_the_memory_of_a_large_one() -> None:
    """Gemma 4 31B in outline: five local layers of 16 heads of 256, then a global one of 4 heads of 512."""
    local, whole = AttentionSpec(32, 16, 256, window=1024), AttentionSpec(32, 4, 512)
    base = known("google/gemma-3-1b-it")
    layers = tuple(replace(base.layers[0], mixer=whole if i % 6 == 5 else local) for i in range(60))
    model = base.with_layers(layers)
    per_slot = layers_per_slot(model, ShardSpec.of(model, 1), "bfloat16", BLOCK_SIZE)
    assert per_slot == {local: 1, whole: 2}
    groups = KVGroups.of(model, 32_768, BLOCK_SIZE, CHUNK, per_slot)
    wholes = [groups.places[i] for i in range(5, 60, 6)]
    assert len(set(groups.places)) == 60
    assert [place.part for place in wholes if place] == [0, 1] * 5
    assert groups.spans.count(FULL) * groups.block_layers >= 5
    shared = model.with_layers((*layers[:-1], replace(layers[-1], mixer=replace(whole, kv_source=53))))
    found = KVGroups.of(
        shared, 32_768, BLOCK_SIZE, CHUNK, layers_per_slot(shared, ShardSpec.of(shared, 1), "bfloat16", 32)
    )
    assert found.places[59] == found.places[53] != found.places[47]
