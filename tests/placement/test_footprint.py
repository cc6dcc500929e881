"""Both accounts: the host's is what loading allocates, to the byte; the part's is held against the published one."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.config import LoraConfig
from neuronserve.server.config.formats import Dtype, KVCacheDtype, Quantization
from neuronserve.server.device.catalog import instance
from neuronserve.server.device.core import HostUse, NeuronCore
from neuronserve.server.device.ledger import MIB, MemoryLedger
from neuronserve.server.engine.buffers import ActivationBuffers, ConstantTables, KVPool
from neuronserve.server.engine.encode.beside import LayerPool
from neuronserve.server.engine.load.adapter_slots import AdapterSlots
from neuronserve.server.engine.load.checkpoint_weights import CheckpointWeights
from neuronserve.server.engine.load.weights import WeightLoader
from neuronserve.server.errors import DeviceMemoryError
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import HeadSpec, ModelSpec
from neuronserve.server.placement.cache_layout import kv_slot_sizes
from neuronserve.server.placement.core_share import lora_bytes
from neuronserve.server.placement.fit import require_fit
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits
from neuronserve.server.placement.host_footprint import HostFootprint, packed_weight_bytes
from neuronserve.server.placement.shard import ShardSpec
from tests.depth import representative
from tools.random_checkpoint.writer import write_checkpoint

LLAMA_8B = DecoderSizes(32, 4096, 14_336, 32, 8, 128, 128_256).spec("LlamaForCausalLM", 131_072)
LIMITS = StepLimits(num_tokens=64, num_samples=5, num_workers=2)
BUFFERS: tuple[HostUse, ...] = ("activations", "partial_sums", "workers", "tables", "adapters")
LORA = LoraConfig(max_loras=3, max_lora_rank=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def checkpoint(folder: Path, name: str) -> tuple[Checkpoint, ModelSpec]:
    write_checkpoint(name, folder / name)
    spec = read_model_spec(folder / name)
    return Checkpoint.open(folder / name, spec), spec


def load(
    files: tuple[Checkpoint, ModelSpec], shard: ShardSpec, shape: ServingShape, num_blocks: int
) -> list[NeuronCore]:
    """Everything that a start puts into the host's memory."""
    reader, spec = files
    cores = [NeuronCore(index) for index in range(shard.tp)]
    source = CheckpointWeights(reader, shard, shape.formats)
    WeightLoader(source, spec, shard, cores, shape.formats).load(lambda _: None)
    ConstantTables(cores, spec, shard, shape.max_model_len)
    buffers = ActivationBuffers(cores, spec, shard, shape)
    LayerPool.of(cores, spec, shard, shape)
    if shape.lora is not None:
        AdapterSlots(cores, spec, shard, shape.dtype, shape.lora, buffers.sizes.rows)
    sizes = kv_slot_sizes(spec, shard, shape.kv_dtype, shape.block_size)
    KVPool.allocate(cores, shape.kv_groups(spec, shard.tp).places, num_blocks, sizes)
    return cores


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
def test_what_was_counted_of_the_host_is_what_loading_allocates(
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
    lora = LORA if quantization is not None else None
    shape = ServingShape(dtype, max_model_len, block_size, LIMITS, quantization, left_out, kv_dtype, lora)
    files = checkpoint(folder, name)
    shard = ShardSpec.of(files[1], tp)
    counted, packed = HostFootprint.of(files[1], shard, shape), packed_weight_bytes(files[1], shard, shape.formats)
    num_blocks = 5
    cores = load(files, shard, shape, num_blocks)
    used = {use: sum(core.used[use] for core in cores) for use in (*BUFFERS, "kv")}
    assert used == {use: counted.fixed[use] for use in BUFFERS} | {"kv": num_blocks * counted.kv_block}
    assert cores[0].used["weights"] == packed
    assert all(core.used["weights"] <= packed for core in cores)
    allocated = sum(sum(core.used.values()) for core in cores)
    assert allocated <= counted.total(num_blocks) == allocated + sum(packed - c.used["weights"] for c in cores)


def test_the_part_holds_all_adapters_and_one_for_each_slot() -> None:
    shape = ServingShape("bfloat16", 4096, 32, StepLimits(4096, 16, 1))
    adapted = dataclasses.replace(shape, lora=LoraConfig(max_loras=8, max_lora_rank=64))
    plain, footprint = (Footprint.of(LLAMA_8B, 8, each) for each in (shape, adapted))
    (line,) = set(footprint.lines) - set(plain.lines)
    assert line == ("weights", "LoRA adapters", lora_bytes(LLAMA_8B, 8, 64, stored=8, slots=16))
    require_fit(LLAMA_8B, instance("inf2.48xlarge"), 2, adapted, 0.92)
    widest = dataclasses.replace(shape, lora=LoraConfig(max_loras=8, max_lora_rank=256))
    with pytest.raises(DeviceMemoryError, match=r"does not fit on inf2\.48xlarge .* each core lacks"):
        require_fit(LLAMA_8B, instance("inf2.48xlarge"), 2, widest, 0.92)


def test_the_part_is_charged_nothing_of_what_only_the_host_has() -> None:
    """Llama-3.1-405B, TP64, prompts of 12,288 tokens: partial sums of 48 GiB, which cores of 24 GiB need not hold."""
    model = DecoderSizes(126, 16_384, 53_248, 128, 8, 128, 128_256).spec("LlamaForCausalLM", 131_072)
    shape = ServingShape("bfloat16", 12_800, 32, StepLimits(12_288, 1, 2))
    assert HostFootprint.of(model, ShardSpec.of(model, 64), shape).fixed["partial_sums"] == 48 * GIB
    part = Footprint.of(model, 64, shape, lnc=2)
    assert part == Footprint.of(model, 64, dataclasses.replace(shape, limits=StepLimits(12_288, 1, 96)), lnc=2)
    assert sum(part.with_kv(part.min_blocks).values()) < 17 * GIB


PUBLISHED = ServingShape("bfloat16", 4096, 32, StepLimits(4096, 32, 1))


def test_a_logical_core_of_two_has_the_microcode_twice() -> None:
    one, two = (Footprint.of(LLAMA_8B, 8, PUBLISHED, lnc).fixed["code"] for lnc in (1, 2))
    assert two - one == 96 * MIB  # SDK device-memory.rst


@pytest.mark.parametrize("fills_first_core", [False, True])
def test_every_core_of_the_ledger_has_every_line(*, fills_first_core: bool) -> None:
    shape = dataclasses.replace(PUBLISHED, fills_first_core=fills_first_core)
    footprint, ledger = Footprint.of(LLAMA_8B, 8, shape), MemoryLedger(16 * GIB, 8, 2)
    footprint.enter(ledger, 100)
    for core in range(8):
        expected = footprint.of_core(core, 100)
        assert {use: ledger.reserved_bytes(core, use) for use in expected} == expected
    assert {name for _, name in ledger.entries(1)} > {"activations", "descriptors", "blocks"}
    first, other = (sum(footprint.of_core(core, 100).values()) for core in (0, 1))
    assert (first > other) == fills_first_core


def test_blocks_are_limited_by_the_first_core_if_that_is_fuller() -> None:
    even = Footprint.of(LLAMA_8B, 8, PUBLISHED)
    full = Footprint.of(LLAMA_8B, 8, dataclasses.replace(PUBLISHED, fills_first_core=True))
    beside = sum(full.of_core(0, 0).values()) - sum(even.of_core(0, 0).values())
    assert even.max_blocks(16 * GIB) == full.max_blocks(16 * GIB + beside) > full.max_blocks(16 * GIB)
    alone = dataclasses.replace(PUBLISHED, fills_first_core=True)
    assert Footprint.of(LLAMA_8B, 1, alone) == Footprint.of(LLAMA_8B, 1, PUBLISHED)


@pytest.mark.parametrize(("kv_dtype", "head_bytes"), [("bfloat16", 256), ("int8", 132), ("fp8", 132)])
def test_an_8_bit_cache_has_a_scale_for_each_token_and_head(kv_dtype: KVCacheDtype, head_bytes: int) -> None:
    shape = ServingShape("bfloat16", 4096, 32, LIMITS, kv_cache_dtype=kv_dtype)
    assert Footprint.of(LLAMA_8B, 1, shape).kv_block == 32 * 2 * LLAMA_8B.num_layers * 8 * head_bytes


def test_one_core_has_nobody_to_talk_to() -> None:
    shape = ServingShape("bfloat16", 4096, 32, LIMITS)
    assert Footprint.of(LLAMA_8B, 1, shape).fixed["collectives"] == 0


def test_replicated_kv_heads_cost_every_core_a_head() -> None:
    """8 KV heads over 8, 12 and 24 cores: 1, 3 (as many as query heads, where neither divides the other) and 1."""
    shape = ServingShape("bfloat16", 4096, 32, LIMITS)
    blocks = [Footprint.of(LLAMA_8B, tp, shape).kv_block for tp in (8, 12, 24)]
    assert blocks == [blocks[0], 3 * blocks[0], blocks[0]]


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
    least = Footprint.of(LLAMA_8B, 1, shape).min_blocks
    assert (least - 2) * block_size < max_model_len <= (least - 1) * block_size


def test_a_tied_output_layer_is_stored_once_by_the_host_and_twice_by_the_part() -> None:
    """NxD Inference divides the two along different axes."""
    shape, shard = ServingShape("bfloat16", 4096, 32, LIMITS), ShardSpec.of(LLAMA_8B, 1)
    tied = dataclasses.replace(LLAMA_8B, head=HeadSpec(is_tied=True))
    spared = [packed_weight_bytes(model, shard, shape.formats) for model in (LLAMA_8B, tied)]
    assert spared[0] - spared[1] == 128_256 * 4096 * 2
    assert Footprint.of(LLAMA_8B, 1, shape) == Footprint.of(tied, 1, shape)
