"""Sizes of the working memory of attention: constants compiled into the kernels, and sizes in bytes that follow."""

from __future__ import annotations

from .layout import BFLOAT16_BYTES, FLOAT32_BYTES, INT16_BYTES, N_TILE, round_up

ATTENTION_ROWS = 64  # (token, head) rows of one work item
PARTITION = 512  # tokens of a context that are processed from one fresh softmax state
CHUNK = 64  # keys that a row is scored against in one pass

# The softmax state of a row begins with its running maximum. SUMS and VALUES are the byte offsets of the sixteen sums
# of weights, one a lane, and of the weighted values.
SUMS, VALUES = 64, 128
ITEM_BYTES = 128  # the record of a work item, at the start of its worker's scratch

# Scratch of the tile kernel: float32 scores [32 rows][CHUNK], bfloat16 weights of them, float32 scales of K and of V.
TILE_SCORES_BYTES = 32 * CHUNK * FLOAT32_BYTES
TILE_WEIGHTS_BYTES = 32 * CHUNK * BFLOAT16_BYTES
TILE_SCALES_BYTES = 2 * CHUNK * FLOAT32_BYTES


# Scratch of integer products: records of a chunk's runs of keys (each within one block), then the queries' scales.
RUN, RUN_BYTES = 16, 48
RUNS_BYTES = RUN_BYTES * (CHUNK // RUN)


def row_state_bytes(head_pad: int) -> int:
    """Bytes of one row's softmax state."""
    return VALUES + FLOAT32_BYTES * head_pad


def item_scratch_bytes(rows: int, head_pad: int) -> int:
    """Bytes of a worker's scratch without the kernel's own scratch: two states for each of at most `rows` rows."""
    return ITEM_BYTES + 2 * round_up(rows, N_TILE) * row_state_bytes(head_pad)


def lanes_work_bytes(rows: int, head_pad: int) -> int:
    """Bytes of the lane kernels' scratch: scores of all rows, scales of K and V, and one chunk of K or V in float32.

    Integer products have int16 queries, each with a scale, in place of that chunk.
    """
    lines = round_up(rows, N_TILE)
    queries = RUNS_BYTES + FLOAT32_BYTES * lines + INT16_BYTES * rows * head_pad
    return FLOAT32_BYTES * CHUNK * (lines + 2) + max(FLOAT32_BYTES * CHUNK * head_pad, queries)


# Scratch of encoders' attention: scores of four rows, of four rows with distances, of a run's distances with its keys.
# Without distances, scores of eight rows.
DISTANCE_COLUMNS = CHUNK + 16  # distances of four queries that follow one another to the keys of a run
DISTANCE_SCORES = 4 * CHUNK * FLOAT32_BYTES
DISTANCE_ROWS = DISTANCE_SCORES + 4 * DISTANCE_COLUMNS * FLOAT32_BYTES
TEXT_WORK_BYTES = DISTANCE_ROWS + (ATTENTION_ROWS + CHUNK) * CHUNK * FLOAT32_BYTES


def tile_work_bytes(rows: int, head_dim: int) -> int:
    """Bytes of the tile kernel's scratch for `rows` rows: scores, weights, queries, a chunk of K and V in bfloat16."""
    operands = BFLOAT16_BYTES * head_dim * (round_up(rows, 32) + 2 * CHUNK)
    return TILE_SCORES_BYTES + TILE_WEIGHTS_BYTES + TILE_SCALES_BYTES + operands
