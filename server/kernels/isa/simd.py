"""Sixteen float32 lanes as a value inside kernels, on every CPU.

LLVM lowers the 16-lane vector to what the host has (one AVX-512 register, two AVX2, four NEON), so one source is
vectorized everywhere and each lane's order of operations is fixed by the source, not by an optimizer. bfloat16 lives in
memory only, as uint16; values are always float32. All addresses are int64 bytes; none needs alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from . import instruction
from .access import READ, WRITE, pointer
from .jit import inline
from .memory import NOTHING, emitted

LANES = 16

_F32, _I16, _I32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(_F32, LANES)
_VI = ir.VectorType(_I32, LANES)
_VH = ir.VectorType(_I16, LANES)
_VB = ir.VectorType(ir.IntType(8), LANES)


class Float32x16(types.Type):  # type: ignore[misc]
    """Numba's name for sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


float32x16 = Float32x16()


@register_model(Float32x16)
class _Float32x16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _V)


def _const(value: int) -> Any:
    return ir.Constant(_VI, [value] * LANES)


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_VI, [0] * LANES))


@emitted(float32x16, types.float32)
def splat(builder: Any, value: Any) -> Any:
    """Return the same value in every lane."""
    return _splat(builder, value, _V)


@emitted(float32x16, types.int64)
def load(builder: Any, address: Any) -> Any:
    """Load sixteen float32."""
    return builder.load(pointer(builder, address, _V, READ), align=4)


@emitted(types.void, types.int64, float32x16)
def store(builder: Any, address: Any, value: Any) -> Any:
    """Store sixteen float32."""
    builder.store(value, pointer(builder, address, _V, WRITE), align=4)
    return NOTHING


@inline
def store_four(address: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Store four vectors side by side."""
    store(address, a)
    store(address + 64, b)
    store(address + 128, c)
    store(address + 192, d)


@emitted(float32x16, types.int64)
def load_bf16(builder: Any, address: Any) -> Any:
    """Load sixteen bfloat16, exact in float32."""
    half = builder.load(pointer(builder, address, _VH, READ), align=2)
    return builder.bitcast(builder.shl(builder.zext(half, _VI), _const(16)), _V)


@emitted(float32x16, types.int64)
def load_i32(builder: Any, address: Any) -> Any:
    """Load sixteen int32 as float32."""
    return builder.sitofp(builder.load(pointer(builder, address, _VI, READ), align=4), _V)


@emitted(types.void, types.int64, float32x16)
def store_i8(builder: Any, address: Any, value: Any) -> Any:
    """Store sixteen values in -128..127 as the nearest int8, ties to even.

    Adding 1.5 * 2 ** 23 rounds, and leaves the whole number in the lowest bits.
    """
    shifted = builder.fadd(value, ir.Constant(_V, [12582912.0] * LANES))
    narrow = builder.trunc(builder.bitcast(shifted, _VI), _VB)
    builder.store(narrow, pointer(builder, address, _VB, WRITE), align=1)
    return NOTHING


@emitted(float32x16, float32x16)
def finite(builder: Any, value: Any) -> Any:
    """Return the value, or zero if it is NaN or too large for bfloat16."""
    limit = ir.Constant(_V, [3.38e38] * LANES)
    is_finite = builder.fcmp_ordered("<", instruction.call(builder, "llvm.fabs.v16f32", _V, value), limit)
    return builder.select(is_finite, value, ir.Constant(_V, [0.0] * LANES))


@emitted(float32x16, float32x16)
def absolute(builder: Any, value: Any) -> Any:
    """Return |value|."""
    return instruction.call(builder, "llvm.fabs.v16f32", _V, value)


def _round_to_bf16(builder: Any, value: Any) -> Any:
    """Round to nearest, ties to even; NaN stays NaN."""
    bits = builder.bitcast(value, _VI)
    odd = builder.and_(builder.lshr(bits, _const(16)), _const(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, _const(0x7FFF))), _const(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, _const(0x7FC0), rounded)


@emitted(types.void, types.int64, float32x16)
def store_bf16(builder: Any, address: Any, value: Any) -> Any:
    """Store sixteen bfloat16, rounded to nearest even."""
    half = builder.trunc(_round_to_bf16(builder, value), _VH)
    builder.store(half, pointer(builder, address, _VH, WRITE), align=2)
    return NOTHING


def _operation(name: str) -> Any:
    @emitted(float32x16, float32x16, float32x16)
    def operation(builder: Any, a: Any, b: Any) -> Any:
        """Return the sum, difference, product or quotient of a and b."""
        return getattr(builder, name)(a, b)

    return operation


add, sub, mul, div = map(_operation, ("fadd", "fsub", "fmul", "fdiv"))


@emitted(float32x16, float32x16, float32x16, float32x16)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once."""
    return instruction.call(builder, "llvm.fma.v16f32", _V, a, b, c)


@emitted(float32x16, float32x16, float32x16)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """Return the larger of each lane."""
    return instruction.call(builder, "llvm.maxnum.v16f32", _V, a, b)


@emitted(float32x16, float32x16, float32x16)
def larger(builder: Any, a: Any, b: Any) -> Any:
    """Return the larger of each lane, `b` if either is NaN: one instruction where `maximum` takes three."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@emitted(float32x16, float32x16, float32x16, float32x16)
def where_at_least(builder: Any, value: Any, limit: Any, inside: Any) -> Any:
    """Return `inside` if value >= limit, else 0."""
    return builder.select(builder.fcmp_ordered(">=", value, limit), inside, ir.Constant(_V, [0.0] * LANES))


@emitted(float32x16, float32x16, float32x16, float32x16, float32x16)
def add_where_at_least(builder: Any, total: Any, value: Any, limit: Any, more: Any) -> Any:
    """Return total + `more` if value >= limit, else the total."""
    return builder.select(builder.fcmp_ordered(">=", value, limit), builder.fadd(total, more), total)


@emitted(types.int64, float32x16, float32x16)
def bits_at_least(builder: Any, value: Any, limit: Any) -> Any:
    """Return bit i set if lane i of value >= limit."""
    bits = builder.bitcast(builder.fcmp_ordered(">=", value, limit), _I16)
    return builder.zext(bits, ir.IntType(64))


@emitted(types.int64, types.int64)
def count_bits(builder: Any, bits: Any) -> Any:
    """Return the number of set bits."""
    return builder.ctpop(bits)


@emitted(types.int64, types.int64)
def lowest_bit(builder: Any, bits: Any) -> Any:
    """Return the position of the lowest set bit; 64 if none is set."""
    return builder.cttz(bits, ir.Constant(ir.IntType(1), 0))


@emitted(types.void, types.int64, float32x16, types.int64)
def compress(builder: Any, address: Any, value: Any, bits: Any) -> Any:
    """Store the lanes whose bit is set side by side; the rest of the sixteen places is undefined."""
    mask = builder.bitcast(builder.trunc(bits, _I16), ir.VectorType(ir.IntType(1), LANES))
    side_by_side = instruction.call(builder, "llvm.experimental.vector.compress.v16f32", _V, value, mask, value)
    builder.store(side_by_side, pointer(builder, address, _V, WRITE), align=4)
    return NOTHING


@emitted(float32x16, types.int64, types.int64, float32x16, float32x16)
def select_range(builder: Any, begin: Any, end: Any, inside: Any, outside: Any) -> Any:
    """Return lane i of `inside` if begin <= i < end, else of `outside`."""
    lanes = ir.Constant(_VI, list(range(LANES)))
    low = _splat(builder, builder.trunc(begin, _I32), _VI)
    high = _splat(builder, builder.trunc(end, _I32), _VI)
    mask = builder.and_(builder.icmp_signed(">=", lanes, low), builder.icmp_signed("<", lanes, high))
    return builder.select(mask, inside, outside)


def _tree(builder: Any, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Reduce the lanes by halves (8 + 8, 4 + 4, ...), always in the same order."""
    width = LANES
    while width > 1:
        width //= 2
        mask = ir.Constant(_VI, [(i + width) % LANES for i in range(LANES)])
        value = combine(value, builder.shuffle_vector(value, ir.Constant(_V, ir.Undefined), mask))
    return builder.extract_element(value, ir.Constant(_I32, 0))


@emitted(types.float32, float32x16)
def first_lane(builder: Any, value: Any) -> Any:
    """Return lane 0."""
    return builder.extract_element(value, ir.Constant(_I32, 0))


@emitted(types.float32, float32x16)
def sum_lanes(builder: Any, value: Any) -> Any:
    """Return the sum of the lanes, in a fixed order."""
    return _tree(builder, value, builder.fadd)


@emitted(types.float32, float32x16)
def max_lanes(builder: Any, value: Any) -> Any:
    """Return the largest lane."""
    return _tree(builder, value, lambda a, b: instruction.call(builder, "llvm.maxnum.v16f32", _V, a, b))


@emitted(float32x16, float32x16)
def rint(builder: Any, value: Any) -> Any:
    """Round to the nearest whole number, ties to even."""
    return instruction.call(builder, "llvm.rint.v16f32", _V, value)


@emitted(float32x16, float32x16)
def exp2_int(builder: Any, value: Any) -> Any:
    """Return 2 ** value for lanes with whole numbers in -126..127."""
    exponent = builder.fptosi(value, _VI)
    return builder.bitcast(builder.shl(builder.add(exponent, _const(127)), _const(23)), _V)


@emitted(float32x16, float32x16, float32x16, float32x16)
def clamp(builder: Any, value: Any, low: Any, high: Any) -> Any:
    """Return the value limited to low..high; NaN stays NaN."""
    value = builder.select(builder.fcmp_ordered(">", low, value), low, value)
    return builder.select(builder.fcmp_ordered("<", high, value), high, value)


@inline
def exp(x: Any) -> Any:
    """Return e ** x to 2 units in the last place. x is limited to -87..88, so the result is never 0 or infinite.

    NaN stays NaN. Cody-Waite reduction by ln 2 in two parts, then the Taylor polynomial of degree 7 on |r| <= ln(2)/2.
    """
    x = clamp(x, splat(-87.0), splat(88.0))
    n = larger(rint(mul(x, splat(1.4426950408889634))), splat(-126.0))  # a number even if x is NaN
    r = fma(n, splat(-0.693359375), x)
    r = fma(n, splat(2.12194440e-4), r)
    p = fma(splat(1.0 / 5040.0), r, splat(1.0 / 720.0))
    p = fma(p, r, splat(1.0 / 120.0))
    p = fma(p, r, splat(1.0 / 24.0))
    p = fma(p, r, splat(1.0 / 6.0))
    p = fma(p, r, splat(0.5))
    p = fma(p, r, splat(1.0))
    p = fma(p, r, splat(1.0))
    return mul(p, exp2_int(n))
