"""Candidate tokens of a row of logits, and the smallest weight that top-k or top-p keeps.

A row of 150,000 logits is read once. Later passes find candidates through the maxima of its blocks, and their weights
are written side by side. Nothing is sorted: a cut is found by testing four values at once, then again between the
nearest two, over fewer and fewer weights.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types

from ..isa import simd
from ..isa.jit import inline
from ..isa.memory import emitted, load_i64, store_i64

BLOCK = 256  # logits with one vector of maxima: lane i has the largest of those at i, i + 16, i + 32, ...
_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
_ONE_BITS = 0x3F800000  # float32 1.0: the weight of the most likely token
_FEW = 128  # weights that are not worth sifting


@emitted(types.float32, types.int64)
def _from_bits(builder: Any, bits: Any) -> Any:
    return builder.bitcast(builder.trunc(bits, ir.IntType(32)), ir.FloatType())


@emitted(types.int64, types.float32)
def _to_bits(builder: Any, value: Any) -> Any:
    return builder.zext(builder.bitcast(value, ir.IntType(32)), ir.IntType(64))


@inline
def survey(row, end, maxima):  # type: ignore[no-untyped-def]
    """Compute every block's maxima of `row` [end]; returns the largest logit, infinity if one is NaN or +infinity."""
    lowest, one = simd.splat(-math.inf), simd.splat(1.0)
    highest, numbers = lowest, simd.splat(0.0)
    for first in range(0, end, BLOCK):
        block = lowest
        for i in range(first, min(first + BLOCK, end), 16):
            value = simd.load(row + i * 4)
            block = simd.larger(value, block)
            numbers = simd.add_where_at_least(numbers, value, lowest, one)  # no comparison with NaN is true
        simd.store(maxima + first // 4, block)
        highest = simd.larger(block, highest)
    return simd.max_lanes(highest) if simd.sum_lanes(numbers) == end else math.inf


@inline
def first_of(row, end, maxima, value):  # type: ignore[no-untyped-def]
    """Return the index of the first logit that is at least `value`; -1 if none is."""
    limit = simd.splat(value)
    for first in range(0, end, BLOCK):
        if simd.bits_at_least(simd.load(maxima + first // 4), limit) != 0:
            for i in range(first, min(first + BLOCK, end), 16):
                bits = simd.bits_at_least(simd.load(row + i * 4), limit)
                if bits != 0:
                    return i + simd.lowest_bit(bits)
    return -1


@inline
def _weight(logit, highest, scale):  # type: ignore[no-untyped-def]
    """Return 2 ** ((logit - highest) * scale) to 2e-7, exactly 1 for the highest, 0 below 2 ** -126.

    The Taylor polynomial of degree 6 of 2 ** r on |r| <= 1/2.
    """
    power = simd.mul(simd.sub(logit, highest), scale)
    limit = simd.splat(-126.0)
    near = simd.larger(power, limit)
    n = simd.rint(near)
    r = simd.mul(simd.sub(near, n), simd.splat(_LN2))
    p = simd.fma(simd.splat(1.0 / 720.0), r, simd.splat(1.0 / 120.0))
    p = simd.fma(p, r, simd.splat(1.0 / 24.0))
    p = simd.fma(p, r, simd.splat(1.0 / 6.0))
    p = simd.fma(p, r, simd.splat(0.5))
    p = simd.fma(p, r, simd.splat(1.0))
    p = simd.fma(p, r, simd.splat(1.0))
    return simd.where_at_least(power, limit, simd.mul(p, simd.exp2_int(n)))


@inline
def weigh(maxima, end, highest, temperature, weights):  # type: ignore[no-untyped-def]
    """Compute the weights of a row's maxima; returns their number."""
    shift, scale = simd.splat(highest), simd.splat(_LOG2E / temperature)
    count = (end + BLOCK - 1) // BLOCK * 16
    for i in range(0, count, 16):
        simd.store(weights + i * 4, _weight(simd.load(maxima + i * 4), shift, scale))
    return count


@inline
def gather(row, end, maxima, highest, temperature, visit, keep, weights, starts):  # type: ignore[no-untyped-def]
    """Gather weights of at least `keep` in the row's order, then a vector of zeros.

    Only blocks with weights of at least `visit` are read; `starts` counts the gathered weights before each block.
    Returns the number of candidates and the total weight of the blocks read. A weight is e ** ((logit - highest) /
    temperature).
    """
    shift, scale = simd.splat(highest), simd.splat(_LOG2E / temperature)
    far, limit, total = simd.splat(visit), simd.splat(keep), simd.splat(0.0)
    count = 0
    for first in range(0, end, BLOCK):
        store_i64(starts + first // BLOCK * 8, count)
        if simd.bits_at_least(_weight(simd.load(maxima + first // 4), shift, scale), far) == 0:
            continue
        for i in range(first, min(first + BLOCK, end), 16):
            weight = _weight(simd.load(row + i * 4), shift, scale)
            total = simd.add(total, weight)
            bits = simd.bits_at_least(weight, limit)
            simd.compress(weights + count * 4, weight, bits)
            count += simd.count_bits(bits)
    simd.store(weights + count * 4, simd.splat(0.0))
    return count, simd.sum_lanes(total)


@inline
def token_of(candidate, row, end, highest, temperature, keep, starts):  # type: ignore[no-untyped-def]
    """Return the row's index of a candidate that was gathered with the same `keep`."""
    shift, scale, limit = simd.splat(highest), simd.splat(_LOG2E / temperature), simd.splat(keep)
    first = 0
    while first + BLOCK < end and load_i64(starts + (first // BLOCK + 1) * 8) <= candidate:
        first += BLOCK
    left = candidate - load_i64(starts + first // BLOCK * 8)
    for i in range(first, min(first + BLOCK, end), 16):
        bits = simd.bits_at_least(_weight(simd.load(row + i * 4), shift, scale), limit)
        if left < simd.count_bits(bits):
            for _ in range(left):
                bits &= bits - 1  # clears the lowest
            return i + simd.lowest_bit(bits)
        left -= simd.count_bits(bits)
    return -1


@inline
def _sift(weights, count, low, high, room):  # type: ignore[no-untyped-def]
    """Copy the weights in low <= w < high to `room`, which may overlap; returns their number."""
    least, most = simd.splat(low), simd.splat(high)
    kept = 0
    for i in range(0, count, 16):
        weight = simd.load(weights + i * 4)
        bits = simd.bits_at_least(weight, least) & ~simd.bits_at_least(weight, most)
        simd.compress(room + kept * 4, weight, bits)
        kept += simd.count_bits(bits)
    simd.store(room + kept * 4, simd.splat(0.0))
    return kept


@inline
def cut_for(weights, count, goal, of_mass, least, room):  # type: ignore[no-untyped-def]
    """Return the largest cut >= `least` such that the weights >= cut number `goal`, or have that mass; else `least`.

    Weights equal to the last one needed all stay. `weights` [count] in 0..1, followed by a vector of zeros, is not
    changed; `room` has the same size.
    """
    low, high = _to_bits(least), _ONE_BITS + 1
    above, beyond = (
        0.0,
        0.0,
    )  # totals of weights that were sifted out as too large, and of all weights that are at least `high`
    one = simd.splat(1.0)
    while high - low > 1 and count > 0:
        span = high - low - 1
        b0, b1, b2, b3 = low + 1, low + 1 + span // 4, low + 1 + span // 2, low + 1 + span * 3 // 4
        c0, c1 = simd.splat(_from_bits(b0)), simd.splat(_from_bits(b1))
        c2, c3 = simd.splat(_from_bits(b2)), simd.splat(_from_bits(b3))
        t0 = t1 = t2 = t3 = simd.splat(0.0)
        for i in range(0, count, 16):
            weight = simd.load(weights + i * 4)
            value = weight if of_mass else one
            t0 = simd.add_where_at_least(t0, weight, c0, value)
            t1 = simd.add_where_at_least(t1, weight, c1, value)
            t2 = simd.add_where_at_least(t2, weight, c2, value)
            t3 = simd.add_where_at_least(t3, weight, c3, value)
        s0, s1 = above + simd.sum_lanes(t0), above + simd.sum_lanes(t1)
        s2, s3 = above + simd.sum_lanes(t2), above + simd.sum_lanes(t3)
        if s3 >= goal:
            low = b3
        elif s2 >= goal:
            low, high, beyond = b2, b3, s3
        elif s1 >= goal:
            low, high, beyond = b1, b2, s2
        elif s0 >= goal:
            low, high, beyond = b0, b1, s1
        else:
            high, beyond = b0, s0
        if count > _FEW:
            count = _sift(weights, count, _from_bits(low), _from_bits(high), room)
            weights, above = room, beyond
    return _from_bits(low)
