"""The end of a row-parallel matmul: all-reduce of the cores' partial sums, residual, RMSNorm, and panels for the next.

Models that norm what a block leaves, too, have that done between the all-reduce and the residual.

Partials are added in core order, so tensor parallelism changes the rounding but never from run to run.
"""

from __future__ import annotations

import math
from typing import Any

from server.kernels.isa import simd
from server.kernels.isa.jit import inline, kernel, share_begin
from server.kernels.isa.memory import load_f32, load_i32, load_i64
from server.kernels.panels import pack_bf16, pack_f32, pack_i8
from server.kernels.records import NORM


def _reducer(is_residual: bool) -> Any:
    @inline
    def reduce(operands, row, to, width):  # type: ignore[no-untyped-def]
        """to = partials and bias, added to what is there where it is the residual; returns the sum of squares."""
        partials, count = load_i64(operands + NORM.partials), load_i64(operands + NORM.num_partials)
        stride, bias = load_i64(operands + NORM.partial_stride), load_i64(operands + NORM.bias)
        squares = zero = simd.splat(0.0)
        for i in range(0, width, 16):
            value = simd.load(to + i * 4) if is_residual else zero
            for core in range(count):
                value = simd.add(value, simd.load(partials + core * stride + (row * width + i) * 4))
            if bias != 0:
                value = simd.add(value, simd.load(bias + i * 4))
            simd.store(to + i * 4, value)
            squares = simd.fma(value, value, squares)
        return simd.sum_lanes(squares)

    return reduce


_add_sums, _sums = _reducer(True), _reducer(False)


@inline
def _inverse_rms(operands, squares):  # type: ignore[no-untyped-def]
    """What a row with this sum of squares is multiplied by."""
    mean = squares / load_i64(operands + NORM.size)
    return simd.splat(1.0 / math.sqrt(mean + load_f32(operands + NORM.eps)))


@inline
def _add_normed(operands, row, hidden, scratch, width):  # type: ignore[no-untyped-def]
    """hidden += norm(partials and bias) * post_weight; returns the sum of squares."""
    weight = load_i64(operands + NORM.post_weight)
    scale = _inverse_rms(operands, _sums(operands, row, scratch, width))
    squares = simd.splat(0.0)
    for i in range(0, width, 16):
        normed = simd.mul(simd.mul(simd.load(scratch + i * 4), scale), simd.load(weight + i * 4))
        value = simd.add(simd.load(hidden + i * 4), normed)
        simd.store(hidden + i * 4, value)
        squares = simd.fma(value, value, squares)
    return simd.sum_lanes(squares)


@inline
def _norm_row(operands, step, r, normed, width):  # type: ignore[no-untyped-def]
    """Row `r` of the output, as float32 at `normed`."""
    row = r
    index_field = load_i64(operands + NORM.index_field)
    if index_field != 0:
        row = load_i32(load_i64(step + index_field) + r * 4)
    hidden, weight = load_i64(operands + NORM.hidden) + row * width * 4, load_i64(operands + NORM.weight)
    if load_i64(operands + NORM.post_weight) != 0:
        squares = _add_normed(operands, row, hidden, normed, width)
    else:
        squares = _add_sums(operands, row, hidden, width)
    scale = _inverse_rms(operands, squares)
    for i in range(0, width, 16):
        value = simd.mul(simd.mul(simd.load(hidden + i * 4), scale), simd.load(weight + i * 4))
        simd.store(normed + i * 4, value)


def _norm(pack: Any) -> Any:
    @inline
    def norm(operands, step, worker, workers):  # type: ignore[no-untyped-def]
        rows = load_i64(step + load_i64(operands + NORM.rows_field))
        width = load_i64(operands + NORM.width)
        normed = load_i64(operands + NORM.scratch) + worker * width * 4
        panels, row_scales = load_i64(operands + NORM.panels), load_i64(operands + NORM.row_scales)
        for r in range(share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)):
            _norm_row(operands, step, r, normed, width)
            pack(normed, panels, row_scales, r, width)

    return norm


_bf16, _f32, _i8 = _norm(pack_bf16), _norm(pack_f32), _norm(pack_i8)


@kernel
def reduce_norm_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into bfloat16 panels. Items are rows."""
    _bf16(operands, step, worker, workers)


@kernel
def reduce_norm_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into float32 panels. Items are rows."""
    _f32(operands, step, worker, workers)


@kernel
def reduce_norm_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into int8 panels and row scales. Items are rows."""
    _i8(operands, step, worker, workers)
