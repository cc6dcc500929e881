"""Inner loops of the tile unit's matmuls: products of tiles, and the epilogue of their sums.

A pair of column tiles is multiplied by 32 rows at a time. Sums lie in a ring of 64 rows on the worker's stack, so that
one block of rows is finished while the next is multiplied.
"""

from __future__ import annotations

from typing import Any

from ..isa import amx, simd
from ..isa.jit import inline
from ..isa.memory import load_f32, load_i64, prefetch, prefetch_to_l2, prefetch_to_write
from ..records import MATMUL
from . import epilogue

_TILE = amx.TILE_BYTES
_AHEAD = 8 * _TILE  # far enough for memory, near enough to stay in L1
_FAR_AHEAD, _SHORTLY = 32 * _TILE, 2 * _TILE  # distances to L2 and to L1: conversion needs most of L1


def _one_by_two(dot: Any) -> Any:
    """Return the sums of 16 rows by 32 columns, left in two tiles at `out`."""
    dot_0_4_6, dot_1_4_7 = dot(0, 4, 6), dot(1, 4, 7)

    @inline
    def one_by_two(a, b0, b1, out, k_tiles):  # type: ignore[no-untyped-def]
        """Multiply for decode: the weights are read once, and memory is the limit."""
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

    return one_by_two


@inline
def _sums_of(sums, row):  # type: ignore[no-untyped-def]
    """Return the address of the left tile's sums of a row, in a ring of 64 rows; the right tile follows."""
    return sums + row % 64 // 16 * 2 * _TILE + row % 16 * 64


def _two_by_two(dot: Any, finish: Any, touch: Any, is_exact: bool) -> Any:
    """Return the sums of 32 rows by 32 columns, left in four tiles at `out`: rows 0-15 left and right, then rows 16-31.

    If sums are exact, every other block goes through k backwards. It begins with the operands that were used last, so
    more of them are still in the nearest cache, which is smaller than a block's operands.
    """
    dot_0_4_6, dot_1_4_7, dot_2_5_6, dot_3_5_7 = dot(0, 4, 6), dot(1, 4, 7), dot(2, 5, 6), dot(3, 5, 7)

    @inline
    def two_by_two(a, b0, b1, k_tiles, outputs, row, begin, ahead, lines):  # type: ignore[no-untyped-def]
        """Multiply for prefill: each loaded tile is used twice, and rows `begin` to `row` are finished meanwhile.

        The tile unit and the vector units work at the same time, so finishing a few rows in each step of k costs almost
        nothing. `lines` cache lines of the next weights, from `ahead` on, and the output's next lines are prefetched.
        """
        a1 = a + k_tiles * _TILE
        out = _sums_of(outputs[0], row)
        share = (row - begin + k_tiles - 1) // k_tiles
        at, forward = 0, _TILE
        if is_exact and row % 64 >= 32:
            at, forward = (k_tiles - 1) * _TILE, -_TILE
        amx.zero0()
        amx.zero1()
        amx.zero2()
        amx.zero3()
        for k in range(k_tiles):
            amx.load4(a + at, 64)
            amx.load6(b0 + at, 64)
            dot_0_4_6()
            amx.load7(b1 + at, 64)
            dot_1_4_7()
            amx.load5(a1 + at, 64)
            dot_2_5_6()
            dot_3_5_7()
            at += forward
            first, last = min(begin + k * share, row), min(begin + (k + 1) * share, row)
            for line in range(k * lines, (k + 1) * lines):
                prefetch_to_l2(ahead + line * 64)
            touch(outputs, first + 32, last + 32)
            finish(outputs, first, last)
        amx.store0(out, 64)
        amx.store1(out + _TILE, 64)
        amx.store2(out + 2 * _TILE, 64)
        amx.store3(out + 3 * _TILE, 64)

    return two_by_two


def finisher(load: Any, value: Any, to: epilogue.Output, has_row_scales: bool) -> Any:
    """Return the function that stores sums of the ring to rows of the output."""
    place, store = to

    @inline
    def finish(outputs, begin, end):  # type: ignore[no-untyped-def]
        sums, output, ldc, n, width, row_scales, scale0, scale1, bias0, bias1, activation = outputs
        for row in range(begin, end):
            scale = 1.0
            if has_row_scales:
                scale = load_f32(row_scales + row * 4)
            at = _sums_of(sums, row)
            left = simd.add(value(load(at), scale, scale0), bias0)
            right = simd.add(value(load(at + _TILE), scale, scale1), bias1)
            store(place(output, ldc, row, n), left, right, width, activation)

    return finish


def outputs(has_column_scales: bool) -> Any:
    """Return the function that collects what `finish` and `touch` need of a pair of column tiles."""

    @inline
    def outputs_of(op, n, width):  # type: ignore[no-untyped-def]
        """Return where the sums of column tiles n and n + 1 are and go."""
        scale0 = scale1 = simd.splat(1.0)
        bias0 = bias1 = simd.splat(0.0)
        last = (width - 1) * 64
        if has_column_scales:
            scales = load_i64(op + MATMUL.column_scales) + n * 64
            scale0, scale1 = simd.load(scales), simd.load(scales + last)
        if load_i64(op + MATMUL.bias) != 0:
            biases = load_i64(op + MATMUL.bias) + n * 64
            bias0, bias1 = simd.load(biases), simd.load(biases + last)
        output, ldc = load_i64(op + MATMUL.output), load_i64(op + MATMUL.ldc)
        row_scales, activation = load_i64(op + MATMUL.row_scales), load_i64(op + MATMUL.activation)
        return amx.stack_tiles(), output, ldc, n, width, row_scales, scale0, scale1, bias0, bias1, activation

    return outputs_of


def toucher(to: epilogue.Output) -> Any:
    """Return the function that prefetches the output for `finisher`."""
    place = to.place

    @inline
    def touch(outputs, begin, end):  # type: ignore[no-untyped-def]
        """Prefetch the lines that `finish` will write: they are far apart, and each would wait for memory."""
        output, ldc, n = outputs[1], outputs[2], outputs[3]
        for row in range(begin, end):
            prefetch_to_write(place(output, ldc, row, n))

    return touch


def column_pair(dot: Any, finish: Any, touch: Any, outputs_of: Any, is_exact: bool = False) -> Any:
    """Return the product of rows `begin` to `rows` and two column tiles, whose weights stay in cache for all rows."""
    one_by_two, two_by_two = _one_by_two(dot), _two_by_two(dot, finish, touch, is_exact)

    @inline
    def pair(op, b0, b1, n, width, begin, rows, k_tiles):  # type: ignore[no-untyped-def]
        a = load_i64(op + MATMUL.activations)
        outputs = outputs_of(op, n, width)
        lines = 32 // ((rows - begin + 31) // 32)
        ahead = b0 + 2 * k_tiles * _TILE
        row = done = begin
        while row + 16 < rows:
            two_by_two(a + row // 16 * k_tiles * _TILE, b0, b1, k_tiles, outputs, row, done, ahead, lines)
            ahead += k_tiles * lines * 64
            done = row
            row += 32
        if row < rows:
            one_by_two(a + row // 16 * k_tiles * _TILE, b0, b1, _sums_of(outputs[0], row), k_tiles)
        finish(outputs, done, rows)

    return pair


def _converted_products(convert: Any) -> tuple[Any, Any]:
    """Return two functions: convert a tile of both columns, and multiply by the result."""
    dot_0_4_6, dot_1_4_7 = amx.dot_bf16(0, 4, 6), amx.dot_bf16(1, 4, 7)
    dot_2_5_6, dot_3_5_7 = amx.dot_bf16(2, 5, 6), amx.dot_bf16(3, 5, 7)

    @inline
    def convert_pair(b0, b1, halves):  # type: ignore[no-untyped-def]
        """Convert a tile of each column to four tiles: two of the left column, then two of the right."""
        for line in range(0, _TILE, 64):
            prefetch_to_l2(b0 + _FAR_AHEAD + line)
            prefetch_to_l2(b1 + _FAR_AHEAD + line)
            prefetch(b0 + _SHORTLY + line)
            prefetch(b1 + _SHORTLY + line)
        convert(b0, halves, 1)
        convert(b1, halves + 2 * _TILE, 1)

    @inline
    def products(a, halves, is_two, a_bytes):  # type: ignore[no-untyped-def]
        """Multiply the converted tiles by one or two row tiles `a_bytes` apart."""
        for half in range(2):
            tile, slot = a + half * _TILE, halves + half * _TILE
            amx.load4(tile, 64)
            amx.load6(slot, 64)
            dot_0_4_6()
            amx.load7(slot + 2 * _TILE, 64)
            dot_1_4_7()
            if is_two:
                amx.load5(tile + a_bytes, 64)
                dot_2_5_6()
                dot_3_5_7()

    return convert_pair, products


def few_rows(convert: Any, finish: Any, outputs_of: Any) -> Any:
    """Return the product of up to 32 rows and two column tiles of 8-bit codes, each tile converted just before its use.

    The vector units convert while the tile unit multiplies and memory delivers. All tiles are converted in one place,
    so that the result stays in the nearest cache.
    """
    convert_pair, products = _converted_products(convert)

    @inline
    def few(op, n, width, begin, end, halves):  # type: ignore[no-untyped-def]
        k_tiles = load_i64(op + MATMUL.k_tiles)
        b0 = load_i64(op + MATMUL.weights) + n * k_tiles * _TILE
        b1 = b0 + (width - 1) * k_tiles * _TILE
        a_bytes = 2 * k_tiles * _TILE
        a = load_i64(op + MATMUL.activations) + begin // 16 * a_bytes
        outputs = outputs_of(op, n, width)
        is_two = begin + 16 < end
        amx.zero0()
        amx.zero1()
        amx.zero2()
        amx.zero3()
        for k in range(k_tiles):
            convert_pair(b0 + k * _TILE, b1 + k * _TILE, halves)
            products(a + 2 * k * _TILE, halves, is_two, a_bytes)
        sums = _sums_of(outputs[0], begin)
        amx.store0(sums, 64)
        amx.store1(sums + _TILE, 64)
        if is_two:
            amx.store2(sums + 2 * _TILE, 64)
            amx.store3(sums + 3 * _TILE, 64)
        finish(outputs, begin, end)

    return few
