"""Online softmax between the two products of attention on the tile unit: scores of CHUNK keys to bfloat16 weights.

Hosts with a tile unit have AVX-512 with bfloat16, so instructions are named here that the rest of the kernels leave to
the compiler. Weights are rounded to bfloat16, so an exponential of 2e-6 relative error is exact enough.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from server.device.kernels import simd
from server.device.kernels.attention_items import ITEM
from server.device.kernels.attention_state import LOWEST, SUMS, VALUES, first_key, state_bytes
from server.device.kernels.dots import BFloat
from server.device.kernels.jit import inline
from server.device.kernels.memory import NOTHING, emitted, load_f32, load_i64, store_f32
from server.device.kernels.records import ATTENTION

CHUNK = 64  # keys whose scores a row holds in registers
SCALES_BYTES = 2 * CHUNK * 4  # float32 [CHUNK] of K, then of V
_MASKED = 2 * LOWEST
_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)
_HALVES = ir.VectorType(BFloat(), 2 * simd.LANES)


@emitted(simd.float32x16, simd.float32x16, simd.float32x16)
def _times_power(builder: Any, value: Any, power: Any) -> Any:
    """value * 2 ** floor(power): 0 and infinite where that leaves the range (VSCALEFPS)."""
    arguments = (value, power, value, ir.Constant(_I16, -1), ir.Constant(_I32, 4))
    return simd.call(builder, "llvm.x86.avx512.mask.scalef.ps.512", _V, *arguments)


@emitted(types.void, types.int64, simd.float32x16, simd.float32x16)
def _store_bf16_pair(builder: Any, address: Any, first: Any, second: Any) -> Any:
    """32 bfloat16 to memory, rounded to nearest even (VCVTNE2PS2BF16)."""
    halves = simd.call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", _HALVES, second, first)
    bits = builder.bitcast(halves, ir.VectorType(_I16, 2 * simd.LANES))
    builder.store(bits, builder.inttoptr(address, bits.type.as_pointer()), align=2)
    return NOTHING


@emitted(types.float32, *[simd.float32x16] * 4, types.float32)
def _largest(builder: Any, a: Any, b: Any, c: Any, d: Any, least: Any) -> Any:
    """Largest of all lanes and `least`; one instruction a step, which forgets NaN or keeps it as it comes."""

    def larger(x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", x, y), x, y)

    value, undefined = larger(larger(a, b), larger(c, d)), ir.Constant(_V, ir.Undefined)
    for width in (8, 4, 2, 1):
        order = ir.Constant(ir.VectorType(_I32, simd.LANES), [(i + width) % simd.LANES for i in range(simd.LANES)])
        value = larger(value, builder.shuffle_vector(value, undefined, order))
    return larger(builder.extract_element(value, ir.Constant(_I32, 0)), least)


@inline
def exp2(x):  # type: ignore[no-untyped-def]
    """2 ** x: the Taylor polynomial of degree 5 on the fraction, |f| <= 1/2; NaN stays NaN."""
    n = simd.rint(x)
    f = simd.sub(x, n)
    p = simd.fma(simd.splat(_LN2**5 / 120), f, simd.splat(_LN2**4 / 24))
    p = simd.fma(p, f, simd.splat(_LN2**3 / 6))
    p = simd.fma(p, f, simd.splat(_LN2**2 / 2))
    p = simd.fma(p, f, simd.splat(_LN2))
    return _times_power(simd.fma(p, f, simd.splat(1.0)), n)


@inline
def _raise_maximum(state, before, maximum, head_dim):  # type: ignore[no-untyped-def]
    """What the row has summed, to its new maximum."""
    by = exp2(simd.mul(simd.splat(before - maximum), simd.splat(_LOG2E)))
    for at in range(SUMS, VALUES + 4 * head_dim, 64):
        simd.store(state + at, simd.mul(simd.load(state + at), by))
    store_f32(state, maximum)


def _one_row(is_scaled: bool, is_masked: bool) -> Any:
    @inline
    def row(state, s, weights, begin, end, scales, head_dim):  # type: ignore[no-untyped-def]
        """One row's scores to weights; its sums by lane grow. A masked key's weight is exactly zero."""
        a, b, c, d = simd.load(s), simd.load(s + 64), simd.load(s + 128), simd.load(s + 192)
        if is_scaled:
            a, b = simd.mul(a, simd.load(scales)), simd.mul(b, simd.load(scales + 64))
            c, d = simd.mul(c, simd.load(scales + 128)), simd.mul(d, simd.load(scales + 192))
        if is_masked:
            lowest = simd.splat(_MASKED)
            a, b = simd.select_range(begin, end, a, lowest), simd.select_range(begin - 16, end - 16, b, lowest)
            c = simd.select_range(begin - 32, end - 32, c, lowest)
            d = simd.select_range(begin - 48, end - 48, d, lowest)
        before = load_f32(state)
        maximum = _largest(a, b, c, d, before)
        if maximum > before:
            _raise_maximum(state, before, maximum, head_dim)
        by, shift = simd.splat(_LOG2E), simd.mul(simd.splat(maximum), simd.splat(-_LOG2E))
        a, b = exp2(simd.fma(a, by, shift)), exp2(simd.fma(b, by, shift))
        c, d = exp2(simd.fma(c, by, shift)), exp2(simd.fma(d, by, shift))
        total = simd.add(simd.add(a, b), simd.add(c, d))
        simd.store(state + SUMS, simd.add(simd.load(state + SUMS), total))
        if is_scaled:
            a, b = simd.mul(a, simd.load(scales + 256)), simd.mul(b, simd.load(scales + 320))
            c, d = simd.mul(c, simd.load(scales + 384)), simd.mul(d, simd.load(scales + 448))
        _store_bf16_pair(weights, a, b)
        _store_bf16_pair(weights + 64, c, d)

    return row


def softmax_rows(is_scaled: bool) -> Any:
    masked_row, whole_row = _one_row(is_scaled, True), _one_row(is_scaled, False)

    @inline
    def softmax(item, first, base, states, s, weights, scales):  # type: ignore[no-untyped-def]
        """Up to 32 rows from row `first` of the item on, against CHUNK keys from `base` on."""
        op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
        window, head_dim = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.head_dim)
        size = state_bytes(head_dim)
        for r in range(min(32, load_i64(item + ITEM.rows) - first)):
            position = load_i64(item + ITEM.position) + (first + r) // group
            begin, end = first_key(position, window) - base, position - base + 1
            state, line, out = states + r * size, s + r * CHUNK * 4, weights + r * CHUNK * 2
            if begin <= 0 and end >= CHUNK:
                whole_row(state, line, out, begin, end, scales, head_dim)
            else:
                masked_row(state, line, out, begin, end, scales, head_dim)

    return softmax
