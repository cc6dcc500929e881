"""The arithmetic that says whether a model fits is the arithmetic of what loading enters in the ledger, to the byte."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.checkpoint.checkpoint import Checkpoint
from server.checkpoint.model_config import read_model_spec
from server.config import CacheConfig, Dtype, KVCacheDtype, Quantization
from server.device.core import NeuronCore
from server.device.ledger import GIB, MIB, MemoryLedger, Use
from server.engine.buffers import ActivationBuffers, ConstantTables, KVPool
from server.engine.load.checkpoint_weights import CheckpointWeights
from server.engine.load.weights import WeightLoader
from server.models.spec import ModelSpec
from server.models.tensors import num_params
from server.placement.footprint import (
    COLLECTIVES_BYTES,
    RUNTIME_BYTES,
    Footprint,
    ServingShape,
    StepLimits,
    score_bytes,
)
from server.placement.shard import ShardSpec
from tests.depth import representative
from tools.random_checkpoint.writer import write_checkpoint

LLAMA_8B = ModelSpec("LlamaForCausalLM", 32, 4096, 14_336, 32, 8, 128, 128_256, 131_072)
LIMITS = StepLimits(num_tokens=64, num_samples=5, num_workers=2)
SERVED: tuple[Use, ...] = ("weights", "kv", "scratchpad", "collectives")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def checkpoint(folder: Path, name: str) -> tuple[Checkpoint, ModelSpec]:
    write_checkpoint(name, folder / name)
    spec = read_model_spec(folder / name)
    return Checkpoint.open(folder / name, spec), spec


def load(files: tuple[Checkpoint, ModelSpec], tp: int, shape: ServingShape, num_blocks: int) -> MemoryLedger:
    """Everything that a start puts on the cores, without the runtime's own share."""
    reader, spec = files
    shard, ledger = ShardSpec.of(spec, tp), MemoryLedger(GIB, tp, 2)
    cores = [NeuronCore(index, ledger) for index in range(tp)]
    source = CheckpointWeights(reader, shard, shape.formats)
    WeightLoader(source, spec, shard, cores, shape.formats).load(lambda _: None)
    ConstantTables(cores, spec, shard, shape.max_model_len)
    ActivationBuffers(cores, spec, shard, shape)
    KVPool.allocate(cores, spec, shard, CacheConfig(num_blocks, shape.block_size), shape.kv_dtype)
    return ledger


@pytest.mark.parametrize("tp", representative([1, 2, 3, 8], 1, 3))
@pytest.mark.parametrize(
    "name",
    representative(["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-odd"], "tiny-qwen3", "tiny-odd"),
)
@pytest.mark.parametrize(
    ("dtype", "max_model_len", "block_size", "quantization", "kv_dtype"),
    [
        ("bfloat16", 333, 16, None, None),
        ("float32", 97, 1, None, None),
        ("bfloat16", 200, 32, "int8", "fp8"),
        ("float32", 64, 16, "fp8", None),
        ("bfloat16", 2000, 16, None, "int8"),
    ],
)
def test_what_was_counted_is_what_loading_reserves_on_the_fullest_core(
    folder: Path,
    name: str,
    tp: int,
    dtype: Dtype,
    max_model_len: int,
    block_size: int,
    quantization: Quantization | None,
    kv_dtype: KVCacheDtype | None,
) -> None:
    left_out = ("o_proj", "layers.1.mlp")
    shape = ServingShape(dtype, max_model_len, block_size, LIMITS, quantization, left_out, kv_dtype)
    files = checkpoint(folder, name)
    footprint = Footprint.of(files[1], tp, shape)
    counted = footprint.with_kv(footprint.min_blocks)
    counted["collectives"] -= COLLECTIVES_BYTES * (tp > 1)
    counted["scratchpad"] -= score_bytes(ShardSpec.of(files[1], tp), LIMITS)
    ledger = load(files, tp, shape, footprint.min_blocks)
    assert {use: ledger.reserved_bytes(0, use) for use in SERVED} == {use: counted[use] for use in SERVED}
    assert all(ledger.reserved_bytes(core) <= ledger.reserved_bytes(0) for core in range(tp))


def test_the_published_breakdown_of_one_core() -> None:
    """optimum-neuron 6373c379: Llama-3.1-8B, TP8, batch 32, 4,096 tokens: KV 2,048, collectives 472, the rest 711."""
    shape = ServingShape("bfloat16", 4096, 32, StepLimits(1, 1, 1))
    footprint = Footprint.of(LLAMA_8B, 8, shape)
    assert 32 * 4096 // 32 * footprint.kv_block == 2048 * MIB
    assert footprint.fixed["runtime"] == RUNTIME_BYTES == 711 * MIB
    assert footprint.fixed["collectives"] - 472 * MIB < 5 * MIB  # the all-reduce buffer of so small a step
    assert footprint.fixed["weights"] * 8 == pytest.approx(num_params(LLAMA_8B) * 2, rel=0.001)


@pytest.mark.parametrize(("first", "published_mib", "bound"), [(False, 5600, 0.05), (True, 8029, 0.27)])
def test_the_published_total_of_each_core(first: bool, published_mib: int, bound: float) -> None:
    """The same source, whole prompts of 4,096 tokens. Of core 0's 3,767 MiB of weights one copy is 1,916."""
    limits = StepLimits(4096, 32, 1)
    uses = Footprint.of(LLAMA_8B, 8, ServingShape("bfloat16", 4096, 32, limits)).with_kv(32 * 4096 // 32)
    partial = 4096 * 4096 * 4  # of every core, gathered on the first
    total = sum(uses.values()) if first else sum(uses.values()) - 7 * partial
    error = total / (published_mib * MIB) - 1
    assert -bound <= error <= 0, error
    missing_copy = (3767 * MIB - uses["weights"]) * first
    assert abs((total + missing_copy) / (published_mib * MIB) - 1) <= 0.05


def test_scores_of_a_prompt_above_32k_run_a_core_out_of_memory() -> None:
    """As published: 4 heads a core at TP8, 4 x length^2 x 2 bytes."""
    shard = ShardSpec.of(LLAMA_8B, 8)
    assert score_bytes(shard, StepLimits(4096, 1, 1)) == 4 * 4096**2 * 2
    fits = {
        length: Footprint.of(LLAMA_8B, 8, ServingShape("bfloat16", length, 32, StepLimits(length, 1, 1))).fits(16 * GIB)
        for length in (16_384, 65_536)
    }
    assert fits == {16_384: True, 65_536: False}


@pytest.mark.parametrize(("kv_dtype", "head_bytes"), [("bfloat16", 256), ("int8", 132), ("fp8", 132)])
def test_an_8_bit_cache_has_a_scale_for_each_token_and_head(kv_dtype: KVCacheDtype, head_bytes: int) -> None:
    shape = ServingShape("bfloat16", 4096, 32, LIMITS, kv_cache_dtype=kv_dtype)
    assert Footprint.of(LLAMA_8B, 1, shape).kv_block == 32 * 2 * LLAMA_8B.num_layers * 8 * head_bytes


def test_one_core_has_nobody_to_talk_to() -> None:
    shape = ServingShape("bfloat16", 4096, 32, LIMITS)
    assert Footprint.of(LLAMA_8B, 1, shape).fixed["collectives"] < COLLECTIVES_BYTES


def test_replicated_kv_heads_cost_every_core_a_head() -> None:
    """8 KV heads over 8, 12 and 24 cores: 1, 2 (heads 3 to a core straddle two groups) and 1 to a core."""
    shape = ServingShape("bfloat16", 4096, 32, LIMITS)
    blocks = [Footprint.of(LLAMA_8B, tp, shape).kv_block for tp in (8, 12, 24)]
    assert blocks == [blocks[0], 2 * blocks[0], blocks[0]]


@given(st.integers(1, 9000), st.sampled_from([1, 16, 32]), st.integers(0, 40 * GIB))
def test_a_budget_holds_the_blocks_it_is_said_to_hold_and_not_one_more(
    max_model_len: int, block_size: int, budget: int
) -> None:
    footprint = Footprint.of(LLAMA_8B, 2, ServingShape("bfloat16", max_model_len, block_size, LIMITS))
    blocks = footprint.max_blocks(budget)
    assert sum(footprint.with_kv(blocks).values()) <= budget < sum(footprint.with_kv(blocks + 1).values())
    assert footprint.fits(budget) == (blocks >= footprint.min_blocks)


@given(st.integers(1, 9000), st.integers(1, 64))
def test_the_least_pool_holds_one_full_sequence_beside_the_null_block(max_model_len: int, block_size: int) -> None:
    shape = ServingShape("bfloat16", max_model_len, block_size, LIMITS)
    assert (shape.min_blocks - 2) * block_size < max_model_len <= (shape.min_blocks - 1) * block_size


def test_a_tied_output_layer_is_stored_once() -> None:
    shape = ServingShape("bfloat16", 4096, 32, LIMITS)
    tied = dataclasses.replace(LLAMA_8B, is_tied=True)
    spared = Footprint.of(LLAMA_8B, 1, shape).fixed["weights"] - Footprint.of(tied, 1, shape).fixed["weights"]
    assert spared == 128_256 * 4096 * 2
