"""Online softmax between the two products of attention: scores of CHUNK keys to weights, in registers.

A row's sums are rescaled only when its maximum grows by more than _SLACK. Until then weights are at most e ** _SLACK,
which costs no precision; no row waits for its own maximum, and the branch is rarely taken and so well predicted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from ...device.attention_layout import CHUNK, SUMS, VALUES
from ..isa import int16_pairs, simd
from ..isa.jit import inline
from ..isa.memory import emitted, load_f32, store_f32
from ..isa.softcap import softcap
from .cache_elements import LEAST
from .state import LOWEST

LINE = CHUNK * 4  # bytes of one row's scores, or of the chunk's scales of K, which V's follow
WEIGHTS_SCALE = CHUNK * 2  # offset of the scale in a line of int16 weights
_MASKED = 2 * LOWEST
_SLACK = 5.0
_LOG2E = 1.4426950408889634
_SHIFT = 12583039.0  # 1.5 * 2 ** 23 + 127
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)


class Weights(NamedTuple):
    """How weights are computed and stored."""

    exp2: Any  # float32x16, at most 8 -> 2 ** x; NaN stays NaN
    store: Any  # (address, four float32x16)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    """Return the larger lanes in one instruction; NaN may be lost."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@emitted(types.boolean, *[simd.float32x16] * 5)
def _is_any_above(builder: Any, a: Any, b: Any, c: Any, d: Any, limit: Any) -> Any:
    """Return whether any lane of the first four exceeds the fifth."""
    value = _larger(builder, _larger(builder, a, b), _larger(builder, c, d))
    bits = builder.bitcast(builder.fcmp_ordered(">", value, limit), _I16)
    return builder.icmp_unsigned("!=", bits, ir.Constant(_I16, 0))


@emitted(types.float32, *[simd.float32x16] * 4)
def _largest(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the largest of all lanes."""
    value = _larger(builder, _larger(builder, a, b), _larger(builder, c, d))
    undefined = ir.Constant(_V, ir.Undefined)
    for width in (8, 4, 2, 1):
        order = ir.Constant(ir.VectorType(_I32, simd.LANES), [(i + width) % simd.LANES for i in range(simd.LANES)])
        value = _larger(builder, value, builder.shuffle_vector(value, undefined, order))
    return builder.extract_element(value, ir.Constant(_I32, 0))


@emitted(simd.float32x16, types.int64, simd.float32x16, simd.float32x16)
def _select_bits(builder: Any, bits: Any, inside: Any, outside: Any) -> Any:
    """Return lane i of `inside` if bit i is set, else of `outside`."""
    mask = builder.bitcast(builder.trunc(bits, _I16), ir.VectorType(ir.IntType(1), simd.LANES))
    return builder.select(mask, inside, outside)


@emitted(simd.float32x16, simd.float32x16)
def _power(builder: Any, shifted: Any) -> Any:
    """Return 2 ** n for whole numbers in -126..127 after adding _SHIFT, which leaves n + 127 in the lowest bits."""
    bits = builder.bitcast(shifted, ir.VectorType(_I32, simd.LANES))
    places = ir.Constant(bits.type, [23] * simd.LANES)
    return builder.bitcast(builder.shl(bits, places), _V)


@emitted(simd.float32x16, types.float32)
def _from(builder: Any, first: Any) -> Any:
    """Return `first`, `first` + 1 and so on."""
    one = builder.insert_element(ir.Constant(_V, ir.Undefined), first, ir.Constant(_I32, 0))
    order = ir.Constant(ir.VectorType(_I32, simd.LANES), [0] * simd.LANES)
    every = builder.shuffle_vector(one, ir.Constant(_V, ir.Undefined), order)
    return builder.fadd(every, ir.Constant(_V, [float(i) for i in range(simd.LANES)]))


@inline
def _exp2(x):  # type: ignore[no-untyped-def]
    """Return 2 ** x with a relative error of 2e-7; x below -126 counts as -126. NaN stays NaN.

    The polynomial has degree 5, is 1 at 0, and is nearest to 2 ** f on |f| <= 1/2.
    """
    x = simd.larger(simd.splat(-126.0), x)
    shifted = simd.add(x, simd.splat(_SHIFT))  # rounds to a whole number, ties to even
    f = simd.sub(x, simd.sub(shifted, simd.splat(_SHIFT)))
    p = simd.fma(simd.splat(0.001326472731307149), f, simd.splat(0.009671512991189957))
    p = simd.fma(p, f, simd.splat(0.05550733581185341))
    p = simd.fma(p, f, simd.splat(0.24022242426872253))
    p = simd.fma(p, f, simd.splat(0.6931470036506653))
    p = simd.fma(p, f, simd.splat(1.0))
    return simd.mul(p, _power(shifted))


@inline
def narrow_weights(at, limit, unit):  # type: ignore[no-untyped-def]
    """Convert a row's float32 weights to int16 in place, the largest to `limit`; their scale, times `unit`, follows.

    Its long chain is apart from the softmax so that hosts work on many rows at the same time.
    """
    a, b, c, d = simd.load(at), simd.load(at + 64), simd.load(at + 128), simd.load(at + 192)
    largest = simd.splat(_largest(a, b, c, d))
    by = simd.where_at_least(largest, simd.splat(LEAST), simd.div(simd.splat(limit), largest))
    int16_pairs.store_i16(at, simd.mul(a, by))
    int16_pairs.store_i16(at + 32, simd.mul(b, by))
    int16_pairs.store_i16(at + 64, simd.mul(c, by))
    int16_pairs.store_i16(at + 96, simd.mul(d, by))
    store_f32(at + WEIGHTS_SCALE, simd.first_lane(simd.mul(largest, simd.splat(unit / limit))))


IN_FLOAT32 = Weights(_exp2, simd.store_four)


@inline
def _raise_maximum(state, before, maximum, head_pad, exp2):  # type: ignore[no-untyped-def]
    """Rescale a row's sums to its new maximum, and return that."""
    by = exp2(simd.mul(simd.splat(before - maximum), simd.splat(_LOG2E)))
    for at in range(SUMS, VALUES + 4 * head_pad, 64):
        simd.store(state + at, simd.mul(simd.load(state + at), by))
    store_f32(state, maximum)
    return maximum


@inline
def _terms(a, b, c, d, cap, slope, bias, first):  # type: ignore[no-untyped-def]
    """Cap scores, and add what depends on the distance; see `softmax_row`."""
    if cap != 0.0:
        a, b, c, d = softcap(a, cap), softcap(b, cap), softcap(c, cap), softcap(d, cap)
    if slope != 0.0:  # keys lie `first`, `first` + 1 and so on tokens behind the query, so below 0
        by = simd.splat(slope)
        a, b = simd.fma(by, _from(first), a), simd.fma(by, _from(first + 16.0), b)
        c, d = simd.fma(by, _from(first + 32.0), c), simd.fma(by, _from(first + 48.0), d)
    if bias != 0:
        a, b = simd.add(a, simd.load(bias)), simd.add(b, simd.load(bias + 64))
        c, d = simd.add(c, simd.load(bias + 128)), simd.add(d, simd.load(bias + 192))
    return a, b, c, d


def _one_row(weights: Weights, is_scaled: bool, is_masked: bool) -> Any:
    exp2, store = weights

    @inline
    def row(state, s, to, seen, scales, head_pad, cap, slope, bias, first):  # type: ignore[no-untyped-def]
        a, b, c, d = simd.load(s), simd.load(s + 64), simd.load(s + 128), simd.load(s + 192)
        if is_scaled:
            a, b = simd.mul(a, simd.load(scales)), simd.mul(b, simd.load(scales + 64))
            c, d = simd.mul(c, simd.load(scales + 128)), simd.mul(d, simd.load(scales + 192))
        a, b, c, d = _terms(a, b, c, d, cap, slope, bias, first)
        if is_masked:
            lowest = simd.splat(_MASKED)
            a, b = _select_bits(seen, a, lowest), _select_bits(seen >> 16, b, lowest)
            c, d = _select_bits(seen >> 32, c, lowest), _select_bits(seen >> 48, d, lowest)
        maximum = load_f32(state)
        if _is_any_above(a, b, c, d, simd.splat(maximum + _SLACK)):
            maximum = _raise_maximum(state, maximum, _largest(a, b, c, d), head_pad, exp2)
        by, shift = simd.splat(_LOG2E), simd.mul(simd.splat(maximum), simd.splat(-_LOG2E))
        a, b = exp2(simd.fma(a, by, shift)), exp2(simd.fma(b, by, shift))
        c, d = exp2(simd.fma(c, by, shift)), exp2(simd.fma(d, by, shift))
        zero = simd.splat(0.0)
        if is_masked:
            a, b = _select_bits(seen, a, zero), _select_bits(seen >> 16, b, zero)
            c, d = _select_bits(seen >> 32, c, zero), _select_bits(seen >> 48, d, zero)
        total = simd.add(simd.add(a, b), simd.add(c, d))
        simd.store(state + SUMS, simd.add(simd.load(state + SUMS), total))
        if is_scaled:
            a, b = simd.mul(a, simd.load(scales + LINE)), simd.mul(b, simd.load(scales + LINE + 64))
            c, d = simd.mul(c, simd.load(scales + LINE + 128)), simd.mul(d, simd.load(scales + LINE + 192))
            if is_masked:
                a, b = _select_bits(seen, a, zero), _select_bits(seen >> 16, b, zero)
                c, d = _select_bits(seen >> 32, c, zero), _select_bits(seen >> 48, d, zero)
        store(to, a, b, c, d)

    return row


@inline
def _bits(count):  # type: ignore[no-untyped-def]
    """Return a mask of the lowest `count` bits of CHUNK."""
    if count >= CHUNK:
        return -1
    return (1 << max(count, 0)) - 1


def softmax(weights: Weights, is_scaled: bool) -> Any:
    masked_row, whole_row = _one_row(weights, is_scaled, True), _one_row(weights, is_scaled, False)

    @inline
    def softmax_row(state, s, to, begin, end, scales, head_pad, cap, slope, bias):  # type: ignore[no-untyped-def]
        """Turn one row's scores at `s` into weights at `to`, and update its maximum and its sums by lane.

        Only the keys begin <= t < end of the chunk count. The others get weight zero, whatever scores and scales lie
        there. A `cap` of 0 means none. A score loses `slope` for each token between its key and the last one; `bias` is
        the address of what is added to the chunk's scores, 0 for nothing.
        """
        first = 1.0 - end
        if begin <= 0 and end >= CHUNK:
            whole_row(state, s, to, -1, scales, head_pad, cap, slope, bias, first)
        else:
            masked_row(state, s, to, _bits(end) & ~_bits(begin), scales, head_pad, cap, slope, bias, first)

    return softmax_row
