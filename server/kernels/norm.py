"""The end of a row-parallel matmul: all-reduce of the cores' partial sums, residual, norm, and panels for the next.

Models that also norm a block's output do that between the all-reduce and the residual. If a block reads the residual
stream without a norm, there are no weights and no second norm. Partials are added in core order, so tensor parallelism
changes the rounding but never from run to run.
"""

from __future__ import annotations

import math
from typing import Any

from .isa import simd
from .isa.jit import inline, kernel, made_kernel, share_begin
from .isa.memory import load_f32, load_i32, load_i64
from .panels import pack_bf16, pack_f32, pack_i8, pack_i8_chunks, pack_i8_rotated
from .records import NORM


@inline
def _add_parts(to, parts, count, stride, width, scale):  # type: ignore[no-untyped-def]
    """Add `count` rows of parts, times `scale`, to `to`; returns the sum of squares."""
    squares, by = simd.splat(0.0), simd.splat(scale)
    for i in range(0, width, 16):
        value = simd.load(to + i * 4)
        for part in range(count):
            value = simd.fma(simd.load(parts + part * stride + i * 4), by, value)
        simd.store(to + i * 4, value)
        squares = simd.fma(value, value, squares)
    return simd.sum_lanes(squares)


@inline
def _scale(row, factor, width):  # type: ignore[no-untyped-def]
    """Multiply a row with `factor`; returns the sum of squares."""
    squares, by = simd.splat(0.0), simd.splat(factor)
    for i in range(0, width, 16):
        value = simd.mul(simd.load(row + i * 4), by)
        simd.store(row + i * 4, value)
        squares = simd.fma(value, value, squares)
    return simd.sum_lanes(squares)


@inline
def _kept(operands, row, to, width):  # type: ignore[no-untyped-def]
    """Return the address of a row that is not normed: a copy for experts, who read it after the stream has changed."""
    if load_i64(operands + NORM.rows) == 0:
        return row
    for i in range(0, width, 16):
        simd.store(to + i * 4, simd.load(row + i * 4))
    return to


@inline
def _mean(row, size, width):  # type: ignore[no-untyped-def]
    """Return the mean of `size` elements; those after them are zero."""
    total = simd.splat(0.0)
    for i in range(0, width, 16):
        total = simd.add(total, simd.load(row + i * 4))
    return simd.sum_lanes(total) / size


@inline
def _squared_distances(row, mean, size):  # type: ignore[no-untyped-def]
    """Return the sum over `size` elements of their squared distance from `mean`."""
    whole, by = size - size % 16, simd.splat(mean)
    squares = simd.splat(0.0)
    for i in range(0, whole, 16):
        distance = simd.sub(simd.load(row + i * 4), by)
        squares = simd.fma(distance, distance, squares)
    total = simd.sum_lanes(squares)
    for i in range(whole, size):
        total += (load_f32(row + i * 4) - mean) * (load_f32(row + i * 4) - mean)
    return total


@inline
def _norm_to(operands, to, source, squares, weight, width):  # type: ignore[no-untyped-def]
    """Set `to` to source / root mean square * weight, for a known sum of squares."""
    mean = squares / load_i64(operands + NORM.size)
    scale = simd.splat(1.0 / math.sqrt(mean + load_f32(operands + NORM.eps)))
    for i in range(0, width, 16):
        value = simd.mul(simd.mul(simd.load(source + i * 4), scale), simd.load(weight + i * 4))
        simd.store(to + i * 4, value)


@inline
def _layer_norm_to(operands, to, source, weight, width):  # type: ignore[no-untyped-def]
    """Set `to` to (source - mean) / standard deviation * weight + shift."""
    size, shift = load_i64(operands + NORM.size), load_i64(operands + NORM.shift)
    mean = _mean(source, size, width)
    variance = _squared_distances(source, mean, size) / size
    middle, scale = simd.splat(mean), simd.splat(1.0 / math.sqrt(variance + load_f32(operands + NORM.eps)))
    for i in range(0, width, 16):
        value = simd.mul(simd.sub(simd.load(source + i * 4), middle), scale)
        value = simd.mul(value, simd.load(weight + i * 4))
        if shift != 0:
            value = simd.add(value, simd.load(shift + i * 4))
        simd.store(to + i * 4, value)


def _norm_row(has_post: bool) -> Any:
    @inline
    def norm_row(operands, step, r, normed, width):  # type: ignore[no-untyped-def]
        """Compute row `r` of the output as float32; returns its address, which is `normed` or in `hidden`."""
        row = r
        index_field = load_i64(operands + NORM.index_field)
        if index_field != 0:
            row = load_i32(load_i64(step + index_field) + r * 4)
        parts, count = load_i64(operands + NORM.partials) + row * width * 4, load_i64(operands + NORM.num_partials)
        stride = load_i64(operands + NORM.partial_stride)
        if has_post:  # the parts are reduced to one normed row first
            for i in range(0, width, 16):
                simd.store(normed + i * 4, simd.splat(0.0))
            squares = _add_parts(normed, parts, count, stride, width, 1.0)
            _norm_to(operands, normed, normed, squares, load_i64(operands + NORM.post_weight), width)
            parts, count = normed, 1
        hidden = load_i64(operands + NORM.hidden) + row * width * 4
        squares = _add_parts(hidden, parts, count, stride, width, load_f32(operands + NORM.branch_scale))
        factor, by = load_i64(operands + NORM.factor), load_f32(operands + NORM.constant)
        if factor != 0:
            by = load_f32(factor)
        if by != 1.0:
            squares = _scale(hidden, by, width)
        weight, to = load_i64(operands + NORM.weight), normed
        if weight == 0:
            return _kept(operands, hidden, normed, width)
        if load_i64(operands + NORM.stays) != 0:
            to = hidden
        if load_i64(operands + NORM.is_centered) != 0:
            _layer_norm_to(operands, to, hidden, weight, width)
        else:
            _norm_to(operands, to, hidden, squares, weight, width)
        return to

    return norm_row


_plain_row, _post_row = _norm_row(False), _norm_row(True)


def _norm(pack: Any) -> Any:
    """Return a kernel's loop over rows, which `pack` writes to panels."""

    @inline
    def norm(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows = load_i64(step + load_i64(operands + NORM.rows_field))
        width = load_i64(operands + NORM.width)
        normed = load_i64(operands + NORM.scratch) + worker * load_i64(operands + NORM.scratch_stride)
        panels, row_scales = load_i64(operands + NORM.panels), load_i64(operands + NORM.row_scales)
        first, last = share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)
        kept, stride = load_i64(operands + NORM.rows), width * 4
        if kept == 0:
            kept, stride = normed, 0
        if load_i64(operands + NORM.post_weight) == 0:
            for r in range(first, last):
                pack(_plain_row(operands, step, r, kept + r * stride, width), panels, row_scales, r, width, normed)
        else:
            for r in range(first, last):
                pack(_post_row(operands, step, r, kept + r * stride, width), panels, row_scales, r, width, normed)

    return norm


@kernel
def norm_sums(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Replace the first partial sums by the norm of all."""
    rows, width = load_i64(step + load_i64(operands + NORM.rows_field)), load_i64(operands + NORM.width)
    total = load_i64(operands + NORM.scratch) + worker * load_i64(operands + NORM.scratch_stride)
    count, stride = load_i64(operands + NORM.num_partials), load_i64(operands + NORM.partial_stride)
    for r in range(share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)):
        parts = load_i64(operands + NORM.partials) + r * width * 4
        for i in range(0, width, 16):
            simd.store(total + i * 4, simd.splat(0.0))
        squares = _add_parts(total, parts, count, stride, width, 1.0)
        _norm_to(operands, parts, total, squares, load_i64(operands + NORM.post_weight), width)


reduce_norm_bf16 = made_kernel("reduce_norm_bf16", _norm(pack_bf16))
reduce_norm_f32 = made_kernel("reduce_norm_f32", _norm(pack_f32))
reduce_norm_i8 = made_kernel("reduce_norm_i8", _norm(pack_i8))
reduce_norm_i8_rotated = made_kernel("reduce_norm_i8_rotated", _norm(pack_i8_rotated))
reduce_norm_i8_chunks = made_kernel("reduce_norm_i8_chunks", _norm(pack_i8_chunks))
