"""Inner loops of a recurrence: one token's pass over the state of a block of value columns.

Lanes are columns and keys run in order, so each sum has one order. A pass updates the state, adds up the token's output
and, for the delta rule, what the state answers to the next token's key: one read and one write of the state a token.
The last token of a run has no next, and loads the block that follows instead; for the delta rule only its second half,
since the question for the first token's key has loaded the first, so that memory is always busy.
"""

from __future__ import annotations

from typing import Any, Literal

from ...device.state_layout import STATE_COLUMNS
from ..isa import simd
from ..isa.jit import inline
from ..isa.memory import load_f32, prefetch_to_l2

ROW = 4 * STATE_COLUMNS  # bytes of one key's state in a block of four vectors
ANSWER, DELTA = ROW, 2 * ROW  # in a block's working memory, which begins with the output
Next = Literal["answer", "load", "load half", "nothing"]  # what a pass does for the next token or block


@inline
def _load_row(block, i):  # type: ignore[no-untyped-def]
    """Load row `i` of a block to the second cache."""
    for line in range(0, ROW, 64):
        prefetch_to_l2(block + i * ROW + line)


@inline
def recall_four(state, key, key_dim, to, following):  # type: ignore[no-untyped-def]
    """Write k' state, and load the first half of the block that follows."""
    a0 = a1 = a2 = a3 = simd.splat(0.0)
    for i in range(key_dim):
        row, k = state + i * ROW, simd.splat(load_f32(key + i * 4))
        a0, a1 = simd.fma(simd.load(row), k, a0), simd.fma(simd.load(row + 64), k, a1)
        a2, a3 = simd.fma(simd.load(row + 128), k, a2), simd.fma(simd.load(row + 192), k, a3)
        if i % 2 == 0:
            _load_row(following, i // 2)
    simd.store_four(to, a0, a1, a2, a3)


@inline
def recall_one(state, key, key_dim, to, following):  # type: ignore[no-untyped-def]
    """Write k' state of one vector."""
    a = simd.splat(0.0)
    for i in range(key_dim):
        a = simd.fma(simd.load(state + i * 64), simd.splat(load_f32(key + i * 4)), a)
    simd.store(to, a)


@inline
def _updated(row, decay, k, delta):  # type: ignore[no-untyped-def]
    return simd.fma(k, delta, simd.mul(simd.load(row), decay))


def advance_four(then: Next) -> Any:
    """Return a token's pass over four vectors of columns; `following` is the next token's key, or the next block."""
    answers, loads, loads_half = then == "answer", then == "load", then == "load half"

    @inline
    def advance(source, to, key, query, following, decay, key_dim, work):  # type: ignore[no-untyped-def]
        by, delta = simd.splat(decay), work + DELTA
        d0, d1 = simd.load(delta), simd.load(delta + 64)
        d2, d3 = simd.load(delta + 128), simd.load(delta + 192)
        o0 = o1 = o2 = o3 = a0 = a1 = a2 = a3 = simd.splat(0.0)
        for i in range(key_dim):
            row, end = source + i * ROW, to + i * ROW
            k, q = simd.splat(load_f32(key + i * 4)), simd.splat(load_f32(query + i * 4))
            s0, s1 = _updated(row, by, k, d0), _updated(row + 64, by, k, d1)
            s2, s3 = _updated(row + 128, by, k, d2), _updated(row + 192, by, k, d3)
            simd.store_four(end, s0, s1, s2, s3)
            o0, o1, o2, o3 = simd.fma(s0, q, o0), simd.fma(s1, q, o1), simd.fma(s2, q, o2), simd.fma(s3, q, o3)
            if answers:
                n = simd.splat(load_f32(following + i * 4))
                a0, a1, a2, a3 = simd.fma(s0, n, a0), simd.fma(s1, n, a1), simd.fma(s2, n, a2), simd.fma(s3, n, a3)
            if loads:
                _load_row(following, i)
            if loads_half and i % 2 == 1:
                _load_row(following, (key_dim + i) // 2)
        simd.store_four(work, o0, o1, o2, o3)
        if answers:
            simd.store_four(work + ANSWER, a0, a1, a2, a3)

    return advance


def advance_one(then: Next) -> Any:
    """Return a token's pass over one vector of columns."""
    answers = then == "answer"

    @inline
    def advance(source, to, key, query, following, decay, key_dim, work):  # type: ignore[no-untyped-def]
        by, d = simd.splat(decay), simd.load(work + DELTA)
        o = a = simd.splat(0.0)
        for i in range(key_dim):
            s = _updated(source + i * 64, by, simd.splat(load_f32(key + i * 4)), d)
            simd.store(to + i * 64, s)
            o = simd.fma(s, simd.splat(load_f32(query + i * 4)), o)
            if answers:
                a = simd.fma(s, simd.splat(load_f32(following + i * 4)), a)
        simd.store(work, o)
        if answers:
            simd.store(work + ANSWER, a)

    return advance
