"""Layout of the KV cache on a core, and of the scratch of attention, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..config.formats import Dtype, KVCacheDtype
from ..device.attention_layout import (
    ATTENTION_ROWS,
    PARTITION,
    TEXT_WORK_BYTES,
    item_scratch_bytes,
    lanes_work_bytes,
    row_state_bytes,
    tile_work_bytes,
)
from ..device.layout import FLOAT32_BYTES, N_TILE, round_up
from ..errors import SettingsError
from ..models.layer import AttentionSpec
from ..models.spec import ModelSpec
from .shard import ShardSpec

KV_CELL_BYTES: dict[KVCacheDtype, int] = {"bfloat16": 2, "float32": 4, "int8": 1, "fp8": 1}
SCALE_BYTES = FLOAT32_BYTES  # of one token's head in an 8-bit cache


def kv_cache_dtype(dtype: Dtype, requested: Literal["auto"] | KVCacheDtype) -> KVCacheDtype:
    """Return the cache's type; `auto` is the activations' type. Raises SettingsError for types that do not combine."""
    if requested == "auto":
        return dtype
    if (dtype == "float32") != (requested == "float32"):
        raise SettingsError(f"kv_cache_dtype is {requested}: with dtype {dtype} it must be {_choices(dtype)}")
    return requested


def _choices(dtype: Dtype) -> str:
    return "auto" if dtype == "float32" else "auto, bfloat16, int8 or fp8"


def kv_head_bytes(head_dim: int, kv_dtype: KVCacheDtype, block_size: int) -> int:
    """Return the bytes of K, or V, of one KV head in one block: padded elements, and scales of an 8-bit cache."""
    cell = KV_CELL_BYTES[kv_dtype]
    scales = SCALE_BYTES * block_size if cell == 1 else 0
    return round_up(head_dim, N_TILE) * cell * block_size + scales


def kv_tensor_bytes(mixer: AttentionSpec, shard: ShardSpec, kv_dtype: KVCacheDtype, block_size: int) -> int:
    """Return the bytes of K, or V, of one layer in one block, on one core."""
    heads = shard.of_heads(mixer.heads).kv_heads_per_core
    return heads * kv_head_bytes(mixer.head_dim, kv_dtype, block_size)


def kv_layer_bytes(model: ModelSpec, shard: ShardSpec, kv_dtype: KVCacheDtype, block_size: int) -> int:
    """Return the bytes of K and V of the largest layer in one block, on one core."""
    return max(each.num_tensors * kv_tensor_bytes(each, shard, kv_dtype, block_size) for each in model.attentions)


def kv_slot_sizes(model: ModelSpec, shard: ShardSpec, kv_dtype: KVCacheDtype, block_size: int) -> tuple[int, int]:
    """Return the bytes of one slot in one block, on one core, and the number of its tensors: K and V, or one."""
    return kv_layer_bytes(model, shard, kv_dtype, block_size), model.attention.num_tensors


def layers_per_slot(
    model: ModelSpec, shard: ShardSpec, kv_dtype: KVCacheDtype, block_size: int
) -> dict[AttentionSpec, int]:
    """Return how many layers of each kind fit in the memory of one layer of the largest kind, on one core."""
    sizes = {each: kv_tensor_bytes(each, shard, kv_dtype, block_size) for each in model.attentions}
    return {each: max(sizes.values()) // size for each, size in sizes.items()}


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Sizes of the largest work item, and of the states of contexts that several workers divide."""

    tile_tokens: int  # query tokens of one item
    max_group: int  # query heads of one KV head
    state_rows: int  # rows of one item, rounded up to whole tiles
    worker_scratch: int  # bytes
    num_slots: int  # partitions of divided contexts in one step
    partials: int  # bytes, for all cores
    arrivals: int  # bytes, for all cores

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, max_model_len: int, num_workers: int) -> AttentionSizes:
        """Return sizes that allow to divide two contexts of full length, or enough shorter ones for every worker."""
        head_pad = max(round_up(each.head_dim, N_TILE) for each in model.attentions)
        group = max(each.max_group for each in shard.heads)
        tile_tokens = max(1, ATTENTION_ROWS // group)
        rows = tile_tokens * group
        work = max(
            lanes_work_bytes(rows, head_pad), tile_work_bytes(rows, head_pad), TEXT_WORK_BYTES * model.is_encoder
        )
        partitions = -(-max_model_len // PARTITION)
        slots = 0 if partitions == 1 else 2 * partitions + 8 * num_workers
        pairs = slots * shard.tp * max(each.kv_heads_per_core for each in shard.heads)
        return cls(
            tile_tokens=tile_tokens,
            max_group=group,
            state_rows=round_up(rows, N_TILE),
            worker_scratch=item_scratch_bytes(rows, head_pad) + work,
            num_slots=slots,
            partials=pairs * group * row_state_bytes(head_pad),
            arrivals=round_up(pairs * 8, 64),
        )
