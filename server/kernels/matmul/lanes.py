"""output = activations @ weights on vector lanes, for hosts without a tile unit and for float32.

Layouts as in matmul_amx; float32 activations are panels [T/16][K/32][16][32], weights [N/16][K][16 n]. Lanes are
columns and k runs in order, four rows or one at a time, so an element's sum has one order whatever T or the number of
workers.
"""

from __future__ import annotations

from typing import Any

from server.kernels.isa import dot_product, simd
from server.kernels.isa.jit import inline, kernel
from server.kernels.isa.memory import load_f32, load_i64
from server.kernels.matmul import epilogue, weight_codes
from server.kernels.matmul.loop import (
    LINE,
    column_item,
    converted_weights,
    matmul_loop,
    rows_of,
    scaled_weights,
    stored_weights,
)
from server.kernels.records import MATMUL


def _products(dot: Any, words: int) -> Any:
    """Sums of four rows, or one, by two column tiles; `words` of k in one panel row."""

    @inline
    def four_rows(a, b0, b1, k_tiles):  # type: ignore[no-untyped-def]
        c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = simd.splat(0.0)
        for k in range(k_tiles):
            for i in range(words):
                at, line = a + k * 64 * words + i * 4, (k * words + i) * LINE
                c0, d0 = dot(c0, at, b0 + line), dot(d0, at, b1 + line)
                c1, d1 = dot(c1, at + 4 * words, b0 + line), dot(d1, at + 4 * words, b1 + line)
                c2, d2 = dot(c2, at + 8 * words, b0 + line), dot(d2, at + 8 * words, b1 + line)
                c3, d3 = dot(c3, at + 12 * words, b0 + line), dot(d3, at + 12 * words, b1 + line)
        return c0, d0, c1, d1, c2, d2, c3, d3

    @inline
    def one_row(a, b0, b1, k_tiles):  # type: ignore[no-untyped-def]
        c = d = simd.splat(0.0)
        for k in range(k_tiles):
            for i in range(words):
                at, line = a + k * 64 * words + i * 4, (k * words + i) * LINE
                c, d = dot(c, at, b0 + line), dot(d, at, b1 + line)
        return c, d

    return four_rows, one_row


def _finisher(value: Any, to: epilogue.Output, is_int: bool, is_offset: bool) -> Any:
    """Two column tiles of one row, from sums to the output."""
    place, store = to

    @inline
    def finish(op, row, n, width, left, right):  # type: ignore[no-untyped-def]
        scale, last = 1.0, (width - 1) * 64
        scale0 = scale1 = simd.splat(1.0)
        if load_i64(op + MATMUL.column_scales) != 0:
            scales = load_i64(op + MATMUL.column_scales) + n * 64
            scale0, scale1 = simd.load(scales), simd.load(scales + last)
        if is_int:
            scale = load_f32(load_i64(op + MATMUL.row_scales) + row * 4)
            sums0 = sums1 = 0
            if is_offset:
                sums0 = load_i64(op + MATMUL.column_sums) + n * 64
                sums1 = sums0 + last
            left, right = dot_product.int_sums(left, sums0), dot_product.int_sums(right, sums1)
        at = place(load_i64(op + MATMUL.output), load_i64(op + MATMUL.ldc), row, n)
        left, right = value(left, scale, scale0), value(right, scale, scale1)
        bias = load_i64(op + MATMUL.bias)
        if bias != 0:
            left = simd.add(left, simd.load(bias + n * 64))
            right = simd.add(right, simd.load(bias + n * 64 + last))
        store(at, left, right, width, load_i64(op + MATMUL.activation))

    return finish


def _column_pair(dot: Any, words: int, finish: Any) -> Any:
    four_rows, one_row = _products(dot, words)

    @inline
    def column_pair(op, b0, b1, n, width, begin, rows, k_tiles):  # type: ignore[no-untyped-def]
        """Rows `begin` to `rows` of two column tiles."""
        row = begin
        while row < rows:
            a = load_i64(op + MATMUL.activations) + (row // 16) * k_tiles * 64 * words + row % 16 * 4 * words
            if row + 4 <= rows:
                c0, d0, c1, d1, c2, d2, c3, d3 = four_rows(a, b0, b1, k_tiles)
                finish(op, row, n, width, c0, d0)
                finish(op, row + 1, n, width, c1, d1)
                finish(op, row + 2, n, width, c2, d2)
                finish(op, row + 3, n, width, c3, d3)
                row += 4
            else:
                c, d = one_row(a, b0, b1, k_tiles)
                finish(op, row, n, width, c, d)
                row += 1

    return column_pair


def _matmul(column_pair: Any, weights_of: Any, tile_bytes: int) -> Any:
    loop = matmul_loop(column_item(column_pair, weights_of), tile_bytes)

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        loop(operands, cores, rows_of(operands, step), worker, workers)

    return matmul


def _plain(dot: Any, words: int, store: str) -> Any:
    finish = _finisher(epilogue.unscaled, epilogue.OUTPUTS[store], is_int=False, is_offset=False)
    return _matmul(_column_pair(dot, words, finish), stored_weights(words), 4 * words)


def _int8(dot: Any, store: str, is_offset: bool) -> Any:
    finish = _finisher(epilogue.scaled_both, epilogue.OUTPUTS[store], is_int=True, is_offset=is_offset)
    return _matmul(_column_pair(dot, 16, finish), stored_weights(16), 64)


def _codes(convert: Any, store: str) -> Any:
    finish = _finisher(epilogue.scaled_columns, epilogue.OUTPUTS[store], is_int=False, is_offset=False)
    return _matmul(_column_pair(dot_product.dot_bf16_portable, 16, finish), converted_weights(convert), 128)


def scaled_codes(dot: Any, convert: Any, store: str) -> Any:
    """The body of a kernel whose weights are scaled while they are converted."""
    finish = _finisher(epilogue.unscaled, epilogue.OUTPUTS[store], is_int=False, is_offset=False)
    return _matmul(_column_pair(dot, 16, finish), scaled_weights(convert), 128)


_f32, _f32_gated = _plain(dot_product.dot_f32, 32, "plain"), _plain(dot_product.dot_f32, 32, "gated")
_avx512, _avx512_gated = (
    _plain(dot_product.dot_bf16_avx512, 16, "plain"),
    _plain(dot_product.dot_bf16_avx512, 16, "gated"),
)
_bf16, _bf16_gated = (
    _plain(dot_product.dot_bf16_portable, 16, "plain"),
    _plain(dot_product.dot_bf16_portable, 16, "gated"),
)
_i8_512, _i8_512_gated = (
    _int8(dot_product.dot_i8_avx512, "plain", True),
    _int8(dot_product.dot_i8_avx512, "gated", True),
)
_i8_256, _i8_256_gated = _int8(dot_product.dot_i8_avx2, "plain", True), _int8(dot_product.dot_i8_avx2, "gated", True)
_i8, _i8_gated = (
    _int8(dot_product.dot_i8_portable, "plain", False),
    _int8(dot_product.dot_i8_portable, "gated", False),
)
_w8, _w8_gated = _codes(weight_codes.from_int8, "plain"), _codes(weight_codes.from_int8, "gated")
_e4m3, _e4m3_gated = _codes(weight_codes.from_e4m3, "plain"), _codes(weight_codes.from_e4m3, "gated")
_e5m2, _e5m2_gated = _codes(weight_codes.from_e5m2, "plain"), _codes(weight_codes.from_e5m2, "gated")


@kernel
def matmul_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """float32 by float32."""
    _f32(operands, cores, step, worker, workers)


@kernel
def gated_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """float32 by float32, gated."""
    _f32_gated(operands, cores, step, worker, workers)


@kernel
def matmul_bf16_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by bfloat16, AVX512-BF16."""
    _avx512(operands, cores, step, worker, workers)


@kernel
def gated_bf16_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by bfloat16, AVX512-BF16, gated."""
    _avx512_gated(operands, cores, step, worker, workers)


@kernel
def matmul_bf16_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by bfloat16, any host."""
    _bf16(operands, cores, step, worker, workers)


@kernel
def gated_bf16_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by bfloat16, any host, gated."""
    _bf16_gated(operands, cores, step, worker, workers)


@kernel
def matmul_i8_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, AVX512-VNNI."""
    _i8_512(operands, cores, step, worker, workers)


@kernel
def gated_i8_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, AVX512-VNNI, gated."""
    _i8_512_gated(operands, cores, step, worker, workers)


@kernel
def matmul_i8_avx2(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, AVX-VNNI."""
    _i8_256(operands, cores, step, worker, workers)


@kernel
def gated_i8_avx2(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, AVX-VNNI, gated."""
    _i8_256_gated(operands, cores, step, worker, workers)


@kernel
def matmul_i8_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, any host."""
    _i8(operands, cores, step, worker, workers)


@kernel
def gated_i8_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8, any host, gated."""
    _i8_gated(operands, cores, step, worker, workers)


@kernel
def matmul_w8_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by int8 weights, any host."""
    _w8(operands, cores, step, worker, workers)


@kernel
def gated_w8_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by int8 weights, any host, gated."""
    _w8_gated(operands, cores, step, worker, workers)


@kernel
def matmul_e4m3_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e4m3 weights, any host."""
    _e4m3(operands, cores, step, worker, workers)


@kernel
def gated_e4m3_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e4m3 weights, any host, gated."""
    _e4m3_gated(operands, cores, step, worker, workers)


@kernel
def matmul_e5m2_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e5m2 weights, any host."""
    _e5m2(operands, cores, step, worker, workers)


@kernel
def gated_e5m2_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by float8 e5m2 weights, any host, gated."""
    _e5m2_gated(operands, cores, step, worker, workers)
