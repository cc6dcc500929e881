"""The outer loop of every matmul: pairs of column tiles in equal shares, their weights as stored or converted first."""

from __future__ import annotations

from typing import Any

from server.device.kernels.jit import inline, share_begin
from server.device.kernels.memory import load_i64
from server.device.kernels.records import MATMUL, MATMUL_BYTES

LINE = 64  # bytes of sixteen columns at one word of k


def stored_weights(words: int) -> Any:
    """Weights as they lie in memory, `words` words of k to a tile."""

    @inline
    def weights_of(op, n, width, k_tiles, scratch):  # type: ignore[no-untyped-def]
        """Addresses of column tiles n and n + 1 (n again where `width` is 1), and their tiles along k."""
        size = k_tiles * words * LINE
        b0 = load_i64(op + MATMUL.weights) + n * size
        return b0, b0 + (width - 1) * size, k_tiles

    return weights_of


def converted_weights(convert: Any) -> Any:
    """8-bit codes, made bfloat16 in the worker's scratch."""

    @inline
    def weights_of(op, n, width, k_tiles, scratch):  # type: ignore[no-untyped-def]
        size = k_tiles * 16 * LINE
        convert(load_i64(op + MATMUL.weights) + n * size, scratch, width * k_tiles)
        return scratch, scratch + (width - 1) * 2 * size, 2 * k_tiles

    return weights_of


def matmul_loop(column_pair: Any, weights_of: Any) -> Any:
    """Items are pairs of column tiles of every core."""

    @inline
    def matmul(operands, cores, rows, worker, workers):  # type: ignore[no-untyped-def]
        n_tiles = load_i64(operands + MATMUL.n_tiles)
        pairs = (n_tiles + 1) // 2
        scratch = load_i64(operands + MATMUL.scratch) + worker * load_i64(operands + MATMUL.scratch_stride)
        first, last = share_begin(cores * pairs, worker, workers), share_begin(cores * pairs, worker + 1, workers)
        for item in range(first, last):
            op = operands + item // pairs * MATMUL_BYTES
            n = item % pairs * 2
            width = min(2, n_tiles - n)
            b0, b1, k_tiles = weights_of(op, n, width, load_i64(op + MATMUL.k_tiles), scratch)
            column_pair(op, b0, b1, n, width, rows, k_tiles)

    return matmul


@inline
def rows_of(operands, step):  # type: ignore[no-untyped-def]
    """Rows of this step."""
    return load_i64(step + load_i64(operands + MATMUL.rows_field))
