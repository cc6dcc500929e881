"""Products of attention on lanes over a run of keys: scores and weighted values, four or eight rows at a time.

A row is one (token, query head) pair with its state (state.py) and a line of CHUNK float32 scores (softmax.py). Where
an item has three rows left, the last is computed and stored twice. One row or two have loops of their own, except over
float32. Those take 32 keys, or 32 elements of a value, at a time: as many independent sums as four rows by sixteen
lanes. Two bfloat16 in a word become float32 by a shift and by a mask, one operation each: sums of even places and of
odd ones, which are put in order when they leave the registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from ..isa import simd
from ..isa.access import READ, pointer
from ..isa.jit import inline
from ..isa.memory import emitted, load_f32
from .cache_elements import FLOAT32, CacheCell
from .softmax import LINE

_V = ir.VectorType(ir.FloatType(), simd.LANES)
_VI = ir.VectorType(ir.IntType(32), simd.LANES)


class Halves(NamedTuple):
    """How 32 elements are loaded as two vectors of sixteen, in an order of their own, and put back in order."""

    load_left: Any  # address -> float32x16
    load_right: Any
    first: Any  # (left, right) -> float32x16: elements 0 to 15
    second: Any
    left: Any  # (first, second) -> float32x16
    right: Any


def _shuffle(lanes: list[int]) -> Any:
    @emitted(simd.float32x16, simd.float32x16, simd.float32x16)
    def shuffle(builder: Any, a: Any, b: Any) -> Any:
        """Select sixteen of the lanes of both."""
        return builder.shuffle_vector(a, b, ir.Constant(_VI, lanes))

    return shuffle


def _words(builder: Any, address: Any) -> Any:
    return builder.load(pointer(builder, address, _VI, READ), align=2)


@emitted(simd.float32x16, types.int64)
def _even_bf16(builder: Any, address: Any) -> Any:
    """Load the elements at even places of 32 bfloat16."""
    return builder.bitcast(builder.shl(_words(builder, address), ir.Constant(_VI, [16] * simd.LANES)), _V)


@emitted(simd.float32x16, types.int64)
def _odd_bf16(builder: Any, address: Any) -> Any:
    """Load the elements at odd places of 32 bfloat16."""
    return builder.bitcast(builder.and_(_words(builder, address), ir.Constant(_VI, [0xFFFF0000] * simd.LANES)), _V)


def _in_order(cell: CacheCell) -> Halves:
    load, behind = cell.load, simd.LANES * cell.size
    first, second = inline(lambda a, _: a), inline(lambda _, b: b)
    return Halves(load, inline(lambda at: load(at + behind)), first, second, first, second)


def _by_words() -> Halves:
    zipped = [lane for i in range(simd.LANES) for lane in (i, simd.LANES + i)]
    ends = _shuffle(zipped[: simd.LANES]), _shuffle(zipped[simd.LANES :])
    places = list(range(2 * simd.LANES))
    return Halves(_even_bf16, _odd_bf16, *ends, _shuffle(places[::2]), _shuffle(places[1::2]))


def _scores(cell: CacheCell, halves: Halves) -> Any:
    load_left, load_right, first, second, _, _ = halves
    load, size = cell.load, cell.size

    @inline
    def scores(q0, q1, k, stride, s0, s1, head_dim, width):  # type: ignore[no-untyped-def]
        whole = width // 32 * 32
        for t in range(0, whole, 32):
            a0 = a1 = b0 = b1 = simd.splat(0.0)
            for d in range(head_dim):
                at, x, y = k + d * stride + t * size, load_f32(q0 + d * 4), load_f32(q1 + d * 4)
                a, b = load_left(at), load_right(at)
                a0, b0 = simd.fma(simd.splat(x), a, a0), simd.fma(simd.splat(x), b, b0)
                a1, b1 = simd.fma(simd.splat(y), a, a1), simd.fma(simd.splat(y), b, b1)
            simd.store(s0 + t * 4, first(a0, b0))
            simd.store(s0 + t * 4 + 64, second(a0, b0))
            simd.store(s1 + t * 4, first(a1, b1))
            simd.store(s1 + t * 4 + 64, second(a1, b1))
        for t in range(whole, width, 16):
            a0 = a1 = simd.splat(0.0)
            for d in range(head_dim):
                key = load(k + d * stride + t * size)
                a0 = simd.fma(simd.splat(load_f32(q0 + d * 4)), key, a0)
                a1 = simd.fma(simd.splat(load_f32(q1 + d * 4)), key, a1)
            simd.store(s0 + t * 4, a0)
            simd.store(s1 + t * 4, a1)

    return scores


def _values(cell: CacheCell, halves: Halves) -> Any:
    load_left, load_right, first, second, left, right = halves
    load, size = cell.load, cell.size

    @inline
    def values(v, w0, w1, to0, to1, head_pad, width):  # type: ignore[no-untyped-def]
        whole = head_pad // 32 * 32
        for d in range(0, whole, 32):
            a0, b0 = simd.load(to0 + d * 4), simd.load(to0 + d * 4 + 64)
            a1, b1 = simd.load(to1 + d * 4), simd.load(to1 + d * 4 + 64)
            a0, b0, a1, b1 = left(a0, b0), right(a0, b0), left(a1, b1), right(a1, b1)
            for t in range(width):
                at, x, y = v + (t * head_pad + d) * size, load_f32(w0 + t * 4), load_f32(w1 + t * 4)
                a, b = load_left(at), load_right(at)
                a0, b0 = simd.fma(simd.splat(x), a, a0), simd.fma(simd.splat(x), b, b0)
                a1, b1 = simd.fma(simd.splat(y), a, a1), simd.fma(simd.splat(y), b, b1)
            simd.store(to0 + d * 4, first(a0, b0))
            simd.store(to0 + d * 4 + 64, second(a0, b0))
            simd.store(to1 + d * 4, first(a1, b1))
            simd.store(to1 + d * 4 + 64, second(a1, b1))
        for d in range(whole, head_pad, 16):
            a0, a1 = simd.load(to0 + d * 4), simd.load(to1 + d * 4)
            for t in range(width):
                value = load(v + (t * head_pad + d) * size)
                a0 = simd.fma(simd.splat(load_f32(w0 + t * 4)), value, a0)
                a1 = simd.fma(simd.splat(load_f32(w1 + t * 4)), value, a1)
            simd.store(to0 + d * 4, a0)
            simd.store(to1 + d * 4, a1)

    return values


def _two_row_loops(cell: CacheCell) -> Any:
    """Return scores and weighted values of one run for two rows, or one twice; runs and heads are multiples of 16."""
    halves = _by_words() if cell.size == 2 else _in_order(cell)
    return _scores(cell, halves), _values(cell, halves)


def four_row_loops(cell: CacheCell) -> Any:
    """Return scores and weighted values of one run for four rows; rows of K or V are `stride` bytes apart."""
    load, size = cell.load, cell.size
    # Items with many rows are converted to float32; for their few remaining rows the loops are not worth compiling.
    has_loops_of_two = cell is not FLOAT32
    scores_of_two, values_of_two = _two_row_loops(cell)

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


def eight_row_loops(cell: CacheCell) -> Any:
    """Return the same for eight rows, for hosts with 32 registers: four sums leave half of their FMA units waiting."""
    load, size = cell.load, cell.size

    @inline
    def scores(q, k, stride, s, head_dim, width):  # type: ignore[no-untyped-def]
        """Compute scores of the rows whose queries are at the addresses `q`; lines of scores follow each other."""
        for t in range(0, width, 16):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = simd.splat(0.0)
            for d in range(head_dim):
                key, at = load(k + d * stride + t * size), d * 4
                a0 = simd.fma(simd.splat(load_f32(q[0] + at)), key, a0)
                a1 = simd.fma(simd.splat(load_f32(q[1] + at)), key, a1)
                a2 = simd.fma(simd.splat(load_f32(q[2] + at)), key, a2)
                a3 = simd.fma(simd.splat(load_f32(q[3] + at)), key, a3)
                a4 = simd.fma(simd.splat(load_f32(q[4] + at)), key, a4)
                a5 = simd.fma(simd.splat(load_f32(q[5] + at)), key, a5)
                a6 = simd.fma(simd.splat(load_f32(q[6] + at)), key, a6)
                a7 = simd.fma(simd.splat(load_f32(q[7] + at)), key, a7)
            _store_eight(s + t * 4, LINE, (a0, a1, a2, a3, a4, a5, a6, a7))

    @inline
    def values(v, w, to, step, head_pad, width):  # type: ignore[no-untyped-def]
        """Add weighted values to rows `step` bytes apart; lines of weights follow each other."""
        for d in range(0, head_pad, 16):
            at = to + d * 4
            a0, a1, a2, a3 = simd.load(at), simd.load(at + step), simd.load(at + 2 * step), simd.load(at + 3 * step)
            at += 4 * step
            a4, a5, a6, a7 = simd.load(at), simd.load(at + step), simd.load(at + 2 * step), simd.load(at + 3 * step)
            for t in range(width):
                value, x = load(v + (t * head_pad + d) * size), w + t * 4
                a0 = simd.fma(simd.splat(load_f32(x)), value, a0)
                a1 = simd.fma(simd.splat(load_f32(x + LINE)), value, a1)
                a2 = simd.fma(simd.splat(load_f32(x + 2 * LINE)), value, a2)
                a3 = simd.fma(simd.splat(load_f32(x + 3 * LINE)), value, a3)
                a4 = simd.fma(simd.splat(load_f32(x + 4 * LINE)), value, a4)
                a5 = simd.fma(simd.splat(load_f32(x + 5 * LINE)), value, a5)
                a6 = simd.fma(simd.splat(load_f32(x + 6 * LINE)), value, a6)
                a7 = simd.fma(simd.splat(load_f32(x + 7 * LINE)), value, a7)
            _store_eight(to + d * 4, step, (a0, a1, a2, a3, a4, a5, a6, a7))

    return scores, values


@inline
def _store_eight(at, step, rows):  # type: ignore[no-untyped-def]
    for i in range(8):
        simd.store(at + i * step, rows[i])
