"""Element types of a KV cache: how a head is encoded, and how its elements become float32, or bfloat16 tiles.

int8 and float8 (e4m3 held to +-240, the Neuron range) have one float32 scale for each token and kv head, stored after
the block's elements; scores and weights are multiplied by it. As in weights, no code below the smallest normal float8
is stored.

A value that is not finite is stored as zero and a key as NaN (its scale, in 8-bit caches). A query that attends to the
token gets a NaN score, and the result ends its request. A stale slot affects no other request: scores of unseen keys
are replaced, and their values, which have weight zero, are finite.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from ..isa import instruction, memory, simd
from ..isa.access import READ, WRITE, pointer
from ..isa.jit import inline
from ..isa.memory import NOTHING, emitted, load_f32, store_f32
from ..matmul import weight_codes

INT8_MAX, E4M3_MAX = 127.0, 240.0
_E4M3_BITS = 0x87F00000  # places of a float8's sign, exponent and mantissa in a float32
LEAST = 1e-30  # a head of smaller numbers is stored as zeros, since the inverse of its scale could be infinite

_I8, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
_V, _VI, _VB = (ir.VectorType(t, simd.LANES) for t in (_F32, _I32, _I8))


def _all(value: int) -> Any:
    return ir.Constant(_VI, [value] * simd.LANES)


@emitted(simd.float32x16, types.int64)
def load_i8(builder: Any, address: Any) -> Any:
    """Load sixteen int8."""
    codes = builder.load(pointer(builder, address, _VB, READ), align=1)
    return builder.sitofp(builder.sext(codes, _VI), _V)


@emitted(simd.float32x16, types.int64)
def load_e4m3(builder: Any, address: Any) -> Any:
    """Load sixteen float8: the code's bits, at float32's places, are 2 ** 120 times too small."""
    codes = builder.sext(builder.load(pointer(builder, address, _VB, READ), align=1), _VI)
    bits = builder.and_(builder.shl(codes, _all(20)), _all(_E4M3_BITS))
    return builder.fmul(builder.bitcast(bits, _V), ir.Constant(_V, [2.0**120] * simd.LANES))


@emitted(types.void, types.int64, simd.float32x16)
def store_e4m3(builder: Any, address: Any, value: Any) -> Any:
    """Store sixteen numbers in -240..240, rounded to nearest even."""
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
    """Load the first `count` of sixteen float32, zeros in the other lanes; memory after them is not read."""
    one = builder.insert_element(ir.Constant(_VI, ir.Undefined), builder.trunc(count, _I32), ir.Constant(_I32, 0))
    every = builder.shuffle_vector(one, ir.Constant(_VI, ir.Undefined), _all(0))
    mask = builder.icmp_signed("<", ir.Constant(_VI, list(range(simd.LANES))), every)
    place = pointer(builder, address, _V, READ, builder.mul(count, ir.Constant(ir.IntType(64), 4)))
    zeros = ir.Constant(_V, [0.0] * simd.LANES)
    return instruction.call(builder, "llvm.masked.load.v16f32.p0", _V, place, ir.Constant(_I32, 4), mask, zeros)


def _encoder(store: Any, size: int, limit: float, is_key: bool) -> Any:
    @inline
    def encode(head, head_dim):  # type: ignore[no-untyped-def]
        """Encode a float32 head in place and return its scale. Writes never overtake reads."""
        zero = highest = strange = simd.splat(0.0)
        for i in range(0, head_dim, 16):
            value = load_first(head + i * 4, min(head_dim - i, simd.LANES))
            highest = simd.larger(simd.absolute(simd.finite(value)), highest)
            strange = simd.fma(simd.sub(value, simd.finite(value)), zero, strange)  # NaN if a value is not finite
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
    direct_rows: int = 8  # items with more rows convert a chunk to float32 once, in attention on lanes


def _encoders(store: Any, size: int, limit: float) -> tuple[Any, Any]:
    return _encoder(store, size, limit, True), _encoder(store, size, limit, False)


BFLOAT16 = CacheCell(
    2, simd.load_bf16, *_encoders(simd.store_bf16, 2, 0.0), memory.copy_2_bytes, memory.copy_4_bytes, False
)
FLOAT32 = CacheCell(4, simd.load, _encoder_f32(True), _encoder_f32(False), memory.copy_4_bytes, None, False)
INT8 = CacheCell(1, load_i8, *_encoders(simd.store_i8, 1, INT8_MAX), memory.copy_1_byte, memory.copy_2_bytes, True)
FLOAT8 = CacheCell(1, load_e4m3, *_encoders(store_e4m3, 1, E4M3_MAX), memory.copy_1_byte, memory.copy_2_bytes, True, 4)


_V_CODES, _V_HALVES = ir.VectorType(ir.IntType(8), 32), ir.VectorType(ir.IntType(16), 32)


def _tiles(convert: Any) -> Any:
    @emitted(types.void, types.int64, types.int64)
    def convert_line(builder: Any, codes: Any, halves: Any) -> Any:
        """Convert 32 codes to 32 bfloat16."""
        data = builder.load(pointer(builder, codes, _V_CODES, READ), align=1)
        builder.store(convert(builder, data), pointer(builder, halves, _V_HALVES, WRITE), align=2)
        return NOTHING

    @inline
    def convert_slice(k, v, offset, block_size, head_dim, k_to, v_to, scales):  # type: ignore[no-untyped-def]
        """Convert 32 keys at `offset` of a block: K to rows 256 bytes apart, V to rows of pairs, scales to `scales`."""
        for d in range(head_dim // 2):
            codes = k + (d * block_size + offset) * 2
            convert_line(codes, k_to + d * 256)
            convert_line(codes + 32, k_to + d * 256 + 64)
        for i in range(0, 32 * head_dim, 32):
            convert_line(v + offset * head_dim + i, v_to + i * 2)
        behind = head_dim * block_size + offset * 4
        for i in range(0, 128, 64):
            simd.store(scales + i, simd.load(k + behind + i))
            simd.store(scales + 256 + i, simd.load(v + behind + i))

    return convert_slice


tiles_of_int8 = _tiles(weight_codes.of_codes(weight_codes.halves_of_int8))
tiles_of_e4m3 = _tiles(weight_codes.of_codes(weight_codes.halves_of_float8(mantissa_bits=3, bias=7)))
