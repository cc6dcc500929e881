"""Inner loops of attention over one block of the cache: scores, online softmax, weighted values, four rows at a time.

A row is one (token, query head) pair. Its scratch holds the running maximum and sum, its scores over the block at hand,
and its accumulator; rows are `stride` bytes apart.
"""

from __future__ import annotations

from typing import Any

from server.device.kernels import simd
from server.device.kernels.cells import Cell
from server.device.kernels.jit import inline
from server.device.kernels.memory import load_f32, store_f32

_LOWEST = -1e30  # the running maximum before the first key: finite, so that differences are never NaN
STATE = 64  # bytes at the head of a row's scratch: running maximum, running sum


def scratch_row_bytes(head_pad: int, block_size: int) -> int:
    """Scratch of one row: its state, its scores over one block, its accumulator."""
    return STATE + 4 * (block_size + head_pad)


row_stride = inline(scratch_row_bytes)


@inline
def begin_row(row, block_size, head_pad):  # type: ignore[no-untyped-def]
    store_f32(row, _LOWEST)
    store_f32(row + 4, 0.0)
    accumulator = row + STATE + 4 * block_size
    for d in range(0, head_pad, 16):
        simd.store(accumulator + d * 4, simd.splat(0.0))


@inline
def softmax_row(row, block_size, begin, end):  # type: ignore[no-untyped-def]
    """Scores of one block to weights, in place; updates maximum and sum; returns the factor for the accumulator.

    Only keys begin <= t < end of the block count.
    """
    scores = row + STATE
    high = simd.splat(load_f32(row))
    for t in range(0, block_size, 16):
        score = simd.select_range(begin - t, end - t, simd.load(scores + t * 4), simd.splat(_LOWEST))
        high = simd.maximum(high, score)
    maximum = simd.max_lanes(high)
    total = simd.splat(0.0)
    for t in range(0, block_size, 16):
        weight = simd.exp(simd.sub(simd.load(scores + t * 4), simd.splat(maximum)))
        weight = simd.select_range(begin - t, end - t, weight, simd.splat(0.0))
        simd.store(scores + t * 4, weight)
        total = simd.add(total, weight)
    factor = simd.first_lane(simd.exp(simd.splat(load_f32(row) - maximum)))
    store_f32(row + 4, load_f32(row + 4) * factor + simd.sum_lanes(total))
    store_f32(row, maximum)
    return factor


def four_row_loops(cell: Cell) -> Any:
    """Scores and weighted values of one block for four rows at scratch `s`, `s + stride`, ..."""
    load, size = cell.load, cell.size

    @inline
    def scores(q0, q1, q2, q3, k, s, stride, head_dim, block_size):  # type: ignore[no-untyped-def]
        for t in range(0, block_size, 16):
            s0 = s1 = s2 = s3 = simd.splat(0.0)
            for d in range(head_dim):
                key = load(k + (d * block_size + t) * size)
                s0 = simd.fma(simd.splat(load_f32(q0 + d * 4)), key, s0)
                s1 = simd.fma(simd.splat(load_f32(q1 + d * 4)), key, s1)
                s2 = simd.fma(simd.splat(load_f32(q2 + d * 4)), key, s2)
                s3 = simd.fma(simd.splat(load_f32(q3 + d * 4)), key, s3)
            at = s + STATE + t * 4
            simd.store(at, s0)
            simd.store(at + stride, s1)
            simd.store(at + 2 * stride, s2)
            simd.store(at + 3 * stride, s3)

    @inline
    def values(v, s, stride, block_size, head_pad, begin, end, f0, f1, f2, f3):  # type: ignore[no-untyped-def]
        for d in range(0, head_pad, 16):
            at = s + STATE + (block_size + d) * 4
            a0 = simd.mul(simd.load(at), simd.splat(f0))
            a1 = simd.mul(simd.load(at + stride), simd.splat(f1))
            a2 = simd.mul(simd.load(at + 2 * stride), simd.splat(f2))
            a3 = simd.mul(simd.load(at + 3 * stride), simd.splat(f3))
            for t in range(begin, end):
                value = load(v + (t * head_pad + d) * size)
                w = s + STATE + t * 4
                a0 = simd.fma(simd.splat(load_f32(w)), value, a0)
                a1 = simd.fma(simd.splat(load_f32(w + stride)), value, a1)
                a2 = simd.fma(simd.splat(load_f32(w + 2 * stride)), value, a2)
                a3 = simd.fma(simd.splat(load_f32(w + 3 * stride)), value, a3)
            simd.store(at, a0)
            simd.store(at + stride, a1)
            simd.store(at + 2 * stride, a2)
            simd.store(at + 3 * stride, a3)

    return scores, values
