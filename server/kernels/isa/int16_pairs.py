"""Sixteen lanes of two int16, which VPMADDWD multiplies by a pair and adds exactly to sixteen int32.

Pairs and int32 sums travel as the bits of float32 lanes, as in dot_product.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from . import simd
from .access import READ, WRITE, pointer
from .dot_product import add_pairs, every_word
from .memory import NOTHING, emitted

INT16_MAX = 32767

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_V, _VI = ir.VectorType(ir.FloatType(), simd.LANES), ir.VectorType(_I32, simd.LANES)


@emitted(simd.float32x16, types.int64)
def load_i8(builder: Any, address: Any) -> Any:
    """Load sixteen pairs of int8."""
    codes = builder.load(pointer(builder, address, ir.VectorType(_I8, 2 * simd.LANES), READ), align=1)
    return builder.bitcast(builder.sext(codes, ir.VectorType(_I16, 2 * simd.LANES)), _V)


@emitted(types.void, types.int64, simd.float32x16)
def store_i16(builder: Any, address: Any, value: Any) -> Any:
    """Store sixteen values in -32768..32767 as the nearest int16, ties to even; NaN is stored as an arbitrary number.

    Adding 1.5 * 2 ** 23 rounds, and leaves the whole number in the lowest bits.
    """
    shifted = builder.fadd(value, ir.Constant(_V, [12582912.0] * simd.LANES))
    narrow = builder.trunc(builder.bitcast(shifted, _VI), ir.VectorType(_I16, simd.LANES))
    builder.store(narrow, pointer(builder, address, narrow.type, WRITE), align=2)
    return NOTHING


def _dot(bits: int) -> Any:
    @emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
    def dot(builder: Any, sums: Any, word: Any, pairs: Any) -> Any:
        """Add to the sums the products of the two int16 at `word` with those of each lane."""
        total, words = builder.bitcast(sums, _VI), every_word(builder, word)
        return builder.bitcast(add_pairs(builder, total, words, builder.bitcast(pairs, _VI), bits), _V)

    return dot


dot_avx2, dot_avx512 = _dot(256), _dot(512)
