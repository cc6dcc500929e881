"""8-bit weight codes on lanes, for formats with a scale for each group: the counterpart of nibbles.py.

A cache line has sixteen columns at four neighbours of k, as an int8 tile has. A code stands for its value plus 128, an
unsigned byte, which VPDPBUSD takes. int32 values travel as the bits of float32 lanes, as in dot_product.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from . import instruction, simd
from .access import READ, pointer
from .dot_product import every_word
from .jit import inline
from .memory import emitted
from .nibbles import by_register, pair_products, pair_sums

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)
_VI = ir.VectorType(_I32, simd.LANES)
_PAIRS = ir.VectorType(_I16, 32)
_BYTES = ir.VectorType(ir.IntType(8), 64)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


@inline
def unsigned_line(line):  # type: ignore[no-untyped-def]
    """Load a line as it is."""
    return simd.load(line)


@inline
def next_unsigned_line(line):  # type: ignore[no-untyped-def]
    """Load the line after it."""
    return simd.load(line + 64)


def _signed(offset: int) -> Any:
    @emitted(simd.float32x16, types.int64)
    def signed(builder: Any, line: Any) -> Any:
        """Load a line's codes as signed bytes of the values."""
        at = builder.add(line, ir.Constant(ir.IntType(64), offset))
        words = builder.load(pointer(builder, at, _VI, READ), align=4)
        return builder.bitcast(builder.xor(words, _all(_VI, 0x80808080)), _V)

    return signed


signed_line, next_signed_line = _signed(0), _signed(64)


@emitted(simd.float32x16, types.int64)
def first_sums(builder: Any, word: Any) -> Any:
    """Return sixteen times the int32 at `word`, which is -8 times a sum, in every lane: corrects codes by 128."""
    return builder.bitcast(builder.shl(every_word(builder, word), _all(_VI, 4)), _V)


@emitted(simd.float32x16, simd.float32x16)
def magnitudes(builder: Any, codes: Any) -> Any:
    """Return the magnitudes of signed codes, up to 128, as unsigned bytes."""
    codes, zero = builder.bitcast(codes, _BYTES), _all(_BYTES, 0)
    return builder.bitcast(builder.select(builder.icmp_signed("<", codes, zero), builder.sub(zero, codes), codes), _V)


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16, simd.float32x16)
def dot_magnitudes_avx2(builder: Any, sums: Any, word: Any, codes: Any, sizes: Any) -> Any:
    """Return sums + four signed codes times the four int8 at `word`, by VPMADDUBSW and VPMADDWD.

    `sizes` are the magnitudes of the codes. They are multiplied by activations with the codes' signs (VPSIGNB), which
    are at least -127: the sum of two products is at most 2 * 128 * 127.
    """

    def compute(c: Any, w: Any, size: Any, a: Any) -> Any:
        w, a = (builder.bitcast(each, ir.VectorType(ir.IntType(8), 32)) for each in (w, a))
        signed = instruction.call(builder, "llvm.x86.avx2.psign.b", a.type, a, w)
        return builder.add(c, pair_sums(builder, pair_products(builder, size, signed)))

    return by_register(builder, compute, sums, codes, sizes, every_word(builder, word))


@inline
def dot_signed_avx2(sums, word, codes):  # type: ignore[no-untyped-def]
    """Return the same of codes whose magnitudes are not known yet."""
    return dot_magnitudes_avx2(sums, word, codes, magnitudes(codes))


@inline
def dot_i8_avx2(sums, word, line):  # type: ignore[no-untyped-def]
    """Return the same of a line of signed codes in memory."""
    return dot_signed_avx2(sums, word, simd.load(line))


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def dot_signed_portable(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return sums + four signed codes times the four int8 at `word`, in int16 pairs.

    A pair holds two products: an activation is at least -127, so that the sum is at most 2 * 127 * 128.
    """
    w, a = builder.bitcast(codes, _PAIRS), builder.bitcast(every_word(builder, word), _PAIRS)
    eight = _all(_PAIRS, 8)
    even = builder.mul(*(builder.ashr(builder.shl(x, eight), eight) for x in (w, a)))
    odd = builder.mul(*(builder.ashr(x, eight) for x in (w, a)))
    both, half = builder.bitcast(builder.add(even, odd), _VI), _all(_VI, 16)
    total = builder.add(builder.ashr(builder.shl(both, half), half), builder.ashr(both, half))
    return builder.bitcast(builder.add(builder.bitcast(sums, _VI), total), _V)
