"""One step of an inner product on lanes: a 4-byte word of activations by sixteen columns of weights, into their sums.

A word is one float32, two bfloat16 or four int8 neighbours in k; a cache line of weights holds the same k of sixteen
columns. int32 sums travel as the bits of float32 lanes, so that one loop serves every format.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from server.kernels.isa import simd
from server.kernels.isa.access import READ, pointer
from server.kernels.isa.jit import inline
from server.kernels.isa.memory import emitted, load_f32

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)
_VI = ir.VectorType(_I32, simd.LANES)


def _word_and_line(builder: Any, word: Any, line: Any, flip: int = 0) -> tuple[Any, Any]:
    """The word, with the bits of `flip` inverted, in every lane, and the line, both as int32 lanes."""
    one = builder.load(pointer(builder, word, _I32, READ), align=2)
    if flip:
        one = builder.xor(one, ir.Constant(_I32, flip))
    first = builder.insert_element(ir.Constant(_VI, ir.Undefined), one, ir.Constant(_I32, 0))
    every = builder.shuffle_vector(first, ir.Constant(_VI, ir.Undefined), ir.Constant(_VI, [0] * simd.LANES))
    return every, builder.load(pointer(builder, line, _VI, READ), align=4)


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    function_type = ir.FunctionType(result, [v.type for v in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


class BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


@inline
def dot_f32(sums, word, line):  # type: ignore[no-untyped-def]
    """sums + a * w."""
    return simd.fma(simd.splat(load_f32(word)), simd.load(line), sums)


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_bf16_avx512(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """sums + a0 * w0 + a1 * w1 by VDPBF16PS."""
    element = ir.VectorType(BFloat(), 32)
    a, w = (builder.bitcast(x, element) for x in _word_and_line(builder, word, line))
    return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _V, sums, a, w)


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_bf16_portable(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """sums + a0 * w0 + a1 * w1, each product rounded once into the sum."""
    a, w = _word_and_line(builder, word, line)
    shift, mask = ir.Constant(_VI, [16] * simd.LANES), ir.Constant(_VI, [0xFFFF0000] * simd.LANES)
    even = [builder.bitcast(builder.shl(x, shift), _V) for x in (a, w)]
    odd = [builder.bitcast(builder.and_(x, mask), _V) for x in (a, w)]
    return _call(builder, "llvm.fma.v16f32", _V, *odd, _call(builder, "llvm.fma.v16f32", _V, *even, sums))


# Signed bytes to unsigned ones, 128 more, by their top bits: VPDPBUSD takes unsigned by signed.
_TOP_BITS = 0x80808080


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_i8_avx512(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """sums + sum of four (a + 128) * w by VPDPBUSD, in 512-bit registers."""
    a, w = _word_and_line(builder, word, line, flip=_TOP_BITS)
    total = builder.bitcast(sums, _VI)
    total = _call(builder, "llvm.x86.avx512.vpdpbusd.512", _VI, total, *_as_bytes(builder, a, w, 64))
    return builder.bitcast(total, _V)


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_i8_avx2(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """sums + sum of four (a + 128) * w by VPDPBUSD, in two 256-bit registers (AVX-VNNI)."""
    a, w = _word_and_line(builder, word, line, flip=_TOP_BITS)
    total, half = builder.bitcast(sums, _VI), ir.VectorType(_I32, 8)
    halves = []
    for part in range(2):
        order = ir.Constant(half, [8 * part + i for i in range(8)])
        c, x, y = (builder.shuffle_vector(v, ir.Constant(_VI, ir.Undefined), order) for v in (total, a, w))
        halves.append(_call(builder, "llvm.x86.avx512.vpdpbusd.256", half, c, *_as_bytes(builder, x, y, 32)))
    total = builder.shuffle_vector(*halves, ir.Constant(_VI, list(range(16))))
    return builder.bitcast(total, _V)


def _as_bytes(builder: Any, a: Any, w: Any, count: int) -> list[Any]:
    kind = ir.VectorType(ir.IntType(8), count)
    return [builder.bitcast(a, kind), builder.bitcast(w, kind)]


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_i8_portable(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """sums + sum of four a * w, in int32."""
    a, w = _word_and_line(builder, word, line)
    total = builder.bitcast(sums, _VI)
    for byte in range(4):
        up, down = ir.Constant(_VI, [24 - 8 * byte] * simd.LANES), ir.Constant(_VI, [24] * simd.LANES)
        x, y = (builder.ashr(builder.shl(v, up), down) for v in (a, w))
        total = builder.add(total, builder.mul(x, y))
    return builder.bitcast(total, _V)


@emitted(simd.float32x16, simd.float32x16, types.int64)
def int_sums(builder: Any, sums: Any, offsets: Any) -> Any:
    """int32 sums as float32, less 128 times the column sums at `offsets` (0 for none)."""
    total = builder.bitcast(sums, _VI)
    has_offsets = builder.icmp_signed("!=", offsets, ir.Constant(ir.IntType(64), 0))
    with builder.if_else(has_offsets) as (then, otherwise):
        with then:
            column = builder.load(pointer(builder, offsets, _VI, READ), align=4)
            less = builder.sub(total, builder.shl(column, ir.Constant(_VI, [7] * simd.LANES)))
            then_block = builder.block
        with otherwise:
            other_block = builder.block
    result = builder.phi(_VI)
    result.add_incoming(less, then_block)
    result.add_incoming(total, other_block)
    return builder.sitofp(result, _V)
