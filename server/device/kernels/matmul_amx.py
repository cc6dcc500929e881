"""output[T, N] = activations[T, K] @ weights[K, N] on the tile unit of recent x86 hosts.

Layouts, for every kernel in this folder (1 KiB a tile, the order in which the tile unit reads):
  activations  panels [T/16][K/32][16 rows][32] bfloat16, or [T/16][K/64][16][64] int8
  weights      tiles  [N/16][K/32][16 pairs][16 n][2] bfloat16, or [N/16][K/64][16 groups][16 n][4] of 8-bit codes
  output       rows   [T][ldc] float32; SwiGLU stores half as many columns
Each output element is summed over k in one order, whatever T or the number of workers.
"""

from __future__ import annotations

from typing import Any

from server.device.kernels import amx, epilogue, simd, weight_codes
from server.device.kernels.jit import inline, kernel
from server.device.kernels.matmul_loop import converted_weights, matmul_loop, rows_of, stored_weights
from server.device.kernels.memory import load_f32, load_i64, prefetch, prefetch_to_l2, prefetch_to_write
from server.device.kernels.records import MATMUL

_TILE = 1024
_AHEAD = 8 * _TILE  # far enough for memory, near enough to stay in L1


def _products(dot: Any, finish: Any) -> Any:
    """Sums of 16 or 32 rows by 32 columns, left in four tiles at `out` (rows 0-15 left and right, rows 16-31)."""
    dot_0_4_6, dot_1_4_7, dot_2_5_6, dot_3_5_7 = dot(0, 4, 6), dot(1, 4, 7), dot(2, 5, 6), dot(3, 5, 7)

    @inline
    def one_by_two(a, b0, b1, out, k_tiles):  # type: ignore[no-untyped-def]
        """Decode: the weights are read once, and memory is the limit."""
        amx.zero0()
        amx.zero1()
        for k in range(k_tiles):
            amx.load4(a + k * _TILE, 64)
            for line in range(0, _TILE, 64):
                prefetch(b0 + k * _TILE + _AHEAD + line)
                prefetch(b1 + k * _TILE + _AHEAD + line)
            amx.load6(b0 + k * _TILE, 64)
            dot_0_4_6()
            amx.load7(b1 + k * _TILE, 64)
            dot_1_4_7()
        amx.store0(out, 64)
        amx.store1(out + _TILE, 64)

    @inline
    def two_by_two(a, b0, b1, out, k_tiles, outputs, begin, end, ahead, lines):  # type: ignore[no-untyped-def]
        """Prefill: each tile loaded is used twice, and rows `begin` to `end` are finished beside, a few each step of k.

        The tile unit and the vector units work at the same time, so these rows cost next to nothing.
        """
        a1 = a + k_tiles * _TILE
        share = (end - begin + k_tiles - 1) // k_tiles
        amx.zero0()
        amx.zero1()
        amx.zero2()
        amx.zero3()
        for k in range(k_tiles):
            amx.load4(a + k * _TILE, 64)
            amx.load6(b0 + k * _TILE, 64)
            dot_0_4_6()
            amx.load7(b1 + k * _TILE, 64)
            dot_1_4_7()
            amx.load5(a1 + k * _TILE, 64)
            dot_2_5_6()
            dot_3_5_7()
            first, last = min(begin + k * share, end), min(begin + (k + 1) * share, end)
            for line in range(k * lines, (k + 1) * lines):
                prefetch_to_l2(ahead + line * 64)
            for row in range(first, last):
                prefetch_to_write(outputs[1] + (row + 32) * outputs[2] * 4 + outputs[3] * 32)
            finish(outputs, first, last)
        amx.store0(out, 64)
        amx.store1(out + _TILE, 64)
        amx.store2(out + 2 * _TILE, 64)
        amx.store3(out + 3 * _TILE, 64)

    return one_by_two, two_by_two


@inline
def _sums_of(sums, row):  # type: ignore[no-untyped-def]
    """Where the left tile's sums of a row are, in a ring of 64 rows; the right tile is the next."""
    return sums + row % 64 // 16 * 2 * _TILE + row % 16 * 64


def _finisher(load: Any, value: Any, store_pair: Any, has_row_scales: bool) -> Any:
    """Sums in the ring to rows of the output."""

    @inline
    def finish(outputs, begin, end):  # type: ignore[no-untyped-def]
        sums, output, ldc, n, width, row_scales, scale0, scale1 = outputs
        for row in range(begin, end):
            scale = 1.0
            if has_row_scales:
                scale = load_f32(row_scales + row * 4)
            at = _sums_of(sums, row)
            left, right = value(load(at), scale, scale0), value(load(at + _TILE), scale, scale1)
            store_pair(output + row * ldc * 4, n, left, right, width)

    return finish


def _column_pair(dot: Any, finish: Any, has_column_scales: bool) -> Any:
    """All rows of two column tiles, whose weights stay in cache over the rows."""
    one_by_two, two_by_two = _products(dot, finish)

    @inline
    def column_pair(op, b0, b1, n, width, rows, k_tiles):  # type: ignore[no-untyped-def]
        a = load_i64(op + MATMUL.activations)
        scale0 = scale1 = simd.splat(1.0)
        if has_column_scales:
            scales = load_i64(op + MATMUL.column_scales) + n * 64
            scale0, scale1 = simd.load(scales), simd.load(scales + (width - 1) * 64)
        output, ldc, row_scales = load_i64(op + MATMUL.output), load_i64(op + MATMUL.ldc), load_i64(op + MATMUL.row_scales)
        sums = amx.stack_tiles()
        outputs = sums, output, ldc, n, width, row_scales, scale0, scale1
        row = done = 0
        lines = 32 // ((rows + 31) // 32)
        ahead = b0 + 2 * k_tiles * _TILE
        while row + 16 < rows:
            two_by_two(a + row // 16 * k_tiles * _TILE, b0, b1, _sums_of(sums, row), k_tiles, outputs, done, row, ahead, lines)
            ahead += k_tiles * lines * 64
            done = row
            row += 32
        if row < rows:
            one_by_two(a + row // 16 * k_tiles * _TILE, b0, b1, _sums_of(sums, row), k_tiles)
        finish(outputs, done, rows)

    return column_pair


def _matmul(column_pair: Any, weights_of: Any) -> Any:
    loop = matmul_loop(column_pair, weights_of)

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows = rows_of(operands, step)
        if rows > 0:
            amx.configure(min(rows, 16))
            loop(operands, cores, rows, worker, workers)
            amx.release()

    return matmul


def _bf16(store: str) -> Any:
    finish = _finisher(simd.load, epilogue.unscaled, epilogue.STORES[store], has_row_scales=False)
    return _matmul(_column_pair(amx.dot_bf16, finish, has_column_scales=False), stored_weights(16))


def _i8(store: str) -> Any:
    finish = _finisher(simd.load_i32, epilogue.scaled_both, epilogue.STORES[store], has_row_scales=True)
    return _matmul(_column_pair(amx.dot_i8, finish, has_column_scales=True), stored_weights(16))


def _codes(convert: Any, store: str) -> Any:
    finish = _finisher(simd.load, epilogue.scaled_columns, epilogue.STORES[store], has_row_scales=False)
    return _matmul(_column_pair(amx.dot_bf16, finish, has_column_scales=True), converted_weights(convert))


_bf16_plain, _bf16_swiglu = _bf16("plain"), _bf16("swiglu")
_i8_plain, _i8_swiglu = _i8("plain"), _i8("swiglu")
_w8_plain, _w8_swiglu = _codes(weight_codes.from_int8, "plain"), _codes(weight_codes.from_int8, "swiglu")
_e4m3_plain, _e4m3_swiglu = _codes(weight_codes.from_e4m3, "plain"), _codes(weight_codes.from_e4m3, "swiglu")
_e5m2_plain, _e5m2_swiglu = _codes(weight_codes.from_e5m2, "plain"), _codes(weight_codes.from_e5m2, "swiglu")


@kernel
def matmul_bf16_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by bfloat16."""
    _bf16_plain(operands, cores, step, worker, workers)


@kernel
def swiglu_bf16_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by bfloat16, SwiGLU."""
    _bf16_swiglu(operands, cores, step, worker, workers)


@kernel
def matmul_i8_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8."""
    _i8_plain(operands, cores, step, worker, workers)


@kernel
def swiglu_i8_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, SwiGLU."""
    _i8_swiglu(operands, cores, step, worker, workers)


@kernel
def matmul_w8_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by int8 weights."""
    _w8_plain(operands, cores, step, worker, workers)


@kernel
def swiglu_w8_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by int8 weights, SwiGLU."""
    _w8_swiglu(operands, cores, step, worker, workers)


@kernel
def matmul_e4m3_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e4m3 weights."""
    _e4m3_plain(operands, cores, step, worker, workers)


@kernel
def swiglu_e4m3_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e4m3 weights, SwiGLU."""
    _e4m3_swiglu(operands, cores, step, worker, workers)


@kernel
def matmul_e5m2_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e5m2 weights."""
    _e5m2_plain(operands, cores, step, worker, workers)


@kernel
def swiglu_e5m2_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e5m2 weights, SwiGLU."""
    _e5m2_swiglu(operands, cores, step, worker, workers)
