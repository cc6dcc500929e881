"""The products of attention on lanes over a run of keys: scores, and weighted values, four rows at a time.

A row is one (token, query head) pair with its state (state.py) and a line of CHUNK float32 scores (softmax.py). Where
an item has fewer than four rows left, the last is named again: of three it is then computed and stored twice; one and
two have loops of their own, but over float32 (two_rows.py).
"""

from __future__ import annotations

from typing import Any

from neuronserve.server.kernels.attention.cache_elements import FLOAT32, CacheCell
from neuronserve.server.kernels.attention.two_rows import two_row_loops
from neuronserve.server.kernels.isa import simd
from neuronserve.server.kernels.isa.jit import inline
from neuronserve.server.kernels.isa.memory import load_f32


def four_row_loops(cell: CacheCell) -> Any:
    """Scores and weighted values of one run for four rows, `stride` bytes of elements between rows of K or V."""
    load, size = cell.load, cell.size
    # Not where elements were made float32 before, for many rows: it would be compiled for a rest of them.
    has_loops_of_two = cell is not FLOAT32
    scores_of_two, values_of_two = two_row_loops(cell)

    @inline
    def scores(q0, q1, q2, q3, k, stride, s0, s1, s2, s3, head_dim, width):  # type: ignore[no-untyped-def]
        if has_loops_of_two and q1 == q2:
            scores_of_two(q0, q1, k, stride, s0, s1, head_dim, width)
            return
        for t in range(0, width, 16):
            a0 = a1 = a2 = a3 = simd.splat(0.0)
            for d in range(head_dim):
                key = load(k + d * stride + t * size)
                a0 = simd.fma(simd.splat(load_f32(q0 + d * 4)), key, a0)
                a1 = simd.fma(simd.splat(load_f32(q1 + d * 4)), key, a1)
                a2 = simd.fma(simd.splat(load_f32(q2 + d * 4)), key, a2)
                a3 = simd.fma(simd.splat(load_f32(q3 + d * 4)), key, a3)
            simd.store(s0 + t * 4, a0)
            simd.store(s1 + t * 4, a1)
            simd.store(s2 + t * 4, a2)
            simd.store(s3 + t * 4, a3)

    @inline
    def values(v, w0, w1, w2, w3, to0, to1, to2, to3, head_pad, width):  # type: ignore[no-untyped-def]
        if has_loops_of_two and w1 == w2:
            values_of_two(v, w0, w1, to0, to1, head_pad, width)
            return
        for d in range(0, head_pad * 4, 64):
            a0, a1, a2, a3 = simd.load(to0 + d), simd.load(to1 + d), simd.load(to2 + d), simd.load(to3 + d)
            for t in range(width):
                value = load(v + t * head_pad * size + d // 4 * size)
                a0 = simd.fma(simd.splat(load_f32(w0 + t * 4)), value, a0)
                a1 = simd.fma(simd.splat(load_f32(w1 + t * 4)), value, a1)
                a2 = simd.fma(simd.splat(load_f32(w2 + t * 4)), value, a2)
                a3 = simd.fma(simd.splat(load_f32(w3 + t * 4)), value, a3)
            simd.store(to0 + d, a0)
            simd.store(to1 + d, a1)
            simd.store(to2 + d, a2)
            simd.store(to3 + d, a3)

    return scores, values
