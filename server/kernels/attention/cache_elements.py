"""The element types of a KV cache: how a head is encoded, and how sixteen elements become float32.

int8 and float8 (e4m3 held to +-240, the Neuron range) have one float32 scale for each token and kv head, kept behind
the block's elements; scores and weights are multiplied by it. No code below the smallest normal float8 is stored, as in
weights.

A value that is not finite is stored as zero and a key as NaN (its scale, in 8-bit caches). Whoever attends to that
token has a NaN score, and so a result that ends its request. A stale slot disturbs nobody: scores of keys that are not
seen are replaced, and their values, which are multiplied by a weight of zero, are finite.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from neuronserve.server.kernels.isa import instruction, memory, simd
from neuronserve.server.kernels.isa.access import READ, WRITE, pointer
from neuronserve.server.kernels.isa.jit import inline
from neuronserve.server.kernels.isa.memory import NOTHING, emitted, load_f32, store_f32

INT8_MAX, E4M3_MAX = 127.0, 240.0
_E4M3_BITS = 0x87F00000  # of a float32: a float8's sign, exponent and mantissa
LEAST = 1e-30  # a head of smaller numbers is stored as zeros, since the inverse of its scale may be infinite

_I8, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
_V, _VI, _VB = (ir.VectorType(t, simd.LANES) for t in (_F32, _I32, _I8))


def _all(value: int) -> Any:
    return ir.Constant(_VI, [value] * simd.LANES)


@emitted(simd.float32x16, types.int64)
def load_i8(builder: Any, address: Any) -> Any:
    """Sixteen int8 from memory."""
    codes = builder.load(pointer(builder, address, _VB, READ), align=1)
    return builder.sitofp(builder.sext(codes, _VI), _V)


@emitted(simd.float32x16, types.int64)
def load_e4m3(builder: Any, address: Any) -> Any:
    """Sixteen float8 from memory: a code's bits at float32's places are 2 ** 120 times too small."""
    codes = builder.sext(builder.load(pointer(builder, address, _VB, READ), align=1), _VI)
    bits = builder.and_(builder.shl(codes, _all(20)), _all(_E4M3_BITS))
    return builder.fmul(builder.bitcast(bits, _V), ir.Constant(_V, [2.0**120] * simd.LANES))


@emitted(types.void, types.int64, simd.float32x16)
def store_e4m3(builder: Any, address: Any, value: Any) -> Any:
    """Sixteen numbers in -240..240 to memory, rounded to nearest even."""
    bits = builder.bitcast(value, _VI)
    sign = builder.and_(builder.lshr(bits, _all(24)), _all(0x80))
    magnitude = builder.and_(bits, _all(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, _all(20)), _all(1))
    rounded = builder.lshr(builder.add(magnitude, builder.add(odd, _all(0x7FFFF))), _all(20))
    code = builder.sub(rounded, _all(120 << 3))
    is_normal = builder.icmp_signed(">=", code, _all(8))
    code = builder.select(is_normal, builder.or_(code, sign), _all(0))
    builder.store(builder.trunc(code, _VB), pointer(builder, address, _VB, WRITE), align=1)
    return NOTHING


@emitted(simd.float32x16, types.int64, types.int64)
def load_first(builder: Any, address: Any, count: Any) -> Any:
    """The first `count` of sixteen float32 from memory, zeros in the other lanes; what lies behind is not touched."""
    one = builder.insert_element(ir.Constant(_VI, ir.Undefined), builder.trunc(count, _I32), ir.Constant(_I32, 0))
    every = builder.shuffle_vector(one, ir.Constant(_VI, ir.Undefined), _all(0))
    mask = builder.icmp_signed("<", ir.Constant(_VI, list(range(simd.LANES))), every)
    place = pointer(builder, address, _V, READ, builder.mul(count, ir.Constant(ir.IntType(64), 4)))
    zeros = ir.Constant(_V, [0.0] * simd.LANES)
    return instruction.call(builder, "llvm.masked.load.v16f32.p0", _V, place, ir.Constant(_I32, 4), mask, zeros)


def _encoder(store: Any, size: int, limit: float, is_key: bool) -> Any:
    @inline
    def encode(head, head_dim):  # type: ignore[no-untyped-def]
        """A float32 head to elements in place, what is written lying behind what is still to be read; its scale."""
        zero = highest = strange = simd.splat(0.0)
        for i in range(0, head_dim, 16):
            value = load_first(head + i * 4, min(head_dim - i, simd.LANES))
            highest = simd.larger(simd.absolute(simd.finite(value)), highest)
            strange = simd.fma(simd.sub(value, simd.finite(value)), zero, strange)  # NaN where a value is not finite
        largest, inverse, scale, nan = simd.max_lanes(highest), 1.0, 1.0, 0.0
        if limit > 0.0:
            inverse, scale = 0.0, 0.0
            if largest > LEAST:
                inverse, scale = limit / largest, largest / limit
        if is_key:
            nan = simd.sum_lanes(strange)
        by, plus = simd.splat(inverse), zero
        if limit == 0.0:
            plus = simd.splat(nan)
        for i in range(0, head_dim, 16):
            value = simd.finite(load_first(head + i * 4, min(head_dim - i, simd.LANES)))
            store(head + i * size, simd.select_range(0, head_dim - i, simd.fma(value, by, plus), zero))
        return scale + nan

    return encode


def _encoder_f32(is_key: bool) -> Any:
    @inline
    def encode(head, head_dim):  # type: ignore[no-untyped-def]
        for i in range(head_dim):
            value = load_f32(head + i * 4)
            if not abs(value) < 3.38e38:
                store_f32(head + i * 4, math.nan if is_key else 0.0)
        return 1.0

    return encode


class CacheCell(NamedTuple):
    """How one element type is read and written."""

    size: int  # bytes
    load: Any  # address -> float32x16, without the scale
    encode_key: Any  # (head, head_dim) -> scale: float32 to elements, in place
    encode_value: Any  # the same for a head of V
    copy_one: Any  # (source, target)
    copy_two: Any  # (source, target): two neighbours
    is_scaled: bool
    direct_rows: int = 8  # of attention on lanes, for which elements are converted again and not kept in float32


def _encoders(store: Any, size: int, limit: float) -> tuple[Any, Any]:
    return _encoder(store, size, limit, True), _encoder(store, size, limit, False)


BFLOAT16 = CacheCell(
    2, simd.load_bf16, *_encoders(simd.store_bf16, 2, 0.0), memory.copy_2_bytes, memory.copy_4_bytes, False
)
FLOAT32 = CacheCell(4, simd.load, _encoder_f32(True), _encoder_f32(False), memory.copy_4_bytes, None, False)
INT8 = CacheCell(1, load_i8, *_encoders(simd.store_i8, 1, INT8_MAX), memory.copy_1_byte, memory.copy_2_bytes, True)
FLOAT8 = CacheCell(1, load_e4m3, *_encoders(store_e4m3, 1, E4M3_MAX), memory.copy_1_byte, memory.copy_2_bytes, True, 4)
