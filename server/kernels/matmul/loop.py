"""The outer loop of every matmul: column tiles or rows in equal shares, weights as stored or converted first."""

from __future__ import annotations

from typing import Any

from server.kernels.isa.jit import inline, share_begin
from server.kernels.isa.memory import load_i64
from server.kernels.records import MATMUL, MATMUL_BYTES

LINE = 64  # bytes of sixteen columns at one word of k
_MANY_ROWS = 128  # for each worker: blocks of 32 divide well then
_NEAR_BYTES = 5 << 18  # most of a second cache of 2 MiB; the rest is for weights


def stored_weights(words: int) -> Any:
    """Weights as they lie in memory, `words` words of k to a tile."""

    @inline
    def weights_of(op, n, width, scratch):  # type: ignore[no-untyped-def]
        """Addresses of column tiles n and n + 1 (n again where `width` is 1), and their tiles along k."""
        k_tiles = load_i64(op + MATMUL.k_tiles)
        size = k_tiles * words * LINE
        b0 = load_i64(op + MATMUL.weights) + n * size
        return b0, b0 + (width - 1) * size, k_tiles

    return weights_of


def converted_weights(convert: Any) -> Any:
    """8-bit codes, made bfloat16 in the worker's scratch."""

    @inline
    def weights_of(op, n, width, scratch):  # type: ignore[no-untyped-def]
        k_tiles = load_i64(op + MATMUL.k_tiles)
        size = k_tiles * 16 * LINE
        convert(load_i64(op + MATMUL.weights) + n * size, scratch, width * k_tiles)
        return scratch, scratch + (width - 1) * 2 * size, 2 * k_tiles

    return weights_of


def column_item(column_pair: Any, weights_of: Any) -> Any:
    """An item of `matmul_loop` that has its weights in memory before it begins."""

    @inline
    def item(op, n, width, begin, end, scratch):  # type: ignore[no-untyped-def]
        b0, b1, k_tiles = weights_of(op, n, width, scratch)
        column_pair(op, b0, b1, n, width, begin, end, k_tiles)

    return item


@inline
def _block_of(rows, row_bytes):  # type: ignore[no-untyped-def]
    """Rows of activations to take at a time: they stay in the second cache while all weights pass by."""
    blocks = (rows * row_bytes + _NEAR_BYTES - 1) // _NEAR_BYTES
    return max(64, ((rows + blocks - 1) // blocks + 31) // 32 * 32)


@inline
def _share(items, rows, row_bytes, weight_bytes, worker, workers):  # type: ignore[no-untyped-def]
    """The worker's part: items from `first` to `last`, of rows from `low` to `high`.

    Some of the columns, so that weights are read once. But some of the rows, which the worker packed itself and goes on
    with, where weights stay in the second cache, or the rows do not and weights are read again anyway.
    """
    are_columns = weight_bytes > _NEAR_BYTES and rows * row_bytes <= _NEAR_BYTES
    if rows < _MANY_ROWS * workers or are_columns:
        return share_begin(items, worker, workers), share_begin(items, worker + 1, workers), 0, rows
    blocks = (rows + 31) // 32
    low, high = share_begin(blocks, worker, workers), share_begin(blocks, worker + 1, workers)
    return 0, items, low * 32, min(high * 32, rows)


def matmul_loop(item_of: Any, tile_bytes: int) -> Any:
    """Items are pairs of column tiles of every core. `tile_bytes` of a row of activations meet one tile of weights."""

    @inline
    def matmul(operands, cores, rows, worker, workers):  # type: ignore[no-untyped-def]
        n_tiles = load_i64(operands + MATMUL.n_tiles)
        pairs = (n_tiles + 1) // 2
        scratch = load_i64(operands + MATMUL.scratch) + worker * load_i64(operands + MATMUL.scratch_stride)
        row_bytes = load_i64(operands + MATMUL.k_tiles) * tile_bytes
        first, last, low, high = _share(
            cores * pairs, rows, row_bytes, cores * n_tiles * 16 * row_bytes, worker, workers
        )
        block = _block_of(high - low, row_bytes)
        for begin in range(low, high, block):
            for item in range(first, last):
                op = operands + item // pairs * MATMUL_BYTES
                n = item % pairs * 2
                item_of(op, n, min(2, n_tiles - n), begin, min(begin + block, high), scratch)

    return matmul


@inline
def rows_of(operands, step):  # type: ignore[no-untyped-def]
    """Rows of this step."""
    return load_i64(step + load_i64(operands + MATMUL.rows_field))
