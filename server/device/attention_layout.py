"""How a KV cache lies in memory, and what attention needs beside it: bytes only, for the ledger and for the kernels.

The constants are compiled into the attention kernels (server/kernels/attention/), which import them from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.config import Dtype, KVCacheDtype, ModelSpec
from server.device.layout import N_TILE, round_up
from server.device.shard import ShardSpec
from server.errors import SettingsError

KV_CELL_BYTES: dict[KVCacheDtype, int] = {"bfloat16": 2, "float32": 4, "int8": 1, "fp8": 1}
FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2
SCALE_BYTES = 4  # float32, of one token's head in an 8-bit cache
ATTENTION_ROWS = 64  # (token, head) rows of one item
PARTITION = 512  # tokens of a context that are walked from one fresh softmax state
CHUNK = 64  # keys that a row is scored against at once

# The softmax state of a row: the running maximum, then the byte offsets of sixteen sums of weights by lane, and of the
# weighted values.
SUMS, VALUES = 64, 128
ITEM_BYTES = 128  # the record of an item, at the head of its worker's scratch
LANES_WORK_BYTES = 4 * CHUNK * FLOAT32_BYTES  # scratch of the lane kernel: scores of four rows

# Scratch of the tile kernel: float32 scores [32 rows][CHUNK], bfloat16 weights of them, float32 scales of K and of V.
TILE_SCORES_BYTES = 32 * CHUNK * FLOAT32_BYTES
TILE_WEIGHTS_BYTES = 32 * CHUNK * BFLOAT16_BYTES
TILE_SCALES_BYTES = 2 * CHUNK * FLOAT32_BYTES


def row_state_bytes(head_pad: int) -> int:
    """Bytes of one row's softmax state."""
    return VALUES + FLOAT32_BYTES * head_pad


def item_scratch_bytes(rows: int, head_pad: int) -> int:
    """Scratch of a worker, without the kernel's own part, for items of at most `rows` rows: two states a row."""
    return ITEM_BYTES + 2 * round_up(rows, N_TILE) * row_state_bytes(head_pad)


def tile_work_bytes(rows: int, head_dim: int) -> int:
    """Scratch for items of at most `rows` rows: scores, weights, queries, and one chunk of K and of V in bfloat16."""
    operands = BFLOAT16_BYTES * head_dim * (round_up(rows, 32) + 2 * CHUNK)
    return TILE_SCORES_BYTES + TILE_WEIGHTS_BYTES + TILE_SCALES_BYTES + operands


def kv_cache_dtype(dtype: Dtype, asked: Literal["auto"] | KVCacheDtype) -> KVCacheDtype:
    """The cache's type, `auto` being that of the activations. Raises SettingsError where the two do not go together."""
    if asked == "auto":
        return dtype
    if (dtype == "float32") != (asked == "float32"):
        raise SettingsError(f"kv_cache_dtype is {asked}: with dtype {dtype} it must be {_choices(dtype)}")
    return asked


def _choices(dtype: Dtype) -> str:
    return "auto" if dtype == "float32" else "auto, bfloat16, int8 or fp8"


def kv_head_bytes(model: ModelSpec, kv_dtype: KVCacheDtype, block_size: int) -> int:
    """K, or V, of one kv head in one block: padded elements, then a scale for each token of an 8-bit cache."""
    cell = KV_CELL_BYTES[kv_dtype]
    scales = SCALE_BYTES * block_size if cell == 1 else 0
    return round_up(model.head_dim, N_TILE) * cell * block_size + scales


def kv_block_bytes(model: ModelSpec, shard: ShardSpec, kv_dtype: KVCacheDtype, block_size: int) -> int:
    """K and V of one block over all layers, on one core."""
    return 2 * model.num_layers * shard.kv_heads_per_core * kv_head_bytes(model, kv_dtype, block_size)


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The largest item, and the places for the states of contexts that several workers divide."""

    tile_tokens: int  # query tokens of one item
    max_group: int  # query heads of one kv head
    state_rows: int  # rows of one item, rounded up to whole tiles
    worker_scratch: int  # bytes
    num_slots: int  # partitions of divided contexts in one step
    partials: int  # bytes, for all cores
    arrivals: int  # bytes, for all cores

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, max_model_len: int, num_workers: int) -> AttentionSizes:
        """Two contexts of full length can be divided, or so many shorter ones that every worker has some."""
        head_pad = round_up(model.head_dim, N_TILE)
        group = max(1, *(end - begin for core in range(shard.tp) for begin, end in shard.q_per_kv(core)))
        tile_tokens = max(1, ATTENTION_ROWS // group)
        rows = tile_tokens * group
        work = max(LANES_WORK_BYTES, tile_work_bytes(rows, head_pad))
        partitions = -(-max_model_len // PARTITION)
        slots = 0 if partitions == 1 else 2 * partitions + 8 * num_workers
        pairs = slots * shard.tp * shard.kv_heads_per_core
        return cls(
            tile_tokens=tile_tokens,
            max_group=group,
            state_rows=round_up(rows, N_TILE),
            worker_scratch=item_scratch_bytes(rows, head_pad) + work,
            num_slots=slots,
            partials=pairs * group * row_state_bytes(head_pad),
            arrivals=round_up(pairs * 8, 64),
        )
