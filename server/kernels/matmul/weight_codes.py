"""8-bit weight codes to bfloat16: before all rows of a pair of column tiles, or tile by tile if rows are few.

Codes lie as int8 tiles do, [K/64][16 groups][16 n][4 k]; one row of a tile becomes two rows of bfloat16 pairs, so the
result is two tiles of [16 pairs][16 n][2]. Scales are applied to the sums, those of MXFP8 to the codes. Codes are
converted exactly. Except in MXFP8, codes below the smallest normal number of their format are zero, as a tile unit
would treat them (quantize.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from ..isa.access import READ, WRITE, pointer
from ..isa.jit import inline
from ..isa.memory import NOTHING, emitted

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_BYTES = ir.VectorType(_I8, 64)
_HALVES = ir.VectorType(_I16, 32)
_WORDS = ir.VectorType(_I32, 32)
_FLOATS = ir.VectorType(ir.FloatType(), 32)


def _all(value: int) -> Any:
    return ir.Constant(_HALVES, [value] * 32)


def halves_of_int8(builder: Any, high: Any) -> Any:
    """Convert int8 codes in the high bytes. Whole numbers up to 127 need 7 bits of mantissa, which bfloat16 has."""
    words = builder.bitcast(builder.sitofp(builder.ashr(high, _all(8)), _FLOATS), _WORDS)
    return builder.trunc(builder.lshr(words, ir.Constant(_WORDS, [16] * 32)), _HALVES)


def halves_of_float8(mantissa_bits: int, bias: int) -> Callable[[Any, Any], Any]:
    """Return the conversion of float8: move exponent and mantissa to bfloat16's places, and change the bias."""
    rebias = (127 - bias) << 7
    places = 0x8000 | 0x7F << (7 - mantissa_bits)
    exponent = 0x7F >> mantissa_bits << (8 + mantissa_bits)

    def convert(builder: Any, high: Any) -> Any:
        moved = builder.and_(builder.ashr(high, _all(1 + mantissa_bits)), _all(places))
        is_normal = builder.icmp_unsigned("!=", builder.and_(high, _all(exponent)), _all(0))
        return builder.select(is_normal, builder.add(moved, _all(rebias)), _all(0))

    return convert


def of_codes(convert: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the conversion of 32 adjacent codes."""

    def convert_codes(builder: Any, codes: Any) -> Any:
        return convert(builder, builder.shl(builder.zext(codes, _HALVES), _all(8)))

    return convert_codes


def _converter(convert: Callable[[Any, Any], Any]) -> Any:
    """Return the conversion of rows and tiles. `convert` receives each code in the high byte of a word.

    One instruction moves half a row's codes there.
    """

    @emitted(types.void, types.int64, types.int64)
    def convert_row(builder: Any, codes: Any, halves: Any) -> Any:
        """Convert 64 codes to 64 bfloat16."""
        data = builder.load(pointer(builder, codes, _BYTES, READ), align=1)
        zeros = ir.Constant(_BYTES, [0] * 64)
        for half in range(2):
            sources = [4 * n + 2 * half + i for n in range(16) for i in range(2)]
            order = ir.Constant(ir.VectorType(_I32, 64), [lane for source in sources for lane in (64, source)])
            high = builder.bitcast(builder.shuffle_vector(data, zeros, order), _HALVES)
            target = builder.add(halves, ir.Constant(ir.IntType(64), 64 * half))
            builder.store(convert(builder, high), pointer(builder, target, _HALVES, WRITE), align=2)
        return NOTHING

    @inline
    def convert_tiles(codes, halves, num_tiles):  # type: ignore[no-untyped-def]
        """Convert `num_tiles` tiles of 1 KiB to twice as many."""
        for row in range(num_tiles * 16):
            convert_row(codes + row * 64, halves + row * 128)

    return convert_tiles


@emitted(types.void, types.int64, types.int64, types.int64)
def _scale_row(builder: Any, codes: Any, scales: Any, halves: Any) -> Any:
    """Convert 64 e4m3 codes times sixteen bfloat16 scales, powers of two, to 64 bfloat16.

    A code's bits at float32's places are 2 ** 120 times too small, including subnormal ones.
    """
    data = builder.load(pointer(builder, codes, _BYTES, READ), align=1)
    by = builder.load(pointer(builder, scales, ir.VectorType(_I16, 16), READ), align=2)
    by = builder.shuffle_vector(by, by, ir.Constant(_WORDS, [n for n in range(16) for _ in range(2)]))
    by = builder.bitcast(builder.shl(builder.zext(by, _WORDS), ir.Constant(_WORDS, [16] * 32)), _FLOATS)
    for half in range(2):
        order = ir.Constant(_WORDS, [4 * n + 2 * half + i for n in range(16) for i in range(2)])
        words = builder.sext(builder.shuffle_vector(data, data, order), _WORDS)
        words = builder.shl(words, ir.Constant(_WORDS, [20] * 32))
        words = builder.and_(words, ir.Constant(_WORDS, [0x87F00000] * 32))
        values = builder.fmul(builder.bitcast(words, _FLOATS), ir.Constant(_FLOATS, [2.0**120] * 32))
        bits = builder.bitcast(builder.fmul(values, by), _WORDS)
        target = builder.add(halves, ir.Constant(ir.IntType(64), 64 * half))
        whole = builder.trunc(builder.lshr(bits, ir.Constant(_WORDS, [16] * 32)), _HALVES)
        builder.store(whole, pointer(builder, target, _HALVES, WRITE), align=2)
    return NOTHING


@inline
def from_mxfp8(codes, scales, halves, num_tiles):  # type: ignore[no-untyped-def]
    """Convert `num_tiles` tiles of 1 KiB, with scales for each half of one, to twice as many."""
    for row in range(num_tiles * 16):
        _scale_row(codes + row * 64, scales + row // 8 * 32, halves + row * 128)


from_int8 = _converter(halves_of_int8)
from_e4m3 = _converter(halves_of_float8(mantissa_bits=3, bias=7))
from_e5m2 = _converter(halves_of_float8(mantissa_bits=2, bias=15))
