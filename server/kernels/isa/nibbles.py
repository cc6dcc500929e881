"""4-bit weight codes on lanes: extracted from bytes, multiplied by int8 activations, and scaled group by group.

A cache line has sixteen columns at eight neighbours of k: byte b of a column holds k = b in its low half and k = 4 + b
in its high half, so that each half of the line is sixteen columns of a word of four, as in an int8 tile. int32 values
travel as the bits of float32 lanes, as in dot_product.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from . import instruction, simd
from .access import READ, pointer
from .dot_product import every_word
from .memory import emitted

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)
_VI = ir.VectorType(_I32, simd.LANES)
_BYTES = ir.VectorType(_I8, 64)
_PAIRS = ir.VectorType(_I16, 32)
_HALVES = ir.VectorType(_I16, simd.LANES)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _as_is(builder: Any, codes: Any) -> Any:
    """Return int4 codes as they are: a code is its value plus 8."""
    del builder
    return codes


def _doubled_e2m1(builder: Any, codes: Any) -> Any:
    """Return FP4 codes as twice their value plus 16; doubled values are 0 1 2 3 4 6 8 12 and their negatives."""
    size = builder.and_(codes, _all(_BYTES, 7))
    above = builder.select(
        builder.icmp_unsigned(">", size, _all(_BYTES, 4)), builder.sub(size, _all(_BYTES, 4)), _all(_BYTES, 0)
    )
    last = builder.select(builder.icmp_unsigned("==", size, _all(_BYTES, 7)), _all(_BYTES, 2), _all(_BYTES, 0))
    value = builder.add(builder.add(size, above), last)
    is_negative = builder.icmp_unsigned(">", codes, _all(_BYTES, 7))
    value = builder.select(is_negative, builder.sub(_all(_BYTES, 0), value), value)
    return builder.add(value, _all(_BYTES, 16))


_DOUBLED_E2M1 = (*(0, 1, 2, 3, 4, 6, 8, 12), *(0, -1, -2, -3, -4, -6, -8, -12))


def _doubled_e2m1_by_table(size: int, look_up: str) -> Callable[[Any, Any], Any]:
    """Return the same conversion by a table in a register of `size` bytes."""
    register = ir.VectorType(_I8, size)
    table = ir.Constant(register, [value + 16 for value in _DOUBLED_E2M1] * (size // 16))

    def of_codes(builder: Any, codes: Any) -> Any:
        parts = []
        for first in range(0, 64, size):
            order = ir.Constant(ir.VectorType(_I32, size), list(range(first, first + size)))
            part_codes = builder.shuffle_vector(codes, ir.Constant(_BYTES, ir.Undefined), order)
            parts.append(instruction.call(builder, look_up, register, table, part_codes))
        while len(parts) > 1:
            both = ir.VectorType(_I32, 2 * parts[0].type.count)
            order = ir.Constant(both, list(range(both.count)))
            parts = [builder.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return of_codes


def _half(shift: int, of_codes: Callable[[Any, Any], Any]) -> Any:
    @emitted(simd.float32x16, types.int64)
    def half(builder: Any, line: Any) -> Any:
        """Return one half of every byte of the line, as the unsigned bytes that `dot_u8` takes."""
        words = builder.load(pointer(builder, line, _VI, READ), align=4)
        if shift:
            words = builder.lshr(words, _all(_VI, shift))
        codes = builder.bitcast(builder.and_(words, _all(_VI, 0x0F0F0F0F)), _BYTES)
        return builder.bitcast(of_codes(builder, codes), _V)

    return half


low_int4, high_int4 = _half(0, _as_is), _half(4, _as_is)
low_e2m1, high_e2m1 = _half(0, _doubled_e2m1), _half(4, _doubled_e2m1)
_vpshufb, _tbl = (
    _doubled_e2m1_by_table(32, "llvm.x86.avx2.pshuf.b"),
    _doubled_e2m1_by_table(16, "llvm.aarch64.neon.tbl1.v16i8"),
)
low_e2m1_avx2, high_e2m1_avx2 = _half(0, _vpshufb), _half(4, _vpshufb)
low_e2m1_neon, high_e2m1_neon = _half(0, _tbl), _half(4, _tbl)


@emitted(simd.float32x16, types.int64)
def first_sums(builder: Any, word: Any) -> Any:
    """Return the int32 at `word` in every lane: the initial sums of a group."""
    return builder.bitcast(every_word(builder, word), _V)


@emitted(simd.float32x16, types.int64)
def first_sums_twice(builder: Any, word: Any) -> Any:
    """Return twice the int32 at `word` in every lane, for codes that are their value plus 16."""
    return builder.bitcast(builder.shl(every_word(builder, word), _all(_VI, 1)), _V)


@emitted(simd.float32x16, types.int64)
def no_sums(builder: Any, word: Any) -> Any:
    """Return zeros, for sums whose correction is added at the end."""
    return ir.Constant(_V, [0.0] * simd.LANES)


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def dot_u8_avx512_vnni(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return sums + four unsigned codes times the four int8 at `word`, by VPDPBUSD in 512-bit registers."""
    total, a = builder.bitcast(sums, _VI), builder.bitcast(every_word(builder, word), _BYTES)
    w = builder.bitcast(codes, _BYTES)
    return builder.bitcast(instruction.call(builder, "llvm.x86.avx512.vpdpbusd.512", _VI, total, w, a), _V)


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def dot_u8_avx2_vnni(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return the same in two 256-bit registers (AVX-VNNI)."""
    vectors = builder.bitcast(sums, _VI), builder.bitcast(codes, _VI), every_word(builder, word)
    half, kind, halves = ir.VectorType(_I32, 8), ir.VectorType(_I8, 32), []
    for part in range(2):
        order = ir.Constant(half, [8 * part + i for i in range(8)])
        c, w, a = (builder.shuffle_vector(v, ir.Constant(_VI, ir.Undefined), order) for v in vectors)
        w, a = builder.bitcast(w, kind), builder.bitcast(a, kind)
        halves.append(instruction.call(builder, "llvm.x86.avx512.vpdpbusd.256", half, c, w, a))
    return builder.bitcast(builder.shuffle_vector(*halves, ir.Constant(_VI, list(range(16)))), _V)


_HALF, _HALF_BYTES, _HALF_PAIRS = ir.VectorType(_I32, 8), ir.VectorType(_I8, 32), ir.VectorType(_I16, 16)


def by_register(builder: Any, compute: Callable[..., Any], *vectors: Any) -> Any:
    """Apply `compute` to each eight lanes of the vectors, and put the results side by side."""
    halves = []
    for part in range(2):
        order = ir.Constant(_HALF, [8 * part + i for i in range(8)])
        lanes = (builder.bitcast(each, _VI) for each in vectors)
        halves.append(compute(*(builder.shuffle_vector(v, ir.Constant(_VI, ir.Undefined), order) for v in lanes)))
    return builder.bitcast(builder.shuffle_vector(*halves, ir.Constant(_VI, list(range(16)))), _V)


def pair_products(builder: Any, codes: Any, word: Any) -> Any:
    """Multiply by VPMADDUBSW: sums of two products as int16, which hold those of codes up to 128."""
    codes, word = builder.bitcast(codes, _HALF_BYTES), builder.bitcast(word, _HALF_BYTES)
    return instruction.call(builder, "llvm.x86.avx2.pmadd.ub.sw", _HALF_PAIRS, codes, word)


def pair_sums(builder: Any, pairs: Any) -> Any:
    """Add two int16 to an int32 (VPMADDWD)."""
    ones = _all(_HALF_PAIRS, 1)
    return instruction.call(builder, "llvm.x86.avx2.pmadd.wd", _HALF, builder.bitcast(pairs, _HALF_PAIRS), ones)


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def dot_u8_avx2(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return the same by VPMADDUBSW and VPMADDWD, for codes up to 128."""

    def compute(c: Any, w: Any, a: Any) -> Any:
        return builder.add(c, pair_sums(builder, pair_products(builder, w, a)))

    return by_register(builder, compute, sums, codes, every_word(builder, word))


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def add_pairs_avx2(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return the same as int16 pairs, which hold the sums of a chunk of codes up to 15: 32767 >= 16 * 15 * 127."""

    def compute(c: Any, w: Any, a: Any) -> Any:
        added = builder.add(builder.bitcast(c, _HALF_PAIRS), pair_products(builder, w, a))
        return builder.bitcast(added, _HALF)

    return by_register(builder, compute, sums, codes, every_word(builder, word))


@emitted(simd.float32x16, simd.float32x16, types.int64)
def number_of_pairs_avx2(builder: Any, sums: Any, word: Any) -> Any:
    """Return the pairs' sums plus the int32 at `word`, as float32."""

    def compute(c: Any, first: Any) -> Any:
        return builder.add(pair_sums(builder, c), first)

    total = by_register(builder, compute, sums, every_word(builder, word))
    return builder.sitofp(builder.bitcast(total, _VI), _V)


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def dot_u8_portable(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return the same in int16 pairs, which hold two products of codes up to 31."""
    w, a = builder.bitcast(codes, _PAIRS), builder.bitcast(every_word(builder, word), _PAIRS)
    eight = _all(_PAIRS, 8)
    even = builder.mul(builder.and_(w, _all(_PAIRS, 0xFF)), builder.ashr(builder.shl(a, eight), eight))
    odd = builder.mul(builder.lshr(w, eight), builder.ashr(a, eight))
    both = builder.bitcast(builder.add(even, odd), _VI)
    left, right = builder.ashr(builder.shl(both, _all(_VI, 16)), _all(_VI, 16)), builder.ashr(both, _all(_VI, 16))
    return builder.bitcast(builder.add(builder.bitcast(sums, _VI), builder.add(left, right)), _V)


@emitted(simd.float32x16, types.int64)
def load_f16(builder: Any, address: Any) -> Any:
    """Load sixteen float16 by VCVTPH2PS."""
    halves = builder.load(pointer(builder, address, _HALVES, READ), align=2)
    return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), simd.LANES)), _V)


@emitted(simd.float32x16, types.int64)
def load_f16_portable(builder: Any, address: Any) -> Any:
    """Load sixteen finite float16 on any host: exponent and mantissa moved to float32's places, times 2 ** 112."""
    halves = builder.load(pointer(builder, address, _HALVES, READ), align=2)
    moved = builder.shl(builder.sext(halves, _VI), _all(_VI, 13))
    bits = builder.and_(moved, _all(_VI, 0x8FFFE000))
    return builder.fmul(builder.bitcast(bits, _V), ir.Constant(_V, [2.0**112] * simd.LANES))
