"""The loop nest of a matmul without a tile unit: column tiles outside, four rows at a time inside.

Given the inner loops for four rows and for one, both of which visit k in order, a row's result does not depend on which
of the two computed it.
"""

from __future__ import annotations

from typing import Any

from server.device.kernels.jit import inline, share_begin
from server.device.kernels.memory import load_i64
from server.device.kernels.records import MATMUL, MATMUL_BYTES

_LINE = 64  # bytes of 16 float32 columns of one output row


def column_tile_loop(four_rows: Any, one_row: Any, row_bytes: int) -> Any:
    """All rows of one column tile; `row_bytes` is one activation row of a panel."""

    @inline
    def column_tile(a, b, c, k_tiles, ldc, rows):  # type: ignore[no-untyped-def]
        row = 0
        while row < rows:
            a_row = a + (row // 16) * k_tiles * 16 * row_bytes + row % 16 * row_bytes
            if row + 4 <= rows:
                four_rows(a_row, b, c + row * ldc * 4, k_tiles, ldc)
                row += 4
            else:
                one_row(a_row, b, c + row * ldc * 4, k_tiles)
                row += 1

    return column_tile


def matmul_loop(column_tile: Any, row_bytes: int) -> Any:
    """All column tiles of all cores, in equal shares."""

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows = load_i64(step + load_i64(operands + MATMUL.rows_field))
        n_tiles, k_tiles = load_i64(operands + MATMUL.n_tiles), load_i64(operands + MATMUL.k_tiles)
        ldc = load_i64(operands + MATMUL.ldc)
        first, last = share_begin(cores * n_tiles, worker, workers), share_begin(cores * n_tiles, worker + 1, workers)
        for item in range(first, last):
            n = item % n_tiles
            op = operands + item // n_tiles * MATMUL_BYTES
            b = load_i64(op + MATMUL.weights) + n * k_tiles * 16 * row_bytes
            c = load_i64(op + MATMUL.output) + n * _LINE
            column_tile(load_i64(op + MATMUL.activations), b, c, k_tiles, ldc, rows)

    return matmul


def lane_matmul(four_rows: Any, one_row: Any, row_bytes: int) -> Any:
    """The whole matmul around its two inner loops."""
    return matmul_loop(column_tile_loop(four_rows, one_row, row_bytes), row_bytes)
