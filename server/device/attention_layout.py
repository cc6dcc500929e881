"""Sizes of what attention works in: constants that are compiled into the kernels, and the bytes that follow."""

from __future__ import annotations

from neuronserve.server.device.layout import BFLOAT16_BYTES, FLOAT32_BYTES, INT16_BYTES, N_TILE, round_up

ATTENTION_ROWS = 64  # (token, head) rows of one item
PARTITION = 512  # tokens of a context that are walked from one fresh softmax state
CHUNK = 64  # keys that a row is scored against at once

# The softmax state of a row: the running maximum, then the byte offsets of sixteen sums of weights by lane, and of the
# weighted values.
SUMS, VALUES = 64, 128
ITEM_BYTES = 128  # the record of an item, at the head of its worker's scratch

# Scratch of the tile kernel: float32 scores [32 rows][CHUNK], bfloat16 weights of them, float32 scales of K and of V.
TILE_SCORES_BYTES = 32 * CHUNK * FLOAT32_BYTES
TILE_WEIGHTS_BYTES = 32 * CHUNK * BFLOAT16_BYTES
TILE_SCALES_BYTES = 2 * CHUNK * FLOAT32_BYTES


# Scratch of integer products: records of a chunk's runs of keys, each in one block, before the queries' scales.
RUN, RUN_BYTES = 16, 48
RUNS_BYTES = RUN_BYTES * (CHUNK // RUN)


def row_state_bytes(head_pad: int) -> int:
    """Bytes of one row's softmax state."""
    return VALUES + FLOAT32_BYTES * head_pad


def item_scratch_bytes(rows: int, head_pad: int) -> int:
    """Scratch of a worker, without the kernel's own part, for items of at most `rows` rows: two states a row."""
    return ITEM_BYTES + 2 * round_up(rows, N_TILE) * row_state_bytes(head_pad)


def lanes_work_bytes(rows: int, head_pad: int) -> int:
    """Scratch of the lane kernels: scores of all rows, scales of K and of V, and one chunk of either in float32.

    For integer products, queries of int16 with a scale each instead of that chunk.
    """
    lines = round_up(rows, N_TILE)
    queries = RUNS_BYTES + FLOAT32_BYTES * lines + INT16_BYTES * rows * head_pad
    return FLOAT32_BYTES * CHUNK * (lines + 2) + max(FLOAT32_BYTES * CHUNK * head_pad, queries)


def tile_work_bytes(rows: int, head_dim: int) -> int:
    """Scratch for items of at most `rows` rows: scores, weights, queries, and one chunk of K and of V in bfloat16."""
    operands = BFLOAT16_BYTES * head_dim * (round_up(rows, 32) + 2 * CHUNK)
    return TILE_SCORES_BYTES + TILE_WEIGHTS_BYTES + TILE_SCALES_BYTES + operands
