"""Inner loops of attention on lanes over one run of keys: scores, online softmax, weighted values, four rows at a time.

A row is one (token, query head) pair with its state (state.py); the scores of four rows are a line of CHUNK
float32 each, one after the other.
"""

from __future__ import annotations

from typing import Any

from server.device.attention_layout import CHUNK, SUMS, VALUES
from server.kernels.attention.cache_elements import CacheCell
from server.kernels.attention.state import LOWEST
from server.kernels.isa import simd
from server.kernels.isa.jit import inline
from server.kernels.isa.memory import load_f32, store_f32
from server.kernels.isa.softcap import softcap

LINE = CHUNK * 4  # bytes of one row's scores


def softmax(is_scaled: bool) -> Any:
    @inline
    def softmax_row(state, scores, width, begin, end, k_scales, v_scales, cap):  # type: ignore[no-untyped-def]
        """Scores of `width` keys to weights, in place; updates maximum and sums; returns the values' factor.

        Only keys begin <= t < end of the run count. A `cap` of 0 is none.
        """
        high = simd.splat(load_f32(state))
        for t in range(0, width, 16):
            score = simd.load(scores + t * 4)
            if is_scaled:
                score = simd.mul(score, simd.load(k_scales + t * 4))
            if cap != 0.0:
                score = softcap(score, cap)
            if is_scaled or cap != 0.0:
                simd.store(scores + t * 4, score)
            high = simd.larger(simd.select_range(begin - t, end - t, score, simd.splat(LOWEST)), high)
        maximum = simd.max_lanes(high)
        factor = simd.first_lane(simd.exp(simd.splat(load_f32(state) - maximum)))
        total = simd.mul(simd.load(state + SUMS), simd.splat(factor))
        for t in range(0, width, 16):
            weight = simd.exp(simd.sub(simd.load(scores + t * 4), simd.splat(maximum)))
            weight = simd.select_range(begin - t, end - t, weight, simd.splat(0.0))
            total = simd.add(total, weight)
            if is_scaled:
                scaled = simd.mul(weight, simd.load(v_scales + t * 4))
                weight = simd.select_range(begin - t, end - t, scaled, simd.splat(0.0))
            simd.store(scores + t * 4, weight)
        simd.store(state + SUMS, total)
        store_f32(state, maximum)
        return factor

    return softmax_row


def four_row_loops(cell: CacheCell) -> Any:
    """Scores and weighted values of one run for four rows, `stride` bytes of elements between rows of K or V."""
    load, size = cell.load, cell.size

    @inline
    def scores(q0, q1, q2, q3, k, stride, s, head_dim, width):  # type: ignore[no-untyped-def]
        for t in range(0, width, 16):
            s0 = s1 = s2 = s3 = simd.splat(0.0)
            for d in range(head_dim):
                key = load(k + d * stride + t * size)
                s0 = simd.fma(simd.splat(load_f32(q0 + d * 4)), key, s0)
                s1 = simd.fma(simd.splat(load_f32(q1 + d * 4)), key, s1)
                s2 = simd.fma(simd.splat(load_f32(q2 + d * 4)), key, s2)
                s3 = simd.fma(simd.splat(load_f32(q3 + d * 4)), key, s3)
            simd.store(s + t * 4, s0)
            simd.store(s + LINE + t * 4, s1)
            simd.store(s + 2 * LINE + t * 4, s2)
            simd.store(s + 3 * LINE + t * 4, s3)

    @inline
    def values(v, s, state, state_size, head_pad, begin, end, f0, f1, f2, f3):  # type: ignore[no-untyped-def]
        for d in range(0, head_pad, 16):
            at = state + VALUES + d * 4
            a0 = simd.mul(simd.load(at), simd.splat(f0))
            a1 = simd.mul(simd.load(at + state_size), simd.splat(f1))
            a2 = simd.mul(simd.load(at + 2 * state_size), simd.splat(f2))
            a3 = simd.mul(simd.load(at + 3 * state_size), simd.splat(f3))
            for t in range(begin, end):
                value = load(v + (t * head_pad + d) * size)
                w = s + t * 4
                a0 = simd.fma(simd.splat(load_f32(w)), value, a0)
                a1 = simd.fma(simd.splat(load_f32(w + LINE)), value, a1)
                a2 = simd.fma(simd.splat(load_f32(w + 2 * LINE)), value, a2)
                a3 = simd.fma(simd.splat(load_f32(w + 3 * LINE)), value, a3)
            simd.store(at, a0)
            simd.store(at + state_size, a1)
            simd.store(at + 2 * state_size, a2)
            simd.store(at + 3 * state_size, a3)

    return scores, values
