"""Online softmax between the two products of attention on the tile unit: scores of CHUNK keys to bfloat16 weights.

Weights are rounded to bfloat16, so an exponential of 8e-5 relative error is exact enough. What a row has summed is
rescaled only when its maximum grows by more than _SLACK: until then weights are at most e ** _SLACK, which costs no
precision, and a branch that is seldom taken is seldom guessed wrong.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from server.device.attention_layout import CHUNK, SUMS, VALUES
from server.kernels.attention.items import ITEM
from server.kernels.attention.state import LOWEST, first_key, state_bytes
from server.kernels.isa import simd
from server.kernels.isa.avx512 import exp2, select_bits, store_bf16_pair
from server.kernels.isa.jit import inline
from server.kernels.isa.memory import emitted, load_f32, load_i64, store_f32
from server.kernels.isa.softcap import softcap
from server.kernels.records import ATTENTION

_MASKED = 2 * LOWEST
_SLACK = 5.0
_LOG2E = 1.4426950408889634
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    """One instruction, which forgets NaN or keeps it as it comes."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@emitted(types.boolean, *[simd.float32x16] * 5)
def _is_any_above(builder: Any, a: Any, b: Any, c: Any, d: Any, limit: Any) -> Any:
    """Whether any lane of the first four is above the fifth."""
    value = _larger(builder, _larger(builder, a, b), _larger(builder, c, d))
    bits = builder.bitcast(builder.fcmp_ordered(">", value, limit), _I16)
    return builder.icmp_unsigned("!=", bits, ir.Constant(_I16, 0))


@emitted(types.float32, *[simd.float32x16] * 4)
def _largest(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Largest of all lanes."""
    value = _larger(builder, _larger(builder, a, b), _larger(builder, c, d))
    undefined = ir.Constant(_V, ir.Undefined)
    for width in (8, 4, 2, 1):
        order = ir.Constant(ir.VectorType(_I32, simd.LANES), [(i + width) % simd.LANES for i in range(simd.LANES)])
        value = _larger(builder, value, builder.shuffle_vector(value, undefined, order))
    return builder.extract_element(value, ir.Constant(_I32, 0))


@inline
def _raise_maximum(state, before, maximum, head_dim):  # type: ignore[no-untyped-def]
    """What the row has summed, to its new maximum, which is returned."""
    by = exp2(simd.mul(simd.splat(before - maximum), simd.splat(_LOG2E)))
    for at in range(SUMS, VALUES + 4 * head_dim, 64):
        simd.store(state + at, simd.mul(simd.load(state + at), by))
    store_f32(state, maximum)
    return maximum


def _one_row(is_scaled: bool, is_masked: bool) -> Any:
    @inline
    def row(state, s, weights, seen, scales, head_dim, cap):  # type: ignore[no-untyped-def]
        """One row's scores to weights; its sums by lane grow. The weight of a key whose bit is not set is zero."""
        a, b, c, d = simd.load(s), simd.load(s + 64), simd.load(s + 128), simd.load(s + 192)
        if is_scaled:
            a, b = simd.mul(a, simd.load(scales)), simd.mul(b, simd.load(scales + 64))
            c, d = simd.mul(c, simd.load(scales + 128)), simd.mul(d, simd.load(scales + 192))
        if cap != 0.0:
            a, b, c, d = softcap(a, cap), softcap(b, cap), softcap(c, cap), softcap(d, cap)
        if is_masked:
            lowest = simd.splat(_MASKED)
            a, b = select_bits(seen, a, lowest), select_bits(seen >> 16, b, lowest)
            c, d = select_bits(seen >> 32, c, lowest), select_bits(seen >> 48, d, lowest)
        maximum = load_f32(state)
        if _is_any_above(a, b, c, d, simd.splat(maximum + _SLACK)):
            maximum = _raise_maximum(state, maximum, _largest(a, b, c, d), head_dim)
        by, shift = simd.splat(_LOG2E), simd.mul(simd.splat(maximum), simd.splat(-_LOG2E))
        a, b = exp2(simd.fma(a, by, shift)), exp2(simd.fma(b, by, shift))
        c, d = exp2(simd.fma(c, by, shift)), exp2(simd.fma(d, by, shift))
        total = simd.add(simd.add(a, b), simd.add(c, d))
        simd.store(state + SUMS, simd.add(simd.load(state + SUMS), total))
        if is_scaled:
            a, b = simd.mul(a, simd.load(scales + 256)), simd.mul(b, simd.load(scales + 320))
            c, d = simd.mul(c, simd.load(scales + 384)), simd.mul(d, simd.load(scales + 448))
        store_bf16_pair(weights, a, b)
        store_bf16_pair(weights + 64, c, d)

    return row


@inline
def _bits(count):  # type: ignore[no-untyped-def]
    """The lowest `count` bits of CHUNK."""
    if count >= CHUNK:
        return -1
    return (1 << max(count, 0)) - 1


def softmax_rows(is_scaled: bool) -> Any:
    masked_row, whole_row = _one_row(is_scaled, True), _one_row(is_scaled, False)

    @inline
    def softmax(item, first, base, states, s, weights, scales):  # type: ignore[no-untyped-def]
        """Up to 32 rows from row `first` of the item on, against CHUNK keys from `base` on."""
        op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
        window, head_dim = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.head_dim)
        size, cap = state_bytes(head_dim), load_f32(op + ATTENTION.cap)
        position, head = load_i64(item + ITEM.position) + first // group, first % group
        for r in range(min(32, load_i64(item + ITEM.rows) - first)):
            state, line, out = states + r * size, s + r * CHUNK * 4, weights + r * CHUNK * 2
            begin, end = first_key(position, window) - base, position - base + 1
            if begin <= 0 and end >= CHUNK:
                whole_row(state, line, out, -1, scales, head_dim, cap)
            else:
                masked_row(state, line, out, _bits(end) & ~_bits(begin), scales, head_dim, cap)
            head += 1
            if head == group:
                position, head = position + 1, 0

    return softmax
