"""Sixteen lanes of two int16, which VPMADDWD multiplies by a pair and adds exactly to sixteen int32.

Pairs and int32 sums travel as the bits of float32 lanes, as in dot_product.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import instruction, simd, target
from .access import READ, WRITE, pointer
from .dot_product import add_pairs, every_word
from .memory import NOTHING, emitted

INT16_MAX = 32767

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_PAIRS = ir.VectorType(_I16, 2 * simd.LANES)
_V, _VI = ir.VectorType(ir.FloatType(), simd.LANES), ir.VectorType(_I32, simd.LANES)


def _every(value: int) -> Any:
    return ir.Constant(_PAIRS, [value] * _PAIRS.count)


@emitted(simd.float32x16, types.int64)
def load_i8(builder: Any, address: Any) -> Any:
    """Load sixteen pairs of int8."""
    codes = builder.load(pointer(builder, address, ir.VectorType(_I8, 2 * simd.LANES), READ), align=1)
    return builder.bitcast(builder.sext(codes, _PAIRS), _V)


@emitted(simd.float32x16, types.int64)
def load_e4m3(builder: Any, address: Any) -> Any:
    """Load sixteen pairs of float8 times 16: whole numbers to +-3840, cut off below 1 / 16."""
    codes = builder.load(pointer(builder, address, ir.VectorType(_I8, 2 * simd.LANES), READ), align=1)
    whole = builder.zext(codes, _PAIRS)
    zero, three, eight, fourteen, fifteen, top, one = (_every(n) for n in (0, 3, 8, 14, 15, 0x700, 0x800))
    significand = builder.or_(builder.and_(builder.shl(whole, eight), top), one)
    value = builder.lshr(significand, builder.and_(builder.sub(fourteen, builder.lshr(whole, three)), fifteen))
    is_negative = builder.icmp_signed("<", codes, ir.Constant(codes.type, [0] * 2 * simd.LANES))
    return builder.bitcast(builder.select(is_negative, builder.sub(zero, value), value), _V)


class Codes(NamedTuple):
    """How 8-bit elements become int16."""

    load: Any  # address -> sixteen pairs
    largest: int
    unit: float  # value of 1


INT8, FLOAT8 = Codes(load_i8, 127, 1.0), Codes(load_e4m3, 3840, 1 / 16)


@emitted(types.void, types.int64, simd.float32x16)
def store_i16(builder: Any, address: Any, value: Any) -> Any:
    """Store sixteen values in -32768..32767 as the nearest int16, ties to even; NaN is stored as an arbitrary number.

    Adding 1.5 * 2 ** 23 rounds, and leaves the whole number in the lowest bits.
    """
    shifted = builder.fadd(value, ir.Constant(_V, [12582912.0] * simd.LANES))
    narrow = builder.trunc(builder.bitcast(shifted, _VI), ir.VectorType(_I16, simd.LANES))
    builder.store(narrow, pointer(builder, address, narrow.type, WRITE), align=2)
    return NOTHING


def _plus(builder: Any, sums: Any, words: Any, pairs: Any, bits: int) -> Any:
    """Return the sums plus the products, in one instruction (VPDPWSSD) where the host has it."""
    if bits == 512 and target.compiled_features().get("avx512vnni", False):
        words, pairs = (builder.bitcast(x, _PAIRS) for x in (words, pairs))
        return instruction.call(builder, "llvm.x86.avx512.vpdpwssd.512", _VI, sums, words, pairs)
    return add_pairs(builder, sums, words, pairs, bits)


class Sums(NamedTuple):
    """int32 sums of `rows` rows by one or two vectors of pairs, as one value: of the first row, then the next."""

    zeros: Any  # () -> sums
    add: Any  # (sums, word, step, left, right) -> sums: plus the products of each row's two int16 with the pairs
    store: Any  # (sums, at, to_right, step, scale, scale_step): store them as float32, times a scale of each row
    accumulate: Any  # the same, added to what lies there


def sums_of(bits: int, rows: int, vectors: int) -> Sums:
    """Return sums in registers of `bits` bits: many keep the host's units busy. One vector ignores what is right."""
    kind = types.UniTuple(simd.float32x16, rows * vectors)

    @emitted(kind)
    def zeros(builder: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(_V, [0.0] * simd.LANES)] * (rows * vectors))

    @emitted(kind, kind, types.int64, types.int64, simd.float32x16, simd.float32x16)
    def add(builder: Any, sums: Any, word: Any, step: Any, *pairs: Any) -> Any:
        totals, columns = cgutils.unpack_tuple(builder, sums), [builder.bitcast(x, _VI) for x in pairs[:vectors]]
        for r in range(rows):
            words = every_word(builder, word)
            word = builder.add(word, step)
            for i, column in enumerate(columns, r * vectors):
                totals[i] = builder.bitcast(_plus(builder, builder.bitcast(totals[i], _VI), words, column, bits), _V)
        return cgutils.pack_array(builder, totals)

    def to_memory(is_added: bool) -> Any:
        @emitted(types.void, kind, *[types.int64] * 5)
        def write(builder: Any, sums: Any, at: Any, to_right: Any, step: Any, scale: Any, scale_step: Any) -> Any:
            totals = iter(cgutils.unpack_tuple(builder, sums))
            for _ in range(rows):
                by = builder.bitcast(every_word(builder, scale), _V)
                places = [at, builder.add(at, to_right)][:vectors]
                values = [builder.sitofp(builder.bitcast(next(totals), _VI), _V) for _ in places]
                if is_added:  # both are loaded first: they may be the same
                    before = [builder.load(pointer(builder, place, _V, READ), align=4) for place in places]
                    call = partial(instruction.call, builder, "llvm.fma.v16f32", _V)
                    values = [call(value, by, old) for value, old in zip(values, before, strict=True)]
                else:
                    values = [builder.fmul(value, by) for value in values]
                for place, value in zip(places, values, strict=True):
                    builder.store(value, pointer(builder, place, _V, WRITE), align=4)
                at, scale = builder.add(at, step), builder.add(scale, scale_step)
            return NOTHING

        return write

    return Sums(zeros, add, to_memory(False), to_memory(True))
