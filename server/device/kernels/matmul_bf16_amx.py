"""output[T, N] = activations[T, K] @ weights[K, N] in bfloat16 on the tile unit, accumulated in float32.

Layouts (also of every other bfloat16 matmul here):
  activations  panels [T/16][K/32][16 rows][32]        1 KiB each, bfloat16
  weights      tiles  [N/16][K/32][16 pairs of k][16 n][2]   1 KiB each, bfloat16: the layout the tile unit wants
  output       rows   [T][ldc] float32
Each output element is summed over k in one order, whatever T or the number of workers.
"""

from __future__ import annotations

from server.device.kernels import amx
from server.device.kernels.jit import inline, kernel, share_begin
from server.device.kernels.memory import load_i64, prefetch
from server.device.kernels.records import MATMUL, MATMUL_BYTES

_dot_0_4_6 = amx.dot_bf16(0, 4, 6)
_dot_1_4_7 = amx.dot_bf16(1, 4, 7)
_dot_2_5_6 = amx.dot_bf16(2, 5, 6)
_dot_3_5_7 = amx.dot_bf16(3, 5, 7)
_TILE = 1024
_AHEAD = 8 * _TILE


@inline
def _one_by_one(a, b, c, k_tiles, ldc):  # type: ignore[no-untyped-def]
    """16 rows x 16 columns."""
    amx.zero0()
    for k in range(k_tiles):
        amx.load4(a + k * _TILE, 64)
        amx.load6(b + k * _TILE, 64)
        _dot_0_4_6()
    amx.store0(c, ldc * 4)


@inline
def _one_by_two(a, b, c, k_tiles, ldc):  # type: ignore[no-untyped-def]
    """16 rows x 32 columns: decode, where the weights are read once and memory is the limit."""
    b1 = b + k_tiles * _TILE
    amx.zero0()
    amx.zero1()
    for k in range(k_tiles):
        amx.load4(a + k * _TILE, 64)
        for line in range(0, _TILE, 64):
            prefetch(b + k * _TILE + _AHEAD + line)
            prefetch(b1 + k * _TILE + _AHEAD + line)
        amx.load6(b + k * _TILE, 64)
        _dot_0_4_6()
        amx.load7(b1 + k * _TILE, 64)
        _dot_1_4_7()
    amx.store0(c, ldc * 4)
    amx.store1(c + 64, ldc * 4)


@inline
def _two_by_two(a, b, c, k_tiles, ldc):  # type: ignore[no-untyped-def]
    """32 rows x 32 columns: each tile loaded is used twice."""
    a1, b1 = a + k_tiles * _TILE, b + k_tiles * _TILE
    amx.zero0()
    amx.zero1()
    amx.zero2()
    amx.zero3()
    for k in range(k_tiles):
        amx.load4(a + k * _TILE, 64)
        amx.load6(b + k * _TILE, 64)
        _dot_0_4_6()
        amx.load7(b1 + k * _TILE, 64)
        _dot_1_4_7()
        amx.load5(a1 + k * _TILE, 64)
        _dot_2_5_6()
        _dot_3_5_7()
    amx.store0(c, ldc * 4)
    amx.store1(c + 64, ldc * 4)
    amx.store2(c + 64 * ldc, ldc * 4)
    amx.store3(c + 64 * ldc + 64, ldc * 4)


@inline
def _columns(a, b, c, k_tiles, ldc, rows, width):  # type: ignore[no-untyped-def]
    """All rows of one or two (`width`) column tiles; the weights of these columns stay in cache over the rows."""
    row_tiles = (rows + 15) // 16
    m = 0
    while m < row_tiles:
        a_m = a + m * k_tiles * _TILE
        c_m = c + m * 64 * ldc
        if width == 2 and m + 2 <= row_tiles:
            _two_by_two(a_m, b, c_m, k_tiles, ldc)
            m += 2
        elif width == 2:
            _one_by_two(a_m, b, c_m, k_tiles, ldc)
            m += 1
        else:
            _one_by_one(a_m, b, c_m, k_tiles, ldc)
            m += 1


@kernel
def matmul_bf16_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Items are pairs of column tiles of every core."""
    rows = load_i64(step + load_i64(operands + MATMUL.rows_field))
    if rows == 0:
        return
    n_tiles, k_tiles, ldc = (
        load_i64(operands + MATMUL.n_tiles),
        load_i64(operands + MATMUL.k_tiles),
        load_i64(operands + MATMUL.ldc),
    )
    pairs = (n_tiles + 1) // 2
    amx.configure(min(rows, 16))
    for item in range(share_begin(cores * pairs, worker, workers), share_begin(cores * pairs, worker + 1, workers)):
        core, n = item // pairs, item % pairs * 2
        op = operands + core * MATMUL_BYTES
        weights = load_i64(op + MATMUL.weights) + n * k_tiles * _TILE
        output = load_i64(op + MATMUL.output) + n * 64
        _columns(load_i64(op + MATMUL.activations), weights, output, k_tiles, ldc, rows, min(2, n_tiles - n))
    amx.release()
